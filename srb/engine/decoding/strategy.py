"""What ways work with: the parts of the engine, as its thread has them."""

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from srb.engine.backend import Backend, Sampler
from srb.engine.decoding.base import DecodingStrategy, Row
from srb.engine.events import Token
from srb.engine.kv_cache.cells import Cells
from srb.engine.kv_cache.rollback import Rollback
from srb.engine.model_runner import ModelRunner
from srb.engine.output.detokenizer import IncrementalDetokenizer
from srb.engine.output.processor import LONGEST_CHARACTER, OutputProcessor
from srb.engine.sampling_params import SamplingParams
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import Prompt, Sequence
from srb.engine.stats import Measure, Totals
from srb.errors import BackendError


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of one engine that its ways work with."""

    backend: Backend
    scheduler: Scheduler
    cells: Cells
    memory: Rollback
    output: OutputProcessor
    decoding: ModelRunner
    totals: Totals
    observe: Callable[[Measure, float], object]
    clock: Callable[[], float]


class PromptStrategy(DecodingStrategy):
    """A way whose tokens are those of its prompt's sequences."""

    def __init__(self, prompt: Prompt, tools: EngineParts) -> None:
        self._prompt = prompt
        self._active = prompt.active
        self._tools = tools
        self.holds_texts = self.holds_texts and not prompt.block_size  # what is drawn is in rows, and not in blocks

    @property
    def n_sampled(self) -> int:  # type: ignore[override]
        """See `DecodingStrategy.n_sampled`."""
        return sum(len(seq.tokens) for seq in self._prompt.sequences)

    @property
    def n_resumed(self) -> int:  # type: ignore[override]
        """See `DecodingStrategy.n_resumed`."""
        return sum(len(seq.resumed_tokens) for seq in self._prompt.sequences)

    keeps_step = False
    """Whether its rows are all in the same steps."""

    def unit(self, row: Row) -> Hashable:
        """See `DecodingStrategy.unit`. Joint alternatives of a request are in the same steps, also those of different
        prompts."""
        if self._active.request.is_joint:
            return self._active
        return self._prompt if self.keeps_step else id(row)

    def preemption_group(self, seq: Sequence) -> Hashable:
        """Names the request if its alternatives are joint, the prompt if its sequences go together, or the sequence."""
        if self._active.request.is_joint and not self.n_rows:
            return self._active
        return id(seq) if self.is_divisible else self._prompt

    def size(self, seq: Sequence, wanted: int, most: int, n_cells: int) -> None:
        """Sets `max_tokens` of a sequence and its companions: what is wanted, or until the context is full."""
        left = max(0, (most if wanted == -1 else wanted) - len(seq.resumed_tokens))
        lengths = [len(each.prompt.tokens) for each in seq.group]
        is_alone = self._prompt.block_size > 0  # each sequence has its cells for itself
        room = n_cells - max(lengths) if is_alone else (n_cells - sum(lengths)) // len(lengths)
        for each in seq.group:
            each.max_tokens = min(left, room + 1)

    def new_sampler(self, params: SamplingParams, begun: tuple[int, ...]) -> Sampler:
        """The sampler of a text that continues the prompt, and has these tokens already. Raises `BackendError`."""
        prompt = self._prompt
        return self._tools.backend.sampler(params, self._active.compiled, prompt.words, begun, prompt.repeated)

    def new_text(self) -> IncrementalDetokenizer | None:
        """The text of something that has rows in place of the sequences; None: there are no stop strings to find."""
        prompt = self._prompt
        stops = prompt.sequences[0].text.stops
        if stops is None:
            return None
        text = IncrementalDetokenizer(stops)
        text.precede(b"".join(map(self._tools.backend.tokenizer.special_piece, prompt.asked[-LONGEST_CHARACTER:])))
        return text

    def tell(self, seq: Sequence, tokens: Many[int], reported: Many[list[Token]], end: int) -> None:
        """Gives a sequence the first `end` of these tokens, and tells those that it doesn't have yet.

        reported: what is told of each, if tokens are reported.
        """
        for place in range(seq.length, end):
            piece = self._tools.output.piece(seq, tokens[place], seq.length)
            seq.tokens.append(tokens[place])
            self._tools.output.goes_on(seq, tokens[place], reported[place] if reported else [], piece)

    def fail(self, seq: Sequence, error: BackendError) -> None:
        """Ends a sequence with an error."""
        self._tools.output.error(self._active, seq.index, error)
        self._tools.decoding.finish(seq, "error", None)

    def lost(self, row: Sequence | None) -> list[Sequence]:
        """See `DecodingStrategy.lost`."""
        return self._prompt.living if row is None else [row]
