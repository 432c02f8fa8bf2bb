"""Questions about slots are answered when what has ended there is cached, and never lost."""

from concurrent.futures import Future

import pytest
from driver import request, run, stops
from engine.kv_cache.test_retention import SlowToSave
from fake_backend import FakeBackend

from srb.engine.engine import Engine
from srb.errors import EngineDeadError


def ask(engine: Engine, slot: int) -> "Future[int]":
    """How many tokens would be saved of a slot."""
    return engine.ask(slot, lambda states: states.copies(states.slots["", slot])[-1].end)


@pytest.mark.parametrize("is_idle", [True, False])
def test_what_has_ended_in_a_slot_is_cached_at_once_when_the_slot_is_asked(is_idle: bool) -> None:
    backend = SlowToSave(script=lambda params, tokens: 65, n_cells=1000, seconds=0.1)
    engine = Engine(backend, cache_bytes=100_000, clock=lambda: backend.now)
    if not is_idle:
        engine.add_request(request("y" * 20, max_tokens=200))
    engine.add_request(request("x" * 20, n=4, max_tokens=10))
    ended = 0
    while ended < 4:
        ended += len(stops(engine.step()))
    answers = [ask(engine, slot) for slot in range(4)]
    engine.step()
    assert [answer.result(0) for answer in answers] == [29] * 4
    run(engine)


def test_of_a_cancelled_request_the_prompt_is_saved() -> None:
    engine = Engine(FakeBackend(script=lambda params, tokens: 65), cache_bytes=100_000)
    each = request("x" * 20, max_tokens=100)
    engine.add_request(each)
    for _ in range(10):
        engine.step()
    engine.abort(each.id)
    answer = ask(engine, 0)
    run(engine)
    assert answer.result() == 20


def test_a_cancelled_question_harms_no_other() -> None:
    engine = Engine(FakeBackend(), cache_bytes=100_000)
    assert ask(engine, 0).cancel()
    run(engine)


def test_a_broken_engine_answers_with_its_error() -> None:
    engine = Engine(FakeBackend())
    answer = ask(engine, 0)
    engine.abandon(EngineDeadError("it has failed"))
    assert isinstance(answer.exception(0), EngineDeadError)
    with pytest.raises(EngineDeadError):
        ask(engine, 0)
