"""Scorers of texts: regular expressions, JSON schemas, Python functions, judges, and surprise given other texts."""

import copy
import importlib
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from srb.errors import InvalidRequestError, SettingsError
from srb.options.arguments import pip_install
from srb.terminal.comparison.measures import Result
from srb.terminal.comparison.prompts import body_of, filled_body, read_file
from srb.terminal.options import check_names
from srb.terminal.show import Event
from srb.terminal.source import Events, Source

MEASURES = ("mean_logprob", "perplexity", "length")
"""What each text is measured by, beside its scores."""

KINDS = ("regex", "schema", "function", "judge", "siblings")
MAX_SIBLINGS = 32
MORE = {"judge": ("answers", "model"), "siblings": ("model",)}
"""Fields that kinds have beside their own."""

ANSWERS = {"yes": 1.0, "no": 0.0}

Score = Callable[[Result], float | None]
"""Returns the score of a result, or None."""


@dataclass(frozen=True)
class Judge:
    """Asks a model about a text. The score is the mean of the answers' numbers, weighted by the model's probabilities.

    Only the first token of the answer counts. The weighting is that of Liu et al. 2023, G-Eval (arXiv:2303.16634).

    Attributes:
        body: `prompt` or `messages`, with placeholders: `{text}`, `{prompt}` for the text's prompt, and variables.
        answers: The number for each possible answer.
        model: The name of the judging model in the spec.
    """

    body: dict[str, Any]
    answers: dict[str, float]
    model: str

    @property
    def no_score(self) -> str:
        """Why a text may have no score."""
        return f"none of the top 100 tokens starts {' or '.join(map(repr, self.answers))}"

    def contexts(self, results: Iterable[Result]) -> dict[str, str]:
        """Return a context for each text, by the key of its result: each is judged alone."""
        return {each.key: each.key for each in results}

    def depends_on(self, _context: str, result: Result) -> list[Any]:
        """Return everything but the model that a score depends on."""
        return [self.answers, self.request(result.text, result.prompt_text, result.variables)]

    def ask(self, source: Source, _context: str, results: list[Result]) -> AbstractAsyncContextManager[Events]:
        """Ask about the one text of a context."""
        (each,) = results
        return source.submit(self.request(each.text, each.prompt_text, each.variables))

    def read(self, event: Event, results: list[Result]) -> tuple[Result, float | None] | None:
        """Return the text that an event has a score of, and the score."""
        return (results[0], self.score(event["top_logprobs"])) if "top_logprobs" in event else None

    def request(self, text: str, prompt: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the request about a text. Raises `InvalidRequestError` for a placeholder without a value."""
        body = filled_body(self.body, variables | {"text": text, "prompt": prompt}, "the judge's prompt")
        return body | {"n": 1, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 100}

    def score(self, top_logprobs: list[dict[str, Any]]) -> float | None:
        """Return the score from the top tokens, or None if none of them starts an answer.

        A token counts for an answer if it starts no other one. Case and surrounding space are ignored.
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
class Surprise:
    """Scores a text by its conditional surprise: how unexpected it is, in bits per byte, after texts like it.

    This is the a_k of Williams-King et al. 2026 (arXiv:2606.01811), the surprise of a text after k - 1 others for the
    same prompt. They average over random orders, in each of which every text comes after those before it. Here texts
    are in two halves, and those of a half come after the same texts of the other one, so that a model evaluates each
    context once, and the cost grows with the number of texts and not with its square.

    Attributes:
        siblings: The number of other texts in the context; half of the texts, if there are too few.
        model: The name of the scoring model in the spec.
    """

    siblings: int
    model: str
    no_score: ClassVar[str] = "their first token continues the prompt's last word"

    def contexts(self, results: Iterable[Result]) -> dict[str, str]:
        """Return the context of each text that has one, by the key of its result."""
        cells: dict[tuple[str, ...], list[Result]] = {}
        for each in results:
            if each.text:
                cells.setdefault((each.model, each.prompt, each.setting), []).append(each)
        found: dict[str, str] = {}
        for cell in cells.values():
            cell.sort(key=lambda each: each.seed)
            count = min(self.siblings, len(cell) // 2)
            if self.siblings and not count:
                continue
            for one, other in ((0, 1), (1, 0)):
                before = "".join(f"{_asked(each)}{each.text}\n\n" for each in cell[other::2][:count])
                found |= {each.key: before + _asked(each) for each in cell[one::2]}
        return found

    def depends_on(self, context: str, result: Result) -> list[Any]:
        """Return everything but the model that a score depends on."""
        return [context, result.text]

    def ask(self, source: Source, context: str, results: list[Result]) -> AbstractAsyncContextManager[Events]:
        """Ask about all texts of a context, which is evaluated once."""
        return source.score({"contexts": [context], "continuations": [each.text for each in results]})

    def read(self, event: Event, results: list[Result]) -> tuple[Result, float | None] | None:
        """Return the text that an event has a score of, and the score."""
        if event["event"] != "score":
            return None
        each = results[event["continuation"]]
        return each, self.score(event, each.text)

    def score(self, event: Mapping[str, Any], text: str) -> float | None:
        """Return the score from a `score` event, or None if it is that of another text."""
        if event.get("retokenized"):
            return None
        bits: float = -event["logprob"] / math.log(2)
        return bits / len(text.encode())


def _asked(result: Result) -> str:
    """Return the prompt of a text, with which it is a plain text; a chat is its messages, each with its role."""
    return f"{result.prompt_text}\nassistant: " if result.messages else result.prompt_text


@dataclass(frozen=True)
class Scorers:
    """The scorers of a spec, by name: functions, which need no model, judges, and surprises."""

    functions: dict[str, Score] = field(default_factory=dict)
    judges: dict[str, Judge | Surprise] = field(default_factory=dict)

    @classmethod
    def of(cls, named: dict[str, Score | Judge | Surprise]) -> "Scorers":
        """Sort the scorers of a spec."""
        judges = {name: each for name, each in named.items() if isinstance(each, (Judge, Surprise))}
        return cls({name: each for name, each in named.items() if not isinstance(each, (Judge, Surprise))}, judges)

    @property
    def relative(self) -> list[str]:
        """The names of the scorers whose scores depend on other texts."""
        return [name for name, each in self.judges.items() if isinstance(each, Surprise) and each.siblings]

    def score(self, result: Result) -> dict[str, float | None]:
        """Return the scores of the functions for a text. Raises `SettingsError` if one fails."""
        return {name: score(result) for name, score in self.functions.items()}


def read_scorer(name: str, table: Any, folder: Path, models: list[str]) -> Score | Judge | Surprise:
    """Read a scorer of a spec. Raises `InvalidRequestError`."""
    where = f"scorers.{name}"
    if name in MEASURES:
        raise InvalidRequestError(f"{where} is the name of a measure; choose another name")
    if not isinstance(table, dict) or len(kinds := [kind for kind in KINDS if kind in table]) != 1:
        raise InvalidRequestError(f"{where} must have exactly one of {', '.join(KINDS)}, got {table!r:.60}")
    (kind,) = kinds
    check_names(table, [kind, *MORE.get(kind, ())], where)
    value = table[kind]
    if kind == "judge":
        return _judge(table, where, models)
    if kind == "siblings":
        return _surprise(table, where, models)
    if kind == "schema":
        return _schema(value, folder, where)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where}: {kind} must be a text, got {value!r:.60}")
    return _regex(value, where) if kind == "regex" else _function(value, folder, where)


def _judge(table: Mapping[str, Any], where: str, models: list[str]) -> Judge:
    answers, model = table.get("answers", ANSWERS), table.get("model", models[-1])
    numbers = list(answers.values()) if isinstance(answers, dict) else []
    if len(numbers) < 2 or not all(isinstance(each, (int, float)) and math.isfinite(each) for each in numbers):
        raise InvalidRequestError(
            f"{where}: answers must be at least two texts with finite numbers, got {answers!r:.60}"
        )
    _check_model(table, where, models)
    body = body_of(table["judge"], where)
    judge = Judge(body, {answer.strip(): float(value) for answer, value in answers.items()}, model)
    for one, other in itertools.permutations([answer.strip().casefold() for answer in answers], 2):
        if other.startswith(one):
            raise InvalidRequestError(
                f"{where}: the answer {other!r} starts with {one!r}, so their first tokens may be the same; choose "
                "different answers"
            )
    if "{text}" not in json.dumps(body):
        raise InvalidRequestError(f"{where}: the judge's prompt must contain {{text}}, the placeholder of the text")
    return judge


def _check_model(table: Mapping[str, Any], where: str, models: list[str]) -> None:
    if "model" in table and models == [""]:
        raise InvalidRequestError(f"{where}: model must be one of the spec's models, and there are none; leave it out")
    check_names([table.get("model", models[-1])], models, f"{where}: model")


def _surprise(table: Mapping[str, Any], where: str, models: list[str]) -> Surprise:
    count = table["siblings"]
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_SIBLINGS:
        raise InvalidRequestError(
            f"{where}: siblings must be a whole number from 0 to {MAX_SIBLINGS}, the number of other texts that come "
            f"before a text, got {count!r:.60}"
        )
    _check_model(table, where, models)
    return Surprise(count, table.get("model", models[-1]))


def _regex(pattern: str, where: str) -> Score:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InvalidRequestError(f"{where}: regex must be a Python regular expression: {error}") from None
    return lambda result: float(compiled.search(result.text) is not None)


def _schema(schema: Any, folder: Path, where: str) -> Score:
    try:
        import jsonschema  # imported here, because it belongs to an extra
    except ImportError:
        command = pip_install("'llama-srb[compare]'")
        raise SettingsError(f"{where} needs jsonschema: {command}") from None
    if isinstance(schema, str):
        try:
            schema = json.loads(read_file(folder, schema, where))
        except ValueError as error:
            raise InvalidRequestError(f"{where}: {schema} is not JSON: {error}") from None
    kind = jsonschema.Draft202012Validator
    try:
        if isinstance(schema, dict):
            kind = jsonschema.validators.validator_for(schema, default=kind)
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidRequestError(f"{where}: schema must be a JSON schema: {error.message:.200}") from None
    validator = kind(schema)

    def score(result: Result) -> float:
        try:
            value = json.loads(result.text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return 0.0
        try:
            return float(validator.is_valid(value))
        except Exception as error:  # for a $ref that leads nowhere, for example
            raise SettingsError(f"{where}: schema can't be used: {type(error).__name__}: {error}") from None

    return score


def _refuse(constant: str) -> None:
    """Refuse NaN and Infinity, which Python accepts, but which aren't JSON."""
    raise ValueError(constant)


def _function(name: str, folder: Path, where: str) -> Score:
    module, colon, attribute = name.partition(":")
    sys.path.insert(0, str(folder.resolve()))
    try:
        function = getattr(importlib.import_module(module), attribute) if colon and attribute else None
    except Exception as error:  # a module may raise anything
        raise InvalidRequestError(f"{where}: {name} can't be imported: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(str(folder.resolve()))
    if not callable(function):
        raise InvalidRequestError(f"{where}: function must be MODULE:FUNCTION, got {name!r}")

    def score(result: Result) -> float | None:
        try:
            value = function(copy.deepcopy(result.row))  # a copy, because the function may change it
        except Exception as error:
            message = f"{where}: {name} failed for the text of {result}: {type(error).__name__}: {error}"
            raise SettingsError(message) from error
        try:
            return None if value is None or not math.isfinite(value) else float(value)
        except (TypeError, OverflowError):
            raise SettingsError(
                f"{where}: {name} returned {value!r:.60} for the text of {result}; it must return a number, True, "
                "False or None"
            ) from None

    return score
