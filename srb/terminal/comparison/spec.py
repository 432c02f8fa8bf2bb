"""Reads a spec, the TOML file that says what `srb compare` compares. All of it is checked before anything runs."""

import itertools
import json
import math
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from srb.engine.request import MAX_LOGPROBS
from srb.engine.sampling_params import DEFAULT_MAX_TOKENS, MAX_SEED
from srb.errors import InvalidRequestError, SettingsError
from srb.options.settings import CHAT_OPTIONS, SERVER_OPTIONS, Settings
from srb.terminal.comparison.prompts import Prompt, read_prompts
from srb.terminal.comparison.scorers import Scorers, read_scorers
from srb.terminal.generate import tokenize_nothing
from srb.terminal.options import BRANCH_NAMES, check_names
from srb.wire.limits import Limits
from srb.wire.request.body import parse
from srb.wire.request.body_fields import ALIASES

MAX_ALTERNATIVES = 256
"""The most alternatives of a cell. Self-BLEU compares each with all others, which takes some seconds for so many."""

MAX_NAME_CHARS = 80

LIKELIEST = 3
"""How many of the likeliest tokens at each place the report shows, if the spec doesn't say."""

KEYS = {"prompts", "variables", "settings", "models", "scorers", "n", "seeds", "logprobs"}
FIELDS = {name for name in BRANCH_NAMES if ALIASES.get(name, name) not in ("seed", "label")}
"""The fields that a setting may have. It has no seed, because seeds are for all settings, and its label is its name."""


TAKES = {"prompts": "a list of texts, or a table of them", "models": "a list of paths, or tables of options"}


@dataclass(frozen=True)
class Spec:
    """What is compared. There is a cell for each prompt, setting and model, with n alternatives for each of the seeds.

    prompts, settings, models: by their names. settings: the fields of a request, always with `max_tokens`.
    models: the options of each model; the only model of a spec without `models` is called "".
    logprobs: how many of the likeliest tokens are reported at each place.
    """

    prompts: dict[str, Prompt]
    settings: dict[str, dict[str, Any]]
    n: int
    seeds: tuple[int, ...]
    models: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    scorers: Scorers = field(default_factory=Scorers)
    logprobs: int = LIKELIEST

    @property
    def all_seeds(self) -> list[int]:
        """The seed of each alternative of a cell: alternative k of a seed has seed + k."""
        return [seed + k for seed in self.seeds for k in range(self.n)]

    def siblings(self, setting: str, seed: int) -> list[int]:
        """The seeds of all alternatives that depend on each other and on this one, and so must be in one request."""
        if not is_joint(self.settings[setting]):
            return [seed]
        first = max(each for each in self.seeds if each <= seed)
        return [first + k for k in range(self.n)]

    def most_tokens(self, setting: str) -> int:
        """How many tokens an alternative may have, for a progress bar; 1 if that isn't known."""
        return max(1, int(self.settings[setting]["max_tokens"]))


def is_joint(setting: dict[str, Any]) -> bool:
    """Whether alternatives with these fields depend on their siblings. See `CompletionRequest.is_joint`."""
    return bool(float(setting.get("diversity") or 0)) or setting.get("avoid") is not None


def read_spec(path: Path, settings: Settings) -> Spec:
    """The spec in a file. `n` and `max_tokens` come from the settings if the spec has none. Raises `SettingsError`."""
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"the spec {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the spec {path} is not valid TOML: {error}") from None
    try:
        return _spec(data, settings, path.parent)
    except InvalidRequestError as error:
        raise SettingsError(f"{path}: {error.message}") from None


def _spec(data: dict[str, Any], settings: Settings, folder: Path) -> Spec:
    check_names(data, KEYS | FIELDS, "the spec")
    n = _integer("n", data.get("n", settings.n), 1, MAX_ALTERNATIVES)
    seeds = data.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds:
        raise InvalidRequestError(f"seeds takes a list of whole numbers, such as [0, 100], got {seeds!r:.60}")
    seeds = sorted(_integer("seeds", seed, 0, MAX_SEED + 1 - n) for seed in seeds)
    for seed, following in itertools.pairwise(seeds):
        if following - seed < n:
            raise InvalidRequestError(
                f"seeds {seed} and {following} are closer than n = {n}: alternatives have seed, seed + 1, ..., "
                f"so two of them would have the same seed; try {seed} and {seed + n}"
            )
    if n * len(seeds) > MAX_ALTERNATIVES:
        raise InvalidRequestError(
            f"n = {n} with {len(seeds)} seeds make {n * len(seeds)} alternatives of each kind; "
            f"the limit is {MAX_ALTERNATIVES}"
        )
    max_tokens = DEFAULT_MAX_TOKENS if settings.max_tokens is None else settings.max_tokens
    common = {"max_tokens": max_tokens} | _fields("the spec", {name: data[name] for name in FIELDS & {*data}})
    each = _named("settings", data.get("settings", {"default": {}}))
    prompts = read_prompts(_named("prompts", data.get("prompts")), data.get("variables"), folder)
    models = _models(data.get("models", {"": {}}), settings, folder)
    scorers = read_scorers(data.get("scorers", {}), folder, list(models))
    logprobs = _integer("logprobs", data.get("logprobs", LIKELIEST), 0, MAX_LOGPROBS)
    merged = {name: common | _fields(f"settings.{name}", fields, common) for name, fields in each.items()}
    check_prompts(prompts)
    _check_different("settings", merged)
    _check_places(scorers, prompts)
    return Spec(prompts, merged, n, tuple(seeds), models, scorers, logprobs)


def check_prompts(prompts: dict[str, Prompt]) -> None:
    """Raises `InvalidRequestError` for equal prompts, even with other variables: their results would be the same."""
    _check_different("prompts", {name: (each.body, each.forks) for name, each in prompts.items()})


def _check_different(key: str, values: dict[str, Any]) -> None:
    for one, other in itertools.combinations(values, 2):
        if values[one] == values[other]:
            raise InvalidRequestError(f"{key}.{one} and {key}.{other} are the same; leave one out")


def _integer(key: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(f"{key} must be a whole number from {low} to {high}, got {value!r:.60}")
    return value


def _named(key: str, value: Any) -> dict[str, Any]:
    """A list or a table as a table. The names of a list's items are their numbers."""
    named = {str(k): item for k, item in enumerate(value, 1)} if isinstance(value, list) else value
    if not isinstance(named, dict) or not named:
        takes = TAKES.get(key, "tables, such as [settings.wild]")
        raise InvalidRequestError(f"{key} takes {takes}, got {'nothing' if value is None else repr(value)[:60]}")
    for name in named:
        if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
            raise InvalidRequestError(
                f"{key} takes names of 1 to {MAX_NAME_CHARS} printable characters, got {name!r:.100}"
            )
    return named


def _models(value: Any, settings: Settings, folder: Path) -> dict[str, dict[str, Any]]:
    """The options of each model. The spec has a table of them, or a path. Paths are relative to the spec's folder."""
    named = {"": {}} if value == {"": {}} else _named("models", value)
    paths = ("model", "models_dir", "chat_template_file")
    result = {}
    for name, options in named.items():
        where = f"models.{name}"
        options = {"model": options} if isinstance(options, str) else options
        if not isinstance(options, dict):
            raise InvalidRequestError(f"{where} takes a path, or a table of srb's options, got {options!r:.60}")
        options = {key.replace("-", "_"): option for key, option in options.items()}
        check_names(options, Settings.__dataclass_fields__.keys() - SERVER_OPTIONS | CHAT_OPTIONS, where)
        options |= {key: str(folder / option) for key, option in options.items() if key in paths}
        try:
            replace(settings, **options)
        except SettingsError as error:
            raise InvalidRequestError(f"{where}: {error.message}") from None
        result[name] = options
    _check_different("models", result)
    return result


def _check_places(scorers: Scorers, prompts: dict[str, Prompt]) -> None:
    """Refuses judges with a place that a prompt has no variable for."""
    for name, judge in scorers.judges.items():
        for prompt in prompts.values():
            try:
                judge.request({"text": "", "prompt_text": "", "variables": prompt.variables})
            except InvalidRequestError as error:
                raise InvalidRequestError(f"scorers.{name}: {error.message}") from None


def _fields(where: str, fields: Any, common: dict[str, Any] | None = None) -> dict[str, Any]:
    """Fields with their aliases replaced by their names, checked as a server checks them."""
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"{where} must be a table of sampler fields, got {fields!r:.60}")
    check_names(fields, FIELDS, where)
    result: dict[str, Any] = {}
    fields = json.loads(json.dumps(fields, default=str))  # TOML has dates, which JSON doesn't have
    for given, value in fields.items():
        name: str = ALIASES.get(given, given)
        if name in result:
            raise InvalidRequestError(f"{where}: {name} is there under two names; leave one out")
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidRequestError(f"{where}: {name} must be a finite number, got {value}")
        result[name] = value
    try:
        body = json.dumps({"prompt": "x", "n": 1} | (common or {}) | result)
        parsed = parse(body.encode(), Limits("", 1, 1), tokenize_nothing)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}: {error.message}") from None
    if "max_tokens" in result:  # it may be a number in quotes
        result["max_tokens"] = parsed.completion.branches[0].max_tokens
    if vain := [name for name in parsed.ignored if name in result or name.startswith("samplers.")]:
        raise InvalidRequestError(f"{where}: {', '.join(vain)} would have no effect; leave it out")
    return result
