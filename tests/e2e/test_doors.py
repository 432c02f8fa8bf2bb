"""`srb serve` behind its doors: a Unix socket, TLS and keys, from the command line to the log."""

import http.client
import json
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_server import command
from tiny_model import write_tiny_model

TLS = Path(__file__).parent.parent / "server" / "tls"


@contextmanager
def run(options: list[str], log: Path) -> Iterator["subprocess.Popen[str]"]:
    """A server that is ready, and stopped at the end. What it prints goes to `log`, as a full pipe would stop it."""
    with log.open("w") as errors:
        process = subprocess.Popen(command(*options), stdout=subprocess.PIPE, stderr=errors, text=True)
    with process:
        try:
            assert process.stdout
            assert "is ready at" in process.stdout.readline(), log.read_text()
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def get(path: Path, target: str, **headers: str) -> tuple[int, str]:
    """The status and the text of an answer over a Unix socket with TLS."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(path))
        context = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
        connection = http.client.HTTPConnection("localhost")
        connection.sock = context.wrap_socket(sock, server_hostname="localhost")
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


def test_a_unix_socket_with_tls_and_keys(tmp_path: Path) -> None:
    path, keys = tmp_path / "srb.sock", tmp_path / "keys"
    keys.write_text("sk-filed\n")
    options = ["--uds", str(path), "--ssl-cert-file", str(TLS / "cert.pem"), "--ssl-key-file", str(TLS / "key.pem")]
    options += ["--api-key", "sk-given", "--api-key-file", str(keys), "--log-level", "debug"]
    log = tmp_path / "log"
    with run(options, log) as process:
        assert get(path, "/health")[0] == 200
        assert get(path, "/v1/models")[0] == 401
        for key in ("sk-given", "sk-filed"):
            status, text = get(path, "/v1/models", Authorization=f"Bearer {key}")
            assert (status, json.loads(text)["object"]) == (200, "list")
        second = subprocess.run(command("--uds", str(path)), capture_output=True, text=True, timeout=60, check=False)
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr.endswith(f"srb: can't listen on {path}: Address already in use; try another --uds\n")
        assert get(path, "/health")[0] == 200
    assert process.returncode == 0
    assert not path.exists()
    assert "sk-" not in log.read_text()


def test_a_server_for_everybody_says_so(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path / "tiny.gguf"))
    key = ["--api-key", "sk-given"]
    for host, options, warned in (("0.0.0.0", [], True), ("0.0.0.0", key, False), ("127.0.0.1", [], False)):
        with run(["-m", model, "--host", host, *options], tmp_path / "log"):
            assert ("set --api-key to require a key" in (tmp_path / "log").read_text()) == warned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--api-key", ""], "--api-key has no key in it"),
        (["--ssl-cert-file", "x"], "--ssl-key-file is missing"),
        (["--cors-origins", "example.com"], "without a path"),
    ],
)
def test_wrong_options_end_it_before_the_model_is_loaded(options: list[str], message: str) -> None:
    ended = subprocess.run(command(*options), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert "loading" not in ended.stderr
