"""PrefixRouter inside of Ray Serve's own router, with replicas that are not there. No cluster is started."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from waiting import until

from srb.cluster.placement import blocks_of, pack_blocks
from srb.engine.asking.request import CompletionRequest
from srb.engine.asking.sampling_params import SamplingParams
from srb.errors import UnavailableError

if TYPE_CHECKING:
    from ray_front import Front

pytestmark = pytest.mark.ray

STORY = tuple(range(640))


def request(tokens: tuple[int, ...] = STORY, n: int = 4) -> CompletionRequest:
    return CompletionRequest(prompts=(tokens,), branches=SamplingParams(seed=1).alternatives(n))


@pytest.fixture
async def front(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Front]:
    pytest.importorskip("ray.serve", reason="ray isn't installed")
    import ray
    from ray_front import Front

    # They ask the controller who is there, and for that would start a cluster.
    monkeypatch.setattr("ray.serve._private.router.SharedRouterLongPollClient", Mock())
    monkeypatch.setattr("ray.serve._private.router.LongPollClient", Mock())
    front = Front("a", "b")
    await settled()
    yield front
    assert not ray.is_initialized()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def tell(front: Front, name: str, load: int, tokens: tuple[int, ...] = ()) -> None:
    blocks = pack_blocks(blocks_of(tokens)) if tokens else b""
    front.replicas[name].routing_stats = {"load": load, "blocks": blocks}
    front.update(*front.replicas)


def fill(front: Front, *names: str) -> None:
    """Gives replicas as many calls of others as they take."""
    for name in names:
        front.replicas[name].queue_len = 1000
        front.routing.on_new_queue_len_info(front.replicas[name].replica_id, 1000)


async def test_a_request_goes_where_it_is_known(front: Front) -> None:
    for knowing, other in (("a", "b"), ("b", "a")):
        tell(front, knowing, 0, STORY)
        tell(front, other, 0)
        (await front.call(request((*STORY, 1)))).end()
        await settled()
    assert [len(replica.answers) for replica in front.replicas.values()] == [1, 1]


async def test_what_is_shared_within_a_name_is_known_only_there(front: Front) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        blocks = pack_blocks(blocks_of(STORY, within=name))
        front.replicas[name].routing_stats = {"load": 0, "blocks": blocks}
        front.replicas[other].routing_stats = {"load": 0, "blocks": pack_blocks(blocks_of(STORY))}
        front.update("a", "b")
        (await front.call(dataclasses.replace(request(), shared_within=name))).end()
        await settled()
    assert [len(replica.answers) for replica in front.replicas.values()] == [1, 1]


async def test_a_load_counts_until_the_answer_has_ended(front: Front) -> None:
    tell(front, "a", 0, STORY)
    answer = await front.call(request())
    assert front.loads() == {"a": 4, "b": 0}
    answer.end()
    await settled()
    assert front.loads() == {"a": 0, "b": 0}


async def test_an_old_report_is_not_taken_again(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Mock(wraps=front.routing._placement.report)
    monkeypatch.setattr(front.routing._placement, "report", report)
    tell(front, "a", 1)
    front.update("a", "b", "c")
    tell(front, "b", 2)
    tell(front, "a", 3)
    assert [call.args[:2] for call in report.call_args_list] == [("a", 1), ("b", 2), ("a", 3)]


async def test_parts_that_come_at_once_go_to_different_replicas(front: Front) -> None:
    tell(front, "a", 0, STORY)
    await asyncio.gather(front.call(request(n=32)), front.call(request(n=32)))
    assert front.loads() == {"a": 32, "b": 32}


async def test_the_suspected_is_avoided(front: Front) -> None:
    tell(front, "a", 0, STORY)
    await front.call(request(), avoid=frozenset("a"))
    assert front.loads() == {"a": 0, "b": 4}


async def test_a_replica_that_hangs_is_passed_over_and_has_no_load(front: Front) -> None:
    front.update("a", "b", "c")
    front.replicas["c"].queue_len = None
    tell(front, "c", 0, STORY)
    await front.call(request())
    assert front.loads()["c"] == 0
    assert sum(front.loads().values()) == 4


async def test_a_prompt_is_hashed_once_however_often_it_is_tried(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = Mock(side_effect=blocks_of)
    monkeypatch.setattr("srb.cluster.router.blocks_of", hashed)
    chosen = Mock(wraps=front.routing._placement.choose)
    monkeypatch.setattr(front.routing._placement, "choose", chosen)
    fill(front, "a", "b")
    call = asyncio.create_task(front.call(request()))
    await until(lambda: chosen.call_count > 3)
    assert sum(front.loads().values()) == 4
    front.replicas["a"].queue_len = 0
    await call
    assert front.loads() == {"a": 4, "b": 0}
    assert hashed.call_count == 1


async def test_a_request_that_is_refused_goes_elsewhere_and_counts_once(front: Front) -> None:
    tell(front, "a", 0, STORY)
    front.replicas["a"].refuses = 2
    answer = await front.call(request())
    assert [each.cancelled for each in front.replicas["a"].answers][:2] == [True, True]
    await settled()
    assert sum(front.loads().values()) == 4
    answer.end()
    await settled()
    assert front.loads() == {"a": 0, "b": 0}


async def test_a_request_that_can_not_be_sent_leaves_nothing(front: Front) -> None:
    for replica in front.replicas.values():
        replica.broken = True
    with pytest.raises(OSError, match="cut"):
        await front.call(request())
    assert front.loads() == {"a": 0, "b": 0}


@pytest.mark.parametrize("steps", range(12))
async def test_a_request_that_is_cancelled_at_whatever_moment_leaves_nothing(front: Front, steps: int) -> None:
    call = asyncio.create_task(front.call(request()))
    for _ in range(steps):
        await asyncio.sleep(0)
    call.cancel()
    await settled()
    if not call.cancelled():
        call.result().end()
        await settled()
    assert front.loads() == {"a": 0, "b": 0}
    assert front.routing._waiting == {}


async def test_a_request_that_waits_for_room_and_is_cancelled_leaves_nothing(front: Front) -> None:
    fill(front, "a", "b")
    call = asyncio.create_task(front.call(request()))
    await until(lambda: sum(front.loads().values()) > 0)
    call.cancel()
    await settled()
    assert front.loads() == {"a": 0, "b": 0}
    assert (front.routing._waiting, front.routing._pending_requests_by_id) == ({}, {})


async def test_a_replica_that_dies_takes_its_load_along(front: Front) -> None:
    tell(front, "a", 0, STORY)
    answer = await front.call(request())
    front.routing.on_replica_actor_died(front.replicas["a"].replica_id)
    await front.call(request())
    assert front.routing._placement.load("b") == 4
    front.update("a", "b")
    assert front.loads() == {"a": 0, "b": 4}
    answer.end()
    await settled()
    assert front.loads() == {"a": 0, "b": 4}


async def test_a_call_to_one_replica_goes_there_and_is_no_load(front: Front) -> None:
    for name in ("a", "b", "b"):
        await front.call("cmpl-1", to=name)
        await front.call(request(), to=name)
    assert [len(replica.answers) for replica in front.replicas.values()] == [2, 4]
    assert front.loads() == {"a": 0, "b": 0}


async def test_a_call_to_a_replica_that_is_not_there_fails(front: Front) -> None:
    with pytest.raises(UnavailableError, match="replica c "):
        await front.call("cmpl-1", to="c")
    with pytest.raises(UnavailableError, match="replica a "):
        await type(front)().call("cmpl-1", to="a")


async def test_a_call_fails_when_its_replica_goes_while_it_waits(front: Front) -> None:
    fill(front, "a")
    call = asyncio.create_task(front.call("cmpl-1", to="a"))
    await until(lambda: front.routing.num_routing_tasks_in_backoff > 0)
    assert not call.done()
    front.update("b")
    with pytest.raises(UnavailableError, match="replica a "):
        await call
    assert front.routing._pending_requests_by_id == {}
    await front.call("still here")


async def test_any_other_call_goes_to_any_replica(front: Front) -> None:
    await front.call()
    await front.call("cmpl-1")
    assert sum(len(replica.answers) for replica in front.replicas.values()) == 2
    assert front.loads() == {"a": 0, "b": 0}


async def test_a_request_waits_until_there_is_a_replica(front: Front) -> None:
    late = type(front)()
    call = asyncio.create_task(late.call(request()))
    await settled()
    assert not call.done()
    late.update("a")
    await call
    assert late.loads() == {"a": 4}
