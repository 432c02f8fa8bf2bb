"""The interface of a decoding strategy, and of the rows that it adds to a batch."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from srb.engine.backend import Backend, Logits, Sampler
from srb.engine.output.detokenizer import LONGEST_CHARACTER, IncrementalDetokenizer
from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError

if TYPE_CHECKING:
    from srb.engine.events import StopEvent, Token
    from srb.engine.kv_cache.cells import Cells
    from srb.engine.kv_cache.rollback import Rollback
    from srb.engine.model_runner import ModelRunner
    from srb.engine.output.processor import OutputProcessor
    from srb.engine.scheduler import Scheduler
    from srb.engine.sequence import Prompt, Sequence
    from srb.engine.stats import Measure, Totals


class Row(Protocol):
    """A row of the batches: a sequence that is sampled, or a beam of a search. Each step evaluates its next token."""

    seq_id: int | None

    @property
    def strategy(self) -> AnyStrategy: ...

    @property
    def group(self) -> abc.Sequence[Row]:
        """The row itself, then its negative sequences. They evaluate the same tokens, always in the same batch."""

    @property
    def next_token(self) -> int:
        """The token that the next step evaluates."""

    @property
    def position(self) -> int:
        """The position of this token: the number of tokens in its cells."""

    @property
    def n_tokens(self) -> int:
        """The number of tokens after the prompt."""

    @property
    def draft_tokens(self) -> abc.Sequence[int]:
        """The tokens after the next one that are known or proposed, and may be evaluated in the same batch."""

    @property
    def is_over(self) -> bool:
        """Whether it needs no more steps."""


RowT = TypeVar("RowT", bound=Row)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of an engine that its strategies work with."""

    backend: Backend
    scheduler: Scheduler
    cells: Cells
    rollback: Rollback
    output: OutputProcessor
    runner: ModelRunner
    totals: Totals
    observe: abc.Callable[[Measure, float], object]
    clock: abc.Callable[[], float]


class DecodingStrategy(Generic[RowT]):
    """How a prompt is continued: by sampling, by a search, by evaluating given tokens.

    There is one object for each prompt. Only the engine's thread calls it, in this order:

    1. `set_max_tokens` for each sequence, when the request is queued.
    2. `begin_sequence` for each sequence, once the prompt is evaluated. `prompt.logits` are those of its last token.
    3. In each step: `before_step`; then the engine decodes a batch with the `rows`; `process_logits` for each row;
       `after_step`.
    4. `stop_event` for each sequence that has finished.

    Subclass it, and choose the subclass in `strategies.strategy_of`. A strategy gives a sequence its tokens with
    `OutputProcessor.add_token`, and ends it with `ModelRunner.finish`. `Sampling` is the simplest: a row for each
    sequence, which samples one token in each step. A strategy with rows of its own (`n_rows`) derives from
    `CandidateStrategy`, as `BeamSearch` does.

    Args:
        prompt: The prompt, with the sequences that continue it.
        parts: The parts of the engine.
    """

    n_rows = 0
    """The number of rows that it has in place of a row for each sequence; each has a seq_id. 0: sequences have rows."""

    row_cells = 0
    """The most cells that each of these rows needs."""

    restarts = False
    """Whether an interrupted request begins with its prompt again, and finds the same texts."""

    is_divisible = False
    """Whether its sequences can be preempted one by one, and recomputed from their tokens."""

    in_lockstep = False
    """Whether all of its rows must be in the same batch."""

    needs_unified = False
    """Whether its rows fork or move cells in nearly every step, which is slow or impossible with streams."""

    caches_texts = True
    """Whether other prompts may share the cells of its sequences."""

    shifts_context = False
    """Whether tokens leave its cells while it runs, so that other prompts can't share the cells."""

    n_truncated = 0
    """The number of tokens that were left out of the prompt, because the context has no room for them."""

    n_shifted = 0
    """The number of tokens of the prompt that have left its cells."""

    own_shifts: abc.Mapping[Sequence, int] = MappingProxyType({})
    """The number of their own tokens that have left the cells of sequences."""

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        self._prompt = prompt
        self._active = prompt.active
        self._parts = parts
        self.caches_texts = self.caches_texts and not prompt.block_size  # sampled tokens are evaluated row by row

    @property
    def rows(self) -> abc.Sequence[RowT]:
        """The rows of the next batch."""
        return ()

    @property
    def n_sampled(self) -> int:
        """The number of tokens that were generated since the request came."""
        return sum(len(seq.tokens) for seq in self._prompt.sequences)

    @property
    def n_resumed(self) -> int:
        """The number of tokens that a resumed request already had when it came."""
        return sum(len(seq.resumed_tokens) for seq in self._prompt.sequences)

    def step_group(self, row: RowT) -> abc.Hashable:
        """Return a key that is equal for rows which must be in the same batch.

        Joint alternatives of a request are in the same batches, also those of different prompts.
        """
        if self._active.request.is_joint:
            return self._active
        return self._prompt if self.in_lockstep else id(row)

    def preemption_group(self, seq: Sequence) -> abc.Hashable:
        """Return a key that is equal for sequences which are admitted, preempted and resumed as a whole."""
        if self._active.request.is_joint and not self.n_rows:
            return self._active
        return id(seq) if self.is_divisible else self._prompt

    def set_max_tokens(self, seq: Sequence, requested: int, limit: int, n_cells: int) -> None:
        """Set `max_tokens` of a sequence and its negative sequences.

        Args:
            requested: The `max_tokens` of the request, or -1: until the context is full.
            limit: The most tokens of a text until the context is full.
            n_cells: The size of the context, in cells.
        """
        left = max(0, (limit if requested == -1 else requested) - len(seq.resumed_tokens))
        lengths = [len(each.prompt.tokens) for each in seq.group]
        has_own_cells = self._prompt.block_size > 0
        room = n_cells - max(lengths) if has_own_cells else (n_cells - sum(lengths)) // len(lengths)
        for each in seq.group:
            each.max_tokens = min(left, room + 1)

    def begin_sequence(self, seq: Sequence) -> None:
        """Start a sequence.

        The prompt is evaluated, and so are those of its negative sequences. A sequence with a row of its own gets its
        cells here (`Cells.fork`), and the state "running".
        """

    def before_step(self) -> None:
        """Prepare the next step. Called before each batch for each prompt that has cells."""

    def process_logits(self, row: RowT, logits: Logits, negative_logits: abc.Sequence[Logits]) -> None:
        """Process the logits that follow a token which a row has evaluated.

        Called once for each token of the row, and for each draft token that turned out to be right; also after the row
        has ended with an earlier one.

        Args:
            logits: Shape `(n_vocab,)`; valid until the next batch.
            negative_logits: Those of the other rows of `row.group`, in their order.
        """

    def after_step(self) -> None:
        """Finish a step. Called when all rows of a batch were processed, or all sequences that begin now have begun."""

    def failed_sequences(self, row: RowT | None) -> abc.Collection[Sequence]:
        """Return the sequences that end because a row can't be evaluated: by default all.

        Args:
            row: The row; None: the prompt itself can't be evaluated.
        """
        return self._prompt.living

    def stop_event(self, seq: Sequence, event: StopEvent) -> StopEvent:
        """Return the event of a finished sequence, with what this strategy adds to it."""
        return event

    def is_end(self, params: SamplingParams, token: int) -> bool:
        """Return whether a text ends with this token: it ends the generation, or is one of `stop_token_ids`."""
        return self._parts.backend.tokenizer.is_end(token) or token in params.stop_token_ids

    def stop_reason(self, token: int) -> int | None:
        """Return the reason of a text's end with this token: None if it ends the generation by itself."""
        return None if self._parts.backend.tokenizer.is_end(token) else token

    def new_sampler(self, params: SamplingParams, tokens: tuple[int, ...]) -> Sampler:
        """Return the sampler of a text that continues the prompt, and has these tokens. Raises `BackendError`."""
        prompt = self._prompt
        return self._parts.backend.sampler(params, self._active.compiled, prompt.words, tokens, prompt.repeated)

    def new_detokenizer(self) -> IncrementalDetokenizer | None:
        """Return a detokenizer that finds stop strings in the text of a row; None: there are no stop strings."""
        prompt = self._prompt
        stops = prompt.sequences[0].text.stops
        if stops is None:
            return None
        text = IncrementalDetokenizer(stops, prompt.sequences[0].text.included)
        text.push_prompt(b"".join(map(self._parts.backend.tokenizer.special_piece, prompt.asked[-LONGEST_CHARACTER:])))
        return text

    def add_tokens(
        self, seq: Sequence, tokens: abc.Sequence[int], details: abc.Sequence[list[Token]], end: int
    ) -> None:
        """Extend a sequence to the first `end` tokens of a text.

        Args:
            details: What `TokenReport.details` returned for each token, if tokens are reported.
            end: The length that the sequence gets.
        """
        for place in range(seq.length, end):
            piece = self._parts.output.piece(seq, tokens[place], seq.length)
            seq.tokens.append(tokens[place])
            self._parts.output.add_token(seq, tokens[place], details[place] if details else [], piece)

    def fail_sequence(self, seq: Sequence, error: BackendError) -> None:
        """End a sequence with an error."""
        self._parts.output.error(self._active, seq.index, error)
        self._parts.runner.finish(seq, "error", None)


AnyStrategy = DecodingStrategy[Any]
"""A strategy whose rows the caller got from `DecodingStrategy.rows`."""
