"""For programs that want results and no events: texts, scores, embeddings, and saved prompts.

`LLM` and `EngineClient` share what is here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import hypot
from pathlib import Path
from types import MappingProxyType
from typing import Any

from srb.engine.events import ErrorEvent, Event, StopEvent, StreamEvent
from srb.engine.kv_cache.radix import WORTH_SHARING, pack
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.kv_cache.state_store import EntryCopy, read_text
from srb.engine.model import Embedder, Tokenize
from srb.engine.outputs import CompletionOutput, CompletionOutputs
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import Score, ScoredRow, Table, is_tokens, to_tokens
from srb.engine.validation.fields import Text
from srb.errors import InvalidRequestError, NotSupportedError, SrbError

Texts = list[str] | list[tuple[int, ...]]
"""Several prompts. A list of token ids is one prompt."""


# Texts


class TextsRequest:
    """A request for n texts. Give its events to `take` until the request is done.

    Args:
        prompt: a text, or token ids.
        n: the number of texts.
        params: how they are sampled.
        directions: a line for each text that only its prompt has. Empty: none has one.
        settings: those of `params` that the caller gave, for `CompletionOutput.settings`.
        suffix: the text that comes after them. If there is one, the texts are ordered by how well it follows.
        more: other fields of `CompletionRequest`.
    """

    def __init__(
        self,
        prompt: Text,
        n: int,
        params: SamplingParams | None,
        *,
        directions: Sequence[str] = (),
        settings: Mapping[str, Any] = MappingProxyType({}),
        suffix: Text | None = None,
        **more: Any,
    ) -> None:
        branches = (params or SamplingParams()).alternatives(n)
        if directions:
            branches = tuple(each.directed(line) for each, line in zip(branches, directions, strict=True))
        self.request = CompletionRequest((prompt,), branches, suffix=suffix, return_tokens=True, **more)
        self._prompt = prompt
        self._settings = settings
        self._directions = directions
        self._streamed: list[list[StreamEvent]] = [[] for _ in range(n)]
        self._stopped: list[StopEvent] = []

    def take(self, event: Event) -> None:
        """Takes an event of the request. Raises `SrbError` for a fault."""
        if isinstance(event, ErrorEvent):
            raise event.error
        if isinstance(event, StreamEvent):
            self._streamed[event.index].append(event)
        if isinstance(event, StopEvent):
            self._stopped.append(event)

    def result(self) -> CompletionOutputs[CompletionOutput]:
        """The texts."""
        in_order = sorted(self._stopped, key=lambda stop: (stop.rank or 0, stop.index))
        return CompletionOutputs(map(self._output, in_order))

    def _output(self, stop: StopEvent) -> CompletionOutput:
        events = self._streamed[stop.index]
        tokens = None if self.request.logprobs is None else [event.token for event in events if event.token]
        return CompletionOutput.of(
            "".join(event.text for event in events),
            prompt=self._prompt,
            alternative=stop.index,
            seed=self.request.params(stop.index).seed,
            token_ids=tuple(token for event in events for token in event.tokens),
            logprobs=None if tokens is None else tuple(token.logprob for token in tokens),
            top_logprobs=None
            if tokens is None
            else tuple({top.id: top.logprob for top in token.top_logprobs} for token in tokens),
            finish_reason=stop.finish_reason,
            stop_reason=stop.stop_reason,
            settings={**self._settings, "direction": self._directions[stop.index]}
            if self._directions
            else self._settings,
        )


# Scores


def table_of(prompt: Any, candidates: Any) -> Table:
    """Makes the table of the arguments of `score`. Raises `InvalidRequestError`."""
    if isinstance(candidates, str) or not isinstance(candidates, Iterable):  # else each character would be scored
        raise InvalidRequestError(
            f"candidates takes a list of texts, got {candidates!r:.60}; write [...] around it", param="candidates"
        )
    return Table.of(prompt if are_texts(prompt) else [prompt], [*candidates], names=("prompt", "candidates"))


def scores_of(table: Table, prompt: Any, rows: Iterable[ScoredRow]) -> Any:
    """Collects the scores of a table: a list, or a list for each prompt. Raises the error of a row that has one."""
    scores: list[list[Score]] = [[] for _ in table.contexts]
    for row in rows:
        if row.score is None:
            raise row.error or SrbError("a row wasn't scored")
        scores[row.context].append(row.score)
    return scores if are_texts(prompt) else scores[0]


def are_texts(prompt: Any) -> bool:
    """Tells whether there are several prompts."""
    return isinstance(prompt, list) and not is_tokens(prompt)


# Embeddings


def embed(embedder: Embedder | None, texts: Sequence[Text], tokenize: Tokenize) -> list[list[float]]:
    """Embeds texts: makes a vector of the length 1 for each. Raises `NotSupportedError` and `InvalidRequestError`."""
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


# Saved prompts

SLOT = 1 << 30
"""The slot of requests that save a text. No tokens are remembered for a slot with so high a number."""


class SaveRequest:
    """Saves a text: `request` evaluates what isn't cached of it, then `find` returns the state to write."""

    def __init__(self, prompt: Text, tokenize: Tokenize) -> None:
        self._tokens = to_tokens(prompt, tokenize, is_prompt=True)
        params = SamplingParams(max_tokens=0, seed=0, lora=())
        self.request = CompletionRequest((self._tokens,), (params,), slot=SLOT)

    def take(self, event: Event) -> None:
        """Takes an event of the request. Raises `SrbError` for a fault."""
        if isinstance(event, ErrorEvent):
            raise event.error

    def find(self, states: StateCache) -> list[EntryCopy]:
        """Finds the state to write. Raises `InvalidRequestError` if the engine hasn't cached all of it."""
        saved, n_tokens = states.copies(pack(self._tokens)), len(self._tokens)
        n_cached = saved[-1].end if saved else 0
        if n_cached < n_tokens:
            raise InvalidRequestError(
                f"{n_cached} of the text's {n_tokens} tokens are cached, so it can't be saved: give the engine "
                f"more cache_bytes (--cache-ram), and a text of at least {WORTH_SHARING} tokens",
                param="prompt",
            )
        return saved


def read_saved(path: str | Path, identity: str) -> list[EntryCopy]:
    """Reads a state from a file. Raises `InvalidRequestError` if it isn't such a file, or is of another model."""
    try:
        return read_text(Path(path), identity)[0]
    except ValueError as error:
        raise InvalidRequestError(f"{path} can't be loaded: {error}", param="path") from None


# Prompts that are given as texts


def has_texts(request: CompletionRequest) -> bool:
    """Tells whether a prompt, a negative prompt or the suffix is still a text."""
    prompts = (*request.prompts, request.suffix, *(params.negative_prompt for params in request.branches))
    return any(isinstance(each, str) for each in (*prompts, *(params.direction for params in request.branches)))


def with_tokens(request: CompletionRequest, tokenize: Tokenize) -> CompletionRequest:
    """Tokenizes the texts of a request. Raises `InvalidRequestError`."""
    if not has_texts(request):
        return request

    if request.context_shift:
        tokenize = partial(tokenize, any_length=True)
    tokens = partial(to_tokens, tokenize=tokenize, is_prompt=True)
    branches = tuple(
        replace(
            each,
            negative_prompt=each.negative_prompt and tokens(each.negative_prompt),
            direction=each.direction
            and to_tokens(each.direction, tokenize=tokenize, is_prompt=False, name="direction"),
        )
        for each in request.branches
    )
    prompts = tuple(tokens(each, name=request.prompt_name(k)) for k, each in enumerate(request.prompts))
    suffix = request.suffix and to_tokens(request.suffix, tokenize, is_prompt=False, name="suffix")
    return replace(request, prompts=prompts, suffix=suffix, branches=branches)
