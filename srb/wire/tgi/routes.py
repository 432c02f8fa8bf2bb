"""The routes of Text Generation Inference."""

from functools import partial

from srb.wire.route import Errors, Generates, Tells, get, post
from srb.wire.schemas import EVENTS, ONE_OR_MORE, STRING, object_of
from srb.wire.tgi.generate import TgiFields, error, generate, info

_ERRORS = Errors(error, object_of(error=STRING, error_type={"enum": ["validation", "overloaded", "generation"]}))
_generates = partial(post, body=TgiFields, others={EVENTS: {"description": "a token in each event"}}, error=_ERRORS)
_stream, _listed = partial(generate, stream=True), partial(generate, listed=True)

ROUTES = (
    _generates("/generate", Generates(generate), object_of(generated_text=STRING)),
    _generates("/generate_stream", Generates(_stream), says="The same, always as a stream"),
    _generates("/", Generates(_listed), ONE_OR_MORE, says="The same as /generate, with an object alone in a list"),
    get("/info", Tells(info), object_of(model_id=STRING)),
)
