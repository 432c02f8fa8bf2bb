"""The default model through HTTP: what the README promises."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_server import Server, command
from tiny_model import write_tiny_model

from srb.llama.model.model_file import find_model

pytestmark = pytest.mark.e2e


def post_raw(server: Server, body: dict[str, Any]) -> socket.socket:
    """Sends a completion request and returns the open connection."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(server.address, timeout=60)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data)
    connection.sendall(head + data)
    return connection


def test_the_seeds_request(server: Server) -> None:
    events = server.events(max_tokens=16)
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1]) == ("start", "done")
    assert (kinds.count("start"), kinds.count("stop"), kinds.count("done")) == (1, 8, 1)
    assert events[0]["count"] == 8
    assert {event["index"] for event in events[1:9]} == set(range(8))  # interleaved from the first step on
    assert {event["index"] for event in events if event["event"] == "stop"} == set(range(8))


def test_the_same_seed_gives_the_same_texts(server: Server) -> None:
    first = server.texts(seed=42, max_tokens=12)
    assert server.texts(seed=42, max_tokens=12) == first
    assert len(set(first)) == 8
    assert server.texts(seed=43, max_tokens=12)[:7] != first[:7]


def test_branches_differ_as_asked(server: Server) -> None:
    """By their first tokens, which come from one row of logits: later ones needn't be alike (docs/http/context.md)."""
    wild = {"temperature": 100, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1, "label": "wild"}
    body = {"branches": [{"temperature": 0}, {"temperature": 0}, wild], "max_tokens": 1}
    greedy, again, other = server.texts(**body)
    assert greedy == again != other
    assert server.events(**body)[0]["labels"] == [None, None, "wild"]


def test_emoji_and_chinese_arrive_whole(server: Server) -> None:
    for prompt, sign in (
        ("Repeat after me: 🙂 🙂 🙂 🙂 🙂 🙂", "🙂 🙂"),
        ("你好,世界! 你好,世界! 你好,世界! 你", "好,世界"),
    ):
        texts = server.texts(prompt=prompt, temperature=0.3, max_tokens=40, seed=1)
        assert sum(sign in text for text in texts) >= 4
        assert not any("�" in text for text in texts)


def test_80_killed_clients_leave_nothing(server: Server) -> None:
    for number in range(80):  # each prompt with each stage and number of alternatives, twice
        body = {"prompt": "Once upon a time, " * (1 + number % 20), "n": 1 + number % 8, "ignore_eos": True}
        wanted = (b"HTTP", b'"start"', b'"stream"', b'"stream", "index": 0')[number % 4]  # how far it has come by then
        with post_raw(server, body) as connection:
            text = b""
            while wanted not in text:
                text += connection.recv(4096)
    health = server.wait_until_idle()
    assert health["status"] == "ok"
    assert len(server.texts(max_tokens=2)) == 8


def test_a_client_that_goes_while_a_long_prompt_is_evaluated_is_noticed_at_once(server: Server) -> None:
    before = server.health()["prompt_tokens_evaluated"]
    connection = post_raw(server, {"prompt": "word " * 6000, "max_tokens": 2})
    text = b""
    while b'"event": "start"' not in text:
        text += connection.recv(1000)
    connection.close()
    health = server.wait_until_idle()
    assert health["prompt_tokens_evaluated"] - before < 6000


def test_a_prompt_as_long_as_the_context_is_evaluated(start_server: Callable[..., Server], tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    server = start_server("-m", str(model), "--ctx-size", "1024", "--batch-size", "100")
    done = server.events(prompt=[[1] * 1024], n=2)[-1]
    assert done["usage"] == {"prompt_tokens": 1024, "completion_tokens": 2, "total_tokens": 1026, "cached_tokens": 0}


def test_megabytes_of_one_character_are_answered(server: Server) -> None:
    for char in ("a", " ", "\n", "1", "é"):
        body = json.dumps({"prompt": char * 2_000_000}, ensure_ascii=False).encode()
        status, answer = server.request("/v1/completions", body)
        assert status == 400
        assert json.loads(answer)["error"]["code"] == "context_length_exceeded"
    assert server.request("/v1/completions", b" " * (4 * 1024 * 1024 + 1))[0] == 413
    assert len(server.texts(max_tokens=1)) == 8


def test_a_stream_that_is_cut_off_goes_on_where_it_was(server: Server) -> None:
    body = {"prompt": "Once", "n": 3, "max_tokens": 20, "ignore_eos": True, "detach": True}
    with post_raw(server, body | {"stream": "events"}) as connection:
        got = b""
        while got.count(b"\n\nid: ") < 10:
            got += connection.recv(4096)
    first = [json.loads(line[6:]) for line in got.splitlines() if line.startswith(b"data: ") and line.endswith(b"}")]
    path = f"/v1/completions/{first[0]['id']}/events?starting_after"
    status, rest = server.request(f"{path}={len(first)}")
    assert status == 200
    _, whole = server.request(f"{path}=0")
    events = [json.loads(line[6:]) for line in whole.splitlines() if line.startswith("data: ")]
    assert first == events[: len(first)]
    assert whole.endswith(rest)
    assert rest.startswith(f"id: {len(first) + 1}\n")
    assert events[-1]["event"] == "done"


def test_cancelling(server: Server) -> None:
    connection = post_raw(server, {"prompt": "Once", "n": 3, "max_tokens": 500, "ignore_eos": True})
    text = b""
    while b'"event": "stream"' not in text:
        text += connection.recv(4096)
    start = json.loads(text.split(b"data: ")[1].split(b"\n")[0])
    path = f"/v1/completions/{start['id']}"
    assert server.request(f"{path}/choices/1", method="DELETE") == (204, "")
    while b'"event": "stop"' not in text:
        text += connection.recv(4096)
    assert b'"event": "stop", "index": 1' in text
    assert b'"finish_reason": "abort", "stop_reason": "cancelled"' in text
    assert server.request(path, method="DELETE") == (204, "")
    while b'"event": "done"' not in text:
        text += connection.recv(4096)
    assert text.count(b'"event": "stop"') == 3
    connection.close()
    assert [server.request(path, method="DELETE")[0] for _ in range(2)] == [204, 404]  # the first one forgets it
    server.wait_until_idle()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_streams_end_with_their_terminal_events(
    start_server: Callable[..., Server], number: int
) -> None:
    server = start_server()
    with post_raw(server, {"prompt": "Once", "n": 4, "max_tokens": 2000, "ignore_eos": True}) as running:
        text = b""
        while b'"event": "start"' not in text:
            text += running.recv(4096)
        waiting = post_raw(server, {"prompt": "Once", "n": 2})
        rest = waiting.recv(4096)
        server.process.send_signal(number)
        while chunk := running.recv(65536):
            text += chunk
        with waiting:
            while chunk := waiting.recv(65536):
                rest += chunk
    assert server.process.wait(30) == 0
    assert text.count(b'"stop_reason": "shutdown"') == 4
    assert text.count(b'"event": "done"') == 1
    assert rest.count(b'"stop_reason": "shutdown"') == 2
    assert rest.count(b'"event": "done"') == 1


def test_a_second_signal_ends_the_process_at_once(start_server: Callable[..., Server]) -> None:
    server = start_server()
    connection = post_raw(server, {"prompt": "Once", "n": 4, "max_tokens": 2000, "ignore_eos": True})
    connection.recv(1000)
    server.process.send_signal(signal.SIGTERM)
    while server.health()["status"] != "stopping":
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 128 + signal.SIGTERM  # it is 0 when the request has had its time
    connection.close()


def fails(*options: str) -> tuple[int, str]:
    """The exit code and the errors of a server that can't start, without its log."""
    result = subprocess.run(command("--log-level", "error", *options), capture_output=True, text=True, timeout=60)
    assert result.stdout == ""
    return result.returncode, result.stderr


def test_what_cannot_start_says_so_in_one_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    short = tmp_path / "short.gguf"
    short.write_bytes(find_model(None).read_bytes()[:50_000_000])
    for options, code, message in (
        (["--model", "/nowhere.gguf"], 1, "the model /nowhere.gguf can't be read: No such file or directory"),
        (["--model", str(tmp_path / "text.gguf")], 1, "is not a GGUF file"),
        (["--model", str(short)], 1, "corrupted or incomplete"),
        (["--ctx-size", "100000000"], 1, "doesn't fit: its weights take 92 MiB, 100,000,000 cells 2,197,265 MiB"),
        (["--port", str(server.address[1])], 2, "can't listen on 127.0.0.1:"),
        (["--n", "99"], 2, "--n 99 is more than --max-n 32"),
    ):
        actual, errors = fails(*options)
        assert actual == code, errors
        assert message in errors
        assert errors.count("\n") == 1
