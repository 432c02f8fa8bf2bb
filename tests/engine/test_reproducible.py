"""Where logits depend on how each cell came, texts are the same whatever else runs. Takes two seconds."""

import random
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from driver import few, own, request, run, seeds, stops, texts, tokens_of
from fake_backend import FakeBackend, FakeReader
from mixed import ASCII

from srb.engine.engine import Engine
from srb.engine.events import Event, StopEvent
from srb.engine.request import CompletionRequest
from srb.engine.resume import resume
from srb.errors import InvalidRequestError

BLOCK = 8
STORY = "Once upon a time, there was a dragon."


def fake(**options: Any) -> FakeBackend:
    defaults: dict[str, Any] = {"n_cells": 160, "n_parallel": 6, "block_size": BLOCK, "fingerprint": "here"}
    return FakeBackend(**(defaults | options))


def answers(events: Iterable[Event], each: CompletionRequest) -> list[tuple[str, str]]:
    found = own(events, each)
    said, ends = texts(found), stops(found)
    return [(said.get(index, ""), ends[index].finish_reason) for index in sorted(ends)]


def alone(each: CompletionRequest) -> list[tuple[str, str]]:
    return answers(run(Engine(fake()), each), each)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a stop string": {"stop": ("e",)},
    "banned phrases": {"banned_strings": ("a", "x")},
    "a negative prompt": {"guidance_scale": 2.0, "negative_prompt": tuple(b"nothing of all this, please")},
    "as long as there is room": {"max_tokens": -1},
    "no end": {"ignore_eos": True},
    "a search": {"search": "beam", "ignore_eos": False, "logit_bias": ASCII},
    "a bridge": {"suffix": tuple(b" The end."), "stop": ("e",)},
    "the best of a bridge": {"suffix": tuple(b" The end."), "n_candidates": 4, "ignore_eos": False},
    "alternatives that differ": {"diversity": 1.0},
    "a scored prompt": {"echo": True, "logprobs": 1},
}


def ask(text: str, n: int, **options: Any) -> CompletionRequest:
    of_all = {
        name: options.pop(name) for name in ("search", "echo", "logprobs", "suffix", "n_candidates") if name in options
    }
    return replace(request(text, n, **options), **of_all)


@pytest.mark.parametrize("kind", ["a search", "a bridge"])
def test_each_row_of_a_prompt_has_a_context_for_itself(kind: str) -> None:
    """So a request is given the tokens that it asks for: its rows don't divide one context."""
    each = ask("Once", 3, **KINDS[kind] | {"max_tokens": 100, "ignore_eos": True, "stop": ()})
    assert {end.length for end in stops(run(Engine(fake()), each)).values()} == {100}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(6, first=1))
def test_a_request_gets_the_same_texts_with_others_as_alone(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    engine, events, mine = Engine(fake(), cache_bytes=100_000), list[Event](), []
    for number in range(9):
        options = KINDS[kind] if number % 3 == 0 else rng.choice(list(KINDS.values()))
        text = STORY[: rng.randint(1, len(STORY))] + rng.choice(
            ["", " So it went", " He said: No, never, by no means."]
        )
        each = ask(text, rng.randint(1, 4), **{"max_tokens": 12, "seed": number} | options)
        mine.append(each)
        engine.add_request(each)
        for _ in range(rng.randint(0, 12)):
            events += engine.step()
        if rng.random() < 0.3:
            engine.abort(rng.choice(mine).id)
    events += run(engine)
    whole = [
        each for each in mine if not any(end.stop_reason == "cancelled" for end in stops(own(events, each)).values())
    ]
    assert len(whole) > 3
    for each in whole:
        assert answers(events, each) == alone(each)
    stats = engine.stats()
    assert stats.prompt_tokens_cached > 0, "nothing was shared"
    assert stats.cells == 0


@pytest.mark.parametrize("long_first", [True, False])
def test_what_was_cached_of_a_longer_prompt_is_not_taken_for_a_shorter_one(long_first: bool) -> None:
    """Both end within the same block, which the longer one has evaluated with more tokens."""
    short, long = (request(text, 2, max_tokens=10) for text in (STORY[: 2 * BLOCK + 4], STORY[: 2 * BLOCK + 6]))
    asked = [long, short] if long_first else [short, long]
    engine = Engine(fake(), cache_bytes=100_000)
    for each in (*asked, *asked, *asked):
        again = replace(each, id=f"again {each.id}")
        assert answers(run(engine, again), again) == alone(each)
    assert engine.stats().prompt_tokens_cached > 0


@pytest.mark.parametrize("steps", few(15, many=(7, 9, 11, 21)))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a scored prompt"])
def test_what_was_interrupted_goes_on_as_if_it_had_not_been(kind: str, steps: int) -> None:
    """Twice."""
    each = ask(STORY, 3, **{"max_tokens": 15} | KINDS[kind])
    expected = run(Engine(fake()), each)
    said, rest = list[Event](), resume(each, [])
    for last in (False, False, True):
        if rest is None:
            break
        engine = Engine(fake(), cache_bytes=100_000)
        engine.add_request(request(STORY, 2, max_tokens=4))
        engine.add_request(rest)
        events = run(engine) if last else [event for _ in range(steps) for event in engine.step()]
        said += own(events, each)
        rest = resume(each, said)
    assert texts(said) == texts(expected)
    assert [tokens_of(said, k) for k in range(3)] == [tokens_of(expected, k) for k in range(3)]
    assert answers(said, each) == answers(expected, each)
    assert len([event for event in said if isinstance(event, StopEvent)]) == 3


def test_another_server_goes_on_after_what_was_reported() -> None:
    """From the same seed it draws other tokens, so it can't begin anew. Nor can anybody after it."""
    each = rest = request(STORY, 3, max_tokens=30, ignore_eos=True)
    said, n_sampled = list[Event](), 0
    for fingerprint, steps in (("here", 14), ("there", 16), ("here", 100)):
        engine = Engine(fake(fingerprint=fingerprint))
        engine.add_request(rest)
        said += [event for _ in range(steps) for event in engine.step()]
        n_sampled += engine.stats().tokens_generated
        rest = resume(each, said) or rest
    assert {stop.length for stop in stops(said).values()} == {30}
    assert n_sampled < 100, "only what wasn't told is drawn twice"


@pytest.mark.parametrize("n_before", few(*range(0, 2 * BLOCK, 3), many=[k for k in range(2 * BLOCK) if k % 3]))
def test_no_prompt_begins_within_an_image(n_before: int) -> None:
    """Its tokens are the same as far as a block's end, which may be in the middle of the image."""
    engine, sent = Engine(fake(media=FakeReader()), cache_bytes=100_000), list[CompletionRequest]()
    for image, text in ((b"\x89cat" * 5, "Who?"), (b"\x89cat" * 5, "Where, and when?"), (b"\x89dog" * 5, "Who?")) * 2:
        tokens, media = engine.tokenize_parts((STORY[:n_before] or "-", image, text))
        each = replace(request(text, 2, max_tokens=4), prompts=(tokens,), media=media)
        sent.append(each)
        engine.add_request(each)
        engine.step()
    events = run(engine)
    for each in sent:
        assert answers(events, each) == answers(run(Engine(fake(media=FakeReader())), each), each)


def test_a_continuation_is_computed_as_a_prompt() -> None:
    """And not taken from the rows that have drawn it, whose bits are others."""
    each = request(STORY, 1, max_tokens=12, ignore_eos=True)
    engine = Engine(fake(), cache_bytes=100_000)
    longer = STORY + texts(run(engine, each))[0] + " And then"
    continued = request(longer.encode("utf-8", "replace").decode(), 2, max_tokens=8)
    assert answers(run(engine, continued), continued) == alone(continued)


def test_each_alternative_has_cells_of_its_own() -> None:
    each = request("p" * 60, 4, max_tokens=-1, ignore_eos=True)
    assert {stop.length for stop in stops(run(Engine(fake()), each)).values()} == {101}
    message = "161 tokens, more than the 160 cells that --reproducible gives .*--ctx-size 1536 or more, or with a small"
    with pytest.raises(InvalidRequestError, match=message):
        Engine(fake()).add_request(request("p" * 161, 1))
    guided = {"guidance_scale": 2.0, "negative_prompt": tuple(b"n" * 50)}
    for max_tokens, is_refused in ((101, False), (102, True)):  # its companion has cells of its own, too
        each = request("p" * 60, 1, max_tokens=max_tokens, ignore_eos=True, **guided)
        with pytest.raises(InvalidRequestError, match="max_tokens is too high") if is_refused else nullcontext():
            assert stops(run(Engine(fake()), each))[0].length == max_tokens
