"""Event logs return events as they were, and readers resume where they were disconnected."""

import asyncio
import dataclasses
import random
import tracemalloc
from typing import Any

import pytest
from driver import request
from hypothesis import given
from hypothesis import strategies as st

from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    ProgressEvent,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Token,
    Usage,
)
from srb.engine.request import CompletionRequest
from srb.errors import BackendError, InvalidRequestError
from srb.serving.event_log import MAX_READ, MERGE_ABOVE, EventLog, RequestStream

COUNT = 3
START = StartEvent("r", COUNT, 1, 0, 9, (0, 1, 2), (None, None, None))
DONE = DoneEvent("r", COUNT, Usage(1, 2, 0), Timings(0, 1, 0, 2, 0))
PIECES = [b"a", b" b", "é".encode()[:1], "é".encode(), "🦊".encode(), b""]


def asking(**fields: Any) -> CompletionRequest:
    return dataclasses.replace(request(n=COUNT), id="r", **fields)


def said(index: int, text: str, *tokens: int) -> StreamEvent:
    return StreamEvent("r", index, text, tokens)


def stopped(index: int) -> StopEvent:
    return StopEvent("r", index, 3, "stop", None)


def token(number: int, logprob: float | None, *top: Token) -> Token:
    return Token(number, PIECES[number], logprob, top)


indexes = st.integers(0, COUNT - 1)
logprobs = st.none() | st.floats(-1e9, 0) | st.just(-float("inf"))
numbers = st.integers(0, len(PIECES) - 1)
plain_tokens = st.builds(token, numbers, logprobs)
tokens = st.builds(lambda number, logprob, top: token(number, logprob, *top), numbers, logprobs, st.lists(plain_tokens))
others = st.one_of(
    st.builds(ProgressEvent, st.just("r"), numbers, numbers, numbers),
    st.builds(stopped, indexes),
    st.builds(PromptLogprobsEvent, st.just("r"), st.just((0, 1)), st.lists(tokens, max_size=3).map(tuple)),
    st.builds(ErrorEvent, st.just("r"), indexes, st.just(BackendError("broken"))),
)


def events_of(asked: CompletionRequest) -> st.SearchStrategy[list[Event]]:
    ids = st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple) if asked.return_tokens else st.just(())
    each = tokens if asked.logprobs is not None else st.none()
    stream = st.builds(StreamEvent, st.just("r"), indexes, st.text(st.characters(exclude_categories=["Cs"])), ids, each)
    return st.lists(stream | others, max_size=40).map(lambda events: [START, *events, DONE])


REQUESTS = [
    asking(),
    asking(return_tokens=True),
    asking(logprobs=2),
    asking(logprobs=0, return_tokens=True),
]


def read(event_log: EventLog, at: int = 0) -> list[tuple[int, Event]]:
    got: list[tuple[int, Event]] = []
    while events := event_log.read(at):
        got += events
        at = events[-1][0]
    return got


@pytest.mark.parametrize("asked", REQUESTS, ids=["text", "tokens", "probabilities", "both"])
@given(data=st.data(), seed=st.integers())
def test_every_cut_resumed_is_the_undisturbed_stream(asked: CompletionRequest, data: st.DataObject, seed: int) -> None:
    """Events come while several read, each at a pace of its own, and each is cut off now and then."""
    events = data.draw(events_of(asked))
    rng, event_log = random.Random(seed), EventLog(asked)
    readers = [list[tuple[int, Event]]() for _ in range(3)]
    left = list(events)
    while left or any(len(got) < len(event_log) for got in readers):
        n = rng.randint(1, 9)
        event_log.put(left[:n])
        del left[:n]
        got = rng.choice(readers)
        got += event_log.read(got[-1][0] if got else 0)
        if rng.random() < 0.3:
            del got[rng.randint(0, len(got)) :]
    for got in readers:
        assert got == list(enumerate(events, 1))


@given(data=st.data())
def test_a_late_reader_gets_merged_events_and_can_resume_after_any(data: st.DataObject) -> None:
    runs = data.draw(st.lists(st.tuples(indexes, st.integers(1, 300)), min_size=3))
    events: list[Event] = [said(index, f"{index}{k} ", k) for index, length in runs for k in range(length)]
    events += [said(0, "x")] * (MERGE_ABOVE + 1)
    event_log = EventLog(asking(return_tokens=True))
    event_log.put([START, *events])
    event_log.put([DONE])
    merged = read(event_log)
    assert merged[-1] == (len(event_log), DONE)
    assert len(merged) <= len(runs) + 3 + MERGE_ABOVE + len(event_log) // MAX_READ
    cut = data.draw(st.integers(0, len(merged)))
    resumed = merged[:cut] + read(event_log, merged[cut - 1][0] if cut else 0)
    for got in (merged, resumed):
        assert [number for number, _ in got] == sorted({number for number, _ in got})
        for index in range(COUNT):
            parts = [each for _, each in got if isinstance(each, StreamEvent) and each.index == index]
            whole = [each for each in events if isinstance(each, StreamEvent) and each.index == index]
            assert "".join(each.text for each in parts) == "".join(each.text for each in whole)
            assert [t for each in parts for t in each.tokens] == [t for each in whole for t in each.tokens]


def test_few_unread_events_stay_as_they_are_and_those_with_probabilities_always() -> None:
    event_log = EventLog(asking())
    few: list[Event] = [said(0, "x")] * (MERGE_ABOVE - 1)
    event_log.put(few)
    event_log.put([DONE])
    assert [event for _, event in read(event_log)] == [*few, DONE]
    event_log = EventLog(asking(logprobs=0))
    many: list[Event] = [StreamEvent("r", 0, "a", (), token(0, -0.5))] * (2 * MERGE_ABOVE)
    event_log.put(many)
    event_log.put([DONE])
    assert [event for _, event in read(event_log)] == [*many, DONE]


def test_a_reader_can_only_resume_after_an_event_that_exists() -> None:
    event_log = EventLog(asking())
    event_log.put([START, said(0, "a")])
    for at in (-1, 3):
        with pytest.raises(InvalidRequestError, match=f"from 0 to 2, .* got {at}"):
            RequestStream(event_log, lambda _stream: None, after=at)
    assert read(event_log, 2) == []


def test_what_follows_from_the_events() -> None:
    event_log = EventLog(asking())
    assert (event_log.started, event_log.done, event_log.unfinished) == (False, False, {0, 1, 2})
    event_log.put([START, said(1, "é"), ErrorEvent("r", 1, error := BackendError("broken")), stopped(1)])
    assert (event_log.started, event_log.error, event_log.unfinished, event_log.stops) == (
        True,
        error,
        {0, 2},
        [stopped(1)],
    )
    event_log.put([said(0, "x"), said(0, "y"), stopped(0), stopped(2), DONE])
    assert (event_log.done, event_log.end, event_log.texts, len(event_log)) == (True, DONE, ["xy", "é", ""], 9)


@pytest.mark.parametrize("top", [None, 0, 20])
def test_the_estimate_of_the_memory_is_about_right(top: int | None) -> None:
    asked = dataclasses.replace(request(n=COUNT), id="r", logprobs=top)
    tracemalloc.start()
    event_log = EventLog(asked)
    for number in range(1_000):
        likeliest = tuple(Token(1000 + k, b"token", -number / (k + 1)) for k in range(top or 0))
        each = None if top is None else Token(1000 + number, f"word {number}".encode(), -number / 7, likeliest)
        event_log.put([StreamEvent("r", 0, f"word {number}", (), each, (1000 + number,))])
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 < event_log.size / taken < 1.4


async def test_a_reader_that_waits_is_woken_and_a_cancelled_wait_loses_nothing() -> None:
    event_log = EventLog(asking())
    stream = RequestStream(event_log, lambda _stream: None)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    waiting.cancel()
    event_log.put([START])
    assert await anext(stream) == [START]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    event_log.put([DONE])
    assert await waiting == [DONE]
    assert await stream.collect() == []
