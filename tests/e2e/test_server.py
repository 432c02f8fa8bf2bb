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

from srb.llama.model.model_file import find_model


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


def test_megabytes_of_one_character_are_answered(server: Server) -> None:
    for char in ("a", " ", "\n", "1", "é"):
        body = json.dumps({"prompt": char * 2_000_000}, ensure_ascii=False).encode()
        status, answer = server.request("/v1/completions", body)
        assert status == 400
        assert json.loads(answer)["error"]["code"] == "context_length_exceeded"
    assert server.request("/v1/completions", b" " * (4 * 1024 * 1024 + 1))[0] == 413
    assert len(server.texts(max_tokens=1)) == 8


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
