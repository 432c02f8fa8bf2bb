"""Every example runs as written."""

import ast
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from real_server import Server

from srb import api

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*command: str, server: Server | None = None) -> str:
    environ = os.environ | ({"SRB_PORT": str(server.address[1])} if server else {})
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_curl(server: Server) -> None:
    output = run(str(EXAMPLES / "curl.sh"), 'She said: "No!"', server=server)
    assert '"labels": ["sure", "usual", "wild"]' in output
    assert output.count('"event": "stop"') == 3
    assert output.count('"event": "done"') == 1


@pytest.mark.parametrize("command", ["stream.py", "chat.py", "clients/run.py --url http://127.0.0.1:1"])
def test_without_a_server_one_sentence_says_so(command: str) -> None:
    file, *rest = command.split()
    environ = os.environ | {"SRB_PORT": "1"}
    result = subprocess.run(
        [sys.executable, EXAMPLES / file, *rest], capture_output=True, text=True, timeout=60, env=environ
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("Start the server first: ./build.sh serve\n")


def test_stream(server: Server) -> None:
    lines = run(sys.executable, str(EXAMPLES / "stream.py"), "Once upon a time,", "3", server=server).splitlines()
    assert [line[:3] for line in lines] == ["0: ", "1: ", "2: "]
    assert all(line[3:] for line in lines)


def test_chat(server: Server) -> None:
    lines = run(sys.executable, str(EXAMPLES / "chat.py"), "Who are you?", "3", server=server).splitlines()
    assert [line[:3] for line in lines] == ["0: ", "1: ", "2: "]
    assert all(line[3:] for line in lines)


def test_a_model_for_lm_eval(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the interface that lm-eval calls, which needn't be installed, and as with its `local-completions` (echo)."""
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", SimpleNamespace(LM=object))
    registry = SimpleNamespace(register_model=lambda _name: lambda kind: kind)
    monkeypatch.setitem(sys.modules, "lm_eval.api.registry", registry)
    model = runpy.run_path(str(EXAMPLES / "clients/lm-eval/srb_model.py"), run_name="example")["Srb"](server.url)
    questions = [
        ("The capital of France is", " Paris"),
        ("The capital of France is", " a cheese"),
        ("One, two, ", "three"),
    ]
    found = model.loglikelihood([SimpleNamespace(args=pair) for pair in [*questions, questions[0]]])
    assert found[0] == found[3]
    assert found[0][0] > found[1][0]
    assert [greedy for _, greedy in found] == [True, False, False, True]
    for (context, end), (logprob, _) in zip(questions, found, strict=False):
        whole, before = (
            json.loads(server.request("/tokenize", {"content": text, "add_special": True})[1])["tokens"]
            for text in (context + end, context.rstrip())
        )
        body = {"model": "m", "prompt": whole, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        answer = json.loads(server.request("/v1/completions", body)[1])["choices"][0]["logprobs"]
        assert sum(answer["token_logprobs"][len(before) : len(whole)]) == pytest.approx(logprob, abs=0.5)
    (rolling,) = model.loglikelihood_rolling([SimpleNamespace(args=("Once upon a time",))])
    assert rolling < 0
    (text,) = model.generate_until([SimpleNamespace(args=("One, two,", {"until": ["."], "max_gen_toks": 3}))])
    assert text


def test_library() -> None:
    lines = run(sys.executable, str(EXAMPLES / "library.py")).splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == [f"temperature {t}" for t in (0.2, 0.8, 1.4)]
    assert len([line for line in lines if "ended after" in line]) == 4


def test_logits_processor() -> None:
    lines = run(sys.executable, str(EXAMPLES / "logits_processor.py")).splitlines()
    texts = dict(line.split(": ") for line in lines)
    assert "e" in texts["any letter"]
    assert texts["no letter e"]
    assert "e" not in texts["no letter e"].lower()


def test_saved_prompt() -> None:
    lines = run(sys.executable, str(EXAMPLES / "saved_prompt.py")).splitlines()
    first, second = (int(line.split(" tokens evaluated")[0]) for line in lines[:2])
    assert first > 400
    assert second < 20
    assert len(lines) == 5


def test_compare(tmp_path: Path) -> None:
    spec = (
        (EXAMPLES / "compare.toml").read_text().replace("n = 4", "n = 2").replace("max_tokens = 24", "max_tokens = 6")
    )
    (tmp_path / "short.toml").write_text(spec)
    output = run(sys.executable, "-m", "srb", "compare", str(tmp_path / "short.toml"), "--out", str(tmp_path / "out"))
    assert output.startswith("24 of 24 alternatives; ")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("results.jsonl", "results.csv", "measures.csv", "tests.csv", "judged.jsonl", "report.html")
    }
    rows = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert {row["model"] for row in rows} == {"usual", "small-cache"}
    assert all(row["scores"]["speech"] in (0, 1) and 0 < row["scores"]["good"] < 1 for row in rows)


def test_notebook() -> None:
    """Runs its cells one after the other, and shows the value of each one's last line, as Jupyter does.

    Jupyter itself isn't needed for that, which takes 30 packages and a process for the kernel.
    """
    shown, names = [], dict[str, Any]()
    for cell in json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            *lines, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(lines, []), cell["id"], "exec"), names)
            assert isinstance(last, ast.Expr)
            shown.append(eval(compile(ast.Expression(last.value), cell["id"], "eval"), names))
    api.loaded_model.close()
    texts, likeliest, compared, scores = shown
    assert texts._repr_html_().count("<tr>") == 9
    assert texts == names["texts"]
    means = sorted((text.mean_logprob for text in names["texts"]), reverse=True)
    assert likeliest["mean_logprob"].tolist() == means[:3]
    assert len(names["table"]) == 2 * 2 * 4
    assert compared.shape == (8, 2)
    assert compared[0.5].mean() > compared[1.2].mean()
    assert scores.idxmax(axis="columns").tolist() == [" Paris", " Rome"]


def test_every_example_is_tried() -> None:
    tried = {"chat.py", "compare.toml", "curl.sh", "library.py", "logits_processor.py", "saved_prompt.py", "stream.py"}
    tried |= {"notebook.ipynb"}
    tried |= {"haproxy.cfg", "serve.yaml"}  # in tests/cluster
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == tried
