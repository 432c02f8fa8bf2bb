"""`Operation`, which describes a method of a path for the OpenAPI description, and the JSON schemas of answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

from srb.engine.telling.stats import EngineStats

Schema = dict[str, Any]

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
REF = "#/components/schemas/"


def object_of(**properties: Schema) -> Schema:
    """An object with at least these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


def list_of(items: Schema) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": items}


STRING: Schema = {"type": "string"}
EVENT_STREAM: Schema = {
    "description": "lines `data: {...}` with the native events start, stream, stop, error and done, each behind a line "
    "`id: N`, or with OpenAI's chunks and [DONE]",
}
TREE: Schema = {
    "description": "lines `data: {...}` with the native events start, node, error and done; a node has its `id`, "
    "the id of its `parent` (null: it goes on from the prompt), `text`, `tokens`, `logprob`, "
    "`cumulative_logprob`, `entropy` and `finish_reason`",
}
INTEGER: Schema = {"type": "integer"}
OPTIONAL_STRING: Schema = {"type": ["string", "null"]}

ERROR = object_of(error=object_of(message=STRING, type=STRING, param=OPTIONAL_STRING, code=OPTIONAL_STRING))
CHOICE = object_of(
    text=STRING,
    index=INTEGER,
    logprobs={"type": ["object", "null"]},
    finish_reason={"enum": ["stop", "length", "abort", "error"]},
)
COMPLETION = object_of(
    id=STRING,
    object={"const": "text_completion"},
    created=INTEGER,
    model=STRING,
    choices=list_of(CHOICE),
    usage=object_of(prompt_tokens=INTEGER, completion_tokens=INTEGER, total_tokens=INTEGER),
)
CHAT_CHOICE = object_of(
    index=INTEGER,
    message={"type": "object"},
    logprobs={"type": ["object", "null"]},
    finish_reason={"enum": ["stop", "length", "abort", "error"]},
)
CHAT_COMPLETION = object_of(
    id=STRING,
    object={"const": "chat.completion"},
    created=INTEGER,
    model=STRING,
    choices=list_of(CHAT_CHOICE),
    usage=object_of(prompt_tokens=INTEGER, completion_tokens=INTEGER, total_tokens=INTEGER),
)
ONE_OR_MORE: Schema = {"type": ["object", "array"]}
MODEL = object_of(id=STRING, object={"const": "model"}, created=INTEGER, owned_by=STRING, capabilities=list_of(STRING))
MODELS = object_of(object={"const": "list"}, data=list_of(MODEL))
TOKENS = object_of(tokens=list_of({"type": ["integer", "object"]}))
BOOLEAN: Schema = {"type": "boolean"}
RESULTS = object_of(results=list_of(object_of(text=STRING)))
COUNTED = object_of(value=INTEGER, ids=list_of(INTEGER))
COUNTED_CHAT = object_of(object={"const": "response.input_tokens"}, input_tokens=INTEGER)
ENCODED = object_of(tokens=list_of(INTEGER), length=INTEGER)
REQUEST = object_of(
    id=STRING,
    status={"enum": ["waiting", "running"]},
    age_seconds={"type": "number"},
    prompts=INTEGER,
    prompt_tokens=INTEGER,
    count=INTEGER,
    running=INTEGER,
)
STATE = object_of(
    id=STRING,
    object={"const": "srb.request"},
    status={"enum": ["waiting", "running", "finished"]},
    created=INTEGER,
    choices=list_of(
        object_of(
            index=INTEGER,
            label=OPTIONAL_STRING,
            seed=INTEGER,
            text=STRING,
            length=INTEGER,
            finish_reason={"enum": ["stop", "length", "abort", "error", None]},
            stop_reason=OPTIONAL_STRING,
        )
    ),
    usage={"type": ["object", "null"]},
    last_event_id=INTEGER,
)
HEALTH = object_of(
    status=STRING,
    model=STRING,
    progress={"type": "number", "minimum": 0, "maximum": 1},
    running=INTEGER,
    waiting=INTEGER,
    is_sleeping=BOOLEAN,
    **TypeAdapter(EngineStats).json_schema()["properties"],
)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A method of a path.

    body: the model that validates the request's body, if it has one.
    query: the parameters of the query, and the meaning of each.
    reply: the media types that a good answer may have, and the schema of each. Without any, a good answer is a 204.
    error: the schema of its errors, if it isn't `ERROR`.
    errors: the statuses of its errors, beside those that all operations of a kind have (describe.py).
    """

    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    reply: Mapping[str, Schema] = field(default_factory=dict)
    error: Schema | None = None
    errors: tuple[int, ...] = ()
