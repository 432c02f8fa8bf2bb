"""Bodies as requests: beam search, context shift and prefetching, and the server's settings for bodies without them."""

from dataclasses import replace
from typing import Any

import pytest

from srb.engine.events import StartEvent, StopEvent, Timings
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.llama_server.body import LlamaFields, parse_completion
from srb.wire.native import reply as native
from srb.wire.reply import timings
from srb.wire.request.body import Parsed, parse
from srb.wire.request.fields import CompletionFields
from srb.wire.request.read import validate


def tokenize(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
    if len(text) > 10 and not any_length:
        raise InvalidRequestError("too long", param="prompt")
    return tuple(text.encode())


LIMITS = Limits("fake", n=2, max_n=8, tokenize=tokenize)
SHIFTS = replace(LIMITS, context_shift=True, n_keep=5)
THREE_AHEAD = replace(LIMITS, ahead=3)


def read(limits: Limits = LIMITS, **fields: Any) -> Parsed:
    return parse(validate({"prompt": "p"} | fields, CompletionFields), limits)


def search_of(request: CompletionRequest) -> tuple[Any, ...]:
    return request.search, request.n_rows, request.length_penalty, request.early_stopping


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({}, ("sample", 0, 1.0, False)),
        ({"search": "sample"}, ("sample", 0, 1.0, False)),
        ({"search": "beam"}, ("beam", 4, 1.0, False)),
        ({"search": "beam", "n": 6}, ("beam", 6, 1.0, False)),
        ({"search": "beam", "beams": "5", "length_penalty": "-1.5"}, ("beam", 5, -1.5, False)),
        ({"search": "beam", "early_stopping": True}, ("beam", 4, 1.0, True)),
        ({"search": "beam", "early_stopping": "false"}, ("beam", 4, 1.0, False)),
        ({"search": "beam", "early_stopping": "never"}, ("beam", 4, 1.0, "never")),
    ],
)
def test_the_fields_of_a_beam_search(sent: dict[str, Any], meant: tuple[Any, ...]) -> None:
    parsed = read(**sent)
    assert search_of(parsed.completion) == meant
    assert parsed.ignored == []


@pytest.mark.parametrize(
    ("sent", "without_effect"),
    [
        ({"beams": 3, "length_penalty": 2, "early_stopping": True}, ["beams", "early_stopping", "length_penalty"]),
        ({"search": "best", "temperature": 1, "beams": 3}, ["beams", "search"]),
        ({"search": "beam", "temperature": 1, "mirostat": 2, "seed": 1}, ["mirostat", "seed", "temperature"]),
        ({"search": "beam", "branches": [{"label": "x"}, {"min_p": 0.05}]}, ["branches[1].min_p"]),
        ({"search": "beam", "logit_bias": {"5": 1}, "min_tokens": 3, "stop": "x", "ignore_eos": True}, []),
    ],
)
def test_fields_without_effect_in_a_search_are_reported(sent: dict[str, Any], without_effect: list[str]) -> None:
    assert sorted(read(**sent).ignored) == without_effect


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"search": 5}, "search"),
        ({"search": "beam", "beams": 1}, "beams"),
        ({"search": "beam", "early_stopping": "soon"}, "early_stopping"),
        ({"search": "beam", "length_penalty": 100}, "length_penalty"),
        ({"search": "beam", "json_schema": {}}, "json_schema"),
        ({"search": "beam", "stream": False, "n": 1, "best_of": 2}, "best_of"),
    ],
)
def test_a_search_refuses_other_fields(sent: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**sent)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("sent", "length", "logprobs"),
    [({}, -1, None), ({"search": "beam"}, None, None), ({"logprobs": 3}, -1, 3), ({"logprobs": 0}, -1, None)],
)
def test_llama_servers_length_and_probabilities(sent: dict[str, Any], length: int | None, logprobs: int | None) -> None:
    request = parse_completion(validate({"prompt": "p"} | sent, LlamaFields), LIMITS).completion
    assert (request.branches[0].max_tokens, request.logprobs) == (length, logprobs)


def test_events_have_the_log_probability_of_a_search() -> None:
    def stop(**found: float) -> dict[str, Any]:
        event = StopEvent("id", 0, 5, "stop", None, **found)  # type: ignore[arg-type]
        return native.to_json(event, model="m", created=0, ignored=[])

    assert "logprob" not in stop()
    assert stop(logprob=-2.00000001)["logprob"] == -2.0


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
def test_the_fields_of_a_context_shift(
    limits: Limits, sent: dict[str, Any], meant: tuple[bool, int, int], ignored: list[str]
) -> None:
    parsed = read(limits, **sent)
    assert (shift_of(parsed.completion), parsed.ignored) == (meant, ignored)


def test_a_context_shift_that_is_not_possible_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="too long"):
        read(SHIFTS, prompt="x" * 100, context_shift=False)


def test_events_have_the_dropped_tokens_of_a_context_shift() -> None:
    stop = StopEvent("id", 0, 3, "length", None, truncated=True)
    assert native.to_json(stop, model="m", created=1, ignored=[])["truncated"] is True
    start = StartEvent("id", 1, 100, 20, 5, (0,), (None,), n_truncated=60)
    assert native.to_json(start, model="m", created=1, ignored=[])["n_cut"] == 60
    assert timings(Timings(0.0, 20, 1.0, 3, 1.0, 60), 100)["cache_n"] == 20


@pytest.mark.parametrize(
    ("limits", "sent", "ahead"),
    [
        (LIMITS, {}, 0),
        (LIMITS, {"ahead": "2"}, 2),
        (LIMITS, {"ahead": None}, 0),
        (THREE_AHEAD, {}, 3),
        (THREE_AHEAD, {"ahead": 0}, 0),
        (THREE_AHEAD, {"ahead": 8}, 8),
        (THREE_AHEAD, {"diversity": 1}, 0),
        (THREE_AHEAD, {"prompt": ["a", "b"]}, 0),
    ],
)
def test_the_number_of_prefetched_alternatives(limits: Limits, sent: dict[str, Any], ahead: int) -> None:
    parsed = read(limits, **sent)
    assert (parsed.completion.ahead, parsed.ignored) == (ahead, [])


@pytest.mark.parametrize(
    ("sent", "any_seed"),
    [
        ({}, True),
        ({"seed": -1}, True),
        ({"seed": None}, True),
        ({"seed": 7}, False),
        ({"branches": [{"label": "a"}, {"seed": -1}]}, True),
        ({"branches": [{}, {"seed": 7}]}, False),
    ],
)
def test_a_body_without_a_seed_takes_any(sent: dict[str, Any], any_seed: bool) -> None:
    assert read(**sent).completion.any_seed is any_seed


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"ahead": 9}, r"ahead must be from 0 to 8 \(--max-n\), got 9"),
        ({"ahead": -1}, r"ahead must be from 0 to 8 \(--max-n\), got -1"),
    ],
)
def test_prefetching_that_is_not_possible_is_refused(sent: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        read(**sent)
    assert refused.value.param == "ahead"
