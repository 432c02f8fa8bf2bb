"""Draft models: the texts are the same without them, and they are used only where that saves time."""

import dataclasses
import random
from array import array
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
from driver import check_aborted, few, request, run, run_interrupted, seeds, stops, texts, tokens_of
from fake_backend import FakeBackend, FakeReader, Script, babble, says

from srb.engine.backend import Costs
from srb.engine.engine import Engine
from srb.engine.events import Event
from srb.engine.kv_cache.radix import common_prefix, pack
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError

CARD = Costs(step=1.0, row=0.01, prompt_token=0.01, row_cell=0.0, prompt_cell=0.0)
"""Rows cost nearly nothing compared with a step, as on a GPU."""

PLAIN = SamplingParams(seed=0, ignore_eos=True)


class FakeDrafter:
    """Says what the script says for the seed 0, and checks what it is asked.

    share: the time to draft a token, as a part of a step. wrong_every: each token with this number is one too high.
    sure: how likely it thinks each of its tokens.
    fails: the numbers of the calls that fail, counted from 1.
    """

    n_texts = 4
    n_cells = 1000

    def __init__(
        self,
        script: Script = babble,
        *,
        share: float = 0.05,
        reading: float = 0.01,
        wrong_every: int = 1000,
        sure: float = 1.0,
        fails: Sequence[int] = (),
    ) -> None:
        self.reading = reading
        self.calls: list[tuple[Hashable, int, int, int]] = []  # owner, texts, tokens that it didn't know, n
        self._script, self._share, self._wrong_every, self._fails = script, share, wrong_every, fails
        self._sure = sure
        self._places: list[tuple[Hashable, array[int]]] = []

    def making(self, n_texts: int) -> float:
        assert 0 < n_texts <= self.n_texts
        return self._share

    def known(self, owner: Hashable, text: "array[int]") -> int:
        return max((common_prefix(known, text, 0) for whose, known in self._places if whose == owner), default=0)

    def draft(self, owner: Hashable, texts: Sequence["array[int]"], n: int, least_likely: float) -> list[list[int]]:
        assert 0 < len(texts) <= self.n_texts
        assert all(token >= 0 for text in texts for token in text)
        n_new = sum(len(text) - self.known(owner, text) for text in texts)
        self.calls.append((owner, len(texts), n_new, n))
        if len(self.calls) in self._fails:
            self._places.clear()
            raise BackendError("the small model has no room")
        n_final = next((k for k in range(n) if self._sure ** (k + 1) < least_likely), n)
        drafted = [self._said(text, n_final) for text in texts]
        self._places += [(owner, text + pack(tokens)) for text, tokens in zip(texts, drafted, strict=True)]
        del self._places[: -self.n_texts]
        return drafted

    def _said(self, text: "array[int]", n: int) -> list[int]:
        tokens = tuple(text)
        for _ in range(n):
            token = self._script(PLAIN, tokens)
            tokens += (token if len(tokens) % self._wrong_every else (token + 1) % 256,)
        return list(tokens[len(text) :])


def fake(script: Script = babble, drafter: FakeDrafter | None = None, **options: Any) -> FakeBackend:
    given: dict[str, Any] = {"costs": CARD, "n_cells": 1000, "n_outputs": 64} | options
    return FakeBackend(script=script, drafter=drafter, **given)


def engine(script: Script = babble, drafter: FakeDrafter | None = None, **options: Any) -> Engine:
    return Engine(fake(script, drafter, **options))


def plain(script: Script = babble) -> Engine:
    return Engine(FakeBackend(script=script, n_cells=1000))


def endless(**params: Any) -> CompletionRequest:
    return request("p" * 20, **({"max_tokens": 40, "ignore_eos": True} | params))


def said(events: list[Event]) -> list[Any]:
    """Return all that doesn't depend on time: texts, tokens and ends."""
    ends = stops(events)
    return [texts(events), {index: tokens_of(events, index) for index in ends}, ends]


@pytest.mark.parametrize("options", few({"wrong_every": 3}, {"fails": (2,)}, many=[{}, {"wrong_every": 1}]), ids=str)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n": 4},
        {"n": 8},
        {"ignore_eos": False, "max_tokens": 200},
        {"stop": ("\x07", "a", "bc", "\x00")},
        {"max_tokens": 1},
        {"max_tokens": 3},
        {"banned_strings": tuple(map(chr, range(20, 60)))},
        {"n": 2, "guidance_scale": 2.0, "negative_prompt": tuple(b"n" * 20), "banned_strings": ("a", "b", "c", "d")},
        {"n": 3, "diversity": 2.0},
    ],
    ids=lambda params: "-".join(params) or "plain",
)
def test_texts_are_those_without_a_small_model(params: dict[str, Any], options: dict[str, Any]) -> None:
    each = endless(**params)
    assert said(run(engine(drafter=FakeDrafter(**options)), each)) == said(run(plain(), each))


@pytest.mark.parametrize("n", [1, 4])
def test_drafts_that_are_right_take_fewer_steps(n: int) -> None:
    drafter = FakeDrafter(script := says(bytes(range(200)), prompt=20))
    one, each = engine(script, drafter), endless(n=n, max_tokens=200)
    assert said(run(one, each)) == said(run(plain(script), each))
    assert one.stats().steps < 60
    assert one.stats().n_accepted == one.stats().n_drafted > 140 * n
    assert {n_texts for _, n_texts, _, most in drafter.calls if most} == {n}, "siblings are in the same batches"


def test_drafts_that_are_wrong_are_soon_not_made_but_tried_again() -> None:
    drafter = FakeDrafter(wrong_every=1, share=0.3)
    one = engine(drafter=drafter)
    run(one, endless(max_tokens=600))
    lengths = [n for *_, n in drafter.calls]
    assert one.stats().n_accepted == 0
    assert sum(lengths) < 60
    assert 32 >= lengths.count(1) >= 4 * 5, "eight steps in 128, in which what was written since then is read, too"


@pytest.mark.parametrize("share", [0.95, 3.0])
def test_a_model_that_is_too_slow_is_never_asked(share: float) -> None:
    drafter = FakeDrafter(share=share)
    run(engine(drafter=drafter), endless())
    assert drafter.calls == []


def test_drafting_stops_where_the_small_model_is_uncertain() -> None:
    """A row and a token of its own take 0.066 of a step with the margin, and 0.6 ** 5 is more than that."""
    drafter = FakeDrafter(sure=0.6)
    one, each = engine(drafter=drafter), endless()
    assert said(run(one, each)) == said(run(plain(), each))
    assert one.stats().n_accepted > 20
    assert one.stats().n_drafted <= 5 * one.stats().steps
    assert one.stats().steps >= 40 / 6


def test_what_it_must_catch_up_with_counts() -> None:
    """The prompt says most of the text, so the small model isn't asked in between: it would have to read that first."""
    copied = bytes(range(60))
    script = says((copied + b"ab") * 6, prompt=60)
    quick, slow = (FakeDrafter(script, reading=reading, share=0.3) for reading in (0.0001, 0.2))
    for drafter in (quick, slow):
        run(engine(script, drafter), request(copied.decode(), max_tokens=-1))
    asked = [sum(1 for *_, n in each.calls if n) for each in (quick, slow)]
    assert asked[0] > asked[1]


def test_what_the_prompt_has_is_looked_up_and_not_drafted() -> None:
    copied = bytes(range(60))
    drafter = FakeDrafter(script := says(copied * 6, prompt=60))
    run(engine(script, drafter), request(copied.decode(), max_tokens=-1))
    assert sum(n for *_, n in drafter.calls) < 180


@pytest.mark.parametrize("n", [1, 3])
def test_a_prompt_is_read_in_chunks_of_half_a_step(n: int) -> None:
    drafter = FakeDrafter(reading=0.02)
    one = engine(drafter=drafter)
    run(one, request("p" * 210, n=n, max_tokens=100, ignore_eos=True))
    read = [n_new for _, _, n_new, n in drafter.calls if n == 0]
    assert read[:8] == [25] * 8
    assert sum(read) < 210 + n * 25, "siblings have one prompt, which is read once"
    assert all(n_new <= 25 for _, _, n_new, _ in drafter.calls)
    assert one.stats().n_accepted > 0


def test_a_text_that_is_longer_than_it_can_be_there_goes_on_without_it() -> None:
    drafter = FakeDrafter()
    drafter.n_cells = 40
    run(engine(drafter=drafter), endless())
    assert drafter.calls, "its beginning is short"
    assert drafter.known("", pack(b"p" * 20)) <= 40
    assert sum(n_new + n for _, _, n_new, n in drafter.calls) < 80


def test_a_text_that_it_cannot_read_goes_on_without_it() -> None:
    drafter = FakeDrafter(fails=[3])
    one = engine(drafter=drafter)
    run(one, endless())
    assert len(drafter.calls) == 3
    run(one, endless())
    assert len(drafter.calls) > 3, "the next text is tried again"


def test_images_are_not_drafted() -> None:
    drafter = FakeDrafter()
    one = engine(drafter=drafter, media=FakeReader())
    tokens, media = one.tokenize_parts(["x", b"image", "cab"])
    run(one, CompletionRequest((tokens,), (dataclasses.replace(PLAIN, max_tokens=20),), media=media))
    assert drafter.calls == []


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 20}, {"block_size": 4}, {"draft_max": 0}], ids=str)
def test_it_is_not_used_where_speculation_is_off(options: dict[str, Any]) -> None:
    drafter = FakeDrafter()
    run(engine(drafter=drafter, **options), endless())
    assert drafter.calls == []


@pytest.mark.parametrize("seed", seeds(60, first=15))
def test_cancelled_failed_and_resumed_everything_is_given_back(seed: int) -> None:
    rng = random.Random(seed)
    each = endless(n=rng.choice([1, 2, 4]), banned_strings=rng.choice([(), ("a", "b", "\x01")]))

    def make() -> FakeBackend:
        fails = rng.sample(range(1, 20), rng.randint(0, 2))
        drafter = FakeDrafter(wrong_every=rng.choice([1000, 9, 2]), reading=rng.choice([0.01, 0.1]), fails=fails)
        return fake(drafter=drafter, fail_decodes={rng.randint(1, 12)})

    expected = texts(run(plain(), each))
    events = run_interrupted(lambda: Engine(make()), each, [rng.randint(1, 6) for _ in range(rng.randint(0, 3))])
    if not each.branches[0].banned_strings:
        assert texts(events) == expected
    check_aborted(make(), each, rng)
