"""The common interface of all wire formats: a function that reads a body, and the reply that it returns."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    ProgressEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Token,
)
from srb.engine.request import CompletionRequest, new_request_id
from srb.errors import InvalidRequestError
from srb.wire.request.body import Parsed, parse_fields
from srb.wire.request.body_fields import BodyFields
from srb.wire.request.completion import CompletionFields
from srb.wire.request.fields import SamplingFields
from srb.wire.request.messages import Message
from srb.wire.request.read import show, validate
from srb.wire.serving import End, Serving
from srb.wire.tools.calls import CallFormat, CallReader, Delta, call_id

# How the objects of a stream are sent: as server-sent events, or as lines of JSON.

Chunk = dict[str, Any] | str
"""An object that is sent as JSON, or a text that is sent unchanged."""


@dataclass(frozen=True)
class Frame:
    """How a chunk is sent: the text before its JSON, and behind it. ping: what is sent while no chunk comes."""

    before: Callable[[Chunk], str]
    after: str = "\n\n"
    ping: bytes = b": ping\n\n"
    content_type: str = "text/event-stream"


DATA = Frame(lambda _chunk: "data: ")
MESSAGE = Frame(lambda _chunk: "event: message\ndata: ")
TYPED = Frame(lambda chunk: f"event: {chunk['type']}\ndata: " if isinstance(chunk, dict) else "data: ")
"""The name of each event is the `type` of its object."""

LINES = Frame(lambda _chunk: "", "\n", b"", "application/x-ndjson")
"""A line of JSON for each chunk. There is no ping, because readers would take it for a chunk."""


# Encodes JSON values in a way that lets other threads run meanwhile. A large answer is made in a worker thread, and
# a stream's batch lazily: after each 16 KiB of it others have their turn.

_CONTAINERS = {dict, list, tuple}

_FEW = 500
"""So many objects and lists, or ten times as many numbers, are encoded at once, which takes about a millisecond."""


def encode(value: Any) -> bytes:
    """The JSON of a value, as `json.dumps` writes it. The names in objects must be strings.

    json's encoder lets no other thread run until it has finished. For an answer of 50 MB that takes seconds. So this
    function gives it a large value in parts.
    """
    return "".join(_parts(value)).encode()


def _parts(value: Any) -> Iterator[str]:
    if type(value) not in _CONTAINERS or _count(value, _FEW) >= 0:
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


# `timings` and `prompt_progress`, as llama-server writes them. Pure functions.


def timings(timings: Timings, n_prompt: int) -> dict[str, Any]:
    """How long the `n_prompt` tokens of a prompt and the tokens after it took, as JSON."""
    drafted = {"draft_n": timings.n_drafted, "draft_n_accepted": timings.n_accepted} if timings.n_drafted else {}
    return {
        "cache_n": n_prompt - timings.n_cut - timings.prompt_n,
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


class RunningTimings:
    """`timings` of alternatives while they run, measured when their events come, for `timings_per_token`.

    clock: seconds from any beginning.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = self._first = 0.0
        self._start: StartEvent | None = None
        self._n_tokens: dict[int, int] = {}

    def begin(self, event: StartEvent) -> None:
        """Call this when the request is admitted."""
        self._started, self._start = self._clock(), event

    def after(self, event: StreamEvent) -> dict[str, Any]:
        """The timings of an alternative after its next event, which must have its `tokens`."""
        assert self._start
        now = self._clock()
        if not self._n_tokens:
            self._first = now
        count = self._n_tokens[event.index] = self._n_tokens.get(event.index, 0) + len(event.tokens)
        n_cut = self._start.n_cut
        known = self._start.prompt_tokens - n_cut - self._start.cached_tokens
        ms = 1000 * (self._first - self._started), 1000 * (now - self._first)
        return timings(Timings(0, known, ms[0], count, ms[1], n_cut), self._start.prompt_tokens)


def prompt_progress(event: ProgressEvent, seconds: float) -> dict[str, Any]:
    """How far the evaluation of a request's prompts has come. seconds: since the request's start."""
    return {
        "total": event.total,
        "cache": event.cached,
        "processed": event.cached + event.evaluated,
        "time_ms": round(seconds * 1000),
    }


# Splits an answer with one alternative into its parts while it comes: a text, and the calls of tools after it.


@dataclass
class Part:
    """A part of an answer: a text, or a call.

    index: the number of the part. name: of the function that is called; None for a text. id: of the call.
    text: the text so far, or the JSON text of the arguments. tokens: those of a text, if they were asked for.
    """

    index: int
    name: str | None = None
    id: str = ""
    text: str = ""
    tokens: list[Token] = field(default_factory=list)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of a call. None if their JSON is incomplete."""
        try:
            found = json.loads(self.text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Change:
    """One change: a part begins, grows, or ends. Each part ends before the next one begins.

    text, tokens: those that a growing part gets.
    """

    kind: Literal["begin", "more", "end"]
    part: Part
    text: str = ""
    tokens: tuple[Token, ...] = ()


class Parts:
    """Reads an answer from its events.

    calls: how the model writes calls. None: it may call nothing; then there is always one text, even an empty one.
    """

    def __init__(self, request_id: str, calls: CallFormat | None) -> None:
        self.answer = Answer()
        self.all: list[Part] = []
        self._request_id = request_id
        self._reader = CallReader(calls) if calls else None
        self._tokens: list[Token] = []  # tokens whose text isn't in a part yet, or that have no text

    @property
    def calls(self) -> list[Part]:
        """The calls that have begun."""
        return [part for part in self.all if part.name is not None]

    @property
    def ends_with_calls(self) -> bool:
        """Whether the model has ended the answer itself, with complete calls."""
        stop = self.answer.stop
        return bool(self._reader and self._reader.is_complete and stop and stop.finish_reason == "stop")

    def take(self, event: Event) -> Iterator[Change]:
        """The changes that the next event makes. Raises `SrbError` if the event is an error."""
        self.answer.take(event)
        match event:
            case StartEvent() if not self._reader:
                yield self._begin(Part(0))
            case StreamEvent(text=text, token=token):
                self._tokens += [token] if token else []
                yield from self._add(self._reader.push(text) if self._reader else [Delta("text", text)])
            case StopEvent():
                yield from self._add(self._reader.flush() if self._reader else [])
                if self.all:
                    yield Change("end", self.all[-1])

    def _begin(self, part: Part) -> Change:
        self.all.append(part)
        return Change("begin", part)

    def _add(self, deltas: list[Delta]) -> Iterator[Change]:
        for delta in deltas:
            if delta.kind == "name":
                if self.all:
                    yield Change("end", self.all[-1])
                call = call_id(self._request_id, 0, delta.call or 0)
                yield self._begin(Part(len(self.all), delta.text, call))
            elif delta.text:
                if not self.all:
                    yield self._begin(Part(0))
                yield self._more(delta.text)
        if self._tokens and self.all and self.all[-1].name is None:
            yield self._more("")

    def _more(self, text: str) -> Change:
        part, tokens = self.all[-1], tuple(self._tokens)
        part.text += text
        self._tokens = []
        if part.name is not None:
            return Change("more", part, text)
        part.tokens += tokens
        return Change("more", part, text, tokens)


Watch = Callable[[str | None, End], AbstractContextManager[Callable[[list[Event]], object]]]
"""Watches a request for as long as a reader reads it from its beginning.

It is called in the event loop, with the owner of the request. The function gets the events as they come.
"""


class Answering(Protocol):
    """A response that a client asks for again, while its request is kept.

    Each time there is a new object, of which one method is called once.
    """

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The objects of a stream, with their numbers."""

    def state(self, events: list[Event]) -> dict[str, Any]:
        """The response. events: all of its events so far."""

    def conversation(self, events: list[Event]) -> list[Message]:
        """The conversation that was sent, and the answer. Raises `InvalidRequestError` if the answer isn't finished."""


@dataclass(frozen=True)
class Reply:
    """The result of reading a body: a request, and how to answer it in one of the formats.

    completion: the request to run; None if the answer is known without running one.
    ignored: the names of the body's fields that have no effect.
    story, node: the story that the alternatives belong to, and the node there that they continue.
    stream: whether to answer while the request runs.
    make: is called once for each reader, in a worker thread, and returns what makes its answer. For a stream that has
        a method `chunks`, which turns the next events into the objects and texts to send; else it has `object`, which
        turns all events into the answer, and raises `SrbError` if there is none. None: the answer is native events.
    blame: translates the engine's refusal of the request into the terms of the body; None if they are the same.
    detach: whether the request goes on without readers.
    again: makes the object that answers clients who ask for the response again, if the format has routes for this.
    at_once: whether to answer at once with the request's state, instead of when it has finished.
    watch: watches the request for each reader, if its format must know how far it is.
    keeps: what of the body `make` and `again` hold. They are kept with the request, so they hold nothing else of the
        body, and nothing of `Serving`.
    """

    completion: CompletionRequest | None
    ignored: list[str]
    stream: bool
    make: Callable[[], Any] | None
    blame: Callable[[InvalidRequestError], InvalidRequestError] | None = None
    detach: bool = False
    story: str | None = None
    node: int | None = None
    again: Callable[[], Answering] | None = None
    at_once: bool = False
    watch: Watch | None = None
    keeps: Any = ()


Read = Callable[[bytes, Serving], Reply]
"""Reads a body. Raises `InvalidRequestError`."""


# The common parts of the formats whose answers have place for one alternative only.


@dataclass
class Answer:
    """What is known of the one alternative, beside its text, as far as its events have come."""

    start: StartEvent | None = None
    stop: StopEvent | None = None
    done: DoneEvent | None = None

    def take(self, event: Event) -> None:
        """Takes the next event. Raises `SrbError` if the event is an error."""
        match event:
            case StartEvent():
                self.start = event
            case StopEvent():
                self.stop = event
            case DoneEvent():
                self.done = event
            case ErrorEvent():
                raise event.error


def parse_one(
    fields: BodyFields, sampling: SamplingFields | None, serving: Serving, *, prefix: str | None = None, **given: Any
) -> Parsed:
    """Makes a request of a body, by translating the body into `CompletionFields`.

    sampling: the body's sampler fields, which have the same names there. given: the values of the other fields. If
    `messages` are among them, the request is a chat. prefix: the beginning of the request's id.
    Raises `InvalidRequestError`, also if the body asks for more than one alternative.
    """
    extra = fields.model_extra or {}
    for name in ("n", "best_of", "branches"):
        if str(extra.get(name, 1)) != "1":
            raise InvalidRequestError(
                f"{name} is {show(extra[name])}, but this format's answers have one alternative; leave it out, or use "
                "/v1/completions or /v1/chat/completions",
                param=name,
            )
    known = SamplingFields.model_fields.keys() & sampling.model_fields_set if sampling else ()
    sent = {name: getattr(sampling, name) for name in known} | given
    asked = validate({name: value for name, value in sent.items() if value is not None}, CompletionFields)
    chat = asked.messages is not None
    parsed = parse_fields(
        asked, serving.limits, serving.engine.tokenize, serving.vocabulary.template, chat=chat, take=serving.take
    )
    parsed.ignored.extend(name for name in extra if name not in ("n", "best_of", "branches"))
    if prefix:
        completion = replace(parsed.completion, id=prefix + new_request_id().removeprefix("cmpl-"))
        parsed = replace(parsed, completion=completion)
    return parsed
