"""Searches find the same as an exhaustive search, use only the cells that they allocated, and report texts once."""

import dataclasses
import math
from typing import Any

import pytest
from driver import check_idle, check_order, request, run, run_interrupted, stops, texts
from fake_backend import END, N_VOCAB, FakeBackend, scores
from hypothesis import given
from hypothesis import strategies as st

from srb.engine.engine import Engine
from srb.engine.events import ErrorEvent, Event, StreamEvent
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError

LETTERS = b"abc"
FEW = tuple((token, -math.inf) for token in range(N_VOCAB) if token not in (*LETTERS, END))
"""A bias that leaves a few letters, and the end."""


def search(n: int = 1, kind: str = "beam", prompt: str | list[str] = "p", **given: Any) -> CompletionRequest:
    own = {"beams", "length_penalty", "early_stopping", "logprobs", "return_tokens", "echo", "resumed"} & given.keys()
    fields = {name: given.pop(name) for name in own}
    return dataclasses.replace(request(prompt, n, **{"logit_bias": FEW} | given), search=kind, **fields)


def big() -> FakeBackend:
    return FakeBackend(n_cells=4000, n_parallel=200)


def narrow(
    beams: int, max_tokens: int, length_penalty: float, early_stopping: bool | str, stop: str
) -> list[tuple[float, tuple[int, ...]]]:
    """A beam search of the plainest kind: all that goes on is sorted, in each step. Returns scores and tokens."""

    def ends(tokens: tuple[int, ...]) -> bool:
        return tokens[-1] == END or len(tokens) == max_tokens or stop.encode() == bytes(tokens[-len(stop) :])

    living: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    found: list[tuple[float, tuple[int, ...]]] = []
    while living:
        strategies = []
        for logprob, tokens in living:
            all_scores = scores((*b"p", *tokens))
            total = math.log(sum(math.exp(all_scores[each]) for each in (*LETTERS, END)))
            strategies += [(logprob + all_scores[each] - total, (*tokens, each)) for each in (*LETTERS, END)]
        strategies.sort(reverse=True)
        length = len(strategies[0][1])
        ending = [strategy for strategy in strategies[:beams] if ends(strategy[1])]
        found += [(logprob / length**length_penalty, tokens) for logprob, tokens in ending]
        found = sorted(found, reverse=True)[:beams]
        living = [strategy for strategy in strategies if not ends(strategy[1])][:beams]
        if living and len(found) == beams:
            far = max_tokens if early_stopping == "never" and length_penalty > 0 else length
            if early_stopping is True or found[-1][0] >= living[0][0] / far**length_penalty:
                break
    return found


@given(
    beams=st.sampled_from([1, 2, 3, 5, 200]),
    max_tokens=st.integers(1, 7),
    length_penalty=st.sampled_from([-0.5, 0.0, 1.0, 2.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
    stop=st.sampled_from(["\0", "ab"]),
    logprobs=st.sampled_from([None, 2]),
    data=st.data(),
)
def test_beams_go_on_as_the_plainest_search_does(
    beams: int,
    max_tokens: int,
    length_penalty: float,
    early_stopping: bool | str,
    stop: str,
    logprobs: int | None,
    data: st.DataObject,
) -> None:
    n = data.draw(st.integers(1, beams))
    given: dict[str, Any] = {"max_tokens": max_tokens, "length_penalty": length_penalty, "stop": (stop,)}
    asked = search(n, beams=beams, early_stopping=early_stopping, logprobs=logprobs, **given)
    events = run(Engine(big()), asked)
    check_order(events, asked)
    said, ends = texts(events), stops(events)
    expected = narrow(beams, max_tokens, length_penalty, early_stopping, stop)[:n]
    assert [end.finish_reason == "error" for end in ends.values()].count(True) == n - len(expected)
    for k, (score, tokens) in enumerate(expected):
        text = bytes(token for token in tokens if token != END).decode()
        assert said.get(k, "") == text.removesuffix(stop)
        assert (ends[k].length, ends[k].stop_reason) == (len(tokens), stop if text.endswith(stop) else None)
        assert ends[k].logprob == pytest.approx(score * len(tokens) ** length_penalty)
        if logprobs is not None:
            reported = [event.token for event in events if isinstance(event, StreamEvent) and event.index == k]
            assert [token.id for token in reported if token] == [*tokens]
            assert all(token and len(token.top_logprobs) == 2 for token in reported)
            assert ends[k].mean_logprob is not None


def test_what_all_beams_begin_with_is_said_as_it_settles() -> None:
    engine = Engine(big())
    asked = search(2, beams=3, max_tokens=60, ignore_eos=True)
    engine.add_request(asked)
    steps: list[list[Event]] = []
    while engine.has_work:
        steps.append(engine.step())
    early = [event for step in steps[:-3] for event in step if isinstance(event, StreamEvent)]
    said = [texts([event for event in early if event.index == k]).get(k, "") for k in range(2)]
    assert said[0] == said[1]
    assert len(said[0]) > 10
    whole = texts([event for step in steps for event in step])
    assert whole[0] != whole[1]
    assert all(text.startswith(said[0]) for text in whole.values())


@pytest.mark.parametrize("window", [None, 0, 5])
def test_several_prompts_share_cells_and_are_cached(window: int | None) -> None:
    backend = FakeBackend(n_cells=400, n_parallel=8, window=window)
    engine = Engine(backend, cache_bytes=10_000)
    prompts = ["p" * 40, "p" * 40 + "q" * 5, "p" * 40]
    alone = [texts(run(Engine(big()), search(2, beams=4, max_tokens=6, prompt=each))) for each in prompts]
    events = run(engine, search(2, beams=4, max_tokens=6, prompt=prompts))
    said = texts(events)
    assert [{k: said[2 * number + k] for k in range(2)} for number in range(3)] == alone
    evaluated = engine.stats().prompt_tokens_evaluated
    assert evaluated == 45
    again = run(engine, search(2, beams=4, max_tokens=6, prompt=prompts[:1]))
    assert texts(again) == alone[0]
    assert engine.stats().prompt_tokens_evaluated == evaluated  # the prompt was cached
    assert (engine.stats().cells, backend.cells) == (0, 0)


def test_too_few_texts() -> None:
    bias = tuple((token, -math.inf) for token in range(N_VOCAB) if token != ord("a"))
    asked = search(3, max_tokens=4, logit_bias=bias)
    events = run(Engine(big()), asked)
    assert texts(events)[0] == "aaaa"  # all there is begins like that
    assert [stops(events)[k].finish_reason for k in range(3)] == ["length", "error", "error"]
    assert [event.index for event in events if isinstance(event, ErrorEvent)] == [1, 2]
    check_order(events, asked)


@pytest.mark.parametrize("max_tokens", [0, 1, None])
def test_few_tokens(max_tokens: int | None) -> None:
    engine = Engine(FakeBackend(n_cells=40, n_parallel=8), default_max_tokens=-1)
    asked = search(2, beams=8, max_tokens=max_tokens, ignore_eos=True, prompt="p" * 20)
    events = run(engine, asked)
    check_order(events, asked)
    assert {end.length for end in stops(events).values()} == {3 if max_tokens is None else max_tokens}
    assert {end.finish_reason for end in stops(events).values()} == {"length"}


@given(
    n=st.integers(1, 3),
    max_tokens=st.integers(0, 30),
    window=st.sampled_from([None, 0, 5]),
    fails=st.sets(st.sampled_from(range(2, 12, 2)), max_size=2),
    stop=st.sampled_from([(), ("ab",)]),
    logprobs=st.sampled_from([None, 1]),
    min_tokens=st.sampled_from([0, 5]),
)
def test_decodes_that_fail_once_change_nothing(
    n: int,
    max_tokens: int,
    window: int | None,
    fails: set[int],
    stop: tuple[str, ...],
    logprobs: int | None,
    min_tokens: int,
) -> None:
    given: dict[str, Any] = {"max_tokens": max_tokens, "stop": stop, "logprobs": logprobs, "min_tokens": min_tokens}
    expected = run(Engine(big()), search(n, **given))
    backend = FakeBackend(n_cells=400, window=window, fail_decodes=fails)
    engine = Engine(backend, cache_bytes=1000)
    asked = search(n, **given)
    events = run(engine, asked)
    check_order(events, asked)
    failed = {k for k, end in stops(events).items() if end.finish_reason == "error"}
    assert not failed or window == 0  # such a model can't be repaired
    if not failed:
        assert texts(events) == texts(expected)
        assert [dataclasses.replace(end, request_id="") for end in stops(events).values()] == [
            dataclasses.replace(end, request_id="") for end in stops(expected).values()
        ]
    check_idle(engine, backend)


@given(
    n=st.integers(1, 4),
    max_tokens=st.integers(1, 25),
    stop=st.sampled_from([(), ("ab",)]),
    logprobs=st.sampled_from([None, 1]),
    cuts=st.lists(st.integers(1, 25), min_size=1, max_size=3),
)
def test_an_interrupted_search_says_what_it_would_have_said(
    n: int,
    max_tokens: int,
    stop: tuple[str, ...],
    logprobs: int | None,
    cuts: list[int],
) -> None:
    asked = search(n, max_tokens=max_tokens, stop=stop, logprobs=logprobs)
    whole = run(Engine(big()), asked)
    events = run_interrupted(lambda: Engine(big()), asked, cuts)
    assert texts(events) == texts(whole)
    assert stops(events) == stops(whole)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"kind": "best"}, "search"),
        ({"beams": 1}, "beams"),
        ({"beams": 9}, "beams"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"length_penalty": 11.0}, "length_penalty"),
        ({"early_stopping": "ever"}, "early_stopping"),
        ({"max_tokens": 70}, "max_tokens"),
    ],
)
def test_what_a_search_refuses(given: dict[str, Any], param: str) -> None:
    engine = Engine(FakeBackend(n_cells=256, n_parallel=8))
    with pytest.raises(InvalidRequestError) as caught:
        engine.add_request(search(2, **given))
    assert caught.value.param == param


def test_branches_may_differ_in_labels() -> None:
    first, second = search(2).branches
    assert dataclasses.replace(search(), branches=(first, dataclasses.replace(second, label="second"))).n_rows == 4
