"""Declares routes: the paths, what handles them, and their rows in the OpenAPI description.

Each vendor's `routes.py` has `ROUTES`, and so has each module of the server's own routes. The server mounts them all.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import BaseModel, TypeAdapter

from srb.errors import SrbError
from srb.wire.context import RequestContext
from srb.wire.embeddings import EmbeddingFormat
from srb.wire.reply import BodyParser


@dataclass(frozen=True)
class GenerateHandler:
    """Queues a request, and answers with its events.

    Attributes:
        parse: Makes a request of the fields of the route's body.
        replayable: Whether the response can be built again from the history, with `RequestContext.original`.
    """

    parse: BodyParser
    replayable: bool = False


@dataclass(frozen=True)
class JsonHandler:
    """Answers with JSON at once, without a request to the engine.

    Attributes:
        function: Returns the response as JSON, for the fields of the route's body, which may be empty. A GET has none:
            the function is called in the event loop, and must be quick. Else it is called in a worker thread. May raise
            `SrbError`.
        before_load: Whether it answers before the model is loaded, too.
    """

    function: Callable[[Any, RequestContext], Any]
    before_load: bool = False


AiohttpHandler = Callable[[Any], Awaitable[Any]]
"""A handler of aiohttp. Only the server's own routes have one."""

Schema = dict[str, Any]
"""A JSON schema."""

JSON = "application/json"
EVENTS = "text/event-stream"
JSON_LINES = "application/x-ndjson"


def object_of(**properties: Schema) -> Schema:
    """The schema of an object with at least these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


def fields_of(schema: Schema, names: str) -> dict[str, Schema]:
    """Properties that share a schema. names: separated by spaces."""
    return dict.fromkeys(names.split(), schema)


def list_of(items: Schema) -> Schema:
    """The schema of a list."""
    return {"type": "array", "items": items}


def properties_of(kind: type) -> dict[str, Schema]:
    """The schemas of a dataclass's fields."""
    properties: dict[str, Schema] = TypeAdapter(kind).json_schema()["properties"]
    return properties


def data_of(items: Schema, **more: Schema) -> Schema:
    """The schema of a list in OpenAI's notation."""
    return object_of(object={"const": "list"}, data=list_of(items), **more)


STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
OPTIONAL_STRING: Schema = {"type": ["string", "null"]}
ONE_OR_MORE: Schema = {"type": ["object", "array"]}

EVENT_STREAM: Schema = {
    "description": "lines `data: {...}` with the native events start, stream, stop, error and done, each after a line "
    "`id: N`, or with OpenAI's chunks and [DONE]"
}


@dataclass(frozen=True)
class ErrorFormat:
    """How errors look.

    Attributes:
        to_json: Builds the body of an error response.
        schema: The JSON schema of these bodies.
    """

    to_json: Callable[[SrbError], dict[str, Any]]
    schema: Schema


SRB_ERRORS = ErrorFormat(
    lambda error: {"error": error.body()},
    object_of(error=object_of(message=STRING, type=STRING, param=OPTIONAL_STRING, code=OPTIONAL_STRING)),
)


@dataclass(frozen=True)
class Route:
    """A method of a path and its aliases, and their row in the OpenAPI description.

    Attributes:
        schema: The JSON schema of a successful response.
        other_schemas: The other media types that a successful response may have, with their schemas. Without `schema`
            and these, success is a 204.
        body: The model that validates the request's body, if it has one.
        other_bodies: Instead, the media types of a body that isn't JSON, with their schemas.
        errors: The statuses of its errors, besides those that all routes of its kind have.
        query: The query parameters, with their meanings.
        summary: Its summary in the description. Left out: the first paragraph of its function's docstring. A route
            with neither isn't described.
        aliases: Other paths. Those that end with a slash aren't described.
        error_format: How its errors look.
    """

    method: str
    path: str
    handler: GenerateHandler | JsonHandler | EmbeddingFormat | AiohttpHandler
    schema: Schema | None = None
    _: KW_ONLY
    other_schemas: Mapping[str, Schema] = field(default_factory=dict)
    body: type[BaseModel] | None = None
    other_bodies: Mapping[str, Schema] = field(default_factory=dict)
    errors: tuple[int, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    aliases: tuple[str, ...] = ()
    error_format: ErrorFormat = SRB_ERRORS

    @property
    def paths(self) -> tuple[str, ...]:
        """The path and its aliases."""
        return self.path, *self.aliases

    @property
    def does(self) -> str:
        """What the route does, in a sentence without a full stop; empty if it isn't described."""
        match self.handler:
            case GenerateHandler(parse=function) | JsonHandler(function=function):
                doc = function.__doc__
            case handler:
                doc = handler.__doc__
        return self.summary or " ".join((doc or "").partition("\n\n")[0].split()).removesuffix(".")


get = partial(Route, "GET")
post = partial(Route, "POST")


def also_below(base: str, *routes: Route) -> tuple[Route, ...]:
    """The routes, also at this base address."""
    return tuple(replace(each, aliases=(*each.aliases, *(f"{base}{path}" for path in each.paths))) for each in routes)
