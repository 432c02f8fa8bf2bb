"""Turns requests and the events of a step into JSON, and back."""

import dataclasses
import json
import zlib
from typing import Any

import srb.errors
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
    Usage,
)
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import SrbError, restored

_KINDS = {kind.__name__: kind for kind in (StartEvent, ProgressEvent, StopEvent, DoneEvent)}


def pack(events: list[Event]) -> str:
    """Packs the events of one request. Most are a StreamEvent, which is packed as a list, because it is short."""
    return json.dumps([_pack(event) for event in events], separators=(",", ":"))


def _pack(event: Event) -> Any:
    if isinstance(event, StreamEvent):
        packed: list[Any] = [event.index, event.text, event.drawn]
        if event.tokens or event.token:
            packed += [event.tokens, event.token and _pack_token(event.token)]
        return packed
    if isinstance(event, ErrorEvent):
        return vars(event.error) | {"error": type(event.error).__name__, "index": event.index}
    fields = dataclasses.asdict(event)
    del fields["request_id"]
    return {"event": type(event).__name__} | fields


def _pack_token(token: Token) -> list[Any]:
    return [token.id, token.piece.decode("latin-1"), token.logprob, [_pack_token(each) for each in token.top_logprobs]]


def unpack(request_id: str, packed: str) -> list[Event]:
    """Unpacks the events of the request with this id."""
    return [_unpack(request_id, each) for each in json.loads(packed)]


def _unpack(request_id: str, packed: Any) -> Event:
    if isinstance(packed, list):
        index, text, drawn, tokens, token = (*packed, [], None)[:5]
        return StreamEvent(request_id, index, text, tuple(tokens), token and _unpack_token(token), tuple(drawn))
    if "error" in packed:
        kind, index = getattr(srb.errors, packed.pop("error"), SrbError), packed.pop("index")
        fields = {name: _tuples(value) for name, value in packed.items()}
        return ErrorEvent(request_id, index, restored(kind, (fields["message"],), fields))
    kind = _KINDS[packed.pop("event")]
    for name, of in (("usage", Usage), ("timings", Timings)):
        if packed.get(name):
            packed[name] = of(**packed[name])
    return kind(request_id=request_id, **{name: _tuples(value) for name, value in packed.items()})


def _unpack_token(packed: list[Any]) -> Token:
    token, piece, logprob, top = packed
    return Token(token, piece.encode("latin-1"), logprob, tuple(map(_unpack_token, top)))


def pack_request(request: CompletionRequest) -> bytes:
    """Packs and compresses what a request needs to resume. A request with media can't resume: they aren't packed."""
    without = ("resumed", "media")
    fields = {
        each.name: getattr(request, each.name) for each in dataclasses.fields(request) if each.name not in without
    }
    fields["branches"] = [
        {each.name: getattr(branch, each.name) for each in dataclasses.fields(branch)} for branch in request.branches
    ]
    return zlib.compress(json.dumps(fields).encode())


def unpack_request(packed: bytes) -> CompletionRequest:
    """Unpacks a request. Raises `TypeError` if the srb that packed it had other fields."""
    fields = {name: _tuples(value) for name, value in json.loads(zlib.decompress(packed)).items()}
    branches = tuple(
        SamplingParams(**{name: _tuples(value) for name, value in branch.items()}) for branch in fields.pop("branches")
    )
    return CompletionRequest(branches=branches, **fields)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
