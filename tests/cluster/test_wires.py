"""Two nodes with a wire between them: one is killed, or the wire is cut, while alternatives run on both.

Each node is in a network namespace of its own, so this needs root and the `ip` command.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.ray, pytest.mark.xdist_group("ray")]

HEAD, OTHER = "10.77.0.1", "10.77.0.2"
BODY = {"prompt": "Once upon a time,", "n": 1, "max_tokens": 96, "ignore_eos": True}


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Nodes:
    """A head node with the server, and another one."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "srb.sock"
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("SRB_")}
        self.environ |= {
            "RAY_AUTH_MODE": "disabled",
            "RAY_raylet_start_wait_time_s": "120",  # a busy machine takes its time
            "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
            "RAY_worker_niceness": "0",
        }
        for name in ("srb-a", "srb-b"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)  # of a run that was killed
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "srb-va", "netns", "srb-a", "type", "veth", "peer", "name", "srb-vb", "netns", "srb-b")
        ip("-n", "srb-a", "addr", "add", f"{HEAD}/24", "dev", "srb-va")
        ip("-n", "srb-b", "addr", "add", f"{OTHER}/24", "dev", "srb-vb")
        ip("-n", "srb-a", "link", "set", "srb-va", "up")
        self.join()
        # Ray writes there which cluster was the last one here, and others would look for it.
        self.ray_folder = tempfile.mkdtemp(prefix="srb-", dir="/tmp")  # a short path, because sockets are in it
        place = ["--temp-dir", self.ray_folder, "--node-ip-address", HEAD, "--port", "6379"]
        self.ray("srb-a", "--head", *place, "--include-dashboard=false")
        self.start_other()
        options = ["--ray-address", f"{HEAD}:6379", "--replicas", "2", "-t", "1", "--uds", str(self.socket)]
        self.server = subprocess.Popen(
            ["ip", "netns", "exec", "srb-a", sys.executable, "-m", "srb", "serve", *options], env=self.environ
        )

    def ray(self, where: str, *options: str) -> None:
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus", "1", "--disable-usage-stats"]
        subprocess.run(["ip", "netns", "exec", where, *ray, *options], env=self.environ, check=True, timeout=300)

    def start_other(self) -> None:
        self.ray("srb-b", "--address", f"{HEAD}:6379", "--node-ip-address", OTHER)

    def cut(self) -> None:
        ip("-n", "srb-b", "link", "set", "srb-vb", "down")
        self.is_cut = True

    def mend(self) -> None:
        """Starts the other node again if its wire was cut: Ray takes it for dead."""
        if self.is_cut:
            self.kill("srb-b")
            self.join()
            self.start_other()

    def join(self) -> None:
        ip("-n", "srb-b", "link", "set", "srb-vb", "up")
        self.is_cut = False

    def kill(self, where: str) -> None:
        """Kills all processes of a node at once."""
        pids = subprocess.run(["ip", "netns", "pids", where], capture_output=True, text=True, check=True).stdout
        for pid in pids.split():
            os.kill(int(pid), signal.SIGKILL)

    def close(self) -> None:
        self.server.send_signal(signal.SIGTERM)
        try:
            self.server.wait(120)
        finally:
            for name in ("srb-b", "srb-a"):
                self.kill(name)
                ip("netns", "del", name)
            shutil.rmtree(self.ray_folder, ignore_errors=True)

    def ask(self, path: str, body: Any = None) -> Iterator[bytes]:
        """The lines of an answer, as they come."""
        with closing(http.client.HTTPConnection("localhost")) as connection:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(300)
            connection.sock.connect(str(self.socket))
            connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
            with connection.getresponse() as answer:
                yield from answer

    def health(self) -> dict[str, str]:
        """The status of each replica by its node."""
        try:
            health = json.loads(b"".join(self.ask("/health")))
        except OSError:
            return {}
        replicas = sorted(health.get("replicas", []), key=lambda each: str(each["status"]))
        return {each["node"]: each["status"] for each in replicas}


def until(condition: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not come to that"
        time.sleep(0.2)


def can_cut() -> bool:
    """Whether network namespaces can be had here."""
    if os.geteuid() or not shutil.which("ip"):
        return False
    made = subprocess.run(["ip", "netns", "add", "srb-probe"], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", "srb-probe"], check=False)
    return made


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="replicas need Ray: pip install 'llama-srb[cluster]'")
    if not can_cut():
        pytest.skip("network namespaces need root and `ip`")
    nodes = Nodes(tmp_path_factory.mktemp("nodes"))
    try:
        until(lambda: nodes.health() == {HEAD: "ready", OTHER: "ready"})
        yield nodes
    finally:
        nodes.close()


class Stream:
    """What one reader gets."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.pause = 0.0

    def read(self, nodes: Nodes, seed: int) -> None:
        last = time.monotonic()
        for line in nodes.ask("/v1/completions", BODY | {"seed": seed}):
            if line.startswith(b"data: "):
                self.events.append(json.loads(line[6:]))
                now = time.monotonic()
                self.pause, last = max(self.pause, now - last), now

    def check(self) -> None:
        kinds = [event["event"] for event in self.events]
        assert (kinds.count("start"), kinds.count("done"), kinds.count("error")) == (1, 1, 0)
        stop = next(event for event in self.events if event["event"] == "stop")
        assert (stop["length"], stop["finish_reason"]) == (96, "length")
        text = "".join(event["text"] for event in self.events if event["event"] == "stream")
        assert len(text) > 96
        assert "\ufffd" not in text


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["killed", "cut"])
def test_alternatives_outlive_a_node(nodes: Nodes, how: str) -> None:
    """The one that is killed comes back, and gets requests."""
    nodes.mend()
    until(lambda: nodes.health() == {HEAD: "ready", OTHER: "ready"})
    streams = [Stream() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        reading = [pool.submit(each.read, nodes, seed) for seed, each in enumerate(streams)]
        until(lambda: all(len(each.events) > 10 for each in streams))
        if how == "killed":
            nodes.kill("srb-b")
        else:
            nodes.cut()
        until(lambda: nodes.health().get(OTHER, "lost") == "lost", 90)
        for future in reading:
            future.result(timeout=400)
    for each in streams:
        each.check()
    later = Stream()
    later.read(nodes, 99)
    later.check()
    if how == "cut":
        return  # what comes back is shown by the other one
    nodes.start_other()
    until(lambda: nodes.health().get(OTHER) == "ready")
    seen = threading.Event()

    def read(seed: int) -> None:
        while not seen.is_set():
            Stream().read(nodes, seed)

    with ThreadPoolExecutor(8) as pool:
        reading = [pool.submit(read, seed) for seed in range(8)]
        try:
            until(lambda: busy(nodes, OTHER))
        finally:
            seen.set()
        for future in reading:
            future.result(timeout=400)


def busy(nodes: Nodes, node: str) -> bool:
    health = json.loads(b"".join(nodes.ask("/health")))
    return any(each["node"] == node and each["running"] for each in health["replicas"])
