"""Makes the OpenAPI description of the server from the models that validate its requests. Pure functions.

What a route answers stands with the route (`srb/wire/route.py`), and the meaning of a field with the field, where
`descriptions` finds it.
"""

import base64
import dataclasses
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
from srb.engine.request import EXPLORE_RANGES, MAX_LOGPROBS, Explore
from srb.engine.sampling_params import RANGES
from srb.server.access import HEADER, OPEN
from srb.wire.limits import Limits
from srb.wire.native.explore import ExploreFields
from srb.wire.request.body_fields import ALIASES
from srb.wire.request.completion import BranchFields
from srb.wire.request.fields import DEFAULTS, descriptions
from srb.wire.route import OWN_ERRORS, Embeds, Generates, Route, Tells
from srb.wire.schemas import JSON, STRING, Schema

# Makes one HTML page of the OpenAPI description, by docs_page.html. The page needs no script and no other file.

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
    """The page, from an OpenAPI document."""
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
    404: "nothing like that is there",
    408: "nothing of the body has come for --receive-timeout seconds",
    410: "the request has finished, and is no longer kept (--keep-finished)",
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


def describe(routes: Iterable[Route], limits: Limits, *, keyed: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document. keyed: whether requests need an API key."""
    schemas: dict[str, Schema] = {"Error": OWN_ERRORS.schema}
    paths: dict[str, dict[str, Any]] = {}
    for route, path, summary in described(routes):
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, summary, schemas, limits)
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


def described(routes: Iterable[Route]) -> Iterator[tuple[Route, str, str]]:
    """The routes that are described, with each of their paths, and its summary. The paths are without patterns."""
    for route in routes:
        for path in route.paths:
            summary = route.summary if path == route.path else route.also_says or route.summary
            if summary and (path == "/" or not path.endswith("/")):
                yield route, re.sub(r"\{(\w+):(?:[^{}]|\{[^{}]*\})+\}", r"{\1}", path), summary


def _operation(route: Route, path: str, summary: str, schemas: dict[str, Schema], limits: Limits) -> dict[str, Any]:
    """The operation object. The schema of its body is put into `schemas`."""
    is_open = route.method == "GET" and path in OPEN
    replies = {**route.others, **({JSON: route.reply} if route.reply else {})}
    content = {kind: {"schema": each} for kind, each in replies.items()}
    responses: dict[str, Any] = {"200" if replies else "204": {"description": "it has worked"}}
    if replies:
        responses["200"]["content"] = content
    for status in sorted({*route.errors, *_common_errors(route, is_open)}):
        schema = {"$ref": f"{REF}Error"} if route.error is OWN_ERRORS else route.error.schema
        content = {JSON: {"schema": schema}}
        responses[str(status)] = {"description": ERRORS[status], "content": content}
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
    return result


def _common_errors(route: Route, is_open: bool) -> Iterator[int]:
    """The statuses of errors that routes leave out, because all of a kind have them."""
    yield from (421, 500)
    if not is_open:
        yield 401
    if route.method != "GET":
        yield 403
    if route.body:
        yield from (400, 408, 413, 415)
    if isinstance(route.does, Generates | Embeds):
        yield from (429, 503)
    if isinstance(route.does, Embeds):
        yield 501
    if isinstance(route.does, Tells) and not route.does.always:
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
