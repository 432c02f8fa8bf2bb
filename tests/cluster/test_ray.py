"""Two replicas of a tiny model on a Ray of their own: texts are those of one engine, whichever replica dies."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from real_server import Server, start
from tiny_model import write_tiny_model

from srb.cli import main

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.ray,
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(sys.platform != "linux", reason="the tests find Ray's processes in /proc"),
    pytest.mark.skipif(not find_spec("ray"), reason="replicas need Ray: pip install 'llama-srb[cluster]'"),
]

PROMPT = "It was a dark and stormy night; " * 4
LONG = {"prompt": PROMPT, "n": 4, "max_tokens": 400, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[Server]:
    """One engine in one process."""
    server = start("-m", str(model), "-t", "1", "--max-n", "64")
    yield server
    server.stop()
    server.close()


@pytest.fixture(scope="module")
def cluster(model: Path) -> Iterator[Server]:
    server = start("-m", str(model), "-t", "1", "--max-n", "64", "--replicas", "2", "--keep-finished", "60")
    until(lambda: names(server, "ready") == 2)
    yield server
    assert stop(server) == 0
    until(lambda: not replicas_of(server))


def until(condition: Callable[[], bool], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not come to that"
        time.sleep(0.1)


def stop(server: Server) -> int:
    """Ends a server; Ray takes its time."""
    server.process.terminate()
    code = server.process.wait(120)
    server.close()
    return code


def names(server: Server, status: str) -> int:
    return sum(each["status"] == status for each in server.health().get("replicas", []))


def replicas_of(server: Server) -> list[int]:
    """The process ids of its replicas."""
    return list(below(server, b"^ray::ServeReplica:srb"))


def ray_of(server: Server) -> str:
    """The address of the Ray that it has started."""
    return next(match[1].decode() for match in below(server, rb"--gcs-address=([^\0]+)").values())


def below(server: Server, pattern: bytes) -> dict[int, re.Match[bytes]]:
    """The processes that it has started whose command lines match, by their ids."""
    parents, found = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if match := re.search(pattern, (path / "cmdline").read_bytes()):
                found[int(path.name)] = match
        except OSError:
            continue

    def is_below(pid: int) -> bool:
        while pid > 1 and pid != server.process.pid:
            pid = parents.get(pid, 0)
        return pid == server.process.pid

    return {pid: match for pid, match in found.items() if is_below(pid)}


@contextmanager
def stopped(processes: list[int]) -> Iterator[None]:
    """Nothing that runs there comes to an end meanwhile."""
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


def outcome(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What doesn't depend on ids and times."""
    texts: dict[int, str] = {}
    stops = []
    for event in events:
        if event["event"] == "stream":
            texts[event["index"]] = texts.get(event["index"], "") + event["text"]
        elif event["event"] == "stop":
            stops.append((event["index"], event["length"], event["finish_reason"]))
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start"
    assert kinds.count("start") == kinds.count("done") == 1
    assert kinds[-1] == "done"
    assert "error" not in kinds
    return {"texts": texts, "stops": sorted(stops), "seeds": events[0]["seeds"]}


def test_the_events_are_those_of_one_engine(cluster: Server, alone: Server) -> None:
    body = {"prompt": PROMPT, "n": 3, "max_tokens": 20, "seed": 5}
    assert outcome(cluster.events(**body)) == outcome(alone.events(**body))
    for path in ("/v1/models", "/props", "/slots", "/v1/requests", "/tokenize"):
        post = {"content": "a"} if path == "/tokenize" else None
        assert cluster.request(path, post)[0] == 200, path
    status, text = cluster.request("/v1/completions", {"prompt": "a", "grammar": "root ::= ("})
    assert status == 400, text
    status, text = cluster.request("/v1/completions", {"prompt": "a" * 9000})
    assert (status, json.loads(text)["error"]["code"]) == (400, "context_length_exceeded")


def test_what_ran_on_a_killed_replica_goes_on(cluster: Server) -> None:
    expected = outcome(cluster.events(**LONG))
    doomed, resumed_tokens = replicas_of(cluster)[0], threading.Semaphore(0)

    def read() -> dict[str, Any]:
        body = json.dumps(LONG).encode()
        with urllib.request.urlopen(f"{cluster.url}/v1/completions", data=body, timeout=300) as answer:
            lines = [next(line for line in answer if b'"event": "start"' in line)]
            lines.append(next(line for line in answer if b'"event": "stream"' in line))
            resumed_tokens.release()
            lines += answer
        return outcome([json.loads(line[6:]) for line in lines if line.startswith(b"data: ")])

    with ThreadPoolExecutor(8) as pool:
        reading = [pool.submit(read) for _ in range(8)]
        for _ in reading:  # how many run at once depends on the machine, but the last to begin has only just begun
            assert resumed_tokens.acquire(timeout=180)
        os.kill(doomed, signal.SIGKILL)
        ended = [each.result(timeout=300) for each in reading]
    for each in ended:
        assert each["stops"] == expected["stops"]
        assert each["seeds"] == expected["seeds"]
    until(lambda: names(cluster, "ready") == 2)
    assert outcome(cluster.events(**LONG))["stops"] == expected["stops"]


def test_the_replicas_have_metrics_of_their_own(cluster: Server) -> None:
    until(lambda: names(cluster, "ready") == 2)
    text = cluster.request("/metrics")[1]
    found = set(re.findall(r'llamacpp:tokens_predicted_total\{replica="(\w+)"\}', text))
    assert found >= {each["name"] for each in cluster.health()["replicas"]}


def test_another_server_in_front_of_the_same_replicas(cluster: Server, model: Path) -> None:
    other = start("-m", str(model), "--ray-address", ray_of(cluster))
    try:
        until(lambda: names(other, "ready") == 2)
        ids: list[str] = []
        reading = threading.Thread(target=lambda: ids.append(cluster.events(**LONG)[-1]["id"]))
        with stopped(replicas_of(cluster)):
            reading.start()
            until(lambda: bool(json.loads(other.request("/v1/requests")[1])["data"]))
            request_id = json.loads(other.request("/v1/requests")[1])["data"][0]["id"]
        status, text = other.request(f"/v1/completions/{request_id}/events")
        assert status == 200
        assert text.count('"event": "stop"') == 4, text
        reading.join()
        assert ids == [request_id]
        assert json.loads(other.request(f"/v1/completions/{request_id}")[1])["status"] == "finished"
        assert other.request(f"/v1/completions/{request_id}", method="DELETE")[0] == 204
        assert cluster.request(f"/v1/completions/{request_id}")[0] == 404
        assert other.request("/v1/completions/cmpl-none")[0] == 404
    finally:
        assert stop(other) == 0
    assert outcome(cluster.events(prompt=PROMPT, n=2, max_tokens=5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicas", "two"], "--replicas takes a number from 1"),
        (["--replicas", "2", "--slot-save-path", "/tmp"], "--slot-save-path is for one engine"),
        (["--ray-address", "127.0.0.1:1"], "there is no Ray cluster at --ray-address 127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray.serve")  # what it warns of at its import is no error then
    assert main(["serve", "--port", "0", "--log-level", "error", *options]) in (1, 2)
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_without_ray_the_way_to_it_is_said() -> None:
    program = "import sys; sys.modules['ray'] = None; from srb.cli import main; sys.exit(main(sys.argv[1:]))"
    run = subprocess.run(
        [sys.executable, "-c", program, "serve", "--port", "0", "--replicas", "2"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 2
    assert "pip install 'llama-srb[cluster]'" in run.stderr
