"""The routes of Anthropic."""

from functools import partial

from srb.wire.anthropic.messages import MessagesFields, count_tokens, error, messages
from srb.wire.reply import TYPED
from srb.wire.route import Errors, Generates, Tells, post
from srb.wire.schemas import EVENTS, INTEGER, OBJECT, STRING, list_of, object_of

_ERRORS = Errors(error, object_of(type={"const": "error"}, error=object_of(type=STRING, message=STRING)))
_MESSAGE = object_of(id=STRING, type={"const": "message"}, content=list_of(OBJECT))
_EVENTS = {EVENTS: {"description": "Anthropic's events, from message_start to message_stop"}}
_posts = partial(post, body=MessagesFields, error=_ERRORS)

ROUTES = (
    _posts("/v1/messages", Generates(messages, TYPED), _MESSAGE, others=_EVENTS),
    _posts("/v1/messages/count_tokens", Tells(count_tokens), object_of(input_tokens=INTEGER)),
)
