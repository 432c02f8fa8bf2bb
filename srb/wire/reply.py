"""What all formats' responses share: `Reply`, how streams are framed, timings, encoding."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from srb.engine.events import Event, ProgressEvent, Timings, Token
from srb.engine.request import CompletionRequest, new_request_id
from srb.errors import InvalidRequestError
from srb.wire.context import Abort, RequestContext
from srb.wire.request.body import Format, Parsed, parse_fields
from srb.wire.request.fields import CompletionFields, SamplingFields
from srb.wire.request.messages import Message
from srb.wire.request.read import BodyFields, show, validate

Watch = Callable[[str | None, Abort], AbstractContextManager[Callable[[list[Event]], object]]]
"""Watches a request while a reader reads it from its beginning.

It is called in the event loop, with the owner of the request. The function gets the events as they come.
"""


class StoredResponse(Protocol):
    """A response that a client can retrieve while its request is stored.

    Each retrieval gets a new object, and calls one of its methods once.
    """

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The objects of a stream, with their numbers."""

    def state(self, events: list[Event]) -> dict[str, Any]:
        """The response so far. events: all of its events so far."""

    def conversation(self, events: list[Event]) -> list[Message]:
        """The conversation that was sent, and the answer. Raises `InvalidRequestError` if the answer isn't finished."""


Chunk = dict[str, Any] | str
"""An object that is sent as JSON, or a text that is sent unchanged."""


@dataclass(frozen=True)
class Frame:
    """How the chunks of a stream are sent.

    Attributes:
        prefix: Returns the text before a chunk.
        suffix: The text after each chunk.
        ping: What is sent while no chunk comes. A comment has no blank line, which would dispatch an event if an `id:`
            came before.
        content_type: The media type of the stream.
    """

    prefix: Callable[[Chunk], str]
    suffix: str = "\n\n"
    ping: bytes = b": ping\n"
    content_type: str = "text/event-stream; charset=utf-8"


SSE_DATA = Frame(lambda _chunk: "data: ")
SSE_MESSAGE = Frame(lambda _chunk: "event: message\ndata: ")
SSE_TYPED = Frame(lambda chunk: f"event: {chunk['type']}\ndata: " if isinstance(chunk, dict) else "data: ")
"""The name of each event is the `type` of its object."""

LINES = Frame(lambda _chunk: "", "\n", b"", "application/x-ndjson")
"""A line of JSON for each chunk. Clients take each line for a chunk, so a ping is a chunk without text."""


@dataclass(frozen=True)
class Reply:
    """A parsed body: the request for the engine, and how to build its response.

    Attributes:
        completion: The request to run. None if the response needs none.
        ignored: The names of the body's fields that have no effect.
        stream: Whether the response is streamed.
        make: Returns what builds the response: an object with `chunks`, which turns the next events into what is
            streamed, or with `object`, which turns all events into the response and raises `SrbError` if there is none.
            It is called once for each reader, in a worker thread. None: the response is native events.
        frame: How the objects of a stream are sent.
        blame: Translates the engine's refusal of the request into the terms of the body. None if they are the same.
        detach: Whether the request goes on without readers.
        story: The story that the alternatives belong to.
        node: The node of the story that they continue.
        stored: Returns what answers clients that retrieve the response later, if the format has routes for this.
        in_background: Whether to answer at once with the request's state, instead of when it has finished.
        watch: Watches the request for each reader, if its format must know how far it is.
        payload: What `make` and `stored` hold of the body, whose memory is accounted for. They hold nothing else of it,
            and nothing of `RequestContext`.
        model: The name of the model that ran it. None: the loaded one.
        nodes: The ids of its alternatives' nodes, once it writes to a story.
    """

    completion: CompletionRequest | None
    ignored: list[str]
    stream: bool
    make: Callable[[], Any] | None
    frame: Frame = SSE_DATA
    blame: Callable[[InvalidRequestError], InvalidRequestError] | None = None
    detach: bool = False
    story: str | None = None
    node: int | None = None
    stored: Callable[[], StoredResponse] | None = None
    in_background: bool = False
    watch: Watch | None = None
    payload: Any = ()
    model: str | None = None
    nodes: list[int] | None = None

    @classmethod
    def of(cls, parsed: Parsed, make: Callable[[], Any] | None, **more: Any) -> "Reply":
        """The reply to a parsed body. more: other attributes."""
        return cls(
            parsed.completion,
            parsed.ignored,
            parsed.format != "object",
            make,
            blame=parsed.tools.blame if parsed.tools else None,
            detach=bool(parsed.fields.detach),
            story=parsed.fields.story,
            node=parsed.fields.node,
            **more,
        )


BodyParser = Callable[[Any, RequestContext], Reply]
"""Makes a request of the fields of a body. Raises `InvalidRequestError`."""

_OF_SEVERAL = ("n", "n_cmpl", "best_of", "branches")
"""Fields that formats with one alternative refuse."""


def parse_one(
    fields: BodyFields,
    sampling: SamplingFields | None,
    context: RequestContext,
    *,
    stream: bool,
    prefix: str | None = None,
    **given: Any,
) -> Parsed:
    """Makes a request of a body in a format with one alternative, by translating the body into `CompletionFields`.

    `sampling` has fields with the same names there, `given` the values of the others. With `messages` the request is a
    chat. `prefix` is the beginning of its id.
    """
    extra = fields.model_extra or {}
    for name in _OF_SEVERAL:
        if str(extra.get(name, 1)) != "1":
            raise InvalidRequestError(
                f"{name} is {show(extra[name])}, but this format has one alternative per request; leave it out, or use "
                "/v1/completions or /v1/chat/completions",
                param=name,
            )
    known = SamplingFields.model_fields.keys() & sampling.model_fields_set if sampling else ()
    sent = {name: getattr(sampling, name) for name in known}
    asked = validate(sent | {name: value for name, value in given.items() if value is not None}, CompletionFields)
    form: Format = "chunks" if stream else "object"
    parsed = parse_fields(asked, context.limits, chat=asked.messages is not None, form=form)
    parsed.ignored.extend(name for name in extra if name not in _OF_SEVERAL)
    if prefix:
        completion = replace(parsed.completion, id=prefix + new_request_id().removeprefix("cmpl-"))
        parsed = replace(parsed, completion=completion)
    return parsed


LEAST_LOGPROB = -9999.0
"""Stands for the log-probability of an impossible token, since JSON has no infinity."""


def logprob_of(token: Token) -> float | None:
    """A token's log-probability as a number that JSON has. None if the token has none."""
    return None if token.logprob is None else round(max(token.logprob, LEAST_LOGPROB), 6)


def wire_names(fields: dict[str, Any]) -> dict[str, Any]:
    """Gives fields of events and statistics their names on the wire, where these differ."""
    names = {"n_drafted": "n_ahead", "n_accepted": "n_met", "n_truncated": "n_cut"}
    return {names.get(name, name): value for name, value in fields.items()}


def timings(timings: Timings, n_prompt: int) -> dict[str, Any]:
    """`timings` in llama-server's notation, of a prompt of `n_prompt` tokens and the tokens after it."""
    drafted = {"draft_n": timings.n_drafted, "draft_n_accepted": timings.n_accepted} if timings.n_drafted else {}
    return {
        "cache_n": n_prompt - timings.n_truncated - timings.prompt_n,
        **_pace("prompt", timings.prompt_n, timings.prompt_ms),
        **_pace("predicted", timings.predicted_n, timings.predicted_ms),
        **drafted,
    }


def _pace(name: str, n: int, ms: float) -> dict[str, Any]:
    return {
        f"{name}_n": n,
        f"{name}_ms": round(ms, 3),
        f"{name}_per_token_ms": round(ms / n, 3) if n else 0.0,
        f"{name}_per_second": round(n / ms * 1000, 3) if ms else 0.0,
    }


def prompt_progress(event: ProgressEvent, seconds: float) -> dict[str, Any]:
    """`prompt_progress` in llama-server's notation. seconds: since the request's start."""
    return {
        "total": event.total,
        "cache": event.cached,
        "processed": event.cached + event.evaluated,
        "time_ms": round(seconds * 1000),
    }


_CONTAINERS = {dict, list, tuple}

_ENCODED_AT_ONCE = 500
"""Objects and lists, or a tenth of the numbers, that are encoded at once. That takes about a millisecond."""


def encode(value: Any) -> bytes:
    """The JSON of a value, as `json.dumps` writes it. The names in objects must be strings.

    json's encoder blocks all other threads until it has finished: for seconds, if the value makes 50 MB. So this
    function encodes a large value in parts.
    """
    return "".join(_parts(value)).encode()


def _parts(value: Any) -> Iterator[str]:
    if type(value) not in _CONTAINERS or _count(value, _ENCODED_AT_ONCE) >= 0:
        yield json.dumps(value)
    elif type(value) is dict:
        before = "{"
        for name, each in value.items():
            yield f"{before}{json.dumps(name)}: "
            yield from _parts(each)
            before = ", "
        yield "}"
    else:
        before = "["
        for each in value:
            yield before
            yield from _parts(each)
            before = ", "
        yield "]"


def _count(value: Any, left: int) -> int:
    """`left` minus the number of objects and lists in a value, and minus a tenth of the number of all entries.

    Counting stops when the result is negative.
    """
    left -= len(value) // 10
    for each in value.values() if type(value) is dict else value:
        if type(each) in _CONTAINERS:
            left = _count(each, left - 1)
            if left < 0:
                break
    return left
