"""`LLM`: a model for programs that wait for results. `EngineClient` is the same with asyncio."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, overload

from srb.engine import offline
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.kv_cache.state_store import write_text
from srb.engine.mailbox import Answer
from srb.engine.offline import Texts
from srb.engine.outputs import CompletionOutput, CompletionOutputs
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import PARTS_AT_ONCE, Part, Score, ScoredRow, Table, TableScorer
from srb.engine.validation.fields import Text
from srb.files.download import fetch_model
from srb.options.settings import Settings
from srb.serving.async_engine import make_engine

if TYPE_CHECKING:
    from srb.llama.backend import LlamaBackend

REQUESTS_AT_ONCE = 64
"""The number of requests of `run` in an engine at a time."""


class LLM:
    """A model for a program that waits for results. Only one call may run at a time, but for `embed`.

    Use it as a context manager, or call `close`.

    Args:
        engine: one that has no other work.

    Attributes:
        engine: with its tokenizer, counters and facts of the model.
        sampling: the values that the model's file recommends, by fields of `SamplingParams`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sampling: Mapping[str, Any] = MappingProxyType({})
        self._backend: LlamaBackend | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Downloads the model if needed, and loads it.

        Args:
            settings: of the model and the engine.

        Raises:
            SettingsError: A setting has a wrong value.
            ModelLoadError: The model can't be loaded.
        """
        from srb.llama.backend import LlamaBackend  # imported here, so that other backends don't need llama.cpp
        from srb.llama.model.metadata import sampling_of

        fetched = fetch_model(settings)
        backend = LlamaBackend(fetched)
        try:
            llm = cls(make_engine(settings, backend))
        except BaseException:
            backend.close()
            raise
        llm.sampling = sampling_of(fetched)
        llm._backend = backend
        return llm

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the model, if `from_settings` has loaded it. Returns when the disk cache is written."""
        self.engine.close()
        if self._backend:
            self._backend.close()

    def run(self, *requests: CompletionRequest) -> Iterator[Event]:
        """Yields the events of requests, some of which run at a time.

        If the caller leaves the loop early, they stay in the engine, and its next `step` continues them.

        Raises:
            InvalidRequestError: A request can never run.
            RuntimeError: The engine has other work.
        """
        return self._run(iter(requests), REQUESTS_AT_ONCE)

    def _run(self, waiting: Iterator[CompletionRequest], at_once: int) -> Iterator[Event]:
        """Yields the events of requests, which are made one by one when there is room for the next."""
        self._check_idle()
        for request in islice(waiting, at_once):
            self.engine.add_request(request)
        while self.engine.has_work:
            for event in self.engine.step():
                if isinstance(event, DoneEvent) and (request_after := next(waiting, None)):
                    self.engine.add_request(request_after)
                yield event

    def generate_texts(
        self, prompt: Text, n: int = 1, params: SamplingParams | None = None
    ) -> CompletionOutputs[CompletionOutput]:
        """Generates n texts that continue a prompt. Raises `InvalidRequestError`, and `SrbError` for a fault."""
        texts = offline.TextsRequest(prompt, n, params)
        for event in self.run(texts.request):
            texts.take(event)
        return texts.result()

    @overload
    def score(self, prompt: Text, candidates: Sequence[Text]) -> list[Score]: ...
    @overload
    def score(self, prompt: Texts, candidates: Sequence[Text] | Sequence[Sequence[Text]]) -> list[list[Score]]: ...

    def score(self, prompt: Any, candidates: Any) -> Any:
        """Computes the log-probability of each candidate given the prompt, which is evaluated once.

        Args:
            prompt: a text or token ids, or a list of such prompts.
            candidates: texts or token ids. With several prompts: those that all have, or a list for each prompt. A text
                is tokenized together with its prompt (`pair_tokens`).

        Returns:
            A score for each candidate, in order; with several prompts, such a list for each.

        Raises:
            InvalidRequestError: An argument is wrong, or too long for the context.
            SrbError: A fault.
        """
        table = offline.table_of(prompt, candidates)
        with closing(self.score_table(table)) as rows:
            return offline.scores_of(table, prompt, rows)

    def score_table(self, table: Table) -> Generator[ScoredRow]:
        """Yields the rows of a table, grouped by context, as soon as they are scored.

        A row that can't be scored has an `error`. Leaving the loop ends the rest. Raises `InvalidRequestError` for a
        `lora` that isn't loaded.
        """
        self._check_idle()  # before what ends all work
        engine = self.engine
        scorer, parts = TableScorer(table, engine.tokenize, engine.check), dict[str, Part]()

        def requests() -> Iterator[CompletionRequest]:
            while part := scorer.next_part():
                parts[part.request.id] = part
                yield part.request

        try:
            for event in self._run(requests(), PARTS_AT_ONCE):
                parts[event.request_id].take([event])
                if parts[event.request_id].done:
                    scorer.put(parts.pop(event.request_id))
                    yield from scorer.take_rows()
            yield from scorer.take_rows()
        finally:
            for request_id in parts:  # the caller has left the loop
                engine.abort(request_id)
            while engine.has_work:  # frees the cells of the parts that have ended
                engine.step()

    def embed(self, texts: Sequence[Text]) -> list[list[float]]:
        """Embeds texts: makes a vector of the length 1 for each. May be called from any thread.

        Raises:
            NotSupportedError: The engine wasn't made for embeddings, with
                `Settings(embeddings=True, pooling="mean")` for example.
            InvalidRequestError: A text has more tokens than `ubatch_size`.
        """
        return offline.embed(self.engine.model.embedder, texts, self.engine.tokenize)

    def save(self, path: str | Path, prompt: Text) -> int:
        """Writes the evaluated state of a text to a file, for `load`. Returns the number of its tokens.

        Only the part of the text that isn't cached is evaluated. If the text is a prompt with what an alternative
        generated after it, this is only the last token.

        Raises:
            InvalidRequestError: The engine caches nothing (`cache_bytes`), or the text has fewer than 16 tokens.
            OSError: The file can't be written.
        """
        saving = offline.SaveRequest(prompt, self.engine.tokenize)
        for event in self.run(saving.request):
            saving.take(event)
        saved = self._ask(saving.find)
        write_text(Path(path), self.engine.model.identity, saved)
        return saved[-1].end

    def load(self, path: str | Path) -> tuple[int, ...]:
        """Caches a state that `save` has written, for prompts that begin with its tokens. Returns these tokens.

        Raises:
            InvalidRequestError: It isn't such a file, is of another model, or is larger than `cache_bytes`.
        """
        saved = offline.read_saved(path, self.engine.model.identity)
        return tuple(self._ask(lambda states: states.put(saved)))

    def _ask(self, question: Callable[[StateCache], Answer]) -> Answer:
        answer = self.engine.ask(offline.SLOT, question)
        while not answer.done():
            self.engine.step()
        return answer.result()

    def _check_idle(self) -> None:
        if self.engine.has_work:
            raise RuntimeError("LLM is for an engine that has no other work; use add_request() and step()")
