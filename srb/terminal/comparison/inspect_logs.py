"""Logs of inspect-ai, an evaluation framework: reads their samples as prompts, and writes results as logs.

A log is an `EvalLog`, in version 2 of its format. As JSON it needs no other package. A sample is a prompt, and an epoch
is an alternative.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import srb
from srb.errors import InvalidRequestError
from srb.options.arguments import pip_install
from srb.terminal.comparison.measures import Result
from srb.terminal.comparison.prompts import Prompt

FOLDER = "inspect"
"""The folder of the logs, in the folder of the results."""

_SRB = "srb"
"""The provider of the models in logs that srb writes. There a text is a prompt, and not a chat with one message."""

_CONFIG = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
"""Sampling fields with the same name in inspect-ai's `GenerateConfig`."""

_STOP_REASONS = {"stop": "stop", "length": "max_tokens"}


def read_samples(path: Path) -> dict[str, Prompt]:
    """Return the prompts of a log's samples, by sample id.

    The target of a sample and its metadata are the prompt's variables.

    Raises:
        InvalidRequestError: The file can't be read, isn't a log, or has a sample that isn't text.
    """
    where = f"prompts: {path}"
    log = _read_log(path, where)
    try:
        provider = log["eval"]["model"].partition("/")[0]
        samples = {str(each["id"]): each for each in reversed(log["samples"])}  # the first epoch of each
        found = {name: _prompt_of(samples[name], provider, f"{where}, sample {name}") for name in reversed(samples)}
    except (AttributeError, KeyError, TypeError):
        raise InvalidRequestError(f"{where} isn't a log of inspect-ai with samples") from None
    if not found:
        raise InvalidRequestError(f"{where} has no samples")
    return found


def _read_log(path: Path, where: str) -> dict[str, Any]:
    try:
        if path.suffix != ".eval":
            return dict(json.loads(path.read_text("utf-8")))
        try:
            from inspect_ai.log import read_eval_log  # imported here, because srb doesn't bring it
        except ModuleNotFoundError:
            raise InvalidRequestError(
                f"{where}: srb reads .eval files with inspect-ai: {pip_install('inspect-ai')}; or make a JSON file "
                f"where inspect-ai is installed: inspect log dump {path.name} > log.json"
            ) from None
        return dict(json.loads(read_eval_log(str(path), resolve_attachments=True).model_dump_json()))
    except OSError as error:
        raise InvalidRequestError(f"{where} can't be read: {error.strerror or error}") from None
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{where} isn't a log of inspect-ai: {error!s:.200}") from None


def _prompt_of(sample: dict[str, Any], provider: str, where: str) -> Prompt:
    variables = (sample.get("metadata") or {}) | {"target": sample["target"]}
    group = str(variables.pop("group", "")) or str(sample["id"])
    # What the model was asked: solvers may have changed the input, and added messages.
    asked = [*itertools.takewhile(lambda message: not _is_answer(message), sample.get("messages") or ())]
    given = sample["input"]
    if not asked:
        asked = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if any("prompt_token_ids" in (each.get("metadata") or {}) for each in asked):
        raise InvalidRequestError(f"{where} has a prompt of token ids; srb compare takes texts only")
    messages = [{"role": each["role"], "content": _text_of(each["content"], where)} for each in asked]
    is_text = "completions" in provider or (provider == _SRB and isinstance(given, str))
    if is_text and [each["role"] for each in messages] == ["user"]:
        return Prompt({"prompt": messages[0]["content"]}, variables, group=group)
    if tools := {each["role"] for each in messages} - {"system", "user", "assistant"}:
        raise InvalidRequestError(
            f"{where} has a message with the role {tools.pop()}; leave this sample out of the log"
        )
    return Prompt({"messages": messages}, variables, group=group)


def _is_answer(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and message.get("source") != "input"


def _text_of(content: Any, where: str) -> str:
    """Return the text of a message, which is a text or a list of parts."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts:
        if part["type"] != "text":
            raise InvalidRequestError(f"{where} has a part of the type {part['type']}; srb compare takes texts only")
    return "".join(part["text"] for part in parts)


def write_logs(folder: Path, results: list[Result]) -> Path:
    """Write a log for each setting and model, instead of those of earlier runs. Incomplete texts are left out.

    Args:
        folder: The folder of the results.
        results: The results.

    Returns:
        The folder of the logs.
    """
    logs = folder / FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("*.json"):
        old.unlink()
    now = datetime.now(UTC).replace(microsecond=0).isoformat()
    name = folder.absolute().name
    whole = [each for each in results if each.is_whole]
    for kind in dict.fromkeys(each.kind for each in whole):
        log = _log([each for each in whole if each.kind == kind], name, now)
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
            "model": f"{_SRB}/{first.model}",
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
        means = [math.fsum(some) / len(some) for some in known if some]
        if not means:
            continue
        mean = math.fsum(means) / len(means)
        variance = math.fsum((value - mean) ** 2 for value in means) / max(1, len(means) - 1)
        metrics = {"mean": mean, "stderr": math.sqrt(variance / len(means))}
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
