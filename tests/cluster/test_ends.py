"""What ends a request by itself isn't taken for the end of its replica."""

from cluster.test_front import cluster, collect
from driver import check_order, request, stops, texts
from fake_backend import FakeBackend, says


async def test_shutdown_may_be_a_stop_string() -> None:
    async with cluster(lambda: FakeBackend(script=says(b"on shutdown it"))) as (engine, replicas):
        events = await collect(engine, each := request(stop=("shutdown",), max_tokens=20))
        assert len(replicas.ran) == 1
    check_order(events, each)
    assert texts(events) == {0: "on "}
    assert (stops(events)[0].finish_reason, stops(events)[0].stop_reason) == ("stop", "shutdown")
