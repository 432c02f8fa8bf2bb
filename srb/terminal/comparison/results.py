"""Stores the results of `srb compare` in a folder: results.jsonl as they arrive, and tables at the end."""

import csv
import dataclasses
import fcntl
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from srb.errors import SettingsError
from srb.terminal.comparison.measures import Findings, Paired, Place, Result, perplexity
from srb.terminal.comparison.scorers import Judge, Surprise
from srb.terminal.comparison.spec import Spec

Name = tuple[str, str, str, int]
"""`Result.name`."""

Parsed = TypeVar("Parsed")


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
        self.asked: dict[Name, Result] = {}
        """What the spec asks of the models that have been opened, without texts."""
        self._saved: list[Result] = []
        self._done: dict[Name, Result] = {}
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
            self._saved = _read_results(self._file, self._path)
            _trim(self._file)
            with (self._folder / "judged.jsonl").open("a+", encoding="utf-8") as file:
                self._judged = dict(_read(file, Path(file.name), lambda line: (line["key"], line["score"])))
                _trim(file)
            self._exit = opened.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._exit.close()

    def __len__(self) -> int:
        return len(self._done)

    @property
    def fingerprints(self) -> set[str | None]:
        """The fingerprints of the results. It is None without `--reproducible`."""
        return {each.fingerprint for each in self._done.values()}

    @property
    def wanted(self) -> int:
        """The number of results in the spec."""
        spec = self.spec
        return len(spec.models) * len(spec.prompts) * len(spec.settings) * len(spec.all_seeds)

    def open(self, model: str, name: str, identity: str) -> list[Result]:
        """Return the alternatives of a model that earlier runs haven't finished. Raises `SettingsError`.

        Results depend on the identity of the source.
        """
        spec = self.spec
        self._names[model], self._identities[model] = model or name, identity
        others = {self._names.get(each, each) for each in spec.models if each != model}
        by_key = {each.key: each for each in self._asked(model)}
        self.asked |= {each.name: each for each in by_key.values()}
        for number, saved in enumerate(self._saved, 1):
            asked = by_key.get(saved.key)
            if asked is None and saved.model not in others:
                raise SettingsError(
                    f"{self._path}, line {number}, has a model, weights, prompt, setting or seed that isn't in the "
                    "spec; choose another folder with --out, or delete this one"
                )
            if asked:  # prompts and settings may have other names now
                outcome = {name: getattr(saved, name) for name in (*_OUTCOME, "fingerprint")}
                self._done[asked.name] = dataclasses.replace(asked, **outcome)
        return [each for each in by_key.values() if each.name not in self._done]

    def add(self, result: Result) -> None:
        """Write a result at once, so that it survives a killed process. A second one is ignored."""
        if result.name in self._done:
            return
        self._done[result.name] = result
        self._file.write(json.dumps(result.row) + "\n")
        self._file.flush()

    def unscored(self, scorer: Judge | Surprise) -> list[tuple[str, list[Result]]]:
        """Return the results without a score of `scorer`, by their contexts."""
        found: dict[str, list[Result]] = {}
        contexts = scorer.contexts(self._done.values())
        for each in self._done.values():
            context = contexts.get(each.key)
            if context is not None and self._score_key(scorer, context, each) not in self._judged:
                found.setdefault(context, []).append(each)
        return [*found.items()]

    def score(self, scorer: Judge | Surprise, context: str, result: Result, score: float | None) -> None:
        """Store the score of a text in a context."""
        key = self._score_key(scorer, context, result)
        self._judged[key] = score
        with (self._folder / "judged.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "score": score}) + "\n")

    def scored(self, places: Set[Place]) -> list[Result]:
        """Return the results of prompts and seeds, with their scores."""
        return self._with_scores([each for each in self._done.values() if (each.prompt, each.seed) in places])

    def finish(self, tests: Iterable[Paired] = ()) -> Findings:
        """Write the files in the order of the spec, and return the findings."""
        results = [self._done[name] for name in self.asked if name in self._done]
        # An earlier run may have results of models that this one hasn't reached.
        results += [each for each in self._saved if each.model in self.spec.models.keys() - self._names.keys()]
        results = self._with_scores(results)
        ordered = self._path.with_suffix(".tmp")
        ordered.write_text("".join(json.dumps(each.row) + "\n" for each in results), encoding="utf-8")
        ordered.replace(self._path)
        found = Findings.of(results, [("", each) for each in tests])
        write_tables(self._folder, found)
        return found

    def _asked(self, model: str) -> Iterator[Result]:
        """Yield what the spec asks of a model."""
        spec = self.spec
        for (name, prompt), setting, seed in itertools.product(spec.prompts.items(), spec.settings, spec.all_seeds):
            fields, siblings = spec.fields(setting, seed), spec.siblings(setting, seed)
            depends_on = [self._identities[model], prompt.body, fields, seed]
            if len(siblings) > 1:
                depends_on.append(siblings)
            yield Result(
                name,
                setting,
                seed,
                model=self._names[model],
                prompt_text=prompt.text,
                messages=prompt.body.get("messages"),
                group=prompt.group,
                variables=prompt.variables,
                settings=spec.settings[setting],
                direction=fields.get("direction"),
                first=siblings[0],
                key=_hash(depends_on),
            )

    def _score_key(self, scorer: Judge | Surprise, context: str, result: Result) -> str:
        # Earlier scores are found once the scorer's model is loaded, and its identity is known.
        return _hash([scorer.model, self._identities.get(scorer.model), *scorer.depends_on(context, result)])

    def _with_scores(self, results: list[Result]) -> list[Result]:
        """Return these results with their scores."""
        scorers = self.spec.scorers
        asked = [(name, scorer, scorer.contexts(results)) for name, scorer in scorers.judges.items()]

        def scores(each: Result) -> dict[str, float | None]:
            found = scorers.score(each)
            for name, scorer, contexts in asked:
                context = contexts.get(each.key)
                found[name] = None if context is None else self._judged.get(self._score_key(scorer, context, each))
            return found

        return [dataclasses.replace(each, scores=scores(each), relative=scorers.relative) for each in results]


_OUTCOME = ("text", "tokens", "length", "finish_reason", "stop_reason", "mean_logprob")
_FIELDS = {field.name for field in dataclasses.fields(Result)}


def _hash(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _read(file: Any, path: Path, parse: Callable[[Any], Parsed]) -> list[Parsed]:
    """Read the lines of a file, without an incomplete last one, left by a killed process or being written now."""
    file.seek(0)
    found = []
    for number, line in enumerate(filter(None, file.read().split("\n")[:-1]), 1):
        try:
            found.append(parse(json.loads(line)))
        except (ValueError, TypeError, AttributeError, LookupError):
            raise SettingsError(
                f"{path}, line {number}, is not a result; choose another folder with --out, or delete this one"
            ) from None
    return found


def _read_results(file: Any, path: Path) -> list[Result]:
    results = _read(file, path, lambda line: Result(**{name: line[name] for name in line.keys() & _FIELDS}))
    return [each for each in results if each.finish_reason != "abort"]  # srb 0.1.0 stored incomplete texts, too


def _trim(file: Any) -> None:
    """Remove an incomplete last line, so that lines can be added. Call it with the folder locked."""
    file.seek(0)
    whole, end, _broken = file.read().rpartition("\n")
    file.truncate(len((whole + end).encode()))


def read_results(folder: Path, run: str = "") -> list[Result]:
    """Read the results of an earlier run, whose name in reports is `run`. Raises `SettingsError`."""
    path = folder / "results.jsonl"
    try:
        with path.open(encoding="utf-8") as file:
            results = _read_results(file, path)
    except OSError as error:
        raise SettingsError(f"{path} can't be read: {error.strerror}; is {folder} a folder of srb compare?") from None
    return [dataclasses.replace(each, run=run) for each in results]


def write_tables(folder: Path, found: Findings) -> None:
    """Write measures.csv, tests.csv and results.csv."""
    _write_csv(folder / "results.csv", [_flat(each) for each in found.results])
    scores, measures = found.scores, []
    for (prompt, (run, model, setting)), each in found.cells.items():
        row = {"prompt": prompt, "run": run, "model": model, "setting": setting, "count": each.count}
        for name, value in each.values.items():
            label = f"score_{name}" if name in scores else name
            row[label] = value
            if name in each.intervals:
                row[f"{label}_low"], row[f"{label}_high"] = each.intervals[name] or (None, None)
        measures.append(row)
    _write_csv(folder / "measures.csv", measures)
    _write_csv(folder / "tests.csv", [dataclasses.asdict(each) for each in found.tests])


def _flat(each: Result) -> dict[str, Any]:
    """Return a row of the tables: variables and settings as JSON, no tokens, and a chat as its `prompt_text`."""
    row = {name: value for name, value in vars(each).items() if name not in _NOT_FLAT}
    scores = {f"score_{name}": score for name, score in each.scores.items()}
    row |= {name: json.dumps(row[name], ensure_ascii=False) for name in ("variables", "settings")}
    return row | {"perplexity": perplexity(each.mean_logprob)} | scores


_NOT_FLAT = ("tokens", "messages", "relative", "scores", "key", "fingerprint")


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def differences(recorded: list[Result], again: list[Result]) -> Iterator[str]:
    """Yield a line for each recorded result that differs from the same one again, even in the last bit of a number."""
    others = {each.name: each for each in again}
    for each in recorded:
        other = others.get(each.name)
        if other is None:
            yield f"{each}: it was not generated again"
        elif difference := _difference(each, other):
            yield f"{each}: {difference}"


def _difference(before: Result, now: Result) -> str | None:
    found = [name for name in _OUTCOME if getattr(before, name) != getattr(now, name)]
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
