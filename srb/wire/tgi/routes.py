"""The routes of Text Generation Inference."""

from functools import partial

from srb.wire.route import GENERATES, Errors, Generates, Route, Tells
from srb.wire.schemas import EVENTS, ONE_OR_MORE, STRING, object_of
from srb.wire.tgi.generate import TgiFields, error, generate, info

_ERRORS = Errors(error, object_of(error=STRING, error_type={"enum": ["validation", "overloaded", "generation"]}))
_STREAM = {EVENTS: {"description": "a token in each event"}}
_generates = partial(Route, "POST", body=TgiFields, others=_STREAM, error=_ERRORS, errors=GENERATES)

ROUTES = (
    _generates(
        "/generate",
        Generates(generate),
        "Go on with a prompt, as Text Generation Inference does",
        object_of(generated_text=STRING),
    ),
    _generates("/generate_stream", Generates(partial(generate, stream=True)), "The same, always as a stream"),
    _generates(
        "/",
        Generates(partial(generate, listed=True)),
        "The same as /generate, with an object alone in a list",
        ONE_OR_MORE,
    ),
    Route(
        "GET",
        "/info",
        Tells(info),
        "The model and its limits, as Text Generation Inference has them",
        object_of(model_id=STRING),
        errors=(503,),
    ),
)
