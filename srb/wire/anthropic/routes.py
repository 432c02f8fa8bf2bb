"""Anthropic's routes."""

from functools import partial

from srb.wire.anthropic.messages import MessagesFields, count_tokens, error_json, parse_messages
from srb.wire.route import (
    EVENTS,
    INTEGER,
    OBJECT,
    STRING,
    ErrorFormat,
    GenerateHandler,
    JsonHandler,
    list_of,
    object_of,
    post,
)

_ERRORS = ErrorFormat(error_json, object_of(type={"const": "error"}, error=object_of(type=STRING, message=STRING)))
_MESSAGE = object_of(id=STRING, type={"const": "message"}, content=list_of(OBJECT))
_EVENTS = {EVENTS: {"description": "Anthropic's events, from message_start to message_stop"}}
_posts = partial(post, body=MessagesFields, error_format=_ERRORS)

ROUTES = (
    _posts("/v1/messages", GenerateHandler(parse_messages), _MESSAGE, other_schemas=_EVENTS),
    _posts("/v1/messages/count_tokens", JsonHandler(count_tokens), object_of(input_tokens=INTEGER)),
)
