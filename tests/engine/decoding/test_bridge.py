"""Bridges score the suffix exactly, return the best candidates, and free everything."""

import dataclasses
from typing import Any

import pytest
from driver import check_idle, check_order, few, request, run, run_interrupted, stops, texts
from fake_backend import END, ByteTokenizer, FakeBackend, score
from mixed import ASCII, ascii_babble

from srb.engine.engine import Engine
from srb.engine.events import StartEvent
from srb.engine.limits import resolve
from srb.engine.model import SpecialTokens
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError

OWN = ("search", "n_candidates", "stop_at_suffix", "logprobs", "return_tokens", "heal")


def asking(n: int = 2, prompt: str | list[str] = "p", suffix: bytes = b"the end", **given: Any) -> CompletionRequest:
    fields = {name: given.pop(name) for name in OWN if name in given}
    asked = request(prompt, n, **{"logit_bias": ASCII, "max_tokens": 30} | given)
    return dataclasses.replace(asked, suffix=tuple(suffix) or None, **fields)


def big(**given: Any) -> FakeBackend:
    defaults: dict[str, Any] = {"n_cells": 4000, "n_parallel": 40, "script": ascii_babble}
    return FakeBackend(**defaults | given)


def likelihood(before: bytes, suffix: bytes) -> float:
    """Return the log-probability of a suffix on the fake backend."""
    return sum(score((*before, *suffix[:k]), token) for k, token in enumerate(suffix))


KINDS: dict[str, dict[str, Any]] = {
    "all are streamed": {"n_candidates": 4},
    "the best of more": {"n_candidates": 9},
    "stops at the suffix": {"n_candidates": 6, "stop_at_suffix": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", few(None, 5, many=[0]))
@pytest.mark.parametrize("given", [{}, {"stop": ("a", "bc")}, {"ignore_eos": True}, {"max_tokens": 0}])
def test_the_suffix_is_scored_after_the_returned_text(kind: str, window: int | None, given: dict[str, Any]) -> None:
    backend = big(window=window)
    engine = Engine(backend, cache_bytes=10_000)
    asked = asking(4, "prompt", b"the end" * 10, **KINDS[kind] | given)
    events = run(engine, asked)
    check_order(events, asked)
    said, ends = texts(events), stops(events)
    expected = [likelihood(b"prompt" + said.get(k, "").encode(), (b"the end" * 10)[:64]) for k in range(4)]
    assert [ends[k].suffix_logprob for k in range(4)] == pytest.approx(expected)
    ranks = [ends[k].rank for k in range(4)]
    assert [expected[ranks.index(rank)] for rank in range(1, 5)] == sorted(expected, reverse=True)
    if kind != "all are streamed":
        assert ranks == [1, 2, 3, 4]
    assert [event.infill for event in events if isinstance(event, StartEvent)] == ["bridge"]
    check_idle(engine, backend)


@pytest.mark.parametrize("window", [None, 0])
@pytest.mark.parametrize("text", [b"ab\xe3\x81", b"ab\xe3", b"\xe3\x81", b"ab\xe3\x81\x82"])
def test_a_character_that_is_not_complete_is_not_before_the_suffix(text: bytes, window: int | None) -> None:
    shown = text.decode(errors="ignore")
    for kind in KINDS.values():
        engine = Engine(big(script=writes(text), window=window))
        events = run(engine, asking(1, **kind | {"n_candidates": 2}, max_tokens=len(text), logit_bias=()))
        assert texts(events).get(0, "") == shown
        assert stops(events)[0].suffix_logprob == pytest.approx(likelihood(b"p" + shown.encode(), b"the end"))


class Pairs(ByteTokenizer):
    """Its token 200 is "ab"."""

    def piece(self, token: int) -> bytes:
        return b"ab" if token == 200 else super().piece(token)


@pytest.mark.parametrize("window", [None, 0])
def test_text_that_ends_within_a_token_is_before_the_suffix(window: int | None) -> None:
    for kind in KINDS.values():
        engine = Engine(big(script=writes(bytes((120, 200))), window=window, tokenizer=Pairs()))
        events = run(engine, asking(1, **kind | {"n_candidates": 2}, stop=("b",), max_tokens=4, logit_bias=()))
        assert texts(events) == {0: "xa"}
        assert stops(events)[0].suffix_logprob == pytest.approx(likelihood(b"pxa", b"the end"))


def test_the_tokens_of_all_candidates_are_counted() -> None:
    engine = Engine(big())
    events = run(engine, asking(1, n_candidates=6, ignore_eos=True))
    assert events[-1].usage.completion_tokens == 6 * 30  # type: ignore[union-attr]
    assert engine.stats().tokens_generated == 6 * 30


def test_known_tokens_are_evaluated_in_one_batch() -> None:
    """The suffix takes a step or two, and not one for each of its tokens."""
    backend = big(n_outputs=40)
    engine = Engine(backend)
    run(engine, asking(1, n_candidates=1, suffix=b"x" * 40, max_tokens=3, ignore_eos=True))
    assert backend.decodes <= 1 + 3 + 2


# Where a text ends


def writes(text: bytes) -> Any:
    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        place = len(tokens) - 1
        return text[place] if place < len(text) else END

    return script


@pytest.mark.parametrize("window", [None, 0])
def test_a_text_ends_after_the_sentence_that_the_suffix_follows_best(window: int | None) -> None:
    story = b"".join(b"This is sentence %d." % k for k in range(8))
    ends = [k + 1 for k, each in enumerate(story) if each == ord(".")]
    glances = [likelihood(b"p" + story[:end], b"the end") for end in ends]
    best = next(k for k in range(8) if max(glances[: k + 3]) == glances[k] and k + 2 < 8)
    engine = Engine(backend := big(script=writes(story), window=window))
    events = run(engine, asking(1, n_candidates=1, max_tokens=500, stop_at_suffix=True, logit_bias=()))
    assert texts(events)[0].encode() == story[: ends[best]]
    end = stops(events)[0]
    assert (end.finish_reason, end.stop_reason, end.length) == ("stop", "suffix", ends[best])
    assert end.suffix_logprob == pytest.approx(glances[best])
    check_idle(engine, backend)


# What goes wrong, or is interrupted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [None, 5])
def test_decodes_that_fail_once_change_nothing(kind: str, window: int | None) -> None:
    expected = run(Engine(big()), asking(4, **KINDS[kind]))
    backend = big(window=window, fail_decodes={2, 5, 6, 20, 31, 40})
    engine = Engine(backend)
    events = run(engine, asked := asking(4, **KINDS[kind]))
    assert texts(events) == texts(expected)
    assert [end.suffix_logprob for end in stops(events).values()] == [
        end.suffix_logprob for end in stops(expected).values()
    ]
    check_order(events, asked)
    check_idle(engine, backend)


def test_an_alternative_that_always_fails_ends_alone() -> None:
    """If it is its own candidate. With more candidates than alternatives, all of them end."""
    script = lambda params, tokens: ord("!") if params.seed == 1 else ord("x")  # noqa: E731
    for n, failed in ((3, {1}), (5, {0, 1, 2})):
        backend = big(script=script, poison="!", names_poisoned=True)
        engine = Engine(backend)
        events = run(engine, asked := asking(3, n_candidates=n, max_tokens=9, logit_bias=()))
        ends = stops(events)
        assert {k for k, end in ends.items() if end.finish_reason == "error"} == failed
        assert sorted(end.rank for end in ends.values() if end.rank) == list(range(1, 4 - len(failed)))
        check_order(events, asked)
        check_idle(engine, backend)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", few([12, 3], many=[[k] for k in range(1, 60, 4)]))
def test_an_interrupted_request_says_what_it_would_have_said(kind: str, cuts: list[int]) -> None:
    for options in ({}, {"stop": ("a", "bc")}, {"logprobs": 0, "ignore_eos": True}):
        asked = asking(4, **KINDS[kind] | options)
        whole = run(Engine(big()), asked)
        events = run_interrupted(lambda: Engine(big()), asked, cuts)
        assert texts(events) == texts(whole)
        assert stops(events) == stops(whole)


# What is refused


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"n_candidates": 1}, "candidates"),
        ({"n_candidates": 9, "max_tokens": 2}, "candidates"),
        ({"max_tokens": 60}, "max_tokens"),
    ],
)
def test_what_is_refused(given: dict[str, Any], param: str) -> None:
    engine = Engine(FakeBackend(n_cells=256, n_parallel=8))
    with pytest.raises(InvalidRequestError) as caught:
        engine.add_request(asking(2, **given))
    assert caught.value.param == param


def test_a_suffix_of_other_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="suffix has the token id 999"):
        Engine(big()).add_request(dataclasses.replace(asking(), suffix=(999,)))


def test_fewer_candidates_if_fewer_can_run() -> None:
    for window, n_parallel, expected in ((None, 40, 8), (None, 3, 3), (0, 4, 3), (None, 1, 1)):
        backend = FakeBackend(window=window, n_parallel=n_parallel)
        assert resolve(asking(1), backend.tokenizer.special, backend).n_candidates == expected
    with pytest.raises(InvalidRequestError, match="3 candidates, and one more row to score the suffix, exceed the 3"):
        Engine(FakeBackend(window=0, n_parallel=3)).add_request(asking(3))


class Infilling(ByteTokenizer):
    special = SpecialTokens(bos=1, eos=END, fim_pre=2, fim_suf=3, fim_mid=4)


def test_a_model_with_tokens_for_infill_uses_them() -> None:
    backend = big()
    backend.tokenizer = Infilling()
    engine = Engine(backend)
    asked = dataclasses.replace(asking(2, "\1before", b"after"), branches=request("p", 2, max_tokens=9).branches)
    events = run(engine, asked)
    plain = run(Engine(big()), request("\1\2before\3after\4", 2, max_tokens=9))
    assert texts(events) == texts(plain)
    assert [event.infill for event in events if isinstance(event, StartEvent)] == ["model"]
    assert stops(events)[0].suffix_logprob is None
    for options in ({"n_candidates": 3}, {"stop_at_suffix": True}):
        events = run(engine, asking(2, "\1before", b"after", **options))
        assert [event.infill for event in events if isinstance(event, StartEvent)] == ["bridge"]
        assert stops(events)[0].rank == 1
