"""Logs of inspect-ai as prompts, and results as its logs.

inspect_log_schema.json is the part of `inspect log schema` of inspect-ai 0.3.285 that srb writes. Other fields are
refused. docs/using/terminal.md says how inspect-ai itself was tried.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import pytest

from srb.errors import SettingsError
from srb.options.settings import Settings
from srb.terminal.comparison.inspect_logs import write_logs
from srb.terminal.comparison.measures import Result
from srb.terminal.comparison.spec import Spec, read_spec

SCHEMA = json.loads(Path(__file__).with_name("inspect_log_schema.json").read_text())

USER = {"role": "user", "content": "Which city?"}
ANSWER = {"role": "assistant", "content": "Paris", "source": "generate"}
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
        result("two", 5, settings=settings, finish_reason="abort"),
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


def spec_of(tmp_path: Path, log: Any, more: str = "") -> Spec:
    (tmp_path / "log.json").write_text(log if isinstance(log, str) else json.dumps(log))
    (tmp_path / "spec.toml").write_text(f'prompts = "log.json"\n{more}')
    return read_spec(tmp_path / "spec.toml", Settings())


def log_of(*samples: dict[str, Any], model: str = "openai-api/srb/small") -> dict[str, Any]:
    return {"version": 2, "eval": {"model": model}, "samples": samples}


def sample(id_: Any, **fields: Any) -> dict[str, Any]:
    return {"id": id_, "epoch": 1, "input": "Which city?", "target": "Paris"} | fields


def test_what_srb_writes_it_reads(tmp_path: Path) -> None:
    results = [result("one", seed, variables={"land": "France", "target": "Paris"}) for seed in (0, 5)]
    results += [replace(result("two", 0, messages=ASKED), group="one")]
    (log,) = written(tmp_path, results)
    spec = spec_of(tmp_path, log)
    assert {name: each.body for name, each in spec.prompts.items()} == {
        "one": {"prompt": "one?"},
        "two": {"messages": ASKED},
    }
    assert [each.group for each in spec.prompts.values()] == ["one", "one"]
    assert spec.prompts["one"].variables == {"land": "France", "target": "Paris"}


def test_the_prompts_of_a_log_are_what_the_model_was_asked(tmp_path: Path) -> None:
    """Solvers may have changed a sample's input. Examples in it are no answers."""
    shown = {"role": "assistant", "content": "Rome", "source": "input"}
    parts = [{"type": "text", "text": "Which "}, {"type": "text", "text": "city?"}]
    asked = [{"role": "system", "content": "Answer in one word."}, USER, shown, {"role": "user", "content": parts}]
    metadata = {"land": "France", "group": "Europe", "hints": ["a", "b"]}
    spec = spec_of(
        tmp_path,
        log_of(
            sample(1, messages=[*asked, ANSWER, USER, ANSWER], metadata=metadata),
            sample(2, input="And then?", epoch=1),
            sample(2, input="And then?", epoch=2),
            sample("three", input=ASKED, target=["Paris", "Lyon"]),
        ),
    )
    assert [*spec.prompts] == ["1", "2", "three"]
    plain = [{"role": each["role"], "content": each["content"]} for each in (*ASKED, shown, USER)]
    assert spec.prompts["1"].body == {"messages": plain}
    assert spec.prompts["1"].variables == {"land": "France", "hints": ["a", "b"], "target": "Paris"}
    assert spec.prompts["1"].group == "Europe"
    assert spec.prompts["2"].body == {"messages": [{"role": "user", "content": "And then?"}]}
    assert spec.prompts["three"].body == {"messages": ASKED}
    assert spec.prompts["three"].variables == {"target": ["Paris", "Lyon"]}


def test_of_a_model_without_chats_the_prompts_are_texts(tmp_path: Path) -> None:
    filled = {"role": "user", "content": "Which city is it?"}
    samples = [sample(1, messages=[USER]), sample(2, messages=[filled, ANSWER]), sample(3, input="No messages")]
    spec = spec_of(tmp_path, log_of(*samples, model="openai-api-completions/srb/small"))
    texts = [each.body["prompt"] for each in spec.prompts.values()]
    assert texts == ["Which city?", "Which city is it?", "No messages"]


IMAGE = {"role": "user", "content": [{"type": "image", "image": "data:"}]}
TOOL = {"role": "tool", "content": "4"}
IDS = USER | {"metadata": {"prompt_token_ids": [1, 2]}}


@pytest.mark.parametrize(
    ("log", "more", "message"),
    [
        ("[", "", "isn't a log of inspect-ai: "),
        ("[1]", "", "isn't a log of inspect-ai: "),
        ({"samples": []}, "", "isn't a log of inspect-ai with samples"),
        ({"eval": {"model": "m"}, "samples": None}, "", "isn't a log of inspect-ai with samples"),
        (log_of(), "", "has no samples"),
        (
            log_of(sample(7, messages=[IMAGE])),
            "",
            "sample 7 has a part of the type image; srb compare takes texts only",
        ),
        (log_of(sample(7, messages=[USER, TOOL])), "", "sample 7 has a message with the role tool; leave this sample"),
        (log_of(sample(7, messages=[IDS])), "", "sample 7 has a prompt of token ids; srb compare takes texts only"),
        (log_of(sample("x" * 99)), "", "names in prompts must have 1 to 80 printable characters"),
        (log_of(sample(1), sample(2)), "", "prompts.1 and prompts.2 are identical"),
        (
            log_of(sample(1)),
            "variables = [{a = 1}]",
            "the samples of a log have their own variables; leave variables out",
        ),
    ],
)
def test_logs_that_are_refused(tmp_path: Path, log: Any, more: str, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        spec_of(tmp_path, log, more)
    assert message in raised.value.message


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('prompts = "none.json"')
    with pytest.raises(SettingsError, match=r"none.json can't be read: No such file"):
        read_spec(tmp_path / "spec.toml", Settings())


def test_a_compressed_log_is_read_by_inspect_ai(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spec.toml").write_text('prompts = "log.eval"')
    module = ModuleType("inspect_ai.log")
    log = SimpleNamespace(model_dump_json=lambda: json.dumps(log_of(sample(1))))
    monkeypatch.setattr(module, "read_eval_log", lambda path, resolve_attachments: log, raising=False)
    monkeypatch.setitem(sys.modules, "inspect_ai", ModuleType("inspect_ai"))
    monkeypatch.setitem(sys.modules, "inspect_ai.log", module)
    assert [*read_spec(tmp_path / "spec.toml", Settings()).prompts] == ["1"]
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(SettingsError, match=r"pip install inspect-ai; .* inspect log dump log.eval > log.json"):
        read_spec(tmp_path / "spec.toml", Settings())
