"""Scorers, which say how good a text is: a regular expression, a JSON schema, a Python function, or a judge."""

import copy
import importlib
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from srb.errors import InvalidRequestError, SettingsError
from srb.options.arguments import pip_install
from srb.terminal.comparison.prompts import body_of, filled_body, read_text
from srb.terminal.options import check_names

KINDS = ("regex", "schema", "function", "judge")
ANSWERS = {"yes": 1.0, "no": 0.0}

Row = dict[str, Any]
"""A result, as results.jsonl has it."""

Constraint = Callable[[Row], float | None]


@dataclass(frozen=True)
class Judge:
    """Asks a model about a text. The score is the mean of the answers' numbers, weighted by the model's probabilities.

    Only the first token of the answer counts. The weighting is that of Liu et al. 2023, G-Eval (arXiv:2303.16634).

    body: `prompt` or `messages`, with the places `{text}` for a text, `{prompt}` for the text's prompt, and one for
        each variable by its name.
    answers: the possible answers, each with its number. model: the name in the spec of the model that is asked.
    """

    body: dict[str, Any]
    answers: dict[str, float]
    model: str

    def request(self, row: Row) -> dict[str, Any]:
        """The body of the request about a text. Raises `InvalidRequestError` for a place that has no value."""
        values = row["variables"] | {"text": row["text"], "prompt": row["prompt_text"]}
        asked = filled_body(self.body, values, "the judge's prompt")
        return asked | {"n": 1, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 100}

    def score(self, top_logprobs: list[dict[str, Any]]) -> float | None:
        """The score, computed from the likeliest tokens; None if no answer is among them.

        A token stands for an answer if this is the only answer that begins with its letters. Neither case nor space
        counts.
        """
        weights = dict.fromkeys(self.answers, 0.0)
        for each in top_logprobs:
            start = each["token"].strip().casefold()
            matching = [answer for answer in self.answers if start and answer.casefold().startswith(start)]
            if len(matching) == 1:
                weights[matching[0]] += math.exp(each["logprob"])
        total = math.fsum(weights.values())
        return sum(weight * self.answers[answer] for answer, weight in weights.items()) / total if total else None


@dataclass(frozen=True)
class Scorers:
    """The scorers of a spec, by their names. rules: the scorers that need no model."""

    rules: dict[str, Constraint] = field(default_factory=dict)
    judges: dict[str, Judge] = field(default_factory=dict)

    def score(self, row: Row) -> dict[str, float | None]:
        """The scores that the rules give a text. Raises `SettingsError` if a function fails."""
        return {name: rule(row) for name, rule in self.rules.items()}


def read_scorers(named: Any, folder: Path, models: list[str]) -> Scorers:
    """The scorers of a spec. Raises `InvalidRequestError`."""
    if not isinstance(named, dict):
        raise InvalidRequestError(f"scorers takes tables, such as [scorers.short], got {named!r:.60}")
    rules: dict[str, Constraint] = {}
    judges = {}
    for name, table in named.items():
        where = f"scorers.{name}"
        if not isinstance(table, dict) or len(kinds := [kind for kind in KINDS if kind in table]) != 1:
            raise InvalidRequestError(f"{where} takes one of {', '.join(KINDS)}, got {table!r:.60}")
        check_names(table, [*kinds, *(("answers", "model") if "judge" in table else ())], where)
        value = table[kinds[0]]
        if kinds == ["judge"]:
            judges[name] = _judge(table, where, models)
        elif kinds == ["schema"]:
            rules[name] = _schema(value, folder, where)
        elif not isinstance(value, str):
            raise InvalidRequestError(f"{where}: {kinds[0]} takes a text, got {value!r:.60}")
        else:
            rules[name] = _regex(value, where) if kinds == ["regex"] else _function(value, folder, where)
    return Scorers(rules, judges)


def _judge(table: Mapping[str, Any], where: str, models: list[str]) -> Judge:
    answers, model = table.get("answers", ANSWERS), table.get("model", models[-1])
    numbers = list(answers.values()) if isinstance(answers, dict) else []
    if len(numbers) < 2 or not all(isinstance(each, (int, float)) and math.isfinite(each) for each in numbers):
        raise InvalidRequestError(f"{where}: answers takes at least two texts with numbers, got {answers!r:.60}")
    if "model" in table and models == [""]:
        raise InvalidRequestError(f"{where}: model names one of the spec's models, and it has none; leave it out")
    check_names([model], models, f"{where}: model")
    body = body_of(table["judge"], where)
    judge = Judge(body, {answer.strip(): float(value) for answer, value in answers.items()}, model)
    for one, other in itertools.permutations([answer.strip().casefold() for answer in answers], 2):
        if other.startswith(one):
            raise InvalidRequestError(
                f"{where}: the answer {other!r} begins with {one!r}, and only the first token counts, which may be "
                "that of both; name others"
            )
    if "{text}" not in json.dumps(body):
        raise InvalidRequestError(f"{where}: the judge's prompt needs {{text}}, where the text is to stand")
    return judge


def _regex(pattern: str, where: str) -> Constraint:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(f"{where}: regex is no regular expression of Python: {error}") from None
    return lambda row: float(compiled.search(row["text"]) is not None)


def _schema(schema: Any, folder: Path, where: str) -> Constraint:
    try:
        import jsonschema  # imported here, because it belongs to an extra
    except ImportError:
        command = pip_install("'llama-srb[compare]'")
        raise SettingsError(f"{where} needs jsonschema: {command}") from None
    if isinstance(schema, str):
        try:
            schema = json.loads(read_text(folder, schema, where))
        except ValueError as error:
            raise InvalidRequestError(f"{where}: {schema} is not JSON: {error}") from None
    kind = jsonschema.Draft202012Validator
    try:
        if isinstance(schema, dict):
            kind = jsonschema.validators.validator_for(schema, default=kind)
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidRequestError(f"{where}: schema is no JSON schema: {error.message:.200}") from None
    validator = kind(schema)

    def rule(row: Row) -> float:
        try:
            value = json.loads(row["text"], parse_constant=_refuse)
        except (ValueError, RecursionError):
            return 0.0
        try:
            return float(validator.is_valid(value))
        except Exception as error:  # for a $ref that leads nowhere, for example
            raise SettingsError(f"{where}: schema can't be used: {type(error).__name__}: {error}") from None

    return rule


def _refuse(constant: str) -> None:
    """Refuses NaN and Infinity, which Python reads, but which aren't JSON."""
    raise ValueError(constant)


def _function(name: str, folder: Path, where: str) -> Constraint:
    module, colon, attribute = name.partition(":")
    sys.path.insert(0, str(folder.resolve()))
    try:
        function = getattr(importlib.import_module(module), attribute) if colon and attribute else None
    except Exception as error:  # a module may raise anything
        raise InvalidRequestError(f"{where}: {name} can't be had: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(str(folder.resolve()))
    if not callable(function):
        raise InvalidRequestError(f"{where}: function takes MODULE:FUNCTION, got {name!r}")

    def rule(row: Row) -> float | None:
        text = f"the text of {row['prompt']}, {row['setting']}, seed {row['seed']}"
        try:
            value = function(copy.deepcopy(row))  # a copy, because the function may change it
        except Exception as error:
            raise SettingsError(f"{where}: {name} has failed for {text}: {type(error).__name__}: {error}") from error
        try:
            return None if value is None or not math.isfinite(value) else float(value)
        except (TypeError, OverflowError):
            raise SettingsError(
                f"{where}: {name} takes {text} to {value!r:.60}; a scorer returns a number, True, False or None"
            ) from None

    return rule
