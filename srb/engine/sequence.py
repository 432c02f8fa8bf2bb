"""The state of a request on its way through the engine.

An `ActiveRequest` has prompts, a `Prompt` has the sequences that continue it, and a `Sequence` is an alternative. They
say which tokens there are, which of these are in cells, and which cells and seq_ids were allocated for them. What only
a strategy, a constraint, the planner or the retention policy remembers of them, these have.
"""

from collections import abc
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from srb.engine.backend import Compiled, Logits, Sampler, State
from srb.engine.constraints.base import Constraint
from srb.engine.decoding.base import AnyStrategy, Row
from srb.engine.events import AbortReason, Token
from srb.engine.kv_cache.allocator import Span
from srb.engine.kv_cache.entries import Hit
from srb.engine.kv_cache.radix import Keys, keys_of, pack
from srb.engine.lora import Lora, key_of
from srb.engine.media import key_of_few, placed, whole_blocks, words
from srb.engine.output.detokenizer import IncrementalDetokenizer, StopStrings
from srb.engine.output.logprobs import TokenReport
from srb.engine.prompt_scores import Scores
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens of a prompt up to `end`.

    Attributes:
        end: the position after its last token.
        is_whole: its tokens are computed at once, in a batch of their own, as an image is.
        has_logits: each of them gets logits, because the next one is scored.
    """

    end: int
    is_whole: bool = False
    has_logits: bool = False


SequenceState = Literal["waiting", "prefilling", "running", "idle", "preempted", "finished"]
"""What a sequence is doing.

waiting: it has nothing yet. prefilling: it was admitted, and its prompt is being computed, or its cells are about to be
swapped in. running: each step computes a row for it, or rows of its strategy in place of it. idle: it has a text, and
nothing to compute now. preempted: its cells were taken for others, and it goes on when there are some. finished: it
gets no more tokens.
"""


@dataclass(frozen=True, slots=True)
class Swapped:
    """The cells of a prompt or a sequence while they are swapped out.

    Attributes:
        state: those of the positions from `start` to `end`; None: they must be computed again.
        resumes: what the sequence was doing.
        rows: the same of each row of a prompt's strategy, by seq_id.
    """

    state: State | None
    start: int
    end: int
    resumes: SequenceState = "running"
    rows: "dict[int, Swapped]" = field(default_factory=dict)


class ActiveRequest:
    """A request that is waiting or running, and sums over its prompts and sequences."""

    def __init__(
        self, request: CompletionRequest, compiled: Compiled, report: TokenReport, arrived: float, block_size: int
    ) -> None:
        self.request = request
        self.block_size = block_size  # `Backend.block_size`
        self.compiled = compiled
        self.report = report
        self.prompts: list[Prompt] = []
        self.negative_prompts: list[Prompt] = []  # those of negative sequences
        self.constraints: list[Constraint] = []  # those of all its sequences
        self.number = 0  # the requests' order; the scheduler sets it
        self.priority = request.priority  # the lower, the more urgent; it may change
        self.early_aborts: dict[int, AbortReason] = {}  # by index: alternatives aborted while the request waits
        self.arrived = self.queued = arrived  # this time and the next two are seconds of the engine's clock
        self.admitted: float | None = None
        self.prefilled: float | None = None
        self.has_tokens = False
        self.infill: str | None = None  # `StartEvent.infill`

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def all_prompts(self) -> "list[Prompt]":
        """Its prompts, and those of negative sequences."""
        return self.prompts + self.negative_prompts

    @property
    def sequences(self) -> "list[Sequence]":
        """All sequences, except negative ones and those that had finished before the request was resumed."""
        return [seq for prompt in self.prompts for seq in prompt.sequences]

    @property
    def living(self) -> "list[Sequence]":
        """The sequences that haven't finished."""
        return [seq for prompt in self.prompts for seq in prompt.living]

    @property
    def pending(self) -> "list[Sequence]":
        """The sequences that wait for cells: those that haven't begun, and those that were preempted."""
        return [seq for prompt in self.prompts for seq in prompt.sequences if seq.is_pending]


class Prompt:
    """A prompt: it is computed once, in a sequence of its own, and then forked into the sequences that continue it.

    Args:
        asked: its tokens as the request has them; without the last one, if token healing takes that one back.
        resumed: by index, what its alternatives have already if the request was resumed. All of them have the same
            tokens, which are computed as a part of the prompt.
        stops: the stop strings of its alternatives.
        lora: the adapters that it is computed with; only rows with the same ones are in a batch.
        repeated: bytes at its end that aren't among its tokens: the first token that is sampled begins with them.
        restarts: whether the alternatives generate the tokens in `resumed` again (`DecodingStrategy.restarts`).
    """

    def __init__(
        self,
        active: ActiveRequest,
        asked: tuple[int, ...],
        resumed: dict[int, Resumed],
        stops: dict[tuple[str, ...], StopStrings],
        lora: Lora,
        repeated: bytes = b"",
        *,
        restarts: bool = False,
    ) -> None:
        self.active = active
        self.strategy: AnyStrategy  # how it is continued; set when its sequences are complete
        self.asked = asked
        self.repeated = repeated
        self.tokens = asked if restarts else asked + next(iter(resumed.values())).tokens
        self.packed = pack(self.tokens)
        self.lora = lora
        self.media_placeholders = placed(self.tokens, active.request.media)  # by position
        self.n_computed = 0  # how many of its tokens are in its cells, or will be when it is swapped in
        self.cached = 0  # how many of these came from other requests
        self.beginning: Beginning | None = None  # what it will begin with; None once it has begun
        self.logits: Logits | None = None  # those after its last token, once it is computed
        self.scores: Scores | None = None  # the log-probabilities of its own tokens, if they are wanted
        self.seq_id: int | None = None  # None: it waits or is swapped out, or its last sequence has taken this over
        self.row_ids: list[int] = []  # the seq_ids of its strategy's own rows; they stay while it is swapped out
        self.span: Span | None = None
        self.swapped: Swapped | None = None
        self.sequences = [
            Sequence(self, index, params := active.request.params(index), stops.get(params.stop), each)
            for index, each in resumed.items()
        ]

    @cached_property
    def words(self) -> tuple[int, ...]:
        """The tokens that samplers see: those of the request, without placeholders."""
        return words(self.asked)

    @cached_property
    def keys(self) -> Keys:
        """Its own key, and further keys that it may be looked up with.

        Only prompts with the same key may begin with what this one has computed. What was cached with one of the other
        keys may be its beginning, too.
        """
        how = key_of(self.lora) + key_of_few(self.media_placeholders.values())
        return keys_of(self.active.request.shared_within, how)

    @property
    def key(self) -> str:
        """Its own key."""
        return self.keys[0]

    @property
    def block_size(self) -> int:
        """The size of blocks in tokens; 0: none."""
        return self.active.block_size

    @property
    def n_shifted(self) -> int:
        """How many of its tokens have left its cells."""
        return self.strategy.n_shifted

    @property
    def is_computed(self) -> bool:
        """Whether all of its tokens are in its cells."""
        return self.n_computed == len(self.tokens)

    @property
    def is_ready(self) -> bool:
        """Whether its sequences can begin, or go on: it is computed, and the logits after it are known."""
        return self.is_computed and self.logits is not None

    @property
    def outputs_from(self) -> int:
        """From this token on, each one must be computed with its logits: the next one's log-probability isn't known.

        It can't begin with later tokens.
        """
        n_tokens = len(self.tokens)
        return self.scores.end - 1 if self.scores and self.scores.end < n_tokens else n_tokens

    @property
    def segment(self) -> Segment:
        """The tokens that are computed next, in one manner."""
        start, media, scored_from = self.n_computed, self.media_placeholders, self.outputs_from
        if start in media:
            return Segment(start + len(media[start].tokens), is_whole=True)
        end = min([len(self.tokens), *(at for at in media if at > start)])
        if self.block_size:  # a block's end only depends on the prompt, not on what is cached
            end = min(end, (start // self.block_size + 1) * self.block_size)
            return Segment(end, is_whole=True, has_logits=end > scored_from)
        return Segment(end, has_logits=True) if start >= scored_from else Segment(min(end, scored_from))

    def begins_at(self, n_tokens: int) -> int:
        """Returns how many of its first `n_tokens` it may begin with, if it isn't complete with these: whole blocks."""
        return whole_blocks(self.packed, n_tokens, self.block_size)

    @property
    def n_cells(self) -> int:
        """How many cells it takes when it is computed."""
        return len(self.tokens) - self.n_shifted

    @property
    def position(self) -> int:
        """How many of its tokens its cells have."""
        return self.n_computed - self.n_shifted

    @property
    def living(self) -> "list[Sequence]":
        """The sequences that haven't finished."""
        return [seq for seq in self.sequences if seq.state != "finished"]

    @property
    def source_id(self) -> int | None:
        """A seq_id whose cells have its tokens: its own, else that of a sequence that continues it, else None."""
        if self.seq_id is not None and self.span:  # a search keeps its seq_ids while it is swapped out
            return self.seq_id
        return next((seq.seq_id for seq in self.sequences if seq.is_forked and seq.seq_id is not None), None)

    @property
    def is_over(self) -> bool:
        """Whether all of its sequences have finished."""
        return not self.living

    @property
    def shares(self) -> bool:
        """Whether other prompts may begin with what it has computed."""
        return self.active.request.cache_prompt and not self.n_shifted


HeldToken = tuple[int, list[Token], bytes]
"""A token that wasn't reported yet, its reports, and the bytes that it adds to the text."""


class Sequence:
    """One alternative: its parameters, its text, and its cells.

    With guidance it has `negatives`, at present one: sequences with cells and rows of their own, which continue a
    negative prompt with its tokens. It is their `positive`. A negative sequence has no tokens, constraints and draft
    tokens itself: it goes by those of its `leader`. It samples and reports nothing. It is admitted, preempted and
    finished with its positive.
    """

    def __init__(
        self, prompt: Prompt, index: int, params: SamplingParams, stops: StopStrings | None, resumed: Resumed
    ) -> None:
        self.prompt = prompt
        self.index = index
        self.params = params
        self.state: SequenceState = "waiting"
        shown = {*params.stop}.difference(prompt.active.request.hidden_stop)
        included = shown if params.include_stop_str_in_output else ()
        self.text = IncrementalDetokenizer(stops, included)
        self.sum_logprob = resumed.sum_logprob  # of its tokens, if log-probabilities are reported
        self.constraints: list[Constraint] = []
        self.negatives: tuple[Sequence, ...] = ()
        self.positive: Sequence | None = None
        self.draft_tokens: abc.Sequence[int] = ()  # the next step evaluates these, too; the strategy sets them
        self.n_drafted = self.n_accepted = 0  # how many of them were evaluated, and accepted
        self.resumed_tokens = resumed.tokens  # generated before the request was resumed; the prompt ends with them
        self.replayed = resumed.replayed  # the first of its tokens, if they are known: they are sampled again
        self.max_tokens = 0  # besides those in `resumed_tokens`; set when the request is queued
        self._tokens: list[int] = []
        self.unreported_tokens: list[int] = []  # sampled, and not in an event yet
        self.rollback_window: list[HeldToken] = []  # the last tokens, which constraints may take back
        self.n_own_computed = 0  # how many of its tokens count as computed: mostly all but the last
        self.is_forked = False  # whether it has the cells of its prompt
        self.sampled_at = 0.0  # when its last token was sampled, in seconds of the engine's clock
        self.seq_id: int | None = None  # None: it waits or is swapped out, or takes over its prompt's when it begins
        self.span: Span | None = None
        self.swapped: Swapped | None = None
        self.sampler: Sampler | None = None

    @property
    def tokens(self) -> list[int]:
        """The tokens generated after its prompt: those of its positive, or its own."""
        return self.positive.tokens if self.positive else self._tokens

    @property
    def leader(self) -> "Sequence":
        """The sequence that samples its tokens: its positive, or itself."""
        return self.positive or self

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
    def n_shifted(self) -> int:
        """How many of its own tokens have left its cells."""
        return self.strategy.own_shifts.get(self, 0)

    @property
    def swapped_cells(self) -> Literal["none", "own", "all"]:
        """Which cells its state in memory has: its own, or all, with those of its prompt; none without a state."""
        if self.swapped is None or self.swapped.state is None:
            return "none"
        return "own" if self.swapped.start else "all"

    @property
    def source_id(self) -> int | None:
        """The seq_id whose cells have its tokens."""
        return self.seq_id

    @property
    def group(self) -> "tuple[Sequence, ...]":
        """The sequence itself, and its negatives. The scheduler's groups consist of these."""
        return (self, *self.negatives)

    @property
    def n_own(self) -> int:
        """How many of its own tokens take cells."""
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
        """The token that its next row computes; -1 if all of its tokens are computed."""
        return self.tokens[self.n_own_computed] if self.n_own_computed < len(self.tokens) else -1

    @property
    def may_go_back(self) -> bool:
        """Whether tokens of it may be taken back."""
        return any(constraint.may_roll_back for constraint in self.leader.constraints)

    @property
    def n_final(self) -> int:
        """How many of its tokens will never be taken back."""
        return len(self.tokens) - len(self.leader.rollback_window)

    def push_prompt(self, data: bytes) -> str:
        """Takes bytes that come before its first token; returns what can be shown."""
        for constraint in self.constraints:
            constraint.push_prompt(data)
        return self.text.push_prompt(data)

    @property
    def n_computed(self) -> int:
        """How many tokens count as computed, with the prompt's."""
        return len(self.prompt.tokens) + self.n_own_computed

    @property
    def position(self) -> int:
        """How many tokens its cells have; the next token gets this position. Less than `n_computed` after a shift."""
        if not self.prompt.strategy.shifts_context:  # mostly; this is asked for several times in each step
            return self.n_computed
        return self.n_computed - self.prompt.n_shifted - self.n_shifted

    @property
    def computed_tokens(self) -> list[int]:
        """Its own tokens that count as computed."""
        return self.tokens[: self.n_own_computed]


Holder = Prompt | Row


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a prompt begins with: tokens that it shares with a living prompt or sequence, and then cached ones.

    Attributes:
        shared: how many tokens come from `source`; 0 without one.
        source: has these tokens, or will have them.
        hit: the cached beginning, of which what comes after the shared tokens is restored; None: nothing is.
    """

    shared: int = 0
    source: Prompt | Sequence | None = None
    hit: Hit | None = None

    @property
    def n_tokens(self) -> int:
        """How many tokens it has in all."""
        return self.hit.n_tokens if self.hit else self.shared
