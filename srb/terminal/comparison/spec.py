"""Reads the spec of `srb compare`, a TOML file, and checks it before anything runs."""

import itertools
import json
import math
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from srb.engine.request import MAX_LOGPROBS
from srb.engine.sampling_params import DEFAULT_MAX_TOKENS, MAX_SEED
from srb.errors import InvalidRequestError, SettingsError
from srb.options.settings import CHAT_OPTIONS, SERVER_OPTIONS, Settings
from srb.terminal.comparison.prompts import Prompt, read_prompt, read_rows
from srb.terminal.comparison.scorers import Judge, Scorers, read_scorer
from srb.terminal.options import BRANCH_NAMES, check_names
from srb.wire.limits import Limits
from srb.wire.request.body import Parsed, parse
from srb.wire.request.fields import CompletionFields
from srb.wire.request.read import ALIASES, validate

MAX_PROMPTS = 1_000

MAX_ALTERNATIVES = 256
"""Limit of n times the number of seeds. Self-BLEU compares all pairs, which takes seconds at this limit."""

MAX_NAME_CHARS = 80

DEFAULT_LOGPROBS = 3
"""The number of top tokens in the report, if the spec doesn't set `logprobs`."""

KEYS = {"prompts", "variables", "settings", "models", "scorers", "n", "seeds", "logprobs", "decides"}
FIELDS = {name for name in BRANCH_NAMES if ALIASES.get(name, name) not in ("seed", "label")} | {"directions"}
"""Fields of a setting: not the seed, which is common to all settings, nor the label, which is the setting's name."""

TAKES = {
    "prompts": "a list of texts, or a table of them",
    "settings": "tables, such as [settings.wild]",
    "models": "a list of paths, or tables of options",
    "scorers": "tables, such as [scorers.short]",
}


@dataclass(frozen=True)
class Spec:
    """What to compare: n alternatives of each seed, for each prompt, setting and model.

    Attributes:
        prompts: The prompts, by name.
        settings: The request fields of each setting, by name, always with `max_tokens`.
        n: The number of alternatives for each seed.
        seeds: The seeds, ascending.
        models: The options of each model, by name. Without `models` in the spec, the only name is "".
        scorers: The scorers, by name.
        logprobs: The number of top tokens to report for each token.
        decides: The measure or scorer that `--until` tests, or None for the first scorer, or else `mean_logprob`.
    """

    prompts: dict[str, Prompt]
    settings: dict[str, dict[str, Any]]
    n: int
    seeds: tuple[int, ...]
    models: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    scorers: Scorers = field(default_factory=Scorers)
    logprobs: int = DEFAULT_LOGPROBS
    decides: str | None = None

    @property
    def all_seeds(self) -> list[int]:
        """The seeds of all alternatives: alternative k of a seed has seed + k."""
        return [seed + k for seed in self.seeds for k in range(self.n)]

    def fields(self, setting: str, seed: int) -> dict[str, Any]:
        """Return the request fields of an alternative. Alternative k of a seed has direction k."""
        fields = dict(self.settings[setting])
        if (directions := fields.pop("directions", None)) is not None:
            fields["direction"] = directions[seed - max(each for each in self.seeds if each <= seed)]
        return fields

    def siblings(self, setting: str, seed: int) -> list[int]:
        """Return the seeds of the alternatives that depend on each other, including this one. They share a request."""
        if not is_joint(self.settings[setting]):
            return [seed]
        first = max(each for each in self.seeds if each <= seed)
        return [first + k for k in range(self.n)]

    def most_tokens(self, setting: str) -> int:
        """Return the maximum length of an alternative in tokens, for a progress bar, or 1 if it has no limit."""
        return max(1, int(self.settings[setting]["max_tokens"]))


def is_joint(setting: dict[str, Any]) -> bool:
    """Return whether alternatives with these fields depend on their siblings, as in `CompletionRequest.is_joint`."""
    return bool(float(setting.get("diversity") or 0)) or setting.get("avoid") is not None


def read_spec(path: Path, settings: Settings) -> Spec:
    """Read a spec. The `n` and `max_tokens` of the settings are its defaults. Raises `SettingsError`."""
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"the spec {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the spec {path} is not valid TOML: {error}") from None
    mistakes = _Mistakes()
    try:
        return _spec(data, settings, path.parent, mistakes)
    except InvalidRequestError as error:
        messages = [*mistakes.messages, error.message]
    listed = f"{path}: {messages[0]}" if len(messages) == 1 else "\n- ".join((f"{path}:", *messages))
    raise SettingsError(listed)


class _Mistakes:
    """Collects the mistakes of a spec, so that all of them are told at once. messages: all but the last."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def tried(self, default: Any, read: Callable[..., Any], *args: Any) -> Any:
        """Return `read(*args)`, or the default if that is a mistake."""
        try:
            return read(*args)
        except InvalidRequestError as error:
            self.messages.append(error.message)
            return default

    def each(self, named: dict[str, Any], read: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Return `read(name, value, *args)` by name, without those that are mistakes."""
        found = {name: self.tried(None, read, name, value, *args) for name, value in named.items()}
        return {name: value for name, value in found.items() if value is not None}

    def check(self) -> None:
        """Raise `InvalidRequestError` if there are mistakes."""
        if self.messages:
            raise InvalidRequestError(self.messages.pop())


def _spec(data: dict[str, Any], settings: Settings, folder: Path, mistakes: _Mistakes) -> Spec:
    tried = mistakes.tried
    for name in data:
        tried(None, check_names, [name], KEYS | FIELDS, "the spec")
    n = tried(1, _integer, "n", data.get("n", settings.n), 1, MAX_ALTERNATIVES)
    seeds = tried([0], _seeds, data.get("seeds", [0]), n)
    max_tokens = DEFAULT_MAX_TOKENS if settings.max_tokens is None else settings.max_tokens
    common = {"max_tokens": max_tokens}
    common |= _fields(mistakes, "the spec", {name: data[name] for name in data if name in FIELDS}) or {}
    settings_of: dict[str, Any] = tried({}, _named, "settings", data.get("settings", {"default": {}}))
    own = {name: _fields(mistakes, f"settings.{name}", fields, common) for name, fields in settings_of.items()}
    merged = {name: common | fields for name, fields in own.items() if fields is not None}
    rows: list[dict[str, Any]] | None = tried([], read_rows, data.get("variables"), folder)
    filled = mistakes.each(tried({}, _named, "prompts", data.get("prompts")), read_prompt, rows, folder)
    prompts: dict[str, Prompt] = {name: prompt for each in filled.values() for name, prompt in each.items()}
    named: dict[str, Any] = tried({}, _named, "models", data["models"]) if "models" in data else {"": {}}
    models = mistakes.each(named, _model, settings, folder)
    tables = tried({}, _named, "scorers", data["scorers"]) if data.get("scorers", {}) != {} else {}
    scorers = Scorers.of(mistakes.each(tables, read_scorer, folder, [*named]) if named else {})
    logprobs = tried(0, _integer, "logprobs", data.get("logprobs", DEFAULT_LOGPROBS), 0, MAX_LOGPROBS)
    decides = tried(None, _decides, data.get("decides"), tables)
    for name, fields in merged.items():
        tried(None, _check_directions, f"settings.{name}", fields, n)
    mistakes.messages += mistakes_of(prompts)
    mistakes.messages += [*_repeated("settings", merged), *_repeated("models", models)]
    mistakes.messages += _unknown_placeholders(scorers, prompts)
    mistakes.check()
    return Spec(prompts, merged, n, tuple(seeds), models, scorers, logprobs, decides)


def _decides(name: str | None, scorers: dict[str, Any]) -> str | None:
    known = ["mean_logprob", "length", *scorers]
    if name is not None and name not in known:
        raise InvalidRequestError(f"decides must be one of {', '.join(known)}, got {name!r:.60}")
    return name


def _check_directions(where: str, fields: dict[str, Any], n: int) -> None:
    """Raise `InvalidRequestError` unless there is a direction for each alternative of a seed."""
    directions = fields.get("directions")
    if directions is not None and len(directions) != n:
        raise InvalidRequestError(f"{where}: directions has {len(directions)}, but n is {n}; make them agree")


def _seeds(seeds: Any, n: int) -> list[int]:
    if not isinstance(seeds, list) or not seeds:
        raise InvalidRequestError(f"seeds must be a list of whole numbers, such as [0, 100], got {seeds!r:.60}")
    found = sorted(_integer("seeds", seed, 0, MAX_SEED + 1 - n) for seed in seeds)
    for seed, following in itertools.pairwise(found):
        if following - seed < n:
            raise InvalidRequestError(
                f"seeds {seed} and {following} overlap: with n = {n}, alternatives use seeds {seed} to "
                f"{seed + n - 1}; try {seed} and {seed + n}"
            )
    if n * len(seeds) > MAX_ALTERNATIVES:
        raise InvalidRequestError(
            f"n = {n} with {len(seeds)} seeds is {n * len(seeds)} alternatives per prompt and setting; the limit is "
            f"{MAX_ALTERNATIVES}"
        )
    return found


def mistakes_of(prompts: dict[str, Prompt]) -> Iterator[str]:
    """Yield a message for too many prompts, and for identical ones, even with different variables.

    The results of identical prompts are the same.
    """
    if len(prompts) > MAX_PROMPTS:
        yield f"there are {len(prompts)} prompts; the limit is {MAX_PROMPTS}"
    yield from _repeated("prompts", {name: (each.body, each.forks) for name, each in prompts.items()})


def _repeated(key: str, values: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each value that is the same as an earlier one."""
    seen: list[tuple[str, Any]] = []
    for name, value in values.items():
        if first := next((other for other, its in seen if its == value), None):
            yield f"{key}.{first} and {key}.{name} are identical; leave one out"
        else:
            seen.append((name, value))


def _integer(key: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(f"{key} must be a whole number from {low} to {high}, got {value!r:.60}")
    return value


def _named(key: str, value: Any) -> dict[str, Any]:
    """Return a list or a table as a table. The items of a list are named by their numbers, from 1."""
    named = {str(k): item for k, item in enumerate(value, 1)} if isinstance(value, list) else value
    if not isinstance(named, dict) or not named:
        shown = "nothing" if value is None else repr(value)[:60]
        raise InvalidRequestError(f"{key} must be {TAKES[key]}, got {shown}")
    for name in named:
        if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise InvalidRequestError(
                f"names in {key} must have 1 to {MAX_NAME_CHARS} printable characters, got {name!r:.100}"
            )
    return named


def _model(name: str, options: Any, settings: Settings, folder: Path) -> dict[str, Any]:
    """Return the options of a model. Paths are relative to the folder of the spec."""
    where = f"models.{name}"
    paths = ("model", "models_dir", "chat_template_file")
    given = {"model": options} if isinstance(options, str) else options
    if not isinstance(given, dict):
        raise InvalidRequestError(f"{where} must be a path, or a table of srb options, got {given!r:.60}")
    found = {key.replace("-", "_"): option for key, option in given.items()}
    check_names(found, Settings.__dataclass_fields__.keys() - SERVER_OPTIONS | CHAT_OPTIONS, where)
    found |= {key: str(folder / option) for key, option in found.items() if key in paths}
    try:
        replace(settings, **found)
    except SettingsError as error:
        raise InvalidRequestError(f"{where}: {error.message}") from None
    return found


def _unknown_placeholders(scorers: Scorers, prompts: dict[str, Prompt]) -> Iterator[str]:
    """Yield a message for each judge with a placeholder that a prompt has no variable for."""
    judges = {name: each for name, each in scorers.judges.items() if isinstance(each, Judge)}
    for name, judge in judges.items():
        try:
            for prompt in prompts.values():
                judge.request("", "", prompt.variables)
        except InvalidRequestError as error:
            yield f"scorers.{name}: {error.message}"


def _fields(
    mistakes: _Mistakes, where: str, fields: Any, common: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """Resolve aliases of fields, and check the fields as a server does, each and all. None: there are mistakes."""
    if not isinstance(fields, dict):
        mistakes.messages.append(f"{where} must be a table of sampler fields, got {fields!r:.60}")
        return None
    fields = json.loads(json.dumps(fields, default=str))  # TOML has dates, which JSON doesn't have
    n_before = len(mistakes.messages)
    for name, value in fields.items():
        mistakes.tried(None, _check_field, where, name, value)
    if len(mistakes.messages) > n_before:
        return None
    checked: dict[str, Any] | None = mistakes.tried(None, _checked, where, fields, common or {})
    return checked


def _check_field(where: str, name: str, value: Any) -> None:
    check_names([name], FIELDS, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequestError(f"{where}: {name} must be a finite number, got {value}")
    _parsed(where, {name: value})


def _checked(where: str, fields: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for given, value in fields.items():
        name: str = ALIASES.get(given, given)
        if name in result:
            raise InvalidRequestError(f"{where}: {name} is given twice, under two names; leave one out")
        result[name] = value
    parsed = _parsed(where, common | result)
    if "max_tokens" in result:  # it may be a number in quotes
        result["max_tokens"] = parsed.completion.branches[0].max_tokens
    if unused := [name for name in parsed.ignored if name in result or name.startswith("samplers.")]:
        raise InvalidRequestError(f"{where}: {', '.join(unused)} would have no effect; leave it out")
    return result


def _parsed(where: str, fields: dict[str, Any]) -> Parsed:
    """Read the fields of a request as a server does. Raises `InvalidRequestError`."""
    n = {} if fields.get("directions") else {"n": 1}
    try:
        return parse(validate({"prompt": "x"} | n | fields, CompletionFields), Limits("", 1, MAX_ALTERNATIVES))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}: {error.message}") from None
