"""The routes of Anthropic."""

from functools import partial

from srb.wire.anthropic.messages import MessagesFields, count_tokens, error, messages
from srb.wire.reply.frames import TYPED
from srb.wire.route import GENERATES, READS, Errors, Generates, Route, Tells
from srb.wire.schemas import EVENTS, INTEGER, OBJECT, STRING, list_of, object_of

_ERRORS = Errors(error, object_of(type={"const": "error"}, error=object_of(type=STRING, message=STRING)))
_posts = partial(Route, "POST", body=MessagesFields, error=_ERRORS)

ROUTES = (
    _posts(
        "/v1/messages",
        Generates(messages, TYPED),
        "Continue a conversation, as Anthropic does: a message, or events",
        object_of(id=STRING, type={"const": "message"}, content=list_of(OBJECT)),
        others={EVENTS: {"description": "Anthropic's events, from message_start to message_stop"}},
        errors=GENERATES,
    ),
    _posts(
        "/v1/messages/count_tokens",
        Tells(count_tokens),
        "How many tokens the prompt of such a conversation has",
        object_of(input_tokens=INTEGER),
        errors=READS,
    ),
)
