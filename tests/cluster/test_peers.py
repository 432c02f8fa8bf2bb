"""Which addresses servers in front of the same replicas give each other."""

import pytest

from srb.cluster.cluster_engine import Peers, Place, place_of, reachable


@pytest.mark.parametrize(
    ("urls", "url", "is_local"),
    [
        (["http://127.0.0.1:9090"], "http://127.0.0.1:9090", True),
        (["http://[::1]:9090"], "http://[::1]:9090", True),
        (["http://127.0.0.1:9090", "https://10.0.0.5:9090"], "https://10.0.0.5:9090", False),
        (["http://0.0.0.0:9090"], "http://10.0.0.1:9090", False),
        (["http://[::]:9090"], "http://10.0.0.1:9090", False),
        ([], None, True),  # a Unix socket
    ],
)
def test_the_address_for_others_is_one_that_they_reach(urls: list[str], url: str | None, is_local: bool) -> None:
    place = place_of(urls, "10.0.0.1")
    assert (place.url, place.is_local, place.node) == (url, is_local, "10.0.0.1")
    assert place_of(["http://0.0.0.0:1"], "fd00::1").url == "http://[fd00::1]:1"


def test_a_loopback_address_is_no_address_for_another_machine() -> None:
    here, there, everywhere = (
        Place("http://127.0.0.1:1", "10.0.0.1"),
        Place("http://127.0.0.1:2", "10.0.0.2"),
        Place("http://10.0.0.3:3", "10.0.0.3"),
    )
    same = Place("http://127.0.0.1:4", "10.0.0.1")
    assert reachable(here, [there, everywhere, same]) == ["http://10.0.0.3:3", "http://127.0.0.1:4"]
    assert reachable(everywhere, [here, there, Place(None, "10.0.0.3")]) == []


def test_a_silent_server_is_dropped() -> None:
    now = 100.0
    those, place = Peers(lambda: now), Place("http://10.0.0.1:1", "10.0.0.1")
    assert those.announce("a", place) == []
    assert those.announce("b", Place(None, "10.0.0.2")) == [place]
    now += 4
    assert those.announce("a", place) == [Place(None, "10.0.0.2")]
    now += 2
    assert those.announce("a", place) == []
