"""Speculative decoding: the texts are the same without it, and take fewer steps where draft tokens are right."""

import dataclasses
from typing import Any

import pytest
from driver import few, request, run, stops, texts, tokens_of
from fake_backend import END, IN_STEP, FakeBackend, FakeReader, Script, babble, says

from srb.engine.backend import Costs
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.spec_decode.base import DraftBudget

CHEAP = dataclasses.replace(IN_STEP, step=100.0)
"""Rows cost nearly nothing compared with a step, so all draft tokens have rows."""

PROCESSOR = Costs(0.018, row=0.0018, prompt_token=0.001, row_cell=0, prompt_cell=0, lone_step=0.0125)
"""Measured: SmolLM2-135M in BF16 on two cores."""

COPIED = b"the quick brown fox jumps over the lazy dog and runs away"


def ahead_of(script: Script, *, wrong_every: int = 1000) -> Any:
    """Return the tokens that samplers call forced: the script's next ones, with a wrong token among them."""

    def forced(params: SamplingParams, tokens: tuple[int, ...]) -> tuple[int, ...]:
        n = len(tokens)
        while len(tokens) < n + 6:
            token = script(params, tokens)
            tokens += ((token + 1) % END if len(tokens) % wrong_every == 0 else token,)
        return tokens[n:]

    return forced


def fake(script: Script = babble, wrong_every: int = 1000, **options: Any) -> FakeBackend:
    """Return a backend that knows the script's next tokens for alternatives with a grammar."""
    options = {"costs": CHEAP, "n_cells": 1000, "forced": ahead_of(script, wrong_every=wrong_every)} | options
    return FakeBackend(script=script, **options)


def engine(script: Script = babble, wrong_every: int = 1000, **options: Any) -> Engine:
    return Engine(fake(script, wrong_every, **options))


def plain(script: Script = babble) -> Engine:
    """Return an engine whose costs make no draft token worth a row."""
    return Engine(FakeBackend(script=script, n_cells=1000))


def with_grammar(**params: Any) -> CompletionRequest:
    fields: dict[str, Any] = {"grammar": "g", "max_tokens": 40, "ignore_eos": True}
    return request("p" * 20, **fields | params)


def said(events: list[Event]) -> list[tuple[dict[int, str], dict[int, list[int]], dict[int, Any]]]:
    """Return all that doesn't depend on time: texts, tokens and ends."""
    ends = stops(events)
    return [(texts(events), {index: tokens_of(events, index) for index in ends}, ends)]


@pytest.mark.parametrize("wrong_every", few(3, 1, many=[1000, 7, 2]))
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n": 8},
        {"ignore_eos": False, "max_tokens": 200},
        {"stop": ("\x07", "a", "bc", "\x00")},
        {"max_tokens": 1},
        {"max_tokens": 3},
        {"banned_strings": tuple(map(chr, range(20, 60)))},
        {"n": 3, "guidance_scale": 2.0, "negative_prompt": tuple(b"n" * 20)},
        {"n": 3, "guidance_scale": 2.0, "negative_prompt": tuple(b"n" * 20), "banned_strings": ("a", "b", "c", "d")},
        {"n": 3, "diversity": 2.0},
        {"n": 3, "avoid": ()},
    ],
    ids=lambda params: "-".join(params) or "plain",
)
def test_texts_are_the_same_without_draft_tokens(params: dict[str, Any], wrong_every: int) -> None:
    each = with_grammar(**params)
    assert said(run(engine(wrong_every=wrong_every), each)) == said(run(plain(), each))


def test_accepted_draft_tokens_save_steps() -> None:
    one, other = engine(), plain()
    events = run(one, with_grammar())
    run(other, with_grammar())
    assert one.stats().steps < 0.3 * other.stats().steps
    stats, done = one.stats(), events[-1]
    assert isinstance(done, DoneEvent)
    assert stats.n_drafted >= stats.n_accepted > 25
    assert (stats.n_drafted, stats.n_accepted) == (done.timings.n_drafted, done.timings.n_accepted)
    assert (other.stats().n_drafted, other.stats().n_accepted) == (0, 0)


def test_nothing_is_drafted_while_tokens_are_computed_again() -> None:
    one = Engine(fake(n_cells=90), cache_bytes=0)
    one.add_request(dataclasses.replace(with_grammar(), priority=1))
    one.step(), one.step(), one.step(), one.step()
    run(one, request("u" * 70, max_tokens=1))
    stats = one.stats()
    assert stats.preemptions == 1
    assert stats.n_drafted == stats.n_accepted > 25


def test_wrong_draft_tokens_soon_get_no_rows() -> None:
    one = engine(wrong_every=1, costs=PROCESSOR)
    run(one, with_grammar(max_tokens=200))
    assert one.stats().n_accepted == 0
    assert one.stats().n_drafted < 40


@pytest.mark.parametrize("n", [1, 4])
def test_text_copied_from_the_prompt_is_proposed(n: int) -> None:
    script = says(b"He said: " + COPIED * 2 + b".", prompt=len(COPIED))
    one = engine(script, costs=PROCESSOR)
    each = request(COPIED.decode(), n=n, max_tokens=-1)
    assert said(run(one, each)) == said(run(plain(script), each))
    assert one.stats().steps < (0.5 if n == 1 else 0.7) * (10 + 2 * len(COPIED))
    assert one.stats().n_accepted > 0.7 * one.stats().n_drafted


def test_a_wrong_proposer_does_not_hide_another() -> None:
    """The tokens of the grammar are always wrong here, and those of the prompt are right."""
    script = says(COPIED * 2, prompt=len(COPIED))
    one = engine(script, wrong_every=1, costs=PROCESSOR)
    run(one, request(COPIED.decode(), grammar="g", max_tokens=-1))
    assert one.stats().n_accepted > 60


def test_text_of_a_sibling_is_proposed() -> None:
    """The second one repeats it when the first one has ended, and it is nowhere else."""
    script = says(COPIED, bytes(range(128, 228)) + COPIED)
    one = engine(script)
    run(one, request("p", n=2, max_tokens=-1))
    assert one.stats().n_accepted > 40


@pytest.mark.parametrize("n", [1, 5])
def test_many_alternatives_look_nothing_up(n: int) -> None:
    one = engine(says(COPIED * 2, prompt=len(COPIED)), n_cells=2000)
    run(one, *(request(COPIED.decode(), n=n, max_tokens=100) for _ in range(5 // n)))
    assert one.stats().n_drafted == 0


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 20}, {"block_size": 4}])
def test_a_model_that_cannot_drop_tokens_gets_no_draft_tokens(options: dict[str, Any]) -> None:
    one = engine(**options)
    run(one, with_grammar())
    assert one.stats().n_drafted == 0


@pytest.mark.parametrize("params", [{"diversity": 1.0}, {"avoid": ()}])
def test_joint_alternatives_get_no_draft_tokens(params: dict[str, Any]) -> None:
    """Otherwise one with more tokens would show the others words that they don't see without draft tokens."""
    one = engine()
    run(one, with_grammar(n=2, **params))
    assert one.stats().n_drafted == 0


def test_images_in_a_prompt_are_not_proposed() -> None:
    one = engine(lambda _params, tokens: b"abc"[sum(token >= 0 for token in tokens) % 3], media=FakeReader())
    tokens, media = one.tokenize_parts(["xabcab", b"image", "cab"])
    params = SamplingParams(seed=0, max_tokens=20, ignore_eos=True)
    events = run(one, CompletionRequest((tokens,), (params,), media=media))
    assert stops(events)[0].finish_reason == "length"
    assert one.stats().n_accepted > 10


def test_the_backend_limits_the_number_of_draft_tokens() -> None:
    for most in (0, 3):
        one = Engine(backend := fake(draft_max=most))
        sizes: list[int] = []
        each = with_grammar(max_tokens=30)
        one.add_request(each)
        while one.has_work:
            before = backend.rows
            one.step()
            sizes.append(backend.rows - before)
        assert max(sizes[2:]) == most + 1


def test_the_number_of_draft_tokens_depends_on_the_costs() -> None:
    def n_tokens(rate: float, n_rows: int, costs: Costs, **more: float) -> int:
        return DraftBudget(n_rows, 0, costs, 16, more.get("min_saved", 0.0)).best(
            rate, 16, more.get("draft_seconds", 0.0)
        )[0]

    assert n_tokens(0.9, 1, PROCESSOR) >= 8
    assert n_tokens(0.5, 1, PROCESSOR) == 0, "the second row of a step is dear there"
    assert n_tokens(0.9, 1, dataclasses.replace(IN_STEP, row=1.0)) == 0, "a row costs as much as a step"
    assert 0 < n_tokens(0.5, 1, CHEAP) < 16
    assert n_tokens(0.95, 4, PROCESSOR) >= n_tokens(0.95, 32, PROCESSOR)
    few = dataclasses.replace(PROCESSOR, row=0.0012)
    assert n_tokens(0.6, 4, few) > 0 == n_tokens(0.3, 4, few), "its siblings are as uncertain, and their steps stay"
    assert n_tokens(0.8, 1, CHEAP) > n_tokens(0.8, 1, CHEAP, draft_seconds=30.0) > 0
    assert n_tokens(0.8, 1, CHEAP, draft_seconds=100.0) == 0, "to draft a token takes as long as to sample one"
    assert n_tokens(0.5, 1, CHEAP, min_saved=DraftBudget(1, 0, CHEAP, 16).best(0.8, 16)[1]) == 0, (
        "another proposer saves more"
    )
