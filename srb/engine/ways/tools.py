"""What ways work with: the parts of the engine, as its thread has them."""

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.backend import Backend, Sampler
from srb.engine.decoding import Decoding
from srb.engine.kv.cells import Cells
from srb.engine.kv.memory import Memory
from srb.engine.ports import Row, Way
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import Prompt, Sequence
from srb.engine.telling.events import Token
from srb.engine.telling.outbox import LONGEST_CHARACTER, Outbox
from srb.engine.telling.stats import Measure, Totals
from srb.engine.telling.text import TextState
from srb.errors import BackendError


@dataclass(frozen=True, slots=True)
class Tools:
    """The parts of one engine that its ways work with."""

    backend: Backend
    scheduler: Scheduler
    cells: Cells
    memory: Memory
    outbox: Outbox
    decoding: Decoding
    totals: Totals
    observe: Callable[[Measure, float], object]
    clock: Callable[[], float]


class OfPrompt(Way):
    """A way whose tokens are those of its prompt's sequences."""

    def __init__(self, prompt: Prompt, tools: Tools) -> None:
        self._prompt = prompt
        self._active = prompt.active
        self._tools = tools
        self.holds_texts = self.holds_texts and not prompt.block_size  # what is drawn is in rows, and not in blocks

    @property
    def n_drawn(self) -> int:  # type: ignore[override]
        """See `Way.n_drawn`."""
        return sum(len(seq.tokens) for seq in self._prompt.sequences)

    @property
    def n_begun(self) -> int:  # type: ignore[override]
        """See `Way.n_begun`."""
        return sum(len(seq.begun) for seq in self._prompt.sequences)

    keeps_step = False
    """Whether its rows are all in the same steps."""

    def unit(self, row: Row) -> Hashable:
        """See `Way.unit`. Joint alternatives of a request are in the same steps, also those of different prompts."""
        if self._active.request.is_joint:
            return self._active
        return self._prompt if self.keeps_step else id(row)

    def group(self, seq: Sequence) -> Hashable:
        """Names the request if its alternatives are joint, the prompt if its sequences go together, or the sequence."""
        if self._active.request.is_joint and not self.n_rows:
            return self._active
        return id(seq) if self.is_divisible else self._prompt

    def size(self, seq: Sequence, wanted: int, most: int, n_cells: int) -> None:
        """Sets `max_tokens` of a sequence and its companions: what is wanted, or until the context is full."""
        left = max(0, (most if wanted == -1 else wanted) - len(seq.begun))
        lengths = [len(each.prompt.tokens) for each in seq.together]
        is_alone = self._prompt.block_size > 0  # each sequence has its cells for itself
        room = n_cells - max(lengths) if is_alone else (n_cells - sum(lengths)) // len(lengths)
        for each in seq.together:
            each.max_tokens = min(left, room + 1)

    def new_sampler(self, params: SamplingParams, begun: tuple[int, ...]) -> Sampler:
        """The sampler of a text that continues the prompt, and has these tokens already. Raises `BackendError`."""
        prompt = self._prompt
        return self._tools.backend.sampler(params, self._active.compiled, prompt.words, begun, prompt.repeated)

    def new_text(self) -> TextState | None:
        """The text of something that has rows in place of the sequences; None: there are no stop strings to find."""
        prompt = self._prompt
        stops = prompt.sequences[0].text.stops
        if stops is None:
            return None
        text = TextState(stops)
        text.precede(b"".join(map(self._tools.backend.tokenizer.special_piece, prompt.asked[-LONGEST_CHARACTER:])))
        return text

    def tell(self, seq: Sequence, tokens: Many[int], reported: Many[list[Token]], end: int) -> None:
        """Gives a sequence the first `end` of these tokens, and tells those that it doesn't have yet.

        reported: what is told of each, if tokens are reported.
        """
        for place in range(seq.length, end):
            piece = self._tools.outbox.piece(seq, tokens[place], seq.length)
            seq.tokens.append(tokens[place])
            self._tools.outbox.goes_on(seq, tokens[place], reported[place] if reported else [], piece)

    def fail(self, seq: Sequence, error: BackendError) -> None:
        """Ends a sequence with an error."""
        self._tools.outbox.error(self._active, seq.index, error)
        self._tools.decoding.finish(seq, "error", None)

    def lost(self, row: Sequence | None) -> list[Sequence]:
        """See `Way.lost`."""
        return self._prompt.living if row is None else [row]
