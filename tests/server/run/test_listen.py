"""Listening on Unix sockets and with TLS."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from srb.errors import SettingsError
from srb.options.settings import Settings
from srb.server.http.connections import CONNECTIONS, Connections
from srb.server.run.bind import bound
from srb.server.run.listen import Runner, describe_address, is_exposed, tls_context, urls_of

TLS = Path(__file__).parents[1] / "tls"
CERT, KEY = TLS / "cert.pem", TLS / "key.pem"

OTHER_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgnEW6/MjeD8s/l0Xl
z469kUgcxvk3fycfntSCs6IKkuOhRANCAARLB3Lk1iBLylQZBmt/nzr8mQpH/Bxq
SJNqh/fFS+GuRYdVnVbu8ckdcAEAOMId1Y4Y3vWa5Xp+3kM5eLflFN5V
-----END PRIVATE KEY-----
"""


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    app = web.Application()

    async def hello(_request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def echo(request: web.Request) -> web.Response:
        return web.Response(text=request.raw_path)

    app.router.add_get("/", hello)
    app.router.add_get("/v1/x", echo)
    app[CONNECTIONS] = Connections()
    runner = Runner(app)
    await runner.setup()
    yield runner
    await runner.cleanup()


@contextmanager
def listening(runner: Runner, settings: Settings) -> Iterator[None]:
    with bound(settings) as sockets:
        for each in sockets:
            runner.listen(each, tls_context(settings))
        yield


async def fetch(url: str, path: Path | None = None, **options: Any) -> str:
    connector = aiohttp.UnixConnector(str(path)) if path else None
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url, **options) as response:
        return await response.text()


def client_tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERT))


async def test_a_unix_socket_that_is_gone_afterwards(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "srb.sock"
    with listening(runner, Settings(uds=path)):
        assert await fetch("http://localhost/", path) == "hello"
        assert path.stat().st_mode & 0o777 == 0o660
        assert not is_exposed(runner)
        assert urls_of(runner, Settings(uds=path)) == []
        assert describe_address(runner, Settings(uds=path)) == (
            str(path),
            "http://localhost",
            f"curl -X POST -H 'Content-type: application/json' --unix-socket {path} http://localhost",
        )
    assert not path.exists()


@pytest.mark.parametrize("path", ["//v1/x?a=//b", "/v1//x?a=//b", "///v1////x?a=//b", "/v1/x?a=//b"])
async def test_several_slashes_in_a_path_are_one(runner: Runner, path: str) -> None:
    with listening(runner, Settings(port=0)):
        _, port = runner.addresses[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        assert (await reader.read()).endswith(b"/v1/x?a=//b")
        writer.close()


async def test_the_socket_of_a_killed_server_is_replaced(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "srb.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.is_socket()
    with listening(runner, Settings(uds=path)):
        assert await fetch("http://localhost/", path) == "hello"


def test_the_socket_of_a_running_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "srb.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with (
            pytest.raises(SettingsError, match=r"srb\.sock: Address already in use; try another --uds"),
            bound(Settings(uds=path)),
        ):
            pass
        assert path.is_socket()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for path, message in (
        (file, "in use"),
        (tmp_path, "in use"),
        (tmp_path / "none" / "sock", "No such file"),
        (tmp_path / ("x" * 200), "path too long"),
    ):
        with pytest.raises(SettingsError, match=message), bound(Settings(uds=path)):
            pass
    assert file.read_text() == "precious"


async def test_tls(runner: Runner) -> None:
    settings = Settings(port=0, ssl_cert_file=CERT, ssl_key_file=KEY, api_key="sk-secret")
    with listening(runner, settings):
        place, url, curl = describe_address(runner, settings)
        assert await fetch(f"{place}/", ssl=client_tls()) == "hello"
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await fetch(f"{place}/")
        with pytest.raises(aiohttp.ClientError):
            await fetch(place.replace("https:", "http:"))
        assert place.startswith("https://127.0.0.1:")
        assert urls_of(runner, settings) == [place]
        assert url == place
        assert curl.endswith(f'--cacert {CERT} -H "Authorization: Bearer $SRB_API_KEY" {place}')


def test_wrong_tls_files_are_named(tmp_path: Path) -> None:
    broken, encrypted, other = tmp_path / "broken", tmp_path / "encrypted", tmp_path / "other"
    lines = CERT.read_text().splitlines(keepends=True)
    broken.write_text(lines[0] + "!" + "".join(lines[2:]))
    encrypted.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    other.write_text(OTHER_KEY)
    for cert, key, message in (
        (CERT, None, "go together; --ssl-key-file is missing"),
        (None, KEY, "go together; --ssl-cert-file is missing"),
        (tmp_path / "none", KEY, "--ssl-cert-file .*none can't be read: No such file"),
        (CERT, tmp_path, "--ssl-key-file .* can't be read: Is a directory"),
        (KEY, CERT, "--ssl-cert-file .*key.pem has no '-----BEGIN CERTIFICATE-----'"),
        (CERT, CERT, "--ssl-key-file .*cert.pem has no '-----BEGIN PRIVATE KEY-----'"),
        (CERT, encrypted, "--ssl-key-file .*encrypted is encrypted; decrypt it"),
        (CERT, other, "--ssl-key-file .*other is not the key of the certificate"),
        (broken, KEY, "--ssl-cert-file .*broken and --ssl-key-file .* can't be used: "),
    ):
        with pytest.raises(SettingsError, match=message):
            tls_context(Settings(ssl_cert_file=cert, ssl_key_file=key))


async def test_who_can_connect(runner: Runner) -> None:
    with listening(runner, Settings(port=0)):
        assert not is_exposed(runner)
        with listening(runner, Settings(port=0, host="0.0.0.0")):
            assert is_exposed(runner)
