"""`srb.generate` returns texts, and `srb.score` tells how likely texts are: the shortest ways for a program."""

import atexit
import dataclasses
import difflib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, overload

from srb.engine.engine import Engine
from srb.engine.events import StopEvent
from srb.engine.offline import Texts, Writing, scores_of, table_of
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import Score
from srb.engine.validation.fields import Text
from srb.errors import InvalidRequestError
from srb.files.download import fetch_model, show_count, show_download
from srb.llama.backend import LlamaBackend
from srb.llama.model.metadata import sampling_of
from srb.options.settings import Settings
from srb.serving.async_engine import make_engine

Model = str | Path | Settings | None
"""The path of a GGUF file, or all settings; None is the default model."""


def generate(
    prompt: Text, n: int = 8, *, suffix: Text | None = None, model: Model = None, **sampling: Any
) -> list[str]:
    """n texts that go on with a prompt, which is a text or a tuple of token ids.

    suffix: the text that comes after them. The texts then come in the order of how well it follows; see `suffix` in
    `CompletionRequest`.

    sampling: fields of `SamplingParams`, such as `temperature=1.1`, `max_tokens=40`, `seed=7` or `stop="."`.
    The others have the values that the model's file names, or else the defaults.
    model: the path of a GGUF file, or `Settings`; left out, it is the default model. The model stays loaded for the
    next calls, until a call asks for another one or the program ends.

    A prompt that ends with a space or within a word does no harm (see `heal` in `CompletionRequest`). If stderr is a
    terminal, it shows how many of the texts are there.

    Raises `InvalidRequestError` for a wrong argument, `ModelLoadError`, and `SrbError` for a fault.

    >>> texts = srb.generate("Once upon a time,", n=3, max_tokens=12, seed=1)
    >>> len(texts)
    3
    >>> srb.generate("One, two, three,", n=2, max_tokens=4, temperature=0)
    [' four, five', ' four, five']
    """
    params = _params(sampling)
    heal = isinstance(prompt, str) and not params.is_constrained
    with _kept.engine(model) as engine, show_count("writing", n) as count:
        by_model = {name: value for name, value in _kept.sampling.items() if name not in sampling}
        writing = Writing(prompt, n, dataclasses.replace(params, **by_model), heal=heal, suffix=suffix)
        for event in engine.run(writing.request):
            writing.take(event)
            if isinstance(event, StopEvent):
                count()
    return writing.result()


@overload
def score(prompt: Text, candidates: Sequence[Text], *, model: Model = None) -> list[Score]: ...
@overload
def score(
    prompt: Texts, candidates: Sequence[Text] | Sequence[Sequence[Text]], *, model: Model = None
) -> list[list[Score]]: ...


def score(prompt: Any, candidates: Any, *, model: Model = None) -> Any:
    """How likely each of these texts is after a prompt, in the order of the texts. The prompt is evaluated once.

    Of a list of prompts it is a list for each: with the same candidates, or with a list of them for each prompt.

    A candidate is tokenized together with its prompt. Most begin with a space, or else the prompt ends with one.
    model: see `generate`. If stderr is a terminal, it shows how many of the texts are scored.

    Raises `InvalidRequestError` for a wrong argument, `ModelLoadError`, and `SrbError` for a fault.

    >>> cities = [" Paris", " Rome", " a"]
    >>> scores = srb.score("The capital of France is", cities)
    >>> best = max(scores, key=lambda each: each.logprob)
    >>> cities[scores.index(best)]
    ' Paris'
    >>> table = srb.score(["The capital of France is", "The capital of Italy is"], cities)
    >>> [max(scores, key=lambda each: each.logprob) == scores[k] for k, scores in enumerate(table)]
    [True, True]
    """
    table = table_of(prompt, candidates)
    with (
        _kept.engine(model) as engine,
        show_count("scoring", table.count) as count,
        closing(engine.score_table(table)) as rows,
    ):
        return scores_of(table, prompt, (count() or row for row in rows))


def _params(sampling: dict[str, Any]) -> SamplingParams:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    values = {}
    for name, value in sampling.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]}?" if close else "help(srb.SamplingParams) lists the fields"
            raise InvalidRequestError(f"there is no {name!r}; {hint}", param=name)
        if name in ("stop", "banned_strings", "avoid") and isinstance(value, (str, list)):
            value = (value,) if isinstance(value, str) else tuple(value)
        values[name] = value
    return SamplingParams(**values)


class _Kept:
    """Keeps the engine of the last call for the next one. Calls of several threads use it one after the other."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forgets the engine, and frees nothing. A forked process calls this: the model belongs to its parent."""
        self._lock = threading.Lock()
        self._settings: Settings | None = None
        self._backend: LlamaBackend | None = None
        self._engine: Engine | None = None
        self.sampling: dict[str, Any] = {}  # what the model's file names for requests that don't

    @contextmanager
    def engine(self, model: Model) -> Iterator[Engine]:
        """An engine with this model and no work."""
        settings = (
            model if isinstance(model, Settings) else Settings(model=Path(model) if isinstance(model, str) else model)
        )
        with self._lock:
            if self._engine is None or settings != self._settings:
                self.close()
                fetched = fetch_model(settings, show_download)
                self._backend = LlamaBackend(fetched)
                self.sampling = sampling_of(fetched)
                self._engine = make_engine(settings, self._backend)
                self._settings = settings
            try:
                yield self._engine
            finally:
                if self._engine.has_work:  # the call was interrupted; the next one must not get its events
                    self.close()

    def close(self) -> None:
        """Frees the model."""
        if self._engine:
            self._engine.close()
        if self._backend:
            self._backend.close()
        self._engine = self._backend = self._settings = None


_kept = _Kept()
atexit.register(_kept.close)
os.register_at_fork(after_in_child=_kept.forget)
