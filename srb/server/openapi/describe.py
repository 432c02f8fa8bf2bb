"""Makes the OpenAPI description of the server from the models that validate its requests. Pure functions.

A new route needs a new row in operations.py. The meaning of a field stands with the field, where `descriptions` finds
it.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

import srb
from srb.engine.asking.request import EXPLORE_RANGES, MAX_LOGPROBS, Explore
from srb.engine.asking.sampling_params import RANGES
from srb.server.guards.auth import HEADER, OPEN
from srb.server.openapi.operations import OPERATIONS
from srb.server.openapi.schemas import ERROR, JSON, REF, STRING, Operation, Schema
from srb.server.routes.formats import VENDORS
from srb.wire.limits import Limits
from srb.wire.native.explore import ExploreFields
from srb.wire.request.body_fields import ALIASES
from srb.wire.request.completion_fields import BranchFields
from srb.wire.request.fields import DEFAULTS, descriptions
from srb.wire.route import OWN_ERRORS, Route

ERRORS = {
    400: "malformed or out of range; the message gives the limit",
    401: "no API key, or a wrong one",
    403: "a web page of an origin that isn't allowed (--cors-origins)",
    404: "nothing like that is there",
    410: "the request has finished, and is no longer kept (--keep-finished, --keep-bytes)",
    413: "the body is larger than the server reads",
    415: "the body is compressed",
    421: "the server doesn't answer under the name in Host (--allowed-hosts)",
    429: "as many requests wait as may (--max-queue), with Retry-After",
    500: "a fault of the server; the message has an id that is in its log",
    501: "the model can't do it, or the server was started without it",
    503: "the model is loading or the server is stopping, with Retry-After; or the engine has failed, without",
}

_EXPLORE = dataclasses.asdict(Explore())

PARAMETERS = {
    "id": "the request's id, from the header X-Request-Id or the start event; or the model's",
    "index": "the number of the alternative",
    "id_slot": "the slot's number, from 0 to `--parallel` - 1",
    "story": "the story's id",
    "node": "the node's number in its story",
}


def describe(limits: Limits, *, keyed: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document. keyed: whether requests need an API key."""
    schemas: dict[str, Schema] = {"Error": ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for operation in (*OPERATIONS, *(each for route in VENDORS for each in operations_of(route))):
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


def operations_of(route: Route) -> Iterator[Operation]:
    """A route as operations, one for each path."""
    for path in route.paths:
        if path.endswith("/") and path != "/":
            continue
        yield Operation(
            method=route.method,
            path=re.sub(r"\{(\w+):(?:[^{}]|\{[^{}]*\})+\}", r"{\1}", path),
            summary=route.also_says if path != route.path and route.also_says else route.summary,
            body=route.body,
            query=route.query,
            reply={**route.others, **({JSON: route.reply} if route.reply else {})},
            error=None if route.error is OWN_ERRORS else route.error.schema,
            errors=route.errors,
        )


def _operation(operation: Operation, schemas: dict[str, Schema], limits: Limits) -> dict[str, Any]:
    """The operation object. The schema of its body is put into `schemas`."""
    is_open = operation.method == "GET" and operation.path in OPEN
    good = {
        "description": "it has worked",
        "content": {kind: {"schema": each} for kind, each in operation.reply.items()},
    }
    responses: dict[str, Any] = {"200": good} if operation.reply else {"204": {"description": "it has worked"}}
    for status in sorted({*operation.errors, *_common_errors(operation)}):
        content = {JSON: {"schema": operation.error or {"$ref": f"{REF}Error"}}}
        responses[str(status)] = {"description": ERRORS[status], "content": content}
    result: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if is_open:
        result["security"] = []
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": STRING, "description": PARAMETERS[name]}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ] + [
        {"name": name, "in": "query", "schema": STRING, "description": meaning}
        for name, meaning in operation.query.items()
    ]
    if parameters:
        result["parameters"] = parameters
    if operation.body:
        if operation.body.__name__ not in schemas:
            schemas |= _schemas(operation.body, limits)
        content = {JSON: {"schema": {"$ref": REF + operation.body.__name__}}}
        result["requestBody"] = {"required": True, "content": content}
    return result


def _common_errors(operation: Operation) -> Iterator[int]:
    """The statuses of errors that the table of operations leaves out, because all operations of a kind have them."""
    yield from (421, 500)
    if operation.method != "GET" or operation.path not in OPEN:
        yield 401
    if operation.method != "GET":
        yield 403
    if operation.body:
        yield 415


def _schemas(model: type[BaseModel], limits: Limits) -> dict[str, Schema]:
    """The schemas of a model and of the models that it refers to."""
    schema = model.model_json_schema(ref_template=REF + "{model}", schema_generator=_Described)
    schemas: dict[str, Schema] = schema.pop("$defs", {}) | {model.__name__: schema}
    for each in schemas.values():
        for name in {"n", "best_of"} & each.get("properties", {}).keys():
            each["properties"][name] |= {"minimum": 1, "maximum": limits.max_n}
    return schemas


class _Described(GenerateJsonSchema):
    """Adds to the schema of a model what pydantic doesn't know of its fields: their meanings, ranges and defaults."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        result = super().model_schema(schema)
        model = schema["cls"]
        result["description"] = (model.__doc__ or "").partition("\n")[0]
        texts = descriptions(model)
        ranges, defaults = (EXPLORE_RANGES, _EXPLORE) if model is ExploreFields else (RANGES, DEFAULTS)
        for name, known in result.get("properties", {}).items():
            aliases = [alias for alias, of in ALIASES.items() if of == name]
            also = f" Also: {', '.join(aliases)}." if aliases else ""
            known["description"] = texts.get(name, "") + also
            known.pop("title", None)
            known.pop("default", None)
            if defaults.get(name) not in (None, []) and model is not BranchFields:  # a branch has the request's values
                known["default"] = defaults[name]
            if name in ranges:
                known["minimum"], known["maximum"] = ranges[name]
            if name in ("logprobs", "n_probs"):
                known["minimum"], known["maximum"] = 0, MAX_LOGPROBS
        return result
