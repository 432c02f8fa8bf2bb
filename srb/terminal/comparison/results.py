"""Stores the results of `srb compare` in a folder: results.jsonl as they arrive, and tables at the end."""

import csv
import dataclasses
import fcntl
import hashlib
import json
from collections.abc import Iterable, Iterator, Set
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from srb.errors import SettingsError
from srb.terminal.comparison.measures import Findings, Group, Paired, Place, Result, groups_of, perplexity
from srb.terminal.comparison.scorers import Judge, Row, Surprise
from srb.terminal.comparison.spec import Spec


@dataclasses.dataclass(frozen=True)
class Alternative:
    """An alternative of the spec: the names of its model, prompt and setting, and its seed."""

    model: str
    prompt: str
    setting: str
    seed: int


@dataclasses.dataclass
class Usage:
    """The tokens of a run, and its errors."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    errors: list[str] = dataclasses.field(default_factory=list)

    def add(self, usage: dict[str, int]) -> None:
        """Add the usage of a request."""
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += usage["cached_tokens"]
        self.completion_tokens += usage["completion_tokens"]

    def __str__(self) -> str:
        evaluated = self.prompt_tokens - self.cached_tokens
        return f"{evaluated} prompt tokens evaluated, {self.completion_tokens} tokens generated"


class Results:
    """The results in a folder. Use it as a context manager, which locks the folder for other processes."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self._folder = folder
        self._path = folder / "results.jsonl"
        self.spec = spec
        self.usage = Usage()
        self._saved: list[Row] = []
        self._lines: dict[Alternative, Row] = {}
        self._names: dict[str, str] = {}
        self._identities: dict[str, str] = {}
        self._judged: dict[str, float | None] = {}

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                # The file stays open, because closing it would release the lock.
                self._file = opened.enter_context(self._path.open("a+", encoding="utf-8"))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SettingsError(
                    f"another srb compare is writing to {self._folder}; choose another folder with --out"
                ) from None
            except OSError as error:
                raise SettingsError(
                    f"{self._path} can't be written: {error.strerror}; choose another folder with --out"
                ) from None
            self._saved = _read(self._file, self._path)
            _trim(self._file)
            with (self._folder / "judged.jsonl").open("a+", encoding="utf-8") as file:
                self._judged = {each["key"]: each["score"] for each in _read(file, Path(file.name))}
                _trim(file)
            self._exit = opened.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._exit.close()

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def fingerprints(self) -> set[str | None]:
        """The fingerprints of the results. It is None without `--reproducible`."""
        return {line.get("fingerprint") for line in self._lines.values()}

    @property
    def wanted(self) -> int:
        """The number of results in the spec."""
        spec = self.spec
        return len(spec.models) * len(spec.prompts) * len(spec.settings) * len(spec.all_seeds)

    def open(self, model: str, name: str, identity: str) -> list[Alternative]:
        """Return the alternatives of a model that earlier runs haven't finished. Raises `SettingsError`.

        Results depend on the identity of the source.
        """
        spec = self.spec
        self._names[model], self._identities[model] = model or name, identity
        others = {self._names.get(each, each) for each in spec.models if each != model}
        wanted = {self._key(each): each for each in self._wanted(model)}
        lines = {}
        for number, line in enumerate(self._saved, 1):
            alternative = wanted.get(line["key"])
            if alternative is None and line["model"] not in others:
                raise SettingsError(
                    f"{self._path}, line {number}, has a model, weights, prompt, setting or seed that isn't in the "
                    "spec; choose another folder with --out, or delete this one"
                )
            if alternative:
                lines[alternative] = line | self._origin(alternative)  # prompts and settings may have other names now
        self._lines |= lines
        return [each for each in wanted.values() if each not in lines]

    def add(self, alternative: Alternative, ended: Row) -> None:
        """Write a result at once, so that it survives a killed process. A second one is ignored."""
        if alternative in self._lines:
            return
        line = self._lines[alternative] = self._line(alternative, ended)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def unscored(self, scorer: Judge | Surprise) -> list[tuple[str, list[Row]]]:
        """Return the results without a score of `scorer`, by their contexts."""
        found: dict[str, list[Row]] = {}
        contexts = scorer.contexts(self._lines.values())
        for line in self._lines.values():
            context = contexts.get(line["key"])
            if context is not None and self._score_key(scorer, context, line) not in self._judged:
                found.setdefault(context, []).append(line)
        return [*found.items()]

    def score(self, scorer: Judge | Surprise, context: str, line: Row, score: float | None) -> None:
        """Store the score of a text in a context."""
        key = self._score_key(scorer, context, line)
        self._judged[key] = score
        with (self._folder / "judged.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "score": score}) + "\n")

    def groups(self) -> dict[Place, Group]:
        """Return the group of each prompt and seed of the spec."""
        nothing = {"text": "", "length": 0, "finish_reason": "", "stop_reason": None, "mean_logprob": None}
        return groups_of(
            result_of(self._origin(each) | nothing) for model in self._names for each in self._wanted(model)
        )

    def scored(self, places: Set[Place]) -> list[Result]:
        """Return the complete results of prompts and seeds, with their scores."""
        lines = [line for each, line in self._lines.items() if (each.prompt, each.seed) in places]
        return [result_of(line) for line in self._with_scores(lines)]

    def finish(self, tests: Iterable[Paired] = ()) -> Findings:
        """Write the files in the order of the spec, and return the findings."""
        lines = [self._lines[each] for model in self._names for each in self._wanted(model) if each in self._lines]
        # An earlier run may have results of models that this one hasn't reached.
        lines += [line for line in self._saved if line["model"] in self.spec.models.keys() - self._names.keys()]
        lines = self._with_scores(lines)
        ordered = self._path.with_suffix(".tmp")
        ordered.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        ordered.replace(self._path)
        found = Findings.of([result_of(line) for line in lines], [("", each) for each in tests])
        write_tables(self._folder, found)
        return found

    def _wanted(self, model: str) -> list[Alternative]:
        spec = self.spec
        return [
            Alternative(model, prompt, setting, seed)
            for prompt in spec.prompts
            for setting in spec.settings
            for seed in spec.all_seeds
        ]

    def _origin(self, each: Alternative) -> Row:
        prompt = self.spec.prompts[each.prompt]
        return dataclasses.asdict(each) | {
            "model": self._names[each.model],
            "prompt_text": prompt.text,
            "messages": prompt.body.get("messages"),
            "group": prompt.group,
            "variables": prompt.variables,
            "settings": self.spec.settings[each.setting],
            "direction": self.spec.fields(each.setting, each.seed).get("direction"),
            "first": self.spec.siblings(each.setting, each.seed)[0],
        }

    def _line(self, each: Alternative, ended: Row) -> Row:
        return self._origin(each) | ended | {"scores": {}, "key": self._key(each)}

    def _key(self, each: Alternative) -> str:
        """Return a hash of everything that a result depends on."""
        spec = self.spec
        fields = spec.fields(each.setting, each.seed)
        parts = [self._identities[each.model], spec.prompts[each.prompt].body, fields, each.seed]
        if len(siblings := spec.siblings(each.setting, each.seed)) > 1:
            parts.append(siblings)
        return _hash(parts)

    def _score_key(self, scorer: Judge | Surprise, context: str, line: Row) -> str:
        # Earlier scores are found once the scorer's model is loaded, and its identity is known.
        return _hash([scorer.model, self._identities.get(scorer.model), *scorer.depends_on(context, line)])

    def _with_scores(self, lines: list[Row]) -> list[Row]:
        """Return these results with their scores."""
        scorers = self.spec.scorers
        asked = [(name, scorer, scorer.contexts(lines)) for name, scorer in scorers.judges.items()]

        def scores(line: Row) -> dict[str, float | None]:
            found = scorers.score(line)
            for name, scorer, contexts in asked:
                context = contexts.get(line["key"])
                found[name] = None if context is None else self._judged.get(self._score_key(scorer, context, line))
            return found

        return [line | {"scores": scores(line), "relative": scorers.relative} for line in lines]


_FIELDS = {field.name for field in dataclasses.fields(Result)}


def _hash(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _read(file: Any, path: Path) -> list[Row]:
    """Read the lines of a file, without an incomplete last one, left by a killed process or being written now."""
    file.seek(0)
    lines = []
    for number, line in enumerate(filter(None, file.read().split("\n")[:-1]), 1):
        try:
            each = json.loads(line)
            each["key"]
            if path.stem == "results":
                result_of(each)
        except (ValueError, TypeError, LookupError):
            raise SettingsError(
                f"{path}, line {number}, is not a result; choose another folder with --out, or delete this one"
            ) from None
        if each.get("finish_reason") != "abort":  # srb 0.1.0 stored incomplete texts, too
            lines.append(each)
    return lines


def _trim(file: Any) -> None:
    """Remove an incomplete last line, so that lines can be added. Call it with the folder locked."""
    file.seek(0)
    whole, end, _broken = file.read().rpartition("\n")
    file.truncate(len((whole + end).encode()))


def result_of(line: Row) -> Result:
    """Parse a line of results.jsonl. Raises `TypeError` or `AttributeError` if it isn't a result."""
    return Result(**{name: value for name, value in line.items() if name in _FIELDS})


def read_results(folder: Path, run: str = "") -> list[Result]:
    """Read the results of an earlier run, whose name in reports is `run`. Raises `SettingsError`."""
    path = folder / "results.jsonl"
    try:
        with path.open(encoding="utf-8") as file:
            lines = _read(file, path)
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error.strerror}; is {folder} a folder of srb compare?") from None
    return [result_of(line | {"run": run}) for line in lines]


def write_tables(folder: Path, found: Findings) -> None:
    """Write measures.csv, tests.csv and results.csv."""
    _write_csv(folder / "results.csv", [_flat(each) for each in found.results])
    measures = []
    for (prompt, (run, model, setting)), each in found.cells.items():
        flat = dataclasses.asdict(each)
        scores, intervals = flat.pop("scores"), flat.pop("intervals")
        flat |= {f"score_{name}": value for name, value in scores.items()}
        for name, ends in intervals.items():
            label = f"score_{name}" if name in scores else name
            flat |= {f"{label}_low": ends and ends[0], f"{label}_high": ends and ends[1]}
        measures.append({"prompt": prompt, "run": run, "model": model, "setting": setting} | flat)
    _write_csv(folder / "measures.csv", measures)
    _write_csv(folder / "tests.csv", [dataclasses.asdict(each) for each in found.tests])


def _flat(each: Result) -> Row:
    """Return a row of the tables: variables and settings as JSON, no tokens, and a chat as its `prompt_text`."""
    row = dataclasses.asdict(each)
    del row["tokens"], row["messages"], row["relative"]
    scores = {f"score_{name}": score for name, score in row.pop("scores").items()}
    row |= {name: json.dumps(row[name], ensure_ascii=False) for name in ("variables", "settings")}
    return row | {"perplexity": perplexity(each.mean_logprob)} | scores


def _write_csv(path: Path, rows: list[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


_VERIFIED = ("text", "tokens", "length", "finish_reason", "stop_reason", "mean_logprob")


def differences(recorded: Path, again: Path) -> Iterator[str]:
    """Yield a line for each recorded result that differs in another folder, even in the last bit of a number."""
    others = {_name(each): each for each in read_results(again)}
    for each in read_results(recorded):
        where = f"{each.prompt}, {each.setting}, seed {each.seed}"
        other = others.get(_name(each))
        if other is None:
            yield f"{where}: it was not generated again"
        elif difference := _difference(each, other):
            yield f"{where}: {difference}"


def _difference(before: Result, now: Result) -> str | None:
    found = [name for name in _VERIFIED if getattr(before, name) != getattr(now, name)]
    if not found:
        return None
    if before.text != now.text:
        pairs = zip(before.text, now.text, strict=False)
        place = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(before.text), len(now.text)))
        texts = f"{_excerpt(before, place)}, and now {_excerpt(now, place)}"
        return f"the text differs from character {place} on: {texts}"
    return f"the text is the same, but different: {', '.join(found)}"


def _excerpt(each: Result, place: int) -> str:
    return repr(each.text[place : place + 20])


def _name(each: Result) -> tuple[str, str, str, int]:
    return each.model, each.prompt, each.setting, each.seed
