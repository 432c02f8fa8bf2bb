"""Models from elsewhere, from servers of this machine that stand in for it."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from srb.errors import ModelLoadError, SettingsError
from srb.files.download import fetch_model, fetch_url, models_folder
from srb.options.settings import Settings

FILE = b"GGUF" + bytes(range(256)) * 1000


class Elsewhere(ThreadingHTTPServer):
    """Serves one file, and breaks off where it's told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.file = FILE
        self.etag = '"one"'
        self.break_after: list[int] = []
        """How many bytes each of the next answers sends before it breaks off."""
        self.knows_ranges = True
        self.tells_length = True
        self.first_byte = 0
        """Where its answer begins if no range was asked for."""
        self.asked: list[tuple[str, str | None, str | None]] = []
        """The method, the range and the token of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Elsewhere

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        server, range_ = self.server, self.headers["Range"]
        if "m.gguf" in self.path or "owner/name" in self.path:  # huggingface_hub asks for other things, too
            server.asked.append((self.command, range_, self.headers["Authorization"]))
        if self.path.startswith("/api/models/owner/name"):
            files = [{"type": "file", "path": path, "size": 5, "oid": "0"} for path in ("m.gguf", "README.md")]
            return self.send(200, json.dumps(files).encode())
        if not self.path.partition("?")[0].endswith("/m.gguf"):
            return self.send(404, b"{}")
        start = server.first_byte
        same = self.headers["If-Range"] in (None, server.etag)
        if range_ and server.knows_ranges and same:
            start = int(range_.removeprefix("bytes=").partition("-")[0])
        if start >= len(server.file):
            return self.send(416, b"")
        return self.send(206 if start else 200, server.file[start:], start)

    def send(self, status: int, body: bytes, start: int = 0) -> None:
        server = self.server
        self.send_response(status)
        if server.tells_length:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", server.etag)
        self.send_header("X-Repo-Commit", "0" * 40)
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{start + len(body)}")
        self.close_connection = not server.tells_length
        self.end_headers()
        if self.command == "GET":
            if status < 300 and server.break_after:
                body = body[: server.break_after.pop(0)]
                self.close_connection = True
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Elsewhere]:
    """A server with a file, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Elsewhere() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def part_of(server: Elsewhere) -> Path:
    """Where the beginning of the file is kept."""
    url = f"{server.url}/m.gguf"
    return models_folder() / hashlib.sha256(url.encode()).hexdigest()[:16] / "m.gguf.part"


def test_a_file_is_downloaded_once_with_progress(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr("srb.files.download.error_console", lambda: shown)
    settings = Settings(model_url=f"{elsewhere.url}/a/m.gguf?x=1")
    fetched = fetch_model(settings)
    assert fetched.model is not None
    assert fetched.model.read_bytes() == FILE
    assert (fetched.model.name, fetched.model_url) == ("m.gguf", None)
    assert tmp_path / "llama-srb/models" in fetched.model.parents
    assert re.search(r"m\.gguf .*100%.*256\.0/256\.0 kB", shown.file.getvalue())  # type: ignore[attr-defined]
    assert {path.name for path in fetched.model.parent.iterdir()} == {"m.gguf", "m.gguf.lock"}
    assert fetch_model(settings) == fetched
    assert len(elsewhere.asked) == 1


def test_a_broken_connection_is_made_anew(elsewhere: Elsewhere) -> None:
    elsewhere.break_after = [1000, 5]
    assert fetch_url(f"{elsewhere.url}/m.gguf").read_bytes() == FILE
    assert [range_ for _, range_, _ in elsewhere.asked] == [None, "bytes=1000-", "bytes=1005-"]


def test_an_interrupted_download_resumes_in_the_next_run(elsewhere: Elsewhere) -> None:
    elsewhere.break_after = [1000, 0]
    with pytest.raises(
        ModelLoadError, match=r"the connection broke off after 1000 of \d+ bytes; the same command resumes the download"
    ):
        fetch_url(f"{elsewhere.url}/m.gguf")
    assert part_of(elsewhere).read_bytes() == FILE[:1000]
    assert fetch_url(f"{elsewhere.url}/m.gguf").read_bytes() == FILE
    assert elsewhere.asked[-1][1] == "bytes=1000-"


def test_a_file_that_has_changed_is_fetched_from_its_beginning(elsewhere: Elsewhere) -> None:
    elsewhere.break_after = [1000, 0]
    with pytest.raises(ModelLoadError):
        fetch_url(f"{elsewhere.url}/m.gguf")
    elsewhere.file, elsewhere.etag = FILE[::-1], '"two"'
    assert fetch_url(f"{elsewhere.url}/m.gguf").read_bytes() == FILE[::-1]


@pytest.mark.parametrize(("lacks", "resumed"), [({"knows_ranges": False}, "bytes=1000-"), ({"etag": 'W/"weak"'}, None)])
def test_servers_that_cannot_resume_a_download(
    elsewhere: Elsewhere, lacks: dict[str, object], resumed: str | None
) -> None:
    vars(elsewhere).update(lacks)
    elsewhere.break_after = [1000, 0]
    with pytest.raises(ModelLoadError):
        fetch_url(f"{elsewhere.url}/m.gguf")
    assert fetch_url(f"{elsewhere.url}/m.gguf").read_bytes() == FILE
    assert [range_ for _, range_, _ in elsewhere.asked] == [None, resumed, None]


def test_a_part_that_is_whole_or_too_long(elsewhere: Elsewhere) -> None:
    elsewhere.break_after = [1000, 0]
    with pytest.raises(ModelLoadError):
        fetch_url(f"{elsewhere.url}/m.gguf")
    part_of(elsewhere).write_bytes(FILE + b"more")
    assert fetch_url(f"{elsewhere.url}/m.gguf").read_bytes() == FILE


def test_a_rest_that_nobody_asked_for_is_no_file(elsewhere: Elsewhere) -> None:
    elsewhere.first_byte = 5
    with pytest.raises(ModelLoadError, match=r"the server sent bytes 5-.* instead of all bytes from 0 on"):
        fetch_url(f"{elsewhere.url}/m.gguf")


def test_what_cant_be_fetched_is_named(elsewhere: Elsewhere) -> None:
    with pytest.raises(ModelLoadError, match=r"--model-url .*/nothing: the server answered 404 Not Found"):
        fetch_url(f"{elsewhere.url}/nothing")
    for url in ("ftp://host/m.gguf", "m.gguf", "http://host/", "http://host/.."):
        with pytest.raises(SettingsError, match="--model-url takes the http:// or https:// URL of a file, got"):
            fetch_url(url)
    elsewhere.tells_length = False
    with pytest.raises(ModelLoadError, match="the server doesn't send the length of the file"):
        fetch_url(f"{elsewhere.url}/m.gguf")


def test_one_model_at_a_time() -> None:
    with pytest.raises(SettingsError, match="--model and --model-url name a model each"):
        fetch_model(Settings(model=Path("m"), model_url="http://host/m.gguf"))
    with pytest.raises(SettingsError, match=r"--hf-file m\.gguf is a file in --hf-repo, which is missing"):
        fetch_model(Settings(hf_file="m.gguf"))
    settings = Settings(model=Path("m"))
    assert fetch_model(settings) is settings


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match=r"--hf-repo needs huggingface_hub: .*-m pip install 'llama-srb\[hub\]'"):
        fetch_model(Settings(hf_repo="owner/name"))


def from_hub(server: Elsewhere, tmp_path: Path, *asked: tuple[str, str | None]) -> list[str]:
    """Fetches files, each by its repository and its name: their paths, or the messages of errors.

    This needs a process, because huggingface_hub reads the environment when it's imported, which takes a second.
    """
    code = (
        "import json, sys; from srb import Settings, SrbError; from srb.files.download import fetch_model\n"
        "for repo, file in json.loads(sys.argv[1]):\n"
        "    try: print(json.dumps(str(fetch_model(Settings(hf_repo=repo, hf_file=file)).model)))\n"
        "    except SrbError as error: print(json.dumps(error.message))"
    )
    environ = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_secret"}
    command = [sys.executable, "-c", code, json.dumps(asked)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.starts
def test_files_from_the_hub(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """In one process, since the hub's library takes a second to be imported. Its first connection breaks."""
    elsewhere.file = FILE * 48  # the hub's library keeps pieces of 10 MiB
    elsewhere.break_after = [11 << 20]
    repo = "owner/name"
    asked = ((repo, "m.gguf"), (repo, None), (repo, "other.gguf"), ("no name", None))
    named, listed, missing, wrong = from_hub(elsewhere, tmp_path, *asked)
    assert Path(listed).read_bytes() == Path(named).read_bytes() == elsewhere.file
    assert {token for _, _, token in elsewhere.asked} == {"Bearer hf_secret"}
    ranges = [range_ for method, range_, _ in elsewhere.asked if method == "GET"]
    assert ranges == [None, f"bytes={10 << 20}-", None]  # the file, the rest of it, and the list of files
    assert missing.startswith("--hf-repo owner/name: 404")
    assert missing.endswith("(a private one needs a token in HF_TOKEN)")
    assert wrong.startswith("--hf-repo no name: Repo id must")


def test_models_of_a_folder(tmp_path: Path) -> None:
    for name in ("One-7B.gguf", "one-13B.gguf", "big/two-00001-of-00002.gguf", "big/two-00002-of-00002.gguf", "x.txt"):
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder = tmp_path / "models"

    def found(name: str) -> str:
        model = fetch_model(Settings(models_dir=folder, model=Path(name))).model
        assert model is not None
        return str(model.relative_to(folder))

    assert found("one-7B") == found("one-7B.gguf") == found("one-7") == "One-7B.gguf"
    assert found("big/t") == "big/two-00001-of-00002.gguf"
    there = r"--model takes one of: One-7B\.gguf, big/two-00001-of-00002\.gguf, one-13B\.gguf"
    for settings, message in (
        (Settings(models_dir=folder), f"has several models; {there}"),
        (Settings(models_dir=folder, model=Path("three")), f"has no three; {there}"),
        (Settings(models_dir=folder, model=Path("one")), r"has several models for one; .* of: One-7B\.gguf, one-13B\."),
        (Settings(models_dir=tmp_path / "none"), r"none is not a folder"),
    ):
        with pytest.raises(SettingsError, match=message):
            fetch_model(settings)
    inside = folder / "One-7B.gguf"
    assert fetch_model(Settings(models_dir=folder, model=inside)).model == inside
    assert fetch_model(Settings(models_dir=folder / "big")).model == folder / "big" / "two-00001-of-00002.gguf"
