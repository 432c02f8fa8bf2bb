"""What becomes of events that nobody reads."""

import tracemalloc

import pytest
from driver import request

from srb.engine.events import DoneEvent, Event, ProgressEvent, StartEvent, StopEvent, StreamEvent, Timings, Token, Usage
from srb.request_stream import MAX_UNREAD_BYTES, MERGE_ABOVE, RequestStream, merge

START = StartEvent("r", 2, 1, 0, 9, (0, 1), (None, None))
DONE = DoneEvent("r", 2, Usage(1, 2, 0), Timings(0, 1, 0, 2, 0))


def said(index: int, text: str, *tokens: int) -> StreamEvent:
    return StreamEvent("r", index, text, tokens)


def scored(index: int, text: str, top: int = 0) -> StreamEvent:
    likeliest = tuple(Token(1_000 + k, f"{text} {k}".encode(), -float(k) / 3) for k in range(top))
    return StreamEvent("r", index, text, (), Token(7, text.encode(), -0.5, likeliest))


def stopped(index: int) -> StopEvent:
    return StopEvent("r", index, 3, "stop", None)


def test_merging_joins_what_can_be_joined_and_keeps_the_order_of_each_index() -> None:
    events: list[Event] = [
        *(START, ProgressEvent("r", 1, 0, 9), ProgressEvent("r", 9, 0, 9)),
        *(said(0, "a", 1), said(1, "x", 2), said(0, "b", 3, 4), said(0, "", 5), stopped(0), said(1, "y", 6)),
        *(stopped(1), DONE),
    ]
    assert merge(events) == [
        *(START, ProgressEvent("r", 9, 0, 9), said(0, "ab", 1, 3, 4, 5), said(1, "xy", 2, 6)),
        *(stopped(0), stopped(1), DONE),
    ]


def test_an_event_with_a_token_is_not_merged_and_nothing_is_moved_past_it() -> None:
    events: list[Event] = [said(0, "a"), scored(0, "b"), said(0, "c"), said(0, "d"), scored(0, "e")]
    assert merge(events) == [said(0, "a"), scored(0, "b"), said(0, "cd"), scored(0, "e")]


async def test_few_unread_events_stay_as_they_are_and_many_become_one_for_each_index() -> None:
    stream = RequestStream(request(n=2), lambda: None)
    few: list[Event] = [said(number % 2, "x") for number in range(MERGE_ABOVE)]
    stream.put(few)
    assert await anext(stream) == few
    for number in range(3 * MERGE_ABOVE):
        stream.put([said(number % 2, str(number % 10))])
    stream.put([stopped(0), stopped(1), DONE])
    events = await stream.collect()
    assert len(events) < MERGE_ABOVE + 5
    for index in (0, 1):
        text = "".join(event.text for event in events if isinstance(event, StreamEvent) and event.index == index)
        assert text == "".join(str(number % 10) for number in range(index, 3 * MERGE_ABOVE, 2))
    assert events[-3:] == [stopped(0), stopped(1), DONE]


async def test_a_reader_that_leaves_too_much_unread_has_cancelled_once_and_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cancelled: list[int] = []
    stream = RequestStream(each := request(), lambda: cancelled.append(count))
    count = 0
    while not cancelled:
        count += 1
        stream.put([scored(0, "x", top=20)])
    assert 0 < stream.unread_bytes - MAX_UNREAD_BYTES < 10_000
    for event in (scored(0, "y"), stopped(0), DONE):
        stream.put([event])
    stream.close()
    assert cancelled == [count]
    assert caplog.messages == [f"request {each.id} is cancelled: its reader has left 16 MiB unread"]


async def test_one_large_step_is_not_the_readers_fault() -> None:
    stream = RequestStream(request(), lambda: pytest.fail("cancelled"))
    event = scored(0, "x", top=100)
    for _ in range(2):
        stream.put([event] * (MAX_UNREAD_BYTES // 10_000))
        assert stream.unread_bytes > MAX_UNREAD_BYTES
        await anext(stream)


@pytest.mark.parametrize("top", [0, 1, 20])
def test_the_estimate_of_the_memory_is_about_right(top: int) -> None:
    stream = RequestStream(request(), lambda: None)
    tracemalloc.start()
    stream.put([scored(0, f"word {number}", top) for number in range(5_000)])
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 < stream.unread_bytes / taken < 2


def test_what_comes_after_closing_is_not_kept() -> None:
    cancelled: list[bool] = []
    stream = RequestStream(request(n=2), lambda: cancelled.append(True))
    stream.put([START, said(0, "a")])
    stream.close()
    stream.put([said(0, "b"), stopped(0), stopped(1), DONE])
    assert (stream.unread_bytes, cancelled, stream.done, stream.living) == (0, [True], True, set())
