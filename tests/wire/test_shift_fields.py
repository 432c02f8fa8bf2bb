"""The fields of a context shift, and the server's options for those who don't say."""

import json
from typing import Any

import pytest

from srb.engine.events import StartEvent, StopEvent, Timings
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.llama_server import body as llama_body
from srb.wire.native import reply as native
from srb.wire.reply import timings
from srb.wire.request.body import parse

LIMITS = Limits("fake", n=2, max_n=8)
SHIFTS = Limits("fake", n=2, max_n=8, context_shift=True, n_keep=5)


def tokenize(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
    if len(text) > 10 and not any_length:
        raise InvalidRequestError("too long", param="prompt")
    return tuple(text.encode())


def read(limits: Limits, **fields: Any) -> tuple[CompletionRequest, list[str]]:
    body = json.dumps({"prompt": "p"} | fields).encode()
    parsed = parse(body, limits, tokenize)
    other = llama_body.parse_completion(body, limits, tokenize)
    assert shift_of(other.completion) == shift_of(parsed.completion)
    return parsed.completion, parsed.ignored


def shift_of(request: CompletionRequest) -> tuple[bool, int, int]:
    return request.context_shift, request.n_keep, request.n_discard


@pytest.mark.parametrize(
    ("limits", "sent", "meant", "ignored"),
    [
        (LIMITS, {}, (False, 0, 0), []),
        (LIMITS, {"n_keep": 3, "n_discard": 4}, (False, 0, 0), ["n_discard", "n_keep"]),
        (LIMITS, {"context_shift": True, "n_keep": "3", "n_discard": 4}, (True, 3, 4), []),
        (LIMITS, {"context_shift": True, "prompt": "x" * 100}, (True, 0, 0), []),
        (SHIFTS, {"prompt": "x" * 100}, (True, 5, 0), []),
        (SHIFTS, {"n_keep": -1}, (True, -1, 0), []),
        (SHIFTS, {"context_shift": False}, (False, 0, 0), []),
        (SHIFTS, {"banned_strings": ["a"]}, (False, 0, 0), []),
        (SHIFTS, {"prompt": ["a", "b"]}, (False, 0, 0), []),
    ],
)
def test_what_is_meant(limits: Limits, sent: dict[str, Any], meant: tuple[bool, int, int], ignored: list[str]) -> None:
    request, without_effect = read(limits, **sent)
    assert (shift_of(request), without_effect) == (meant, ignored)


def test_what_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="too long"):
        read(SHIFTS, prompt="x" * 100, context_shift=False)
    with pytest.raises(InvalidRequestError, match="context_shift and avoid exclude each other"):
        read(SHIFTS, context_shift=True, avoid=[])


def test_what_is_said_of_it() -> None:
    stop = StopEvent("id", 0, 3, "length", None, truncated=True)
    told = {"model": "m", "created": 1, "ignored": list[str]()}
    assert native.to_json(stop, **told)["truncated"] is True  # type: ignore[arg-type]
    start = StartEvent("id", 1, 100, 20, 5, (0,), (None,), n_cut=60)
    assert native.to_json(start, **told)["n_cut"] == 60  # type: ignore[arg-type]
    assert timings(Timings(0.0, 20, 1.0, 3, 1.0, 60), 100)["cache_n"] == 20
