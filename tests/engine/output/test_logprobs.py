"""What is reported of tokens: ids, log-probabilities, those of the prompt."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from driver import request, run, stops, texts
from fake_backend import END, FakeBackend, says, score

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.events import Event, StreamEvent, Token
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError

EURO = "€".encode()


def asking(
    prompt: str | list[str] = "p",
    n: int = 1,
    *,
    logprobs: int | None = None,
    echo: bool = False,
    return_tokens: bool = False,
    **params: Any,
) -> CompletionRequest:
    return dataclasses.replace(request(prompt, n, **params), logprobs=logprobs, echo=echo, return_tokens=return_tokens)


def streamed(events: list[Event], index: int = 0) -> list[StreamEvent]:
    return [event for event in events if isinstance(event, StreamEvent) and event.index == index]


def tokens(events: list[Event], index: int = 0) -> list[Token]:
    reported = [event.token for event in streamed(events, index)]
    assert None not in reported
    return [token for token in reported if token]


def test_each_token_has_an_event_with_its_logprob_and_the_likeliest() -> None:
    events = run(Engine(FakeBackend(script=says(b"ab"))), asking(logprobs=2))
    assert [event.text for event in streamed(events)] == ["a", "b", ""]
    a, b, end = tokens(events)
    assert (a.id, a.piece, a.logprob) == (97, b"a", score((112,), 97))
    assert b.logprob == score((112, 97), 98)
    assert (end.id, end.piece) == (END, b"<END>")
    assert len(a.top_logprobs) == 2
    best = max(range(257), key=lambda token: score((112,), token))
    assert a.top_logprobs[0] == Token(best, bytes([best]), score((112,), best))
    mean = sum(token.logprob or 0 for token in (a, b, end)) / 3
    assert stops(events)[0].mean_logprob == pytest.approx(mean)


def test_tokens_of_a_character_come_with_the_event_that_completes_it() -> None:
    events = run(Engine(FakeBackend(script=says(b"a" + EURO + b"b"))), asking(logprobs=0, return_tokens=True))
    assert [event.text for event in streamed(events)] == ["a", "", "", "€", "b", ""]
    assert [event.tokens for event in streamed(events)] == [(97,), *((byte,) for byte in EURO), (98,), (END,)]
    assert all(token.top_logprobs == () for token in tokens(events))


def test_ids_come_with_their_text() -> None:
    events = run(Engine(FakeBackend(script=says(b"a" + EURO + b"b"))), asking(return_tokens=True))
    assert [(event.text, event.tokens) for event in streamed(events)] == [
        ("a", (97,)),
        ("€", tuple(EURO)),
        ("b", (98,)),
        ("", (END,)),
    ]


def test_nothing_is_reported_unasked() -> None:
    events = run(Engine(FakeBackend(script=says(b"ab"))), asking())
    assert [(event.text, event.tokens, event.token) for event in streamed(events)] == [("a", (), None), ("b", (), None)]
    assert stops(events)[0].mean_logprob is None


def test_the_tokens_of_a_stop_string_are_reported_and_their_text_is_not() -> None:
    events = run(Engine(FakeBackend(script=says(b"ab##c"))), asking(logprobs=0, stop=("##",)))
    assert [event.text for event in streamed(events)] == ["a", "b", "", ""]
    assert [token.piece for token in tokens(events)] == [b"a", b"b", b"#", b"#"]
    assert stops(events)[0].length == 4


def test_echo_begins_each_text_with_its_prompt() -> None:
    events = run(Engine(FakeBackend(script=says(b"!", b"?", prompt=3))), asking(["abc", "€"], 2, echo=True))
    assert texts(events) == {0: "abc!", 1: "abc?", 2: "€!", 3: "€?"}


@pytest.mark.parametrize("n_outputs", [3, 4, 16])
@pytest.mark.parametrize("max_tokens", [0, 2])
def test_the_prompts_tokens_are_scored_in_chunks(n_outputs: int, max_tokens: int) -> None:
    prompt = "a" * 9 + "€"
    backend = FakeBackend(script=says(b"xy", prompt=12), n_outputs=n_outputs)
    events = run(Engine(backend), asking(prompt, 2, logprobs=1, echo=True, max_tokens=max_tokens, seed=0))
    ids = (*prompt.encode(), *b"xy"[:max_tokens])
    for index in (0, 1):
        reported = tokens(events, index)
        assert tuple(token.id for token in reported) == ids
        assert [token.logprob for token in reported] == [None, *(score(ids[:i], ids[i]) for i in range(1, len(ids)))]
        assert texts(events)[index] == prompt + "xy"[:max_tokens]
    assert backend.rows == 12 + 2 * max(0, max_tokens - 1)
    stop = stops(events)[0]
    assert stop.mean_logprob == (
        pytest.approx(sum(score(ids[:i], ids[i]) for i in (12, 13)) / 2) if max_tokens else None
    )


def test_a_text_goes_on_with_the_character_that_the_prompt_began() -> None:
    for echo in (False, True):
        half = dataclasses.replace(asking(echo=echo), prompts=((97, *EURO[:2]),))
        events = run(Engine(FakeBackend(script=says(EURO[2:] + b"!", prompt=3))), half)
        assert texts(events)[0] == ("a€!" if echo else "€!")


def test_logprobs_have_a_range() -> None:
    for bad in (-1, 101):
        with pytest.raises(InvalidRequestError, match="from 0 to 100"):
            asking(logprobs=bad)


@pytest.mark.parametrize("load", [[], [("r", 3)], [("r", 8), ("q" * 100, 2), ("s" * 50, 1)]])
def test_a_scored_prompt_is_evaluated_in_the_same_even_chunks_whatever_else_runs(
    load: list[tuple[str, int]],
) -> None:
    pieces: list[int] = []

    class Watching(FakeBackend):
        def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
            own = [row for row, token in enumerate(batch.tokens) if chr(token) == "x"]
            if own:
                assert own == list(range(len(own)))  # first in the batch, where no other changes how it is split
                pieces.append(len(own))
            return super().decode(batch, interrupted)

    engine = Engine(Watching(n_cells=1000, n_parallel=16, script=lambda params, tokens: 65))
    for prompt, n in load:
        engine.add_request(request(prompt, n, max_tokens=40, ignore_eos=True))
    engine.step()
    engine.step()
    run(engine, asking("x" * 50, logprobs=0, echo=True, max_tokens=1))
    assert pieces == [13, 13, 12, 12]
