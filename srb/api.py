"""`srb.generate` and `srb.score`: texts, and log-probabilities of texts, in one call."""

import atexit
import dataclasses
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, overload

from srb.engine.events import StopEvent
from srb.engine.offline import Texts, TextsRequest, are_texts, scores_of, table_of, with_tokens
from srb.engine.outputs import CompletionOutput, CompletionOutputs
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import Score
from srb.engine.validation.fields import Text
from srb.errors import InvalidRequestError
from srb.files.download import show_count
from srb.llm import LLM
from srb.options.settings import Settings

Model = str | Path | Settings | None
"""The path of a GGUF file, or all settings. None: the default model."""


@overload
def generate(
    prompt: Text,
    n: int | None = None,
    *,
    directions: Sequence[str] = (),
    suffix: Text | None = None,
    logprobs: int | None = None,
    progress: bool = True,
    model: Model = None,
    **sampling: Any,
) -> CompletionOutputs[CompletionOutput]: ...
@overload
def generate(
    prompt: Texts,
    n: int | None = None,
    *,
    directions: Sequence[str] = (),
    suffix: Text | None = None,
    logprobs: int | None = None,
    progress: bool = True,
    model: Model = None,
    **sampling: Any,
) -> CompletionOutputs[CompletionOutputs[CompletionOutput]]: ...


def generate(
    prompt: Any,
    n: int | None = None,
    *,
    directions: Sequence[str] = (),
    suffix: Text | None = None,
    logprobs: int | None = None,
    progress: bool = True,
    model: Model = None,
    **sampling: Any,
) -> Any:
    """Generates n texts that continue a prompt, which is evaluated once.

    The model stays loaded for the next calls, until a call asks for another one or the program ends. A prompt that ends
    with a space or within a word does no harm (`CompletionRequest.heal`).

    Args:
        prompt: a text, or a tuple of token ids; or a list of such prompts, which run together.
        n: the number of texts for each prompt: 8, or one for each direction.
        directions: a line for each text, such as "she lies", "slower", "a storm". The model reads it before it writes
            this text; it is never part of the text. An empty one: none.
        suffix: the text that comes after them. With it, the texts are ordered by how well it follows (`suffix`) in
            `CompletionRequest`.
        logprobs: report each token's log-probability, and those of this many most probable tokens at its place.
        progress: show the number of finished texts, if stderr is a terminal, or in a notebook if tqdm is installed.
        model: the path of a GGUF file, or `Settings`. None: the default model.
        sampling: fields of `SamplingParams`, such as `temperature=1.1`, `max_tokens=40`, `seed=7` or `stop="."`. The
            others have the values in the model's file, or else the defaults.

    Returns:
        The texts. Each is a `str` with its `token_ids`, `logprobs` and `finish_reason` (`CompletionOutput`). With
        several prompts, such a list for each, in order. Jupyter shows the list as a table, and `to_pandas` makes a
        table of it.

    Raises:
        InvalidRequestError: An argument is wrong.
        ModelLoadError: The model can't be loaded.
        SrbError: A fault.

    Examples:
        >>> texts = srb.generate("Once upon a time,", n=3, max_tokens=12, seed=1)
        >>> len(texts)
        3
        >>> srb.generate("One, two, three,", n=2, max_tokens=4, temperature=0)
        [' four, five', ' four, five']
        >>> texts = srb.generate(["One, two,", "A, B,"], n=2, max_tokens=4, temperature=0, logprobs=0)
        >>> [len(text.logprobs) for text in texts[1]]
        [4, 4]
    """
    params = _params(sampling)
    n = _number(n, directions)
    prompts = prompt if are_texts(prompt) else [prompt]
    if not prompts:
        raise InvalidRequestError("prompt must have at least one text", param="prompt")
    with (
        loaded_model.locked(model) as llm,
        show_count("writing", n * len(prompts), show=progress) as count,
    ):
        by_model = {name: value for name, value in llm.sampling.items() if name not in sampling}
        params = dataclasses.replace(params, **by_model)
        texts: dict[str, TextsRequest] = {}
        for k, each in enumerate(prompts):
            heal = isinstance(each, str) and not params.has_grammar
            try:
                asked = TextsRequest(
                    *(each, n, params),
                    directions=directions,
                    settings=sampling,
                    heal=heal,
                    suffix=suffix,
                    logprobs=logprobs,
                )
                llm.engine.check(with_tokens(asked.request, llm.engine.tokenize))  # before any runs
            except InvalidRequestError as error:
                if len(prompts) > 1:
                    name = f"prompt[{k}]"
                    raise InvalidRequestError(f"{name}: {error.message}", param=name, code=error.code) from None
                raise
            texts[asked.request.id] = asked
        for event in llm.run(*(each.request for each in texts.values())):
            texts[event.request_id].take(event)
            if isinstance(event, StopEvent):
                count()
    results = CompletionOutputs([each.result() for each in texts.values()])
    return results if are_texts(prompt) else results[0]


@overload
def score(prompt: Text, candidates: Sequence[Text], *, model: Model = None) -> list[Score]: ...
@overload
def score(
    prompt: Texts, candidates: Sequence[Text] | Sequence[Sequence[Text]], *, model: Model = None
) -> list[list[Score]]: ...


def score(prompt: Any, candidates: Any, *, model: Model = None) -> Any:
    """Computes the log-probability of each candidate given a prompt, which is evaluated once.

    A candidate is tokenized together with its prompt. Most begin with a space, or else the prompt ends with one. If
    stderr is a terminal, it shows the number of scored texts.

    Args:
        prompt: a text, or a tuple of token ids; or a list of such prompts.
        candidates: texts, or tuples of token ids. With several prompts: those that all have, or a list for each prompt.
        model: As in `generate`.

    Returns:
        A score for each candidate, in order; with several prompts, such a list for each.

    Raises:
        InvalidRequestError: An argument is wrong.
        ModelLoadError: The model can't be loaded.
        SrbError: A fault.

    Examples:
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
        loaded_model.locked(model) as llm,
        show_count("scoring", table.count) as count,
        closing(llm.score_table(table)) as rows,
    ):
        return scores_of(table, prompt, (count() or row for row in rows))


_LISTS = ("stop", "stop_token_ids", "bad_words", "banned_strings", "avoid")
"""The fields that may be given as lists; one text stands for a list of it."""


def _params(sampling: dict[str, Any]) -> SamplingParams:
    values = {}
    for name, value in sampling.items():
        if name in _LISTS and isinstance(value, (str, list)):
            value = (value,) if isinstance(value, str) else tuple(value)
        values[name] = value
    return SamplingParams(**values)


def _number(n: int | None, directions: Sequence[str]) -> int:
    """Return the number of texts for each prompt. Raises `InvalidRequestError`."""
    if isinstance(directions, str) or not isinstance(directions, Sequence):
        raise InvalidRequestError(f"directions takes a list of texts, got {directions!r:.60}", param="directions")
    if n is None:
        return len(directions) or 8
    if directions and n != len(directions):
        raise InvalidRequestError(
            f"n is {n!s:.60}, but directions has {len(directions)}; leave n out or make them agree", param="n"
        )
    return n


class _LoadedModel:
    """The model of the last call, for the next one. Calls of several threads use it one after the other."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forgets the model without freeing it. A forked process calls this: the model belongs to its parent."""
        self._lock = threading.Lock()
        self._settings: Settings | None = None
        self._llm: LLM | None = None

    @contextmanager
    def locked(self, model: Model) -> Iterator[LLM]:
        """Locks this model, which has no work, for the block."""
        settings = (
            model if isinstance(model, Settings) else Settings(model=Path(model) if isinstance(model, str) else model)
        )
        with self._lock:
            if self._llm is None or settings != self._settings:
                self.close()
                self._llm = LLM.from_settings(settings)
                self._settings = settings
            try:
                yield self._llm
            finally:
                if self._llm.engine.has_work:  # the call was interrupted; the next one must not get its events
                    self.close()

    def close(self) -> None:
        """Frees the model."""
        if self._llm:
            self._llm.close()
        self._llm = self._settings = None


loaded_model = _LoadedModel()
atexit.register(loaded_model.close)
os.register_at_fork(after_in_child=loaded_model.forget)
