"""What a prompt has in common with another text at another place: `n_cache_reuse`."""

import dataclasses
from typing import Any

import pytest
from driver import request, run, stops, texts
from fake_backend import FakeBackend, babble
from hypothesis import given
from hypothesis import strategies as st

from srb.engine.asking.request import CompletionRequest
from srb.engine.engine import Engine
from srb.engine.telling.events import StartEvent
from srb.errors import InvalidRequestError

RULES = "You are a pirate, and you say so. "
FIRST = "Name yourself! I'm a pirate. "
SECOND = "What do you want? I want gold. "
THIRD = "Where is it? "


def reusing(prompt: str, n: int = 1, *, least: int = 8, max_tokens: int = 4) -> CompletionRequest:
    return dataclasses.replace(request(prompt, n, max_tokens=max_tokens, ignore_eos=True), n_cache_reuse=least)


def evaluated(engine: Engine, each: CompletionRequest) -> int:
    before = engine.stats().prompt_tokens_evaluated
    run(engine, each)
    return engine.stats().prompt_tokens_evaluated - before


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(n_cells=300, script=lambda _params, tokens: 65 + len(tokens) % 20)


def test_a_chat_whose_oldest_messages_were_dropped_reuses_what_follows(backend: FakeBackend) -> None:
    engine = Engine(backend, cache_bytes=100_000)
    run(engine, reusing(RULES + FIRST + SECOND))
    events = run(engine, each := reusing(RULES + SECOND + THIRD, 2))
    assert isinstance(events[0], StartEvent)
    assert events[0].cached_tokens == len(RULES + SECOND)
    assert engine.stats().prompt_tokens_evaluated == len(RULES + FIRST + SECOND + THIRD)
    start = len(RULES + FIRST)
    assert backend.moved == [(start, start + len(SECOND), len(FIRST))]
    # The fake model draws from all that is in the cells, and its samplers check that it is the prompt.
    assert texts(events) == texts(run(Engine(FakeBackend(script=backend.script)), each))
    assert (engine.stats().cells, backend.cells) == (0, 0)


def test_where_positions_can_be_moved_only_if_that_is_asked_for_it_is_asked_for(backend: FakeBackend) -> None:
    backend.fixed, backend.shifts_now = True, False
    engine = Engine(backend, cache_bytes=100_000)
    run(engine, reusing(RULES + FIRST + SECOND))
    assert not backend.shifts_now  # nothing was moved
    assert evaluated(engine, reusing(RULES + SECOND + THIRD)) == len(THIRD)
    assert backend.shifts_now


def test_beside_requests_that_keep_positions_from_being_moved_it_is_evaluated(backend: FakeBackend) -> None:
    backend.fixed, backend.shifts_now = True, False
    engine = Engine(backend, cache_bytes=100_000)
    run(engine, reusing(RULES + FIRST + SECOND))
    engine.add_request(request("Tell me!", max_tokens=100, ignore_eos=True))
    engine.step()
    before = engine.stats().prompt_tokens_evaluated
    events = run(engine, each := reusing(RULES + SECOND + THIRD))
    assert backend.moved == []
    assert engine.stats().prompt_tokens_evaluated - before == len("Tell me!" + SECOND + THIRD)
    own = [event for event in events if event.request_id == each.id]
    assert texts(own) == texts(run(Engine(FakeBackend(script=backend.script)), each))


def test_chunks_may_be_several_and_go_over_several_pieces(backend: FakeBackend) -> None:
    engine = Engine(backend, cache_bytes=100_000)
    for prompt in (RULES + FIRST, RULES + FIRST + SECOND[:9], RULES + FIRST + SECOND + "(laughs) " + THIRD):
        run(engine, reusing(prompt))
    assert evaluated(engine, reusing(RULES + SECOND + THIRD + "Tell me!")) == len("Tell me!")
    assert [by for _, _, by in backend.moved] == [len(FIRST), len(FIRST), len(FIRST + "(laughs) ")]


def test_what_was_made_of_moved_chunks_is_found_by_the_next_one(backend: FakeBackend) -> None:
    engine = Engine(backend, cache_bytes=100_000)
    run(engine, reusing(RULES + FIRST + SECOND))
    run(engine, reusing(RULES + SECOND + THIRD))
    backend.moved.clear()
    assert evaluated(engine, reusing(RULES + SECOND + THIRD + "Tell me!")) == len("Tell me!")
    assert backend.moved == []


@pytest.mark.parametrize("least", [0, len(SECOND) + 1])
def test_short_chunks_are_left_alone(backend: FakeBackend, least: int) -> None:
    engine = Engine(backend, cache_bytes=100_000)
    run(engine, reusing(RULES + FIRST + SECOND, least=least))
    assert evaluated(engine, reusing(RULES + SECOND + THIRD, least=least)) == len(SECOND + THIRD)
    assert backend.moved == []


def test_nobody_else_begins_with_what_is_not_exact(backend: FakeBackend) -> None:
    engine = Engine(backend, cache_bytes=100_000)
    run(engine, reusing(RULES + FIRST + SECOND))
    run(engine, reusing(RULES + SECOND + THIRD))
    assert evaluated(engine, reusing(RULES + SECOND + THIRD, least=0)) == len(RULES + SECOND + THIRD)


def test_where_there_is_no_room_for_it_the_rest_is_evaluated() -> None:
    backend = FakeBackend(n_cells=100, script=lambda _params, tokens: 65)
    engine = Engine(backend, cache_bytes=100_000)
    run(engine, reusing(RULES + FIRST + SECOND))
    assert evaluated(engine, reusing(RULES + SECOND + THIRD)) == len(SECOND + THIRD)
    assert len(backend.moved) == 1


def test_a_prompt_that_is_cut_reuses_what_is_left_of_it() -> None:
    backend = FakeBackend(n_cells=256, script=lambda _params, tokens: 65, shifts=True)
    engine = Engine(backend, cache_bytes=1_000_000)
    chat = RULES + "".join(f"Line number {k} of a long chat. " for k in range(30))
    first = dataclasses.replace(reusing(chat), context_shift=True, n_keep=len(RULES))
    before = evaluated(engine, first)
    longer = chat + "".join(f"Line {k}. " for k in range(12))
    after = evaluated(engine, dataclasses.replace(first, prompts=(tuple(longer.encode()),), id="longer"))
    assert backend.moved
    assert after < before


def test_what_can_not_be() -> None:
    with pytest.raises(InvalidRequestError, match="n_cache_reuse must be 0 or more, got -1"):
        reusing("a", least=-1)
    with pytest.raises(InvalidRequestError, match="n_cache_reuse can't be done here"):
        Engine(FakeBackend(window=5)).check(reusing("a"))


BLOCKS = [RULES, FIRST, SECOND, THIRD, "abcdefghij" * 2]
ACTIONS = st.one_of(
    st.tuples(
        st.just("ask"),
        st.lists(st.integers(0, 4), min_size=1, max_size=6),
        st.integers(1, 2),
        st.sampled_from([0, 1, 8]),
    ),
    st.tuples(st.just("step"), st.integers(1, 30)),
    st.tuples(st.just("abort"), st.integers(0, 9)),
    st.tuples(st.just("fail"), st.integers(1, 2)),
)


@given(actions=st.lists(ACTIONS, min_size=4, max_size=16), cache_bytes=st.sampled_from([500, 3000, 100_000]))
def test_whatever_is_moved_the_cells_have_what_was_asked(actions: list[tuple[Any, ...]], cache_bytes: int) -> None:
    backend = FakeBackend(n_cells=250, n_parallel=4, n_batch=32, script=babble)
    engine = Engine(backend, cache_bytes=cache_bytes)
    requests: list[CompletionRequest] = []
    events = []
    for what, *values in actions:
        if what == "ask":
            blocks, n, least = values
            requests.append(reusing(RULES + "".join(BLOCKS[k] for k in blocks), n, least=least))
            engine.add_request(requests[-1])
        elif what == "step":
            for _ in range(values[0]):
                events += engine.step()
                assert backend.cells <= engine.stats().cells <= 250
        elif what == "abort" and values[0] < len(requests):
            engine.abort(requests[values[0]].id)
        elif what == "fail":
            backend.fail_decodes |= {backend.decodes + 1, backend.decodes + values[0]}
    events += run(engine)
    assert (engine.stats().sequences, engine.stats().cells, backend.cells) == (0, 0, 0)
    for each in requests:
        own = [event for event in events if event.request_id == each.id]
        expected = texts(
            run(Engine(FakeBackend(n_cells=1000, script=babble)), dataclasses.replace(each, n_cache_reuse=0))
        )
        ends = stops(own)
        assert ends.keys() == set(range(each.count))
        for k, text in texts(own).items():
            assert expected[k].startswith(text)
            assert text == expected[k] or ends[k].finish_reason in ("abort", "error")
