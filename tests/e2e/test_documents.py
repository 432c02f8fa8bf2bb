"""The commands in README.md and docs/ do what they say: each curl and each srb that can be run here is run, and each
Python program.

The ids that they name are replaced by real ones, and the address by that of the server. `NEEDS` says which commands
want what isn't here; a command that is neither run nor named there fails the test.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_server import Server

ROOT = Path(__file__).parents[2]

NEEDS = {
    "a model that ranks": ("/rerank",),
    "an adapter": ('"lora"',),
    "a model that sees": ("data:image",),
    "messages of your own": ("[...]",),
    "several machines": ("ray ", "RAY_", "192.0.2.11"),
    "another program in front": ("localhost:8080", "haproxy"),
    "a build": ("./build.sh", "docker ", "pip ", "pipx ", "uvx ", ".venv/"),
    "root": ("sudo ", "systemctl", "journalctl"),
    "the network": ("--hf-repo", "--model-url"),
    "another model": ("~/models",),
    "an hour": ("bench/", "pytest "),
    "somebody who types": ("argcomplete",),
    "a test of its own": ("srb serve", "srb compare", "srb tune", "examples/", "action="),
}
"""What commands with these words need."""


MADE_BEFORE = """
import srb
llm = srb.LLM(srb.Engine(srb.LlamaBackend(srb.Settings()), default_max_tokens=4, cache_bytes=1 << 30))
rules = "Answer each question in one word, and never say what you think of it yourself, please."
"""
"""What the programs go on with."""


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """The file of each block in a language, and the block."""
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(rf"^```{language}\n(.*?)^```", file.read_text(), re.MULTILINE | re.DOTALL):
            yield file.name, block


def commands() -> Iterator[tuple[str, str]]:
    """The file of each command in a block of shell, and the command, which may have several lines."""
    for file, block in blocks("sh"):
        command = ""
        for line in block.splitlines():
            command += line + "\n"
            try:
                words = shlex.split(command.rstrip().removesuffix("\\"), comments=True)
            except ValueError:  # a quotation goes on in the next line
                continue
            if not command.rstrip().endswith("\\"):
                if words:
                    yield file, command.strip()
                command = ""
        assert not command, f"{file}: a quotation doesn't end: {command}"


def is_run(command: str) -> bool:
    return not any(word in command for words in NEEDS.values() for word in words)


def test_each_command_is_run_or_says_what_it_needs() -> None:
    others = [command for _, command in commands() if is_run(command) and not re.match(r"(.*\| )?(curl|srb) ", command)]
    assert others == []
    assert sum(is_run(command) for _, command in commands()) > 20


@pytest.fixture
def place(tmp_path: Path, start_server: Callable[..., Server]) -> tuple[Path, Server]:
    """A folder with what the commands name, and a server that has done what they go on with."""
    (tmp_path / "chapter.txt").write_text("The old lighthouse keeper said that")
    (tmp_path / "questions.jsonl").write_text('{"context": "The capital of France is", "continuations": [" Paris"]}')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srb").write_text(f'#!/bin/sh\nexec {sys.executable} -m srb "$@"\n')
    (tmp_path / "bin" / "srb").chmod(0o755)
    server = start_server(
        *(
            "--max-tokens",
            "4",
            "--n",
            "2",
            "--embeddings",
            "--pooling",
            "mean",
            "--history",
            str(tmp_path / "stories.db"),
        )
    )
    return tmp_path, server


def test_they_work(place: tuple[Path, Server]) -> None:
    folder, server = place
    status, _ = server.request("/v1/completions", {"prompt": "A dragon", "detach": True, "n": 2})
    assert status == 200
    made = json.loads(server.request("/v1/completions", {"prompt": "A dragon", "model": "x", "stream": False})[1])
    story = json.loads(server.request("/v1/stories", {"title": "A tale"})[1])["id"]
    server.request(f"/v1/stories/{story}/nodes", {"text": "A dragon with golden hair"})
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SRB_")} | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "SRB_MAX_TOKENS": "4",
        "HOME": str(folder),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
    }
    loaders = {"srb generate", "srb explore"}
    for file, command in commands():
        if not is_run(command):
            continue
        written = command.replace("http://localhost:9090", server.url).replace("localhost:9090", server.url)
        written = re.sub(r"cmpl-\w*\.\.\.|(?<!-)\bID\b", made["id"], written).replace("STORY", story)
        written = re.sub(r"/choices/INDEX", "/choices/0", written).replace("Last-Event-ID: 57", "Last-Event-ID: 1")
        written = re.sub(r'(max[-_](?:tokens|nodes)"?:? )\d+', r"\g<1>4", written)
        # The first of each loads the model, and the others ask the server.
        loads = next((each for each in loaders if each in written), None)
        loaders.discard(loads or "")
        written = (
            written if loads else re.sub(r"\bsrb (generate|explore|score)\b", rf"srb \1 --url {server.url}", written)
        )
        # A story's feed goes on until its reader leaves, which curl says with 28.
        written = re.sub(r"^curl ", "curl -s --fail-with-body --max-time 20 ", written)
        feeds = "text/event-stream" in written
        written = written.replace("--max-time 20", "--max-time 1") if feeds else written
        done = subprocess.run(
            ["bash", "-c", written], capture_output=True, text=True, timeout=120, env=environ, cwd=folder
        )
        assert done.returncode in ((28,) if feeds else (0,)), f"{file}: {written}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip() or ">" in written or "DELETE" in written or "prune" in written, f"{file}: {written}"


RUNS_ALL = """
import json, sys
for name, program in json.load(sys.stdin):
    exec(compile(program, name, "exec"), dict(globals()))
"""
SHORT = {r"max_tokens=\d+": "max_tokens=4", r"\bSettings\(\)": "Settings(max_tokens=4)"}


def test_the_programs_work(tmp_path: Path) -> None:
    """One process runs them all, each with names of its own."""
    programs = list(blocks("python"))
    assert len(programs) > 5
    for long, short in SHORT.items():
        programs = [(file, re.sub(long, short, program)) for file, program in programs]
    done = subprocess.run(
        [sys.executable, "-c", MADE_BEFORE + RUNS_ALL],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
