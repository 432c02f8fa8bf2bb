"""The OpenAPI description of the server, made from the models that validate its requests. Pure functions.

A new route is a new row of `OPERATIONS`. What a field means is read from docstrings: those of its model, of
`CompletionRequest` and of `SamplingParams`.
"""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

import srb
from srb.engine.engine import EngineStats
from srb.engine.request import MAX_LOGPROBS, RANGES, CompletionRequest, SamplingParams
from srb.server.auth import HEADER, OPEN
from srb.server.body import Limits
from srb.server.fields import ALIASES, BranchFields, CompletionFields

Schema = dict[str, Any]

JSON = "application/json"
EVENTS = "text/event-stream"
REF = "#/components/schemas/"


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


STRING: Schema = {"type": "string"}
EVENT_STREAM: Schema = {
    "description": "lines `data: {...}` with the native events start, stream, stop, error and done, or with OpenAI's "
    "chunks and [DONE]",
}
INTEGER: Schema = {"type": "integer"}
OPTIONAL_STRING: Schema = {"type": ["string", "null"]}

ERROR = _object(error=_object(message=STRING, type=STRING, param=OPTIONAL_STRING, code=OPTIONAL_STRING))
CHOICE = _object(
    text=STRING,
    index=INTEGER,
    logprobs={"type": ["object", "null"]},
    finish_reason={"enum": ["stop", "length", "abort", "error"]},
)
COMPLETION = _object(
    id=STRING,
    object={"const": "text_completion"},
    created=INTEGER,
    model=STRING,
    choices=_list(CHOICE),
    usage=_object(prompt_tokens=INTEGER, completion_tokens=INTEGER, total_tokens=INTEGER),
)
MODEL = _object(id=STRING, object={"const": "model"}, created=INTEGER, owned_by=STRING)
REQUEST = _object(
    id=STRING,
    status={"enum": ["waiting", "running"]},
    age_seconds={"type": "number"},
    prompts=INTEGER,
    prompt_tokens=INTEGER,
    count=INTEGER,
    running=INTEGER,
)
HEALTH = _object(
    status=STRING,
    model=STRING,
    progress={"type": "number", "minimum": 0, "maximum": 1},
    running=INTEGER,
    waiting=INTEGER,
    **TypeAdapter(EngineStats).json_schema()["properties"],
)

ERRORS = {
    400: "malformed or out of range; the message gives the limit",
    401: "no API key, or a wrong one",
    404: "nothing like that is there",
    413: "the body is larger than the server reads",
    429: "as many requests wait as may (--max-queue), with Retry-After",
    500: "a fault of the server; the message has an id that is in its log",
    503: "the model is loading or the server is stopping, with Retry-After; or the engine has failed, without",
}

PARAMETERS = {
    "id": "the request's id, from the header X-Request-Id or the start event",
    "index": "the number of the alternative",
}


DEFAULTS = {
    each.name: list(each.default) if isinstance(each.default, tuple) else each.default
    for each in dataclasses.fields(SamplingParams)
}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A method of a path.

    body: the model that validates the request's body, if it has one.
    reply: the schema of each media type that a good answer may have. Without any it is a 204.
    errors: the statuses of bad answers, beside 500, and 401 where a key is needed.
    """

    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None
    reply: Mapping[str, Schema] = field(default_factory=dict)
    errors: tuple[int, ...] = ()


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/completions",
        summary="Go on with a prompt, in n alternatives: native events, OpenAI's chunks, or OpenAI's object",
        body=CompletionFields,
        reply={EVENTS: EVENT_STREAM, JSON: COMPLETION},
        errors=(400, 413, 429, 503),
    ),
    Operation(method="DELETE", path="/v1/completions/{id}", summary="End a request", errors=(404,)),
    Operation(
        method="DELETE",
        path="/v1/completions/{id}/choices/{index}",
        summary="End one alternative; its siblings run on",
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/requests",
        summary="What waits and what runs",
        reply={JSON: _object(object={"const": "list"}, data=_list(REQUEST))},
    ),
    Operation(method="GET", path="/metrics", summary="Measurements for Prometheus", reply={"text/plain": STRING}),
    Operation(
        method="GET",
        path="/v1/models",
        summary="The one model there is",
        reply={JSON: _object(object={"const": "list"}, data=_list(MODEL))},
        errors=(503,),
    ),
    Operation(
        method="GET",
        path="/health",
        summary="Whether requests are taken, and how many run",
        reply={JSON: HEALTH},
        errors=(503,),
    ),
    Operation(method="GET", path="/openapi.json", summary="This description", reply={JSON: {"type": "object"}}),
    Operation(method="GET", path="/", summary="The page: alternatives side by side", reply={"text/html": STRING}),
    Operation(method="GET", path="/docs", summary="This description as a page", reply={"text/html": STRING}),
)


def describe(limits: Limits, *, keyed: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document. keyed: whether requests need an API key."""
    schemas: dict[str, Schema] = {"Error": ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas, limits)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "srb",
            "version": srb.__version__,
            "description": "n alternatives of one prompt, streamed. Numbers may come as strings, and null is as "
            "good as absent. Fields that aren't described here are ignored, and reported.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                HEADER: {"type": "apiKey", "in": "header", "name": HEADER},
            },
        },
        "security": [{"bearer": []}, {HEADER: []}] if keyed else [],
    }


def _operation(operation: Operation, schemas: dict[str, Schema], limits: Limits) -> dict[str, Any]:
    """The operation object; the schema of its body goes into `schemas`."""
    is_open = operation.path in OPEN
    good = {
        "description": "it has worked",
        "content": {kind: {"schema": each} for kind, each in operation.reply.items()},
    }
    responses: dict[str, Any] = {"200": good} if operation.reply else {"204": {"description": "it has worked"}}
    for status in sorted({*operation.errors, 500, *(() if is_open else (401,))}):
        content = {JSON: {"schema": {"$ref": f"{REF}Error"}}}
        responses[str(status)] = {"description": ERRORS[status], "content": content}
    result: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if is_open:
        result["security"] = []
    if names := re.findall(r"\{(\w+)\}", operation.path):
        result["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": STRING, "description": PARAMETERS[name]}
            for name in names
        ]
    if operation.body:
        schemas |= _schemas(operation.body, limits)
        content = {JSON: {"schema": {"$ref": REF + operation.body.__name__}}}
        result["requestBody"] = {"required": True, "content": content}
    return result


def _schemas(model: type[BaseModel], limits: Limits) -> dict[str, Schema]:
    """The schemas of a model and of those that it refers to."""
    schema = model.model_json_schema(ref_template=REF + "{model}", schema_generator=_Described)
    schemas: dict[str, Schema] = schema.pop("$defs", {}) | {model.__name__: schema}
    for each in schemas.values():
        for name in {"n", "best_of"} & each["properties"].keys():
            each["properties"][name] |= {"minimum": 1, "maximum": limits.max_n}
    return schemas


class _Described(GenerateJsonSchema):
    """Adds to the schema of a model what pydantic doesn't know of its fields: meanings, ranges and defaults."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        result = super().model_schema(schema)
        model = schema["cls"]
        result["description"] = (model.__doc__ or "").partition("\n")[0]
        texts = descriptions(model)
        for name, known in result["properties"].items():
            aliases = [alias for alias, of in ALIASES.items() if of == name]
            also = f" Also: {', '.join(aliases)}." if aliases else ""
            known["description"] = texts.get(name, "") + also
            known.pop("title", None)
            known.pop("default", None)
            if DEFAULTS.get(name) not in (None, []) and model is not BranchFields:  # a branch has the request's own
                known["default"] = DEFAULTS[name]
            if name in RANGES:
                known["minimum"], known["maximum"] = RANGES[name]
            if name in ("logprobs", "n_probs"):
                known["minimum"], known["maximum"] = 0, MAX_LOGPROBS
        return result


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What each field of a model means, from lines such as `top_k, top_p: the meaning` in docstrings."""
    models = (each for each in reversed(model.__mro__) if issubclass(each, BaseModel))
    texts: dict[str, str] = {}
    for each in (SamplingParams, CompletionRequest, *models):
        for names, text in re.findall(
            r"^(\w+(?:, \w+)*): (.*(?:\n .*)*)", inspect.cleandoc(each.__doc__ or ""), re.MULTILINE
        ):
            texts |= dict.fromkeys(names.split(", "), " ".join(text.split()).replace("None:", "Left out:"))
    return texts
