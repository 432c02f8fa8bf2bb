"""Writes results as logs of inspect-ai, an evaluation framework.

A log is an `EvalLog`, in version 2 of its format. As JSON it needs no other package. A sample is a prompt, and an epoch
is an alternative.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import srb
from srb.terminal.comparison.measures import Result

FOLDER = "inspect"
"""The folder of the logs, in the folder of the results."""

_CONFIG = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
"""Sampling fields with the same name in inspect-ai's `GenerateConfig`."""

_STOP_REASONS = {"stop": "stop", "length": "max_tokens"}


def write_logs(folder: Path, results: list[Result]) -> Path:
    """Write a log for each setting and model, instead of those of earlier runs, into the folder that is returned."""
    logs = folder / FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("*.json"):
        old.unlink()
    now = datetime.now(UTC).replace(microsecond=0).isoformat()
    name = folder.absolute().name
    for kind in dict.fromkeys(each.kind for each in results):
        log = _log([each for each in results if each.kind == kind], name, now)
        task = re.sub(r"[\W_]+", "-", log["eval"]["task"])
        path = logs / f"{re.sub('[:+]', '-', now)}_{task}_{log['eval']['task_id']}.json"
        path.write_text(json.dumps(log, ensure_ascii=False, indent=1), encoding="utf-8")
    return logs


def _log(results: list[Result], name: str, now: str) -> dict[str, Any]:
    """Return the log of the texts of one kind."""
    first = results[0]
    by_prompt: dict[str, list[Result]] = {}
    for each in sorted(results, key=lambda result: result.seed):
        by_prompt.setdefault(each.prompt, []).append(each)
    ids = list(dict.fromkeys(each.prompt for each in results))
    config = _config(first.settings)
    scores = _scores(by_prompt)
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": _id(now, *first.kind),
            "run_id": _id(now, name),
            "created": now,
            "task": f"{name}-{first.setting}",
            "task_id": _id(name, *first.kind),
            "task_args": {"setting": first.setting} | ({"run": first.run} if first.run else {}),
            "dataset": {"name": name, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": f"srb/{first.model}",
            "model_generate_config": config,
            "config": {"epochs": max(map(len, by_prompt.values())), "epochs_reducer": ["mean"]},
            "packages": {"llama-srb": srb.__version__},
        },
        "plan": {"name": "plan", "steps": [{"solver": "generate", "params": {}}], "config": config},
        "results": {"total_samples": len(results), "completed_samples": len(results), "scores": scores},
        "stats": {"started_at": now, "completed_at": now, "model_usage": {}},
        "samples": [_sample(each, epoch) for id_ in ids for epoch, each in enumerate(by_prompt[id_], 1)],
    }


def _config(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a setting as a `GenerateConfig`. Fields that it doesn't have are in its `extra_body`."""
    config = {name: value for name, value in settings.items() if name in _CONFIG}
    stop = settings.get("stop")
    if stop:
        config["stop_seqs"] = [stop] if isinstance(stop, str) else stop
    more = {name: value for name, value in settings.items() if name not in (*_CONFIG, "stop")}
    return config | ({"extra_body": more} if more else {})


def _sample(each: Result, epoch: int) -> dict[str, Any]:
    asked = each.messages or [{"role": "user", "content": each.prompt_text}]
    metadata = {name: value for name, value in each.variables.items() if name != "target"} | {"group": each.group}
    answer = {"role": "assistant", "content": each.text, "source": "generate", "model": each.model}
    choice: dict[str, Any] = {"message": answer, "stop_reason": _STOP_REASONS[each.finish_reason]}
    if all(logprob is not None for _, logprob, _ in each.tokens):
        choice["logprobs"] = {"content": [*_logprobs(each)]}
    return {
        "id": each.prompt,
        "epoch": epoch,
        "input": each.messages or each.prompt_text,
        "target": each.variables.get("target", ""),
        "messages": [*(message | {"source": "input"} for message in asked), answer],
        "output": {
            "model": each.model,
            "choices": [choice],
            "completion": each.text,
            "metadata": {"seed": each.seed, "length": each.length, "mean_logprob": each.mean_logprob},
        },
        "scores": {
            name: {"value": value, "answer": each.text} for name, value in each.scores.items() if value is not None
        },
        "metadata": metadata,
        "store": {},
        "events": [],
        "attachments": {},
        "uuid": _id(*each.kind, each.prompt, str(each.seed)),
    }


def _logprobs(each: Result) -> Iterator[dict[str, Any]]:
    for text, logprob, top in each.tokens:
        tops = [{"token": token, "logprob": value} for token, value in top]
        yield {"token": text, "logprob": logprob, "top_logprobs": tops}


def _scores(by_prompt: dict[str, list[Result]]) -> list[dict[str, Any]]:
    """Return the scores of a log, computed as inspect-ai does: over the means of the samples."""
    scores = []
    for name in dict.fromkeys(name for results in by_prompt.values() for each in results for name in each.scores):
        values = [[each.scores.get(name) for each in results] for results in by_prompt.values()]
        known = [[value for value in some if value is not None] for some in values]
        means = [fmean(some) for some in known if some]
        if not means:
            continue
        stderr = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
        metrics = {"mean": fmean(means), "stderr": stderr}
        n_scored = sum(map(len, known))
        scores.append(
            {
                "name": name,
                "scorer": name,
                "reducer": "mean",
                "scored_samples": n_scored,
                "unscored_samples": sum(map(len, values)) - n_scored,
                "params": {},
                "metrics": {metric: {"name": metric, "value": value} for metric, value in metrics.items()},
            }
        )
    return scores


def _id(*parts: str) -> str:
    """Return an id for these names, of the length of inspect-ai's."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:22]
