"""Prompts and texts that are longer than the context."""

import dataclasses
from typing import Any

import pytest
from driver import check_idle, check_order, few, own, request, run, stops, texts
from fake_backend import END, FakeBackend
from mixed import ascii_babble

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, StartEvent, StreamEvent
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError

PROMPT = bytes(range(32, 52))


def shifting(
    prompt: bytes = PROMPT, n: int = 1, *, n_keep: int = 0, n_discard: int = 0, **params: Any
) -> CompletionRequest:
    each = request(prompt.decode(), n, **{"ignore_eos": True, "max_tokens": 120} | params)
    return dataclasses.replace(each, context_shift=True, n_keep=n_keep, n_discard=n_discard)


def small(n_cells: int = 64, **more: Any) -> FakeBackend:
    return FakeBackend(n_cells=n_cells, script=ascii_babble, shifts=True, **more)


def reference(params: SamplingParams, n: int, n_cells: int, n_keep: int, n_discard: int) -> str:
    """Return the text of one of n alternatives of PROMPT that are alone in the context, without an engine."""
    prompt, own = list(PROMPT), list[int]()
    said = list[int]()
    room = (n_cells - len(prompt)) // n + 1
    while len(said) < 120:
        if len(own) == room:
            n_left = len(prompt) - n_keep + len(own) - 1
            least = n if len(prompt) - n_keep >= n else len(prompt) - n_keep + 1
            leaves = min(max(n_discard or n_left // 2, least), n_left - 1)
            of_prompt = min(leaves, len(prompt) - n_keep)
            del prompt[n_keep : n_keep + of_prompt]
            del own[: leaves - of_prompt or of_prompt < n]
            room += of_prompt // n
        token = ascii_babble(params, (*prompt, *own))
        own.append(token)
        said.append(token)
    return bytes(said).decode()


@pytest.mark.parametrize("n", few(3, many=[1, 8]))
@pytest.mark.parametrize(("n_keep", "n_discard"), [(0, 0), (5, 0), (-1, 0), (5, 1), (5, 1000)])
def test_a_text_that_is_longer_than_the_context_goes_on_without_a_part(n: int, n_keep: int, n_discard: int) -> None:
    backend = small()
    engine = Engine(backend)
    events = run(engine, each := shifting(n=n, n_keep=n_keep, n_discard=n_discard))
    check_order(events, each)
    n_kept = len(PROMPT) if n_keep == -1 else min(n_keep, len(PROMPT))
    assert texts(events) == {k: reference(each.branches[k], n, 64, n_kept, n_discard) for k in range(n)}
    assert all(
        (stop.length, stop.finish_reason, stop.truncated) == (120, "length", True) for stop in stops(events).values()
    )
    check_idle(engine, backend)


def test_a_max_tokens_of_minus_1_goes_on_until_the_text_ends() -> None:
    said: list[int] = []

    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        said.append(END if len(said) == 499 else 65)
        return said[-1]

    backend = FakeBackend(n_cells=64, script=script, shifts=True)
    events = run(Engine(backend), shifting(max_tokens=-1, ignore_eos=False))
    assert isinstance(start := events[0], StartEvent)
    assert start.max_tokens == 2**31 - 1
    assert (stops(events)[0].length, stops(events)[0].finish_reason) == (500, "stop")


def test_a_prompt_that_is_too_long_is_cut_in_blocks() -> None:
    seen: list[tuple[int, ...]] = []

    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        seen.append(tokens)
        return 65

    for length in (64, 100, 1000, 1010):
        prompt = bytes(32 + k % 90 for k in range(length))
        backend = FakeBackend(n_cells=64, script=script, shifts=True)
        events = run(Engine(backend), shifting(prompt, n_keep=8, max_tokens=5))
        assert stops(events)[0].truncated
        assert isinstance(events[0], StartEvent)
        assert events[0].prompt_tokens == length
        first = seen[0]
        assert first[:8] == tuple(prompt[:8])
        assert first[8:] == tuple(prompt[8 + length - len(first) :])
        assert 8 + 20 <= len(first) <= 48
        assert (length - len(first)) % 20 == 0
        done = events[-1]
        assert isinstance(done, DoneEvent)
        assert done.timings.n_truncated == events[0].n_truncated == length - len(first)
        assert done.timings.prompt_n == len(first)
        seen.clear()


def test_a_text_that_is_too_long_is_tokenized_all_the_same() -> None:
    each = CompletionRequest(("x" * 5000,), (SamplingParams(max_tokens=3),), context_shift=True)
    events = run(Engine(small()), each)
    assert isinstance(events[0], StartEvent)
    assert events[0].prompt_tokens == 5000
    with pytest.raises(InvalidRequestError, match="at least 5000 tokens, more than the 64 cells"):
        Engine(small()).add_request(dataclasses.replace(each, context_shift=False))


def test_the_next_turn_of_a_chat_that_is_cut_begins_with_what_is_known() -> None:
    backend = small(n_cells=256)
    engine = Engine(backend, cache_bytes=100_000)
    chat = bytes(32 + k % 90 for k in range(1000))
    first = run(engine, shifting(chat, max_tokens=5))
    second = run(engine, shifting(chat + texts(first)[0].encode() + b"next", max_tokens=5))
    assert isinstance(second[0], StartEvent)
    assert second[0].cached_tokens > 100


def test_a_finished_sibling_that_waits_to_be_cached_moves_with_the_others() -> None:
    backend, now = small(), [0.0]
    save = backend.save

    def slow(*args: Any) -> bytearray | None:
        now[0] += 100
        return save(*args)

    backend.save = slow  # type: ignore[assignment, method-assign]
    engine = Engine(backend, cache_bytes=10**6, clock=lambda: now[0])
    run(engine, request("q" * 20, max_tokens=3))  # there is no time to cache another one
    each = shifting(n=2)
    short, long = each.branches
    events = run(engine, dataclasses.replace(each, branches=(dataclasses.replace(short, max_tokens=5), long)))
    assert texts(events)[1] == reference(long, 2, 64, 0, 0)


def test_others_have_their_turn_while_it_goes_on() -> None:
    """It may never end, so it makes room for those that have waited for too long, and goes on after them."""
    now = 0.0
    engine = Engine(backend := small(n_cells=600), clock=lambda: now)
    each = shifting(n=2, max_tokens=-1)
    engine.add_request(each)
    for _ in range(400):
        engine.step()
    assert engine.stats().cells > 500
    engine.add_request(other := request("x" * 200, max_tokens=50, ignore_eos=True))
    events = []
    for _ in range(1000):
        now += 0.05
        events += engine.step()
    assert any(isinstance(event, StreamEvent) and event.request_id == each.id for event in events[-10:])
    assert stops(own(events, other))[0].length == 50
    engine.abort(each.id)
    run(engine)
    assert (engine.stats().cells, backend.cells) == (0, 0)


@pytest.mark.parametrize(("name", "value"), [("n_keep", -2), ("n_discard", -1)])
def test_values_that_mean_nothing(name: str, value: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} must be at least .*, got {value}"):
        dataclasses.replace(shifting(), **{name: value})  # type: ignore[arg-type]


def test_what_can_not_be_done_here() -> None:
    with pytest.raises(InvalidRequestError, match="positions of this model's cells can't change"):
        Engine(FakeBackend(window=5)).check(shifting(max_tokens=1000))
    with pytest.raises(InvalidRequestError, match="9 alternatives are more than the 8 that can run at once"):
        Engine(FakeBackend()).check(shifting(n=9, max_tokens=1000))
    Engine(FakeBackend(window=5)).check(shifting(n=9, max_tokens=5))
    with pytest.raises(InvalidRequestError, match="max_tokens is too high"):
        Engine(FakeBackend()).check(dataclasses.replace(shifting(max_tokens=1000), context_shift=False))


class Patient:
    """A clock that goes on by a twentieth of a second with each look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.05
        return self.now


@pytest.mark.parametrize(
    ("waiting", "n"),
    [
        (request("w" * 20, max_tokens=380), 1),  # for the whole context
        (request("w" * 20, n=4, max_tokens=96), 1),
        (request("w" * 20, n=8, max_tokens=100), 1),  # runs in part
        (request("w" * 20, n=2, max_tokens=180), 2),
    ],
)
def test_who_waits_for_an_endless_one_keeps_nobody_else_waiting(waiting: CompletionRequest, n: int) -> None:
    engine = Engine(backend := small(400, n_parallel=8), clock=Patient())
    engine.add_request(endless := shifting(b"e" * 20, n=n, max_tokens=-1))
    for _ in range(3):
        engine.step()
    engine.add_request(waiting)
    events = [event for _ in range(300) for event in engine.step()]
    for k in range(5):
        engine.add_request(other := request(f"{k}", max_tokens=5))
        said = [event for _ in range(100) for event in engine.step()]
        assert other.id in {event.request_id for event in said if isinstance(event, DoneEvent)}
        events += said
    assert endless.id not in {event.request_id for event in events if isinstance(event, DoneEvent)}
    engine.abort(endless.id)
    events += run(engine)
    check_order(events, waiting)
    assert backend.cells == 0


def test_small_requests_run_while_an_endless_one_runs() -> None:
    """However many small requests come."""
    engine = Engine(small(500, n_parallel=8), clock=Patient())
    engine.add_request(shifting(b"e" * 20, max_tokens=-1))
    for k in range(20):
        engine.add_request(request(f"{k} fills", max_tokens=60))
    engine.step()
    engine.add_request(larger := request("w" * 20, max_tokens=300))
    for k in range(1000):
        engine.add_request(request(f"{k} passes", max_tokens=60))
        started = {event.request_id for event in engine.step() if isinstance(event, StartEvent)}
        if larger.id in started:
            break
    assert k < 300


@pytest.mark.parametrize("n_resumed", few(7, many=(1, 13, 19)))
def test_each_alternative_has_an_equal_part_if_only_some_had_tokens_when_they_were_interrupted(n_resumed: int) -> None:
    backend = FakeBackend(n_cells=160, n_parallel=20, shifts=True)
    each = request("p" * 100, 20, max_tokens=300, ignore_eos=True)
    resumed = [Resumed((65,) * 20 if index < n_resumed else ()) for index in range(20)]
    each = dataclasses.replace(each, context_shift=True, resumed=tuple(resumed))
    events = run(Engine(backend), each)
    check_order(events, each)
    assert {end.length for end in stops(events).values()} == {300}
    assert backend.cells == 0
