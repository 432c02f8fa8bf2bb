"""The state of a request on its way through the engine, which all other files of the engine work on.

An `ActiveRequest` has prompts, a `Prompt` has the sequences that continue it, and a `Sequence` is an alternative. They
say which tokens there are, which of these are in cells, and which cells and seq_ids were leased for them.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from srb.engine.backend import Compiled, Logits, Sampler
from srb.engine.backend import State as SavedState
from srb.engine.constraints.base import Constraint
from srb.engine.decoding.base import AnyStrategy, Row
from srb.engine.events import AbortReason, FinishReason, Token
from srb.engine.kv_cache.allocator import Span
from srb.engine.kv_cache.radix import keys_of, pack
from srb.engine.lora import Lora, key_of
from srb.engine.media import key_of_few, placed, words
from srb.engine.output.detokenizer import IncrementalDetokenizer, StopStrings
from srb.engine.output.logprobs import TokenReport
from srb.engine.prompt_logprobs import Scores, outputs_from
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.sampling_params import SamplingParams
from srb.engine.segments import Segment, whole_blocks


class Part(Protocol):
    """Something that a prompt begins with, behind what it shares, so that these tokens needn't be evaluated."""

    @property
    def n_tokens(self) -> int:
        """How many tokens it has."""

    def apply(self, prompt: Any) -> int:
        """Puts it into the prompt's cells, behind what is there, if it fits; returns how many tokens the prompt has."""


State = Literal["waiting", "prefilling", "running", "idle", "preempted", "finished"]
"""What a sequence is doing.

waiting: it holds nothing yet. prefilling: it was admitted, and its prompt is being evaluated, or its cells are about to
be swapped in. running: each step evaluates a row for it, or rows of its way in place of it. idle: it holds a text, and
has nothing to evaluate now. preempted: its cells were taken for others, and it goes on when there are some.
finished: it gets no more tokens.
"""


@dataclass(frozen=True, slots=True)
class Swapped:
    """The cells of a sequence while they are swapped out.

    state: those of the positions from `start` to `end`; None: they must be computed again.
    resumes: what the sequence was doing.
    """

    state: SavedState | None
    start: int
    end: int
    resumes: State = "running"


class ActiveRequest:
    """A request that is waiting or running, and sums over its prompts and sequences."""

    def __init__(
        self, request: CompletionRequest, compiled: Compiled, report: TokenReport, arrived: float, block_size: int
    ) -> None:
        self.request = request
        self.block_size = block_size  # see `Backend.block_size`
        self.compiled = compiled
        self.report = report
        self.prompts: list[Prompt] = []
        self.negatives: list[Prompt] = []  # prompts of the companions of its sequences
        self.constraints: list[Constraint] = []  # those of all its sequences
        self.number = 0  # the requests' order; the scheduler sets it
        self.early_aborts: dict[int, AbortReason] = {}  # by index: alternatives aborted while the request waits
        self.arrived = self.queued = arrived  # this time and the next two are seconds of the engine's clock
        self.admitted: float | None = None
        self.prefilled: float | None = None
        self.has_tokens = False
        self.infill: str | None = None  # see `StartEvent.infill`

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def sequences(self) -> "list[Sequence]":
        """All sequences, except those that had finished before the request was resumed."""
        return [seq for prompt in self.prompts for seq in prompt.sequences]

    @property
    def living(self) -> "list[Sequence]":
        """The sequences that haven't finished."""
        return [seq for prompt in self.prompts for seq in prompt.living]

    @property
    def waiting(self) -> "list[Sequence]":
        """The sequences that wait for cells: those that haven't begun, and those that were preempted."""
        return [seq for prompt in self.prompts for seq in prompt.sequences if seq.is_pending]


Held = tuple[int, list[Token], bytes]
"""A token that nobody was told of yet, what is to be told of it, and the bytes that it adds to the text."""


class Prompt:
    """A prompt: it is evaluated once, in a sequence of its own, and then forked into the sequences that continue it.

    asked: its tokens as the request has them; without the last one, if healing takes that token back.
    setting: what the prompt and its sequences are evaluated with; only rows with the same one are in a batch together.
    begun: by index, what its alternatives have already if the request was resumed. All of them have the same tokens,
        which are evaluated as a part of the prompt.
    stops: the stop strings of its alternatives.
    repeated: bytes at its end that aren't among its tokens: the first token that is drawn begins with them.
    begins_anew: whether the alternatives come to the tokens in `resumed_tokens` again; see `DecodingStrategy.restarts`.
    """

    def __init__(
        self,
        active: ActiveRequest,
        asked: tuple[int, ...],
        begun: dict[int, Resumed],
        stops: dict[tuple[str, ...], StopStrings],
        setting: Lora,
        repeated: bytes = b"",
        *,
        restarts: bool = False,
    ) -> None:
        self.active, self.block_size = active, active.block_size
        self.strategy: AnyStrategy  # how it is continued; set when its sequences are complete
        self.asked = asked
        self.repeated = repeated
        self.tokens = asked if restarts else asked + next(iter(begun.values())).tokens
        self.packed = pack(self.tokens)
        self.setting = setting
        self.media_placeholders = placed(
            self.tokens, active.request.media
        )  # by position: tokens that are evaluated as a whole
        self.words = words(asked)  # its tokens as samplers see them
        # Only prompts with the same key may begin with what this one has evaluated. What was retained with one of the
        # other keys may be its beginning, too.
        how = key_of(setting) + key_of_few(self.media_placeholders.values())
        self.keys = keys_of(active.request.shared_within, how)
        self.key = self.keys[0]
        self.n_computed = 0  # how many of its tokens are in its cells
        self.cached = 0  # how many of these came from other requests
        self.beginning: Beginning | None = None  # what it will begin with; None once it has begun
        self.checkpoints: list[int] = []  # save its state after so many tokens; the next one is the last item
        self.overtaking_limit: float | None = (
            None  # how many tokens of later prompts may still pass it; the planner sets it
        )
        self.logits: Logits | None = None  # those behind its last token, once it is evaluated
        self.scores: Scores | None = None  # the log-probabilities of its own tokens, if they are wanted
        self.n_cut = 0  # how many tokens were left out of it, because the context has no room for them
        self.n_shifted = 0  # how many of its tokens have left its cells, because its texts needed room
        self.was_retained = False  # whether saving its state was tried; it is tried once
        self.saved = 0  # how many of its tokens a saved state has, while it runs
        self.seq_id: int | None = None
        self.row_ids: list[int] = []  # the seq_ids of the rows that its way has itself; kept while it is swapped out
        self.swapped: Swapped | None = None
        self.swapped_rows: dict[int, Swapped] = {}  # by the seq_ids of its rows
        self.span: Span | None = None
        self.sequences = [
            Sequence(self, index, params := active.request.params(index), stops.get(params.stop), resumed)
            for index, resumed in begun.items()
        ]

    @property
    def is_computed(self) -> bool:
        """Whether all of its tokens are in its cells."""
        return self.n_computed == len(self.tokens)

    @property
    def is_ready(self) -> bool:
        """Whether its sequences can begin, or go on: it is evaluated, and the logits after it are known."""
        return self.is_computed and self.logits is not None

    @property
    def outputs_from(self) -> int:
        """From this token on, each one must be evaluated with its logits. So it can't begin with what is behind."""
        return outputs_from(self.scores, len(self.tokens))

    @property
    def segment(self) -> Segment:
        """The tokens that are evaluated next, in one manner."""
        return Segment.of(
            self.n_computed, len(self.tokens), self.media_placeholders, self.outputs_from, self.block_size
        )

    def begins_at(self, n_tokens: int) -> int:
        """How many of its first `n_tokens` it may begin with, if it isn't complete with these: whole blocks."""
        return whole_blocks(n_tokens, self.block_size, self.media_placeholders)

    @property
    def position(self) -> int:
        """How many of its tokens its cells hold."""
        return self.n_computed - self.n_shifted

    @property
    def living(self) -> "list[Sequence]":
        """The sequences that haven't finished."""
        return [seq for seq in self.sequences if seq.state != "finished"]

    @property
    def source_id(self) -> int | None:
        """A seq_id whose cells have its tokens: its own, else that of a sequence that continues it, else None."""
        if self.seq_id is not None and self.span:
            return self.seq_id
        return next((seq.seq_id for seq in self.sequences if seq.has_begun and seq.seq_id is not None), None)

    @property
    def group(self) -> "tuple[Prompt]":
        """Itself; see `Row.group`."""
        return (self,)

    @property
    def is_over(self) -> bool:
        """Whether all of its sequences have finished."""
        return not self.living

    @property
    def shares(self) -> bool:
        """Whether other prompts may begin with what it has evaluated."""
        return self.active.request.cache_prompt and not self.n_shifted


class Sequence:
    """One alternative: its parameters, its text, and what it has leased.

    An alternative may have `negatives`: sequences with rows of their own, which go on with its tokens. It is their
    `positive`. A companion draws nothing and says nothing. Whatever happens to its leader happens to it.
    """

    def __init__(
        self, prompt: Prompt, index: int, params: SamplingParams, stops: StopStrings | None, resumed: Resumed
    ) -> None:
        self.prompt = prompt
        self.index = index
        self.params = params
        self.state: State = "waiting"
        self.text = IncrementalDetokenizer(stops)
        self.constraints: list[Constraint] = []
        self.negatives: tuple[Sequence, ...] = ()
        self.positive: Sequence | None = None
        self.draft_tokens: Many[int] = ()  # see `Row.draft_tokens`; its way sets it before each step
        self.n_drafted = self.n_accepted = (
            0  # how many such tokens it was given a row for, and how many of them were drawn
        )
        self.resumed_tokens = resumed.tokens  # generated before the request was resumed; the prompt ends with them
        self.max_tokens = 0  # beside those in `resumed_tokens`; set when the request is queued
        self.n_shifted = 0  # how many of its own tokens have left its cells
        self.tokens: list[int] = []  # generated behind its prompt; the next row evaluates the last one
        self.rollback_window: list[Held] = []  # the last tokens, which rules may take back
        self.has_begun = False  # whether it has the cells of its prompt
        self.saved = len(prompt.tokens)  # how many of its prompt's tokens and its own a saved state has, while it runs
        self.n_indexed = 0  # how many of its own tokens the prefix index has
        self.sampled_at = 0.0  # when its last token was drawn, in seconds of the engine's clock
        self.sum_logprob = resumed.sum_logprob
        self.unreported_tokens: list[int] = []  # tokens that were drawn, and that no event has yet
        self.seq_id: int | None = None
        self.n_pending_recompute = (
            0  # how many tokens before the last must be evaluated again; -1: even the last is in its cells
        )
        self.span: Span | None = None
        self.swapped: Swapped | None = None
        self.sampler: Sampler | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | None = None  # the stop string that matched, or why it was aborted

    @property
    def is_over(self) -> bool:
        """Whether it has finished."""
        return self.state == "finished"

    @property
    def is_pending(self) -> bool:
        """Whether it waits for cells: it hasn't begun, or was preempted."""
        return self.state in ("waiting", "preempted")

    @property
    def strategy(self) -> AnyStrategy:
        """How its prompt is continued."""
        return self.prompt.strategy

    @property
    def source_id(self) -> int | None:
        """The seq_id whose cells have its tokens."""
        return self.seq_id

    @property
    def group(self) -> "tuple[Sequence, ...]":
        """The sequence itself, and its companions."""
        return (self, *self.negatives)

    @property
    def n_own(self) -> int:
        """How many of its own tokens take room in its cells."""
        return len(self.tokens) - self.n_shifted

    @property
    def slot(self) -> int:
        """The number of the slot that remembers its tokens when it has ended."""
        return self.prompt.active.request.slot + self.index

    @property
    def n_tokens(self) -> int:
        """How many tokens were generated here, without those in `resumed_tokens`."""
        return len(self.tokens)

    @property
    def length(self) -> int:
        """How many tokens were generated, also those from before the request was resumed."""
        return len(self.resumed_tokens) + len(self.tokens)

    @property
    def next_token(self) -> int:
        """The token that its next row evaluates."""
        return self.tokens[-1 - self.n_pending_recompute]

    @property
    def may_go_back(self) -> bool:
        """Whether tokens of it may be taken back."""
        return any(constraint.may_roll_back for constraint in (self.positive or self).constraints)

    @property
    def n_final(self) -> int:
        """How many of its tokens will never be taken back."""
        return len(self.tokens) - len((self.positive or self).rollback_window)

    def push_prompt(self, data: bytes) -> str:
        """Takes bytes that come before its first token; returns what can be shown."""
        for constraint in self.constraints:
            constraint.push_prompt(data)
        return self.text.push_prompt(data)

    @property
    def is_whole(self) -> bool:
        """Whether no text is kept back."""
        return self.text.is_whole

    @property
    def n_computed(self) -> int:
        """How many tokens count as evaluated: the prompt's, and the generated ones without the last."""
        return len(self.prompt.tokens) + max(0, len(self.tokens) - 1 - self.n_pending_recompute)

    @property
    def position(self) -> int:
        """How many tokens its cells hold; the next token gets this position. Smaller than `n_computed` after a
        shift."""
        return self.n_computed - self.prompt.n_shifted - self.n_shifted

    @property
    def computed_tokens(self) -> list[int]:
        """Its own tokens that count as evaluated."""
        return self.tokens[: self.n_computed - len(self.prompt.tokens)]


Holder = Prompt | Row


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a prompt begins with: tokens that it shares with a living prompt or sequence, and then another part.

    shared: how many tokens come from `source`; 0 without one.
    source: holds these tokens, or will hold them.
    rest: what comes behind them.
    """

    shared: int = 0
    source: Prompt | Sequence | None = None
    rest: Part | None = None

    @property
    def n_tokens(self) -> int:
        """How many tokens it has in all."""
        return self.shared + (self.rest.n_tokens if self.rest else 0)
