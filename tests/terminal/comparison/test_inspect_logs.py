"""Results as logs of inspect-ai.

inspect_log_schema.json is the part of `inspect log schema` of inspect-ai 0.3.285 that srb writes. Other fields are
refused. docs/using/terminal.md says how inspect-ai itself was tried.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from srb.terminal.comparison.inspect_logs import write_logs
from srb.terminal.comparison.measures import Result

SCHEMA = json.loads(Path(__file__).with_name("inspect_log_schema.json").read_text())

USER = {"role": "user", "content": "Which city?"}
ASKED = [{"role": "system", "content": "Answer in one word."}, USER]


def result(prompt: str, seed: int, setting: str = "wild", **fields: Any) -> Result:
    tokens = [[" Par", -0.5, [[" Par", -0.5], [" Rom", -1.5]]], ["is", -0.25, []]]
    made = Result(prompt, setting, seed, " Paris", 2, "length", None, -0.375, model="small", tokens=tokens)
    return replace(made, prompt_text=f"{prompt}?", group=prompt, **fields)


def written(folder: Path, results: list[Result]) -> list[dict[str, Any]]:
    """The logs of these results, which are as inspect-ai wants them."""
    logs = [json.loads(path.read_text()) for path in sorted(write_logs(folder, results).iterdir())]
    for log in logs:
        jsonschema.validate(log, SCHEMA)
    return logs


def test_a_log_for_each_setting_with_a_sample_for_each_text(tmp_path: Path) -> None:
    settings = {"max_tokens": 2, "temperature": 1.5, "stop": "!", "min_p": 0.1}
    variables = {"land": "France", "target": "Paris"}
    results = [
        result("one", 5, settings=settings, scores={"ends": 1.0, "judged": None}, variables=variables),
        result("one", 0, settings=settings, scores={"ends": 0.0, "judged": None}, finish_reason="stop"),
        result("two", 0, settings=settings, scores={"ends": 1.0, "judged": 0.5}, messages=ASKED),
        result("one", 0, "cold"),
    ]
    cold, wild = written(tmp_path / "cities", results)
    assert (cold["eval"]["task"], wild["eval"]["task"], wild["eval"]["model"]) == (
        "cities-cold",
        "cities-wild",
        "srb/small",
    )
    assert cold["eval"]["run_id"] == wild["eval"]["run_id"]
    assert cold["eval"]["task_id"] != wild["eval"]["task_id"]
    assert wild["eval"]["task_args"] == {"setting": "wild"}
    assert wild["eval"]["dataset"]["sample_ids"] == ["one", "two"]
    config = {"max_tokens": 2, "temperature": 1.5, "stop_seqs": ["!"], "extra_body": {"min_p": 0.1}}
    assert wild["plan"]["config"] == wild["eval"]["model_generate_config"] == config
    samples = [(each["id"], each["epoch"], each["output"]["metadata"]["seed"]) for each in wild["samples"]]
    assert samples == [("one", 1, 0), ("one", 2, 5), ("two", 1, 0)]
    assert len({each["uuid"] for each in (*cold["samples"], *wild["samples"])}) == 4
    stopped, first, chat = wild["samples"]
    assert (first["input"], first["target"], first["metadata"]) == ("one?", "Paris", {"land": "France", "group": "one"})
    assert (first["output"]["completion"], first["scores"]) == (" Paris", {"ends": {"value": 1.0, "answer": " Paris"}})
    (choice,) = first["output"]["choices"]
    assert [choice["stop_reason"], stopped["output"]["choices"][0]["stop_reason"]] == ["max_tokens", "stop"]
    assert choice["logprobs"]["content"][0] == {
        "token": " Par",
        "logprob": -0.5,
        "top_logprobs": [{"token": " Par", "logprob": -0.5}, {"token": " Rom", "logprob": -1.5}],
    }
    assert chat["input"] == ASKED
    assert [each["role"] for each in chat["messages"]] == ["system", "user", "assistant"]
    ends, judged = wild["results"]["scores"]
    assert (ends["scored_samples"], judged["scored_samples"], judged["unscored_samples"]) == (3, 1, 2)
    assert [ends["metrics"][name]["value"] for name in ("mean", "stderr")] == [0.75, 0.25]
    assert judged["metrics"]["stderr"]["value"] == 0


def test_new_logs_replace_old_ones(tmp_path: Path) -> None:
    assert len(written(tmp_path, [result("one", 0), result("one", 0, "cold")])) == 2
    (log,) = written(tmp_path, [result("one", 0, tokens=[["x", None, []]])])
    assert "logprobs" not in log["samples"][0]["output"]["choices"][0]
