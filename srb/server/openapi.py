"""Makes the OpenAPI description from the routes (`srb/wire/route.py`) and the models that validate their bodies."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

import srb
from srb.server.access import HEADER, OPEN
from srb.wire.embeddings import EmbeddingFormat
from srb.wire.limits import Limits
from srb.wire.request.fields import BranchFields
from srb.wire.request.read import ALIASES
from srb.wire.route import JSON, SRB_ERRORS, STRING, GenerateHandler, JsonHandler, Route, Schema

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; }
code { font: 14px ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884; }
:root { color-scheme: light dark; }
"""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'",
    "X-Content-Type-Options": "nosniff",
}


def render(description: dict[str, Any]) -> str:
    """The OpenAPI document as one HTML page without scripts."""
    import jinja2  # imported here, because only this page needs it

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.filters |= {"json": json.dumps, "number": "{:,}".format}
    html: str = environment.get_template("docs_page.html").render(description, style=STYLE)
    return html


REF = "#/components/schemas/"

ERRORS = {
    400: "malformed or out of range; the message gives the limit",
    401: "no API key, or a wrong one",
    403: "a web page of an origin that isn't allowed (--cors-origins)",
    404: "not found",
    408: "the body made no progress for --receive-timeout seconds",
    409: "it was changed since the change that the body is based on; nothing was written",
    410: "the request has finished, and isn't stored any more (--keep-finished)",
    413: "the body is too large",
    415: "the body is compressed",
    421: "the server doesn't answer under the name in Host (--allowed-hosts)",
    429: "the queue is full (--max-queue), with Retry-After",
    500: "an internal error; the message has an id that is in the server's log",
    501: "the model doesn't support it, or the server was started without it",
    503: "the model is loading or the server is stopping, with Retry-After; or the engine has failed, without",
}

PARAMETERS = {
    "id": "the request's id, from the header X-Request-Id or the start event; or the model's",
    "index": "the number of the alternative",
    "id_slot": "the slot's number, from 0 to `--parallel` - 1",
    "story": "the story's id",
    "node": "the node's number in its story",
}


def describe(routes: Iterable[Route], limits: Limits, *, keyed: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document. keyed: whether requests need an API key."""
    schemas: dict[str, Schema] = {"Error": SRB_ERRORS.schema}
    paths: dict[str, dict[str, Any]] = {}
    for route, path, summary in described(routes):
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, summary, schemas, limits)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "srb",
            "version": srb.__version__,
            "description": "n alternatives of one prompt, streamed. Numbers may be sent as strings, and null means "
            "absent. Fields that aren't described here are ignored, and reported.",
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


def described(routes: Iterable[Route]) -> Iterator[tuple[Route, str, str]]:
    """The described routes, with each of their paths without patterns, and its summary."""
    for route in routes:
        first, *aliases = (re.sub(r"\{(\w+):(?:[^{}]|\{[^{}]*\})+\}", r"{\1}", path) for path in route.paths)
        if route.does:
            yield route, first, route.does
            yield from ((route, path, f"The same as {route.method} {first}") for path in aliases if path[-1] != "/")


def _operation(route: Route, path: str, summary: str, schemas: dict[str, Schema], limits: Limits) -> dict[str, Any]:
    """The operation object. The schema of its body is put into `schemas`."""
    is_open = route.method == "GET" and path in OPEN
    schemas_by_type = {**route.other_schemas, **({JSON: route.schema} if route.schema else {})}
    content = {kind: {"schema": each} for kind, each in schemas_by_type.items()}
    responses: dict[str, Any] = {"200" if content else "204": {"description": "success"}}
    if content:
        responses["200"]["content"] = content
    for status in sorted({*route.errors, *_common_errors(route, is_open)}):
        schema = {"$ref": f"{REF}Error"} if route.error_format is SRB_ERRORS else route.error_format.schema
        responses[str(status)] = {"description": ERRORS[status], "content": {JSON: {"schema": schema}}}
    result: dict[str, Any] = {"summary": summary, "responses": responses}
    if is_open:
        result["security"] = []
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": STRING, "description": PARAMETERS[name]}
        for name in re.findall(r"\{(\w+)\}", path)
    ] + [
        {"name": name, "in": "query", "schema": STRING, "description": meaning} for name, meaning in route.query.items()
    ]
    if parameters:
        result["parameters"] = parameters
    if route.body:
        if route.body.__name__ not in schemas:
            schemas |= _schemas(route.body, limits)
        content = {JSON: {"schema": {"$ref": REF + route.body.__name__}}}
        result["requestBody"] = {"required": True, "content": content}
    if route.other_bodies:
        content = {kind: {"schema": each} for kind, each in route.other_bodies.items()}
        result["requestBody"] = {"required": True, "content": content}
    return result


def _common_errors(route: Route, is_open: bool) -> Iterator[int]:
    """The statuses of errors that all routes of a kind have."""
    yield from (421, 500)
    if not is_open:
        yield 401
    if route.method != "GET":
        yield 403
    if route.body or route.other_bodies:
        yield from (400, 408, 413, 415)
    if isinstance(route.handler, GenerateHandler | EmbeddingFormat):
        yield from (429, 503)
    if isinstance(route.handler, EmbeddingFormat):
        yield 501
    if isinstance(route.handler, JsonHandler) and not route.handler.before_load:
        yield 503


def _schemas(model: type[BaseModel], limits: Limits) -> dict[str, Schema]:
    """The schemas of a model and of the models that it refers to."""
    schema = model.model_json_schema(ref_template=REF + "{model}", schema_generator=_Described)
    schemas: dict[str, Schema] = schema.pop("$defs", {}) | {model.__name__: schema}
    for each in schemas.values():
        for name in {"n", "best_of"} & each.get("properties", {}).keys():
            each["properties"][name] |= {"minimum": 1, "maximum": limits.max_n}
        for name, value in limits.sampling.items():
            if "default" in (known := each.get("properties", {}).get(name, {})):
                known["default"] = list(value) if isinstance(value, tuple) else value
    return schemas


class _Described(GenerateJsonSchema):
    """Adds the other names of fields to the schema of a model, and leaves out what says nothing."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        result = super().model_schema(schema)
        model = schema["cls"]
        result["description"] = (model.__doc__ or "").partition("\n")[0]
        for name, known in result.get("properties", {}).items():
            aliases = [alias for alias, of in ALIASES.items() if of == name]
            also = f" Also: {', '.join(aliases)}." if aliases else ""
            known["description"] = known.get("description", "") + also
            known.pop("title", None)
            if known.get("default") is None or model is BranchFields:  # a branch has the request's values
                known.pop("default", None)
        return result
