"""The methods of an `EngineClient` for programs that want a result and no events; see `srb.engine.programs.texts`."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, overload

from srb.engine.asking.kinds import Text
from srb.engine.asking.request import CompletionRequest, Explore
from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.kept.slot_file import write_slot
from srb.engine.kept.slots import Slots
from srb.engine.programs.saved import SLOT, Saving, read_saved
from srb.engine.programs.table import Score, ScoredRow, Table
from srb.engine.programs.texts import Answer, Texts, Writing, embed, scores_of, table_of
from srb.engine.programs.tokens import to_tokens
from srb.engine.telling.events import ErrorEvent, Event, NodeEvent
from srb.serving.facts import Facts


class AsyncForPrograms(Facts):
    """These methods are the same for every class that has `generate` and knows the model."""

    @abstractmethod
    async def ask(self, slot: int, question: Callable[[Slots], Answer]) -> Answer: ...

    @abstractmethod
    def generate(self, request: CompletionRequest) -> AsyncIterator[Event]: ...

    async def explore(self, prompt: Text, explore: Explore | None = None) -> AsyncIterator[NodeEvent]:
        """The nodes of the tree of likely continuations of a prompt, the likeliest first. Leaving the loop ends the
        request.

        Raises what `submit` raises, and `SrbError` for a fault on the way.
        """
        async for event in self.generate(CompletionRequest.exploring(prompt, explore or Explore())):
            if isinstance(event, NodeEvent):
                yield event
            elif isinstance(event, ErrorEvent):
                raise event.error

    async def generate_texts(self, prompt: Text, n: int = 1, params: SamplingParams | None = None) -> list[str]:
        """n texts that go on with a prompt. Raises what `submit` raises, and `SrbError` for a fault."""
        writing = Writing(prompt, n, params)
        async for event in self.generate(writing.request):
            writing.take(event)
        return writing.result()

    @overload
    async def score(self, prompt: Text, candidates: Sequence[Text]) -> list[Score]: ...
    @overload
    async def score(
        self, prompt: Texts, candidates: Sequence[Text] | Sequence[Sequence[Text]]
    ) -> list[list[Score]]: ...

    async def score(self, prompt: Any, candidates: Any) -> Any:
        """How likely each of these texts is after the prompt, which is evaluated once. See `Engine.score`.

        Raises what `submit` raises, and `SrbError` for a fault.
        """
        table = table_of(prompt, candidates)
        async with aclosing(self.score_table(table)) as rows:
            return scores_of(table, prompt, [row async for row in rows])

    @abstractmethod
    def score_table(self, table: Table) -> AsyncGenerator[ScoredRow]:
        """The rows of a table, those of a context together, as soon as they are known. See `Engine.score_table`.

        Leaving the loop ends what runs of it. Raises what `submit` raises.
        """

    async def embed(self, texts: Sequence[Text]) -> list[list[float]]:
        """The embedding of each text: a vector of the length 1. See `Engine.embed`."""
        return await asyncio.to_thread(embed, self.embedder, texts, self.tokenize)

    async def save(self, path: str | Path, prompt: Text) -> int:
        """Writes the evaluated state of a text to a file; returns how many tokens it has. See `Engine.save`.

        Raises what `submit` raises, `SrbError` for a fault, and `OSError`.
        """
        saving = Saving(await asyncio.to_thread(to_tokens, prompt, self.tokenize, is_prompt=True))
        async for event in self.generate(saving.request):
            saving.take(event)
        saved = await self.ask(SLOT, saving.found)
        await asyncio.to_thread(write_slot, Path(path), self.identity, saved)
        return saved.n_tokens

    async def load(self, path: str | Path) -> tuple[int, ...]:
        """Reads what `save` has written and keeps it as a retained state. Returns its tokens. See `Engine.load`."""
        saved = await asyncio.to_thread(read_saved, path, self.identity)
        return tuple(await self.ask(SLOT, lambda slots: slots.keep(saved)))
