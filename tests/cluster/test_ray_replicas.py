"""What a server asks Ray and the replicas while one of them hangs, without a Ray cluster."""

import asyncio
import importlib
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from srb.cluster.cluster_engine import Place
from srb.cluster.replica import Report
from srb.errors import UnavailableError
from srb.options.settings import Settings

pytestmark = pytest.mark.ray


@pytest.fixture
def ray_replicas() -> Any:
    """The module, which imports Ray."""
    pytest.importorskip("ray.serve", reason="ray isn't installed")
    return importlib.import_module("srb.cluster.ray_replicas")


@pytest.fixture
def replicas(ray_replicas: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.1")
    monkeypatch.setattr(ray_replicas, "REPORT_SECONDS", 0.05)
    return ray_replicas.RayReplicas(Settings())


async def test_a_controller_that_hangs_holds_up_nothing(replicas: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, asked = threading.Event(), list[float]()

    def status() -> Any:
        asked.append(time.monotonic())
        goes_on.wait(10)
        deployment = SimpleNamespace(status="UNHEALTHY", message="no such file")
        return SimpleNamespace(
            applications={"srb": SimpleNamespace(status="DEPLOYING", deployments={"Replica": deployment})}
        )

    monkeypatch.setattr("ray.serve.status", status)
    try:
        async with asyncio.timeout(5):
            assert [await replicas.trouble() for _ in range(3)] == [None] * 3
        assert len(asked) == 1  # a thread that hangs is enough
    finally:
        goes_on.set()
    assert await replicas.trouble() == "no such file"


async def test_the_reports_of_the_others_come_while_one_hangs(replicas: Any) -> None:
    there = {name: Report(name, *[None] * 10) for name in "ab"}  # type: ignore[arg-type]
    hanging: set[str] = set()

    async def ask_all(**_: Any) -> list[Report]:
        if hanging:
            raise TimeoutError
        return [*there.values()]

    async def ask_one(_front: str, *, to: str) -> Report:
        if to in hanging:
            raise TimeoutError
        return there[to]

    replicas._handle = SimpleNamespace(
        broadcast=lambda *_: SimpleNamespace(results_async=ask_all),
        report=SimpleNamespace(remote=ask_one),
    )
    assert await replicas.reports() == [there["a"], there["b"]]
    hanging.add("a")
    assert await replicas.reports() == []
    assert await replicas.reports() == [there["b"]]  # now each is also asked alone
    hanging.clear()
    assert [await replicas.reports() for _ in range(2)] == [[there["a"], there["b"]]] * 2


async def test_a_replica_that_hangs_while_it_embeds_is_left(ray_replicas: Any, replicas: Any) -> None:
    limits: list[float | None] = []

    def result(timeout_s: float | None = None) -> Any:
        limits.append(timeout_s)
        raise TimeoutError

    replicas._handle = SimpleNamespace(
        embed=SimpleNamespace(remote=lambda _tokens: SimpleNamespace(result=result)),
    )
    with pytest.raises(UnavailableError, match="the replica that embedded a text is lost"):
        replicas.embed((1, 2))
    assert limits == [ray_replicas.EMBED_SECONDS]


async def test_the_servers_that_were_there_are_kept_while_nobody_can_say_who_is(
    replicas: Any, caplog: pytest.LogCaptureFixture
) -> None:
    there: list[Any] = [[Place("http://10.0.0.2:1", "10.0.0.2")], TimeoutError(), []]

    async def remote(_name: str, own: Place) -> Any:
        assert own == Place("http://127.0.0.1:1", "10.0.0.1")
        if isinstance(found := there.pop(0), Exception):
            raise found
        return found

    peers = SimpleNamespace(announce=SimpleNamespace(remote=remote))
    found = []
    for _ in range(3):
        replicas._peers = peers  # it looks for another one after a fault
        found.append(await replicas.fronts(["http://127.0.0.1:1"]))
    assert found == [["http://10.0.0.2:1"], ["http://10.0.0.2:1"], []]
    assert caplog.text.count("servers on other machines can't ask this one") == 1


async def test_a_call_goes_to_the_replica_that_it_names(ray_replicas: Any) -> None:
    router = importlib.import_module("srb.cluster.deploy").NamedRouter
    there = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in "ab"]

    async def chosen(**given: Any) -> list[Any]:
        context = SimpleNamespace(should_backoff=False)
        call = SimpleNamespace(kwargs=given, routing_context=context)
        (found,) = await router.choose_replicas(object.__new__(router), there, call)
        assert context.should_backoff  # or Ray would ask again and again without a pause
        return [each.replica_id.unique_id for each in found]

    assert [await chosen(to=to) for to in "ab"] == [["a"], ["b"]]
    assert await chosen() == await chosen(to="gone") == ["a", "b"]
