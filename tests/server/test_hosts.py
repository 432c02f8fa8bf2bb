"""The names under which a server answers, as DNS rebinding tries them."""

import asyncio
import socket
from unittest import mock

import pytest
from aiohttp.test_utils import make_mocked_request
from fake_backend import FakeBackend
from server.conftest import Client, Connect

from srb.errors import SettingsError
from srb.options.settings import Settings
from srb.server import access as hosts
from srb.server.access import Hosts, read_hosts

KNOWN = [
    *(
        "localhost",
        "LocalHost:9090",
        "localhost.",
        "srb.localhost:9090",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:9090",
    ),
    *("192.168.1.5:9090", "0.0.0.0", "[fe80::1]:9090", ""),
]
UNKNOWN = [
    *("evil.example", "evil.example:9090", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost"),
    *("evil.example.", "127.0.0.1x", "a b"),
]


async def status(client: Client, host: str) -> int:
    """Of one request, the same for all."""
    statuses = set()
    for method, path in (("GET", "/health"), ("GET", "/"), ("POST", "/tokenize"), ("OPTIONS", "/v1/completions")):
        headers = {"Host": host, "Access-Control-Request-Method": "POST"}
        response = await client.request(method, path, data=b"{}" if method == "POST" else None, headers=headers)
        if response.status == 421:
            error = (await response.json())["error"]
            assert error["code"] == "host_not_allowed"
            assert "--allowed-hosts" in error["message"]
        statuses.add(response.status)
    (each,) = statuses
    return each


async def test_on_a_loopback_address_names_that_pages_could_have_are_refused(connect: Connect) -> None:
    client = await connect(FakeBackend())
    assert [await status(client, host) for host in KNOWN] == [200] * len(KNOWN)
    assert [await status(client, host) for host in UNKNOWN] == [421] * len(UNKNOWN)


async def test_names_that_are_allowed(connect: Connect) -> None:
    client = await connect(FakeBackend(), allowed_hosts=read_hosts(Settings(allowed_hosts=" SRB.example, box. ")))
    for host in ("srb.example", "Srb.Example.:9090", "box", "localhost", socket.gethostname()):
        assert await status(client, host) == 200
    assert await status(client, "evil.example") == await status(client, "a.srb.example") == 421
    client = await connect(FakeBackend(), allowed_hosts=read_hosts(Settings(allowed_hosts="*")))
    assert await status(client, "evil.example") == 200


async def test_elsewhere_all_names_are_served_until_some_are_given(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "is_loopback", lambda _request: False)
    client = await connect(FakeBackend())
    assert await status(client, "box.lan") == 200
    client = await connect(FakeBackend(), allowed_hosts=Hosts(frozenset({"box.lan"}), everywhere=True))
    assert (await status(client, "box.lan"), await status(client, "evil.example")) == (200, 421)


async def test_a_request_without_a_host_is_from_no_browser(connect: Connect) -> None:
    client = await connect(FakeBackend())
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(b"GET /health HTTP/1.0\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()


@pytest.mark.parametrize(
    ("sockname", "expected"),
    [(("127.0.0.2", 5), True), (("::1", 5, 0, 0), True), (("192.0.2.1", 5), False), ("/run/srb", False), (None, False)],
)
def test_which_sockets_only_this_machine_reaches(sockname: object, expected: bool) -> None:
    transport = mock.Mock(get_extra_info={"sockname": sockname}.get)
    assert hosts.is_loopback(make_mocked_request("GET", "/", transport=transport)) == expected


def test_the_hosts_of_the_settings() -> None:
    own = socket.gethostname().lower()
    assert read_hosts(Settings()) == Hosts(frozenset({"127.0.0.1", own}), everywhere=False)
    assert read_hosts(Settings(host="Box.lan")) == Hosts(frozenset({"box.lan", own}), everywhere=False)
    assert read_hosts(Settings(allowed_hosts="a,b")) == Hosts(frozenset({"a", "b", "127.0.0.1", own}), everywhere=True)


@pytest.mark.parametrize("text", ["http://a.example", "a.example:80", "a b", "*.a.example", "a/b", "::1"])
def test_what_is_no_host_name_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="without scheme and port"):
        read_hosts(Settings(allowed_hosts=text))
