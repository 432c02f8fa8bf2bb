"""`Route`: what a server does at some paths, and their row in the OpenAPI description.

The folder of a vendor exports one value, `ROUTES` in its `routes.py`: all its paths, how bodies are read and answers
written there, and the errors. `vendors.py` has the list of vendors, and the server mounts what it's given. The server's
own routes are rows of the same kind, beside their handlers.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from pydantic import BaseModel

from srb.errors import SrbError
from srb.wire.embeddings import Style
from srb.wire.reply import DATA, Frame, Read
from srb.wire.schemas import OPTIONAL_STRING, STRING, Schema, object_of
from srb.wire.serving import Serving, Told


@dataclass(frozen=True)
class Generates:
    """Queues a request, and answers with its events.

    function: reads a body. frame: how an object of a stream is sent.
    lasts: whether an answer can be made again from the history, with `Serving.made`.
    """

    function: Read
    frame: Frame = DATA
    lasts: bool = False


@dataclass(frozen=True)
class Tells:
    """Answers with what is known already.

    function: makes the answer. For a GET, which has no body, it is called in the event loop and must take no time; for
        any other method in a worker thread. Raises `SrbError`.
    always: whether it answers before the model is loaded, too.
    """

    function: Callable[[bytes, Serving], Told]
    always: bool = False


@dataclass(frozen=True)
class Embeds:
    """Answers with the vectors of texts. style: how the body is read and the answer written."""

    style: Style


Handles = Callable[[Any], Awaitable[Any]]
"""A handler of aiohttp. Only the server has such routes."""


@dataclass(frozen=True)
class Errors:
    """How errors look. shape: makes the body of an answer. schema: the JSON schema of such bodies."""

    shape: Callable[[SrbError], dict[str, Any]]
    schema: Schema


OWN_ERRORS = Errors(
    lambda error: {"error": error.body()},
    object_of(error=object_of(message=STRING, type=STRING, param=OPTIONAL_STRING, code=OPTIONAL_STRING)),
)


@dataclass(frozen=True)
class Route:
    """A method of a path, and of other paths that do the same.

    reply: the JSON schema of a good answer. others: the other media types that it may have, and the schema of each.
        Without any, a good answer is a 204.
    body: the model that validates the request's body, if it has one.
    errors: the statuses of its errors, beside those that all routes of a kind have (openapi/describe.py).
    query: the parameters of the query, and the meaning of each.
    says: its summary in the description, if this isn't the first paragraph of what its function's docstring says. A
        route without either isn't described.
    also: the other paths. One that ends with a slash isn't described. also_says: their summary, if it is another one.
    """

    method: str
    path: str
    does: Generates | Tells | Embeds | Handles
    reply: Schema | None = None
    _: KW_ONLY
    others: Mapping[str, Schema] = field(default_factory=dict)
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    says: str = ""
    also: tuple[str, ...] = ()
    also_says: str = ""
    error: Errors = OWN_ERRORS

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths."""
        return self.path, *self.also

    @property
    def summary(self) -> str:
        """What the route does, in one sentence without a full stop; empty if it isn't described."""
        does = self.does.function if isinstance(self.does, Generates | Tells) else self.does
        return self.says or " ".join((does.__doc__ or "").partition("\n\n")[0].split()).removesuffix(".")


get = partial(Route, "GET")
post = partial(Route, "POST")
