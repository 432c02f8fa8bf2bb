"""For programs that want results and no events: makes texts, scores and embeddings, and saves evaluated texts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import hypot
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar, overload

from srb.engine.events import ErrorEvent, Event, StopEvent, StreamEvent, by_request
from srb.engine.kv_cache.radix import WORTH_SHARING, pack
from srb.engine.kv_cache.slots import SavedSlot, Slots, read_slot, write_slot
from srb.engine.model import Embedder, Tokenizer
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import (
    PARTS_AT_ONCE,
    Part,
    Score,
    ScoredRow,
    Table,
    Tabulating,
    Tokenize,
    is_tokens,
    to_tokens,
)
from srb.engine.validation.fields import Text
from srb.errors import InvalidRequestError, NotSupportedError, SrbError

# Saves evaluated texts in files, for programs, so that another process needn't evaluate them again.

SLOT = 1 << 30
"""The slot of requests that save a text. Its number is so high that no tokens are remembered for it."""


class Saving:
    """Saves a text: first `request` evaluates what isn't known of it, then `found` has what is to be written."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._tokens = tokens
        params = SamplingParams(max_tokens=0, seed=0, lora=())
        self.request = CompletionRequest((tokens,), (params,), slot=SLOT)

    def take(self, event: Event) -> None:
        """Takes an event of the request. Raises `SrbError` for a fault."""
        if isinstance(event, ErrorEvent):
            raise event.error

    def found(self, slots: Slots) -> SavedSlot:
        """The state that is to be written. Raises `InvalidRequestError` if the engine hasn't kept all of it."""
        saved, n_tokens = slots.copies(pack(self._tokens)), len(self._tokens)
        if saved.n_tokens < n_tokens:
            raise InvalidRequestError(
                f"{saved.n_tokens} of the text's {n_tokens} tokens were kept, so it can't be saved: give the engine "
                f"more cache_bytes (--cache-ram), and a text of at least {WORTH_SHARING} tokens",
                param="prompt",
            )
        return saved


def read_saved(path: str | Path, identity: str) -> SavedSlot:
    """The state in a file. Raises `InvalidRequestError` if it isn't such a file, or is of another model."""
    try:
        return read_slot(Path(path), identity)[0]
    except ValueError as error:
        raise InvalidRequestError(f"{path} can't be loaded: {error}", param="path") from None


Answer = TypeVar("Answer")

Texts = list[str] | list[tuple[int, ...]]
"""Several prompts. A list of token ids is one prompt."""


class Writing:
    """A request for n texts. Give its events to `take`, until the request is done.

    suffix: the text that comes after them. Then they come in the order of how well it follows.
    """

    def __init__(
        self, prompt: Text, n: int, params: SamplingParams | None, *, heal: bool = False, suffix: Text | None = None
    ) -> None:
        branches = (params or SamplingParams()).alternatives(n)
        self.request = CompletionRequest((prompt,), branches, heal=heal, suffix=suffix)
        self._texts = [""] * n
        self._ranks = [0] * n

    def take(self, event: Event) -> None:
        """Raises `SrbError` for a fault."""
        if isinstance(event, ErrorEvent):
            raise event.error
        if isinstance(event, StreamEvent):
            self._texts[event.index] += event.text
        if isinstance(event, StopEvent):
            self._ranks[event.index] = event.rank or 0

    def result(self) -> list[str]:
        """The texts."""
        return [text for _, text in sorted(zip(self._ranks, self._texts, strict=True), key=itemgetter(0))]


class ForPrograms(ABC):
    """What an engine does for a program that waits for the result."""

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer: ...

    @property
    @abstractmethod
    def embedder(self) -> Embedder | None: ...

    @property
    @abstractmethod
    def has_work(self) -> bool: ...

    @abstractmethod
    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def identity(self) -> str: ...

    @abstractmethod
    def ask(self, slot: int, question: Callable[[Slots], Answer]) -> "Future[Answer]": ...

    @abstractmethod
    def add_request(self, request: CompletionRequest) -> None: ...

    @abstractmethod
    def check(self, request: CompletionRequest) -> None: ...

    @abstractmethod
    def abort(self, request_id: str) -> None: ...

    @abstractmethod
    def step(self) -> list[Event]: ...

    def run(self, request: CompletionRequest) -> Iterator[Event]:
        """The events of a request, on an engine that has no other work. Raises `InvalidRequestError`.

        If the caller leaves the loop early, the request stays in the engine, and the next `step` goes on with it.
        """
        if self.has_work:
            raise RuntimeError("run() is for an engine that has no other work; use add_request() and step()")
        self.add_request(request)
        while self.has_work:
            yield from self.step()

    def generate_texts(self, prompt: Text, n: int = 1, params: SamplingParams | None = None) -> list[str]:
        """n texts that continue a prompt. See `run`. Raises `InvalidRequestError`, and `SrbError` for a fault."""
        writing = Writing(prompt, n, params)
        for event in self.run(writing.request):
            writing.take(event)
        return writing.result()

    @overload
    def score(self, prompt: Text, candidates: Sequence[Text]) -> list[Score]: ...
    @overload
    def score(self, prompt: Texts, candidates: Sequence[Text] | Sequence[Sequence[Text]]) -> list[list[Score]]: ...

    def score(self, prompt: Any, candidates: Any) -> Any:
        """How likely each of these texts is after the prompt, which is evaluated once. See `run`.

        Of a list of prompts it is a list for each: with the same candidates, or with a list of them for each prompt.

        A text is tokenized behind its prompt, see `pair_tokens`. Raises `InvalidRequestError`, and `SrbError` for a
        fault.
        """
        table = table_of(prompt, candidates)
        with closing(self.score_table(table)) as rows:
            return scores_of(table, prompt, rows)

    def score_table(self, table: Table) -> Generator[ScoredRow]:
        """The rows of a table, those of a context together, as soon as they are known. See `run`.

        A row that can't be scored has an `error`. Raises `InvalidRequestError` for a `lora` that isn't there.
        """
        if self.has_work:
            raise RuntimeError("score_table() is for an engine that has no other work")
        work, parts = Tabulating(table, self.tokenize, self.check), dict[str, Part]()
        try:
            while True:
                while len(parts) < PARTS_AT_ONCE and (part := work.next()):
                    self.add_request(part.request)
                    parts[part.request.id] = part
                yield from work.told()
                if not parts:
                    return
                for request_id, events in by_request(self.step()).items():
                    parts[request_id].take(events)
                    if parts[request_id].done:
                        work.put(parts.pop(request_id))
        finally:
            for request_id in parts:  # the caller has left the loop
                self.abort(request_id)
            while self.has_work:  # what has ended gives its cells back
                self.step()

    def embed(self, texts: Sequence[Text]) -> list[list[float]]:
        """The embedding of each text: a vector of the length 1. May be called from any thread.

        Raises `NotSupportedError` if the engine wasn't made for embeddings, with
        `Settings(embeddings=True, pooling="mean")` say, and `InvalidRequestError` for a text of more tokens than
        `ubatch_size`.
        """
        return embed(self.embedder, texts, self.tokenize)

    def save(self, path: str | Path, prompt: Text) -> int:
        """Writes the evaluated state of a text to a file, for `load`; returns how many tokens it has. See `run`.

        Only the part of the text that isn't known yet is evaluated. If the text is a prompt and what an alternative has
        generated after it, this is only the last token. Raises `InvalidRequestError` if the engine keeps nothing
        (`cache_bytes`), or if the text has less than 16 tokens, and `OSError`.
        """
        saving = Saving(to_tokens(prompt, self.tokenize, is_prompt=True))
        for event in self.run(saving.request):
            saving.take(event)
        saved = self._answer_of(SLOT, saving.found)
        write_slot(Path(path), self.identity, saved)
        return saved.n_tokens

    def load(self, path: str | Path) -> tuple[int, ...]:
        """Keeps what `save` has written, and returns its tokens. A prompt that begins with them needn't evaluate them.

        Raises `InvalidRequestError` if it isn't such a file, is of another model, or has no room in `cache_bytes`.
        """
        saved = read_saved(path, self.identity)
        return tuple(self._answer_of(SLOT, lambda slots: slots.put(saved)))

    def _answer_of(self, slot: int, question: Callable[[Slots], Answer]) -> Answer:
        answer = self.ask(slot, question)
        while not answer.done():
            self.step()
        return answer.result()


def embed(embedder: Embedder | None, texts: Sequence[Text], tokenize: Tokenize) -> list[list[float]]:
    """See `ForPrograms.embed`."""
    if embedder is None or embedder.rank_template is not None:
        raise NotSupportedError("the engine makes no embeddings; give it Settings(embeddings=True)")
    if not embedder.pools:
        raise NotSupportedError('this model has a vector for each token; give Settings(pooling="mean") to have one')
    if isinstance(texts, str):
        raise InvalidRequestError(f"texts takes a list, got {texts!r:.60}; write [...] around it", param="texts")
    vectors = []
    for number, text in enumerate(texts):
        tokens = to_tokens(text, tokenize, is_prompt=True, name=f"texts[{number}]")
        if len(tokens) > embedder.max_tokens:
            raise InvalidRequestError(
                f"texts[{number}] has {len(tokens)} tokens; the limit is {embedder.max_tokens} (ubatch_size)",
                param="texts",
            )
        vector = embedder.embed(tokens)[0]
        length = hypot(*vector) or 1.0
        vectors.append([value / length for value in vector])
    return vectors


def table_of(prompt: Any, candidates: Any) -> Table:
    """The table that `score` is asked for. Raises `InvalidRequestError`."""
    if isinstance(candidates, str) or not isinstance(candidates, Iterable):  # else each character would be scored
        raise InvalidRequestError(
            f"candidates takes a list of texts, got {candidates!r:.60}; write [...] around it", param="candidates"
        )
    return Table.of(prompt if _are_texts(prompt) else [prompt], [*candidates], names=("prompt", "candidates"))


def scores_of(table: Table, prompt: Any, rows: Iterable[ScoredRow]) -> Any:
    """The scores of a table's rows: a list of them, or a list for each prompt. Raises what a row has as its error."""
    scores: list[list[Score]] = [[] for _ in table.contexts]
    for row in rows:
        if row.score is None:
            raise row.error or SrbError("a row wasn't scored")
        scores[row.context].append(row.score)
    return scores if _are_texts(prompt) else scores[0]


def _are_texts(prompt: Any) -> bool:
    return isinstance(prompt, list) and not is_tokens(prompt)


def has_texts(request: CompletionRequest) -> bool:
    """Whether a prompt, a negative prompt or the suffix is still a text."""
    prompts = (*request.prompts, request.suffix, *(params.negative_prompt for params in request.branches))
    return any(isinstance(each, str) for each in prompts)


def with_tokens(request: CompletionRequest, tokenize: Tokenize) -> CompletionRequest:
    """The same request, with tokens in place of its texts. Raises `InvalidRequestError`."""
    if not has_texts(request):
        return request

    if request.context_shift:
        tokenize = partial(tokenize, any_length=True)
    tokens = partial(to_tokens, tokenize=tokenize, is_prompt=True)
    branches = tuple(
        replace(each, negative_prompt=each.negative_prompt and tokens(each.negative_prompt))
        for each in request.branches
    )
    suffix = request.suffix and to_tokens(request.suffix, tokenize, is_prompt=False, name="suffix")
    return replace(request, prompts=tuple(map(tokens, request.prompts)), suffix=suffix, branches=branches)
