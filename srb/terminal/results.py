"""What `srb compare` has so far, in a folder: results.jsonl grows, and results.csv and measures.csv come at the end."""

import csv
import dataclasses
import fcntl
import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from srb.errors import SettingsError
from srb.terminal.measures import Measures, Result, measure, perplexity
from srb.terminal.spec import Spec

Cells = dict[tuple[str, str], Measures]
"""The measures of each cell, by the names of its prompt and setting."""


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One that is wanted: the names of its prompt and setting, and its seed."""

    prompt: str
    setting: str
    seed: int


class Results:
    """The results in a folder. Use it as a context manager; no other process may use the folder meanwhile.

    wanted: how many the spec asks for.
    """

    def __init__(self, folder: Path, spec: Spec) -> None:
        self._folder = folder
        self._path = folder / "results.jsonl"
        self._spec = spec
        self._alternatives = [
            Alternative(prompt, setting, seed)
            for prompt in spec.prompts
            for setting in spec.settings
            for seed in spec.all_seeds
        ]
        self._lines: dict[Alternative, dict[str, Any]] = {}
        self._model = self._identity = ""
        self._exit = ExitStack()
        self.wanted = len(self._alternatives)

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Not closed before the end: that would give up the lock.
            self._file = self._exit.enter_context(self._path.open("a+", encoding="utf-8"))
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._exit.close()
            raise SettingsError(f"another srb compare writes to {self._folder}; give --out another folder") from None
        except OSError as error:
            self._exit.close()
            raise SettingsError(f"{self._path} can't be written: {error.strerror}; give --out another folder") from None
        return self

    def __exit__(self, *_error: object) -> None:
        self._exit.close()

    def __len__(self) -> int:
        return len(self._lines)

    def open(self, model: str, identity: str) -> list[Alternative]:
        """Reads what an earlier run has left, and returns the alternatives that are missing.

        identity: what results depend on beside the spec; see `Source`.

        Raises `SettingsError` if there is something that the spec doesn't ask for: it would have to be thrown away.
        """
        self._model, self._identity = model, identity
        keys = {self._key(each): each for each in self._alternatives}
        lines: dict[Alternative, dict[str, Any]] = {}
        self._file.seek(0)
        text = self._file.read()
        whole, _, _broken = text.rpartition("\n")  # a line that was being written when the process was killed
        for number, line in enumerate(filter(None, whole.split("\n")), 1):
            try:
                saved = json.loads(line)
                alternative = keys[saved["key"]]
                Result(**{field: saved[field] for field in _FIELDS})
            except KeyError:
                raise SettingsError(
                    f"{self._path}, line {number}, is of another model, weights, prompt, setting or seed "
                    "than this spec's; give --out another folder, or delete this one"
                ) from None
            except (ValueError, TypeError):
                raise SettingsError(
                    f"{self._path}, line {number}, is no result; give --out another folder, or delete this one"
                ) from None
            lines[alternative] = saved | dataclasses.asdict(alternative)  # names may have changed
        self._lines = lines
        self._file.truncate(len((whole + "\n").encode()) if whole else 0)
        return [each for each in self._alternatives if each not in self._lines]

    def add(self, result: Result) -> None:
        """Keeps a result, so that it's there even if the process is killed. What is there already stays."""
        alternative = Alternative(result.prompt, result.setting, result.seed)
        if alternative in self._lines:
            return
        line = dataclasses.asdict(result) | {"model": self._model, "key": self._key(alternative)}
        self._lines[alternative] = line
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def finish(self) -> tuple[list[Result], Cells]:
        """Writes the files in the order of the spec, and returns the results and their measures."""
        lines = [self._lines[each] for each in self._alternatives if each in self._lines]
        ordered = self._path.with_suffix(".tmp")
        ordered.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        ordered.replace(self._path)
        results = [Result(**{name: line[name] for name in _FIELDS}) for line in lines]
        rows = [dataclasses.asdict(each) | {"perplexity": perplexity(each.mean_logprob)} for each in results]
        _write_csv(self._folder / "results.csv", rows)
        cells = measures_of(self._spec, results)
        measures = [
            {"prompt": prompt, "setting": setting} | dataclasses.asdict(each)
            for (prompt, setting), each in cells.items()
        ]
        _write_csv(self._folder / "measures.csv", measures)
        return results, cells

    def _key(self, each: Alternative) -> str:
        """What a result depends on: it's good as long as this is the same."""
        parts = [self._identity, self._spec.prompts[each.prompt], self._spec.settings[each.setting], each.seed]
        if len(siblings := self._spec.siblings(each.setting, each.seed)) > 1:
            parts.append(siblings)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


_FIELDS = [field.name for field in dataclasses.fields(Result)]


def measures_of(spec: Spec, results: list[Result]) -> Cells:
    """The measures of the results."""
    cells: dict[tuple[str, str], list[Result]] = {
        (prompt, setting): [] for prompt in spec.prompts for setting in spec.settings
    }
    for result in results:
        cells[result.prompt, result.setting].append(result)
    return {cell: measure(each) for cell, each in cells.items()}


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
