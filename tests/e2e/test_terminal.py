"""`srb generate` and `srb compare` as people run them, on the default model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from real_server import Server

SPEC = """
n = 4
max_tokens = 4
ignore_eos = true
[prompts]
said = "The old lighthouse keeper had not spoken to anybody for three weeks, and when the boat came in he said"
hid = "The old lighthouse keeper had not spoken to anybody for three weeks, and when the boat came in he hid"
ran = "The old lighthouse keeper had not spoken to anybody for three weeks, and when the boat came in he ran"
[settings.sure]
temperature = 0
[settings.usual]
[settings.wild]
temperature = 1.5
"""


def srb(*arguments: str, stdin: str = "", cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SRB_")}
    command = [sys.executable, "-m", "srb", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, env=environ, cwd=cwd)


def test_generate_in_a_pipe() -> None:
    branches = ("--branch", "temperature=0,label=sure", "--branch", "temperature=1.2,label=wild")
    result = srb("generate", *branches, "--max-tokens", "5", stdin="Once upon a time,\n")
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["sure", "wild"]


def test_generate_gives_the_events_of_a_server(server: Server) -> None:
    options = ("generate", "Once upon a time,", "--json", "-n", "2", "--seed", "7", "--max-tokens", "5")
    texts = []
    for where in ((), ("--url", server.url)):
        result = srb(*options, *where)
        assert (result.returncode, result.stderr) == (0, "")
        events = [json.loads(line) for line in result.stdout.splitlines()]
        assert (events[0]["event"], events[-1]["event"]) == ("start", "done")
        texts.append(["".join(e["text"] for e in events if e["event"] == "stream" and e["index"] == k) for k in (0, 1)])
    assert texts[0] == texts[1] == server.texts(n=2, seed=7, max_tokens=5, heal=True)


def test_a_comparison_evaluates_what_its_prompts_share_once(server: Server, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    result = srb("compare", "spec.toml", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    evaluated = re.search(r"36 of 36 alternatives; (\d+) prompt tokens evaluated, 144 tokens", result.stdout)
    assert evaluated, result.stdout
    prompt = SPEC.partition('said = "')[2].partition('"')[0]
    whole = server.events(prompt=prompt, max_tokens=0)[0]["prompt_tokens"]
    assert int(evaluated[1]) == whole + 2
    assert "<svg" in (tmp_path / "spec-results/report.html").read_text()
    by_server = srb("compare", "spec.toml", "--url", server.url, "--out", "by-server", cwd=tmp_path)
    assert by_server.returncode == 0, by_server.stderr
    assert len((tmp_path / "by-server/results.jsonl").read_text().splitlines()) == 36
