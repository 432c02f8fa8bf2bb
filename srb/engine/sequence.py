"""A prompt, and the sequences that continue it: what they have said, and what they hold."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from srb.engine.adapters import Lora, key_of
from srb.engine.backend import Logits, Sampler
from srb.engine.banned import Watch
from srb.engine.diversity import CONTEXT, Diversity
from srb.engine.events import FinishReason, Token
from srb.engine.kv_cache import Span
from srb.engine.media import key_of_few, placed, words
from srb.engine.moved import KEY, Moved
from srb.engine.pieces import Hit
from srb.engine.radix import pack
from srb.engine.request import Resumed
from srb.engine.sampling_params import SamplingParams
from srb.engine.search import Beam, Search
from srb.engine.shift import Shift
from srb.engine.text import StopStrings, TextState

if TYPE_CHECKING:
    from srb.engine.active_request import ActiveRequest

State = Literal["waiting", "prefilling", "running", "idle", "finished"]
"""What a sequence is doing.

waiting: it holds nothing yet. prefilling: it has leased its cells, and its prompt is being evaluated.
running: each step evaluates a row for it, or for the beams that its text is found among. idle: it holds a text, of a
request that explores, and has nothing to evaluate now. finished: it gets no more tokens.
"""


class Prompt:
    """A prompt, evaluated once in a sequence of its own, then forked to those that continue it.

    asked: its tokens, as they are in the request, but for the last one where that is taken back.
    lora: what it and all that continues it are evaluated with.
    begun: what its alternatives have already, by index. It's the same tokens for all: they are evaluated with it.
    healed: the text of the token that was taken back, which the first one that is drawn begins with.
    """

    def __init__(
        self,
        active: "ActiveRequest",
        asked: tuple[int, ...],
        begun: dict[int, Resumed],
        stops: dict[tuple[str, ...], StopStrings],
        lora: Lora,
        healed: bytes,
    ) -> None:
        branches = active.request.branches
        self.n_beams = active.request.n_beams
        """How many beams go on from it, in place of its sequences; 0: none."""
        # A search begins anew where it was interrupted, and comes to the same.
        tokens = asked if self.n_beams else asked + next(iter(begun.values())).tokens
        self.active = active
        self.asked = asked
        self.healed = healed
        self.tokens = tokens
        self.packed = pack(tokens)
        self.lora = lora
        self.media = placed(tokens, active.request.media) if active.request.media else {}
        self.words = words(asked) if self.media else asked  # what samplers have seen of it
        # Who has the same one may begin with what it has evaluated.
        self.key = key_of(lora) + key_of_few(self.media.values()) + (KEY if active.request.n_cache_reuse else "")
        self.evaluated = 0  # how many of its tokens are in its cells
        self.cached = 0  # of these, known from other requests
        self.beginning: Beginning | None = None  # until it has begun with that
        self.checkpoints: list[int] = []  # after how many tokens its state is to be saved, the next one last
        self.grace: float | None = None  # how many tokens of later prompts may go before its own; set by the planner
        self.logits: Logits | None = None  # of what follows it
        self.shift: Shift | None = None  # where the context may be too small
        self.was_retained = False  # its state was saved, or can't be
        self.saved = 0  # how many of its tokens, while it runs
        self.seq_id: int | None = None
        self.span: Span | None = None
        self.first_tokens: set[int] = set()  # those that sequences have begun with
        self.search: Search | None = None  # once it is evaluated
        self.beam_ids: list[int] = []  # the seq_ids of its beams
        self.sequences = []
        for index, resumed in begun.items():
            params = branches[index % len(branches)]
            self.sequences.append(Sequence(self, index, params, stops.get(params.stop), resumed))

    @classmethod
    def of(
        cls,
        active: "ActiveRequest",
        asked: tuple[int, ...],
        begun: dict[int, Resumed],
        stops: dict[tuple[str, ...], StopStrings],
        lora: Lora,
        healed: bytes = b"",
    ) -> "list[Prompt]":
        """A prompt of the request: one for the alternatives that are new, and one for each that has tokens already.

        These are prompts of their own, because they differ in what is evaluated before the next token. What they
        have in common is found as that of any prompts.
        """
        living = {index: each for index, each in begun.items() if each.finished is None}
        if active.request.n_beams:
            return [cls(active, asked, living, stops, lora, healed)] if living else []
        new = {index: each for index, each in living.items() if not each.tokens}
        groups = ([new] if new else []) + [{index: each} for index, each in living.items() if each.tokens]
        prompts = [cls(active, asked, group, stops, lora, healed) for group in groups]
        if new:
            prompts[0].first_tokens |= {each.tokens[0] for each in begun.values() if each.tokens}
        return prompts

    def begin_with(self, tokens: tuple[int, ...]) -> None:
        """Lets these be its tokens, before it has begun."""
        self.tokens, self.packed = tokens, pack(tokens)
        for seq in self.sequences:
            seq.saved = len(tokens)

    def explore_with(self, n: int) -> None:
        """Has n sequences explore what follows."""
        (first,) = self.sequences
        self.sequences += [Sequence(self, first.index, first.params, None, Resumed()) for _ in range(n - 1)]

    @property
    def is_evaluated(self) -> bool:
        """Whether all of it is in its cells."""
        return self.evaluated == len(self.tokens)

    @property
    def position(self) -> int:
        """How many of its tokens its cells hold."""
        return self.evaluated - (self.shift.n_dropped if self.shift else 0)

    @property
    def living(self) -> list["Sequence"]:
        """The sequences that haven't finished."""
        return [seq for seq in self.sequences if seq.state != "finished"]

    @property
    def rows(self) -> "list[Row]":
        """What has a row in each step: its running sequences, or its beams."""
        if self.n_beams:
            return list(self.search.living) if self.search and self.living else []
        return [seq for seq in self.sequences if seq.state == "running" and not seq.leader]

    @property
    def place(self) -> int | None:
        """The seq_id that has its tokens: its own, or that of one which continues it, if there is one."""
        if self.seq_id is not None:
            return self.seq_id
        return next((seq.seq_id for seq in self.sequences if seq.has_begun and seq.seq_id is not None), None)

    @property
    def shares(self) -> bool:
        """Whether others may begin with what it has evaluated."""
        return self.active.request.cache_prompt and not (self.shift and self.shift.n_dropped)


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a sequence can go back to: after so many of its tokens, with the logits behind them, and its guide's."""

    n_tokens: int
    logits: Logits
    negative: Logits | None


class Sequence:
    """One alternative: its parameters, its text, and what it has leased.

    One with a negative prompt has a `guide`: a sequence that begins with that prompt, and goes on with the tokens of
    this one, its `leader`. A guide draws nothing and says nothing. What happens to its leader happens to it.
    """

    def __init__(
        self, prompt: Prompt, index: int, params: SamplingParams, stops: StopStrings | None, resumed: Resumed
    ) -> None:
        self.prompt = prompt
        self.index = index
        self.params = params
        self.state: State = "waiting"
        self.text = TextState(stops)
        self.guide: Sequence | None = None
        self.leader: Sequence | None = None
        self.watch: Watch | None = None  # for what isn't to be said; it holds tokens that the text doesn't have yet
        self.diversity: Diversity | None = None  # its siblings' as well
        self.n_counted = 0  # how many of its tokens the others know of
        self.begun = resumed.tokens  # generated before the request was resumed; its prompt ends with them
        self.max_tokens = 0  # beside these; set when the request is queued, and raised when the room is known
        self.room = 0  # for how many of these at the same time; less than all only where the context is shifted
        self.n_dropped = 0  # how many of its own tokens have left its cells
        self.wants_rest = False  # wants as many tokens as there is room for
        self.most_room = 0  # then: what it got at its start, before others needed room
        self.tokens: list[int] = []  # generated after its prompt; the next row evaluates the last one
        self.has_begun = False  # with the cells of its prompt
        self.saved = len(prompt.tokens)  # how many of its tokens and its prompt's, while it runs
        self.n_indexed = 0  # of these, known to those that look for beginnings
        self.drawn_at = 0.0  # its last token
        self.sum_logprob = resumed.sum_logprob
        self.unsaid: list[Token] = []  # with this text; only where tokens are reported
        self.unsaid_text = ""
        self.untold: list[int] = []  # drawn, and in no event yet
        self.seq_id: int | None = None
        self.mark_id: int | None = None  # the seq_id of what it goes back to, if its model forgets
        self.mark: Mark | None = None  # where that is
        self.behind = 0  # how many tokens before its last one are to be evaluated again; -1: the last one is, too
        self.span: Span | None = None
        self.sampler: Sampler | None = None
        self.logprob: float | None = None  # of a text that a search has found, and its weight
        self.weight: float | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | None = None  # what matched, or why it was aborted

    @property
    def place(self) -> int | None:
        """The seq_id that has its tokens."""
        return self.seq_id

    @property
    def both(self) -> "tuple[Sequence, ...]":
        """Itself, and its guide."""
        return (self, self.guide) if self.guide else (self,)

    def allow(self, room: int) -> None:
        """Gives it room for so many tokens, which are all that it may generate, unless the context is shifted."""
        for each in self.both:
            if each.prompt.shift:
                each.room = min(room, each.max_tokens)
            else:
                each.room = each.max_tokens = room

    @property
    def n_own(self) -> int:
        """How many of its tokens take room."""
        return len(self.tokens) - self.n_dropped

    @property
    def lacks_room(self) -> bool:
        """Whether something must leave its cells before its last token is evaluated."""
        return self.state == "running" and self.n_own >= self.room

    @property
    def slot(self) -> int:
        """Where its tokens are remembered when it has ended."""
        return self.prompt.active.request.slot + self.index

    @property
    def length(self) -> int:
        """How many tokens were generated."""
        return len(self.begun) + len(self.tokens)

    @property
    def n_sure(self) -> int:
        """How many of its tokens will never be taken back."""
        watch = self.leader.watch if self.leader else self.watch
        return len(self.tokens) - (len(watch.held) if watch else 0)

    @property
    def n_settled(self) -> int:
        """How many of its tokens are in its cells and will never leave them."""
        mark = self.leader.mark if self.leader else self.mark
        if mark and (self.behind or self.n_sure < len(self.tokens)):
            return mark.n_tokens
        return max(0, self.n_sure - 1)

    def biases(self) -> dict[int, float]:
        """What is to be added to the logits of its next token; -inf for those that were taken back there."""
        biases: dict[int, float] = {}
        if self.diversity and (strength := self.params.diversity):
            last = (*self.prompt.tokens[-CONTEXT:], *self.tokens[-CONTEXT:])[-CONTEXT:]
            biases = {token: -strength * n for token, n in self.diversity.counts(self.index, last).items()}
        if self.watch:
            biases |= dict.fromkeys(self.watch.taken_at(len(self.tokens)), -math.inf)
        return biases

    def precede(self, data: bytes) -> str:
        """Takes bytes that come before its first token; returns what can be shown."""
        if self.watch:
            self.watch.precede(data)
        return self.text.precede(data)

    @property
    def evaluated(self) -> int:
        """How many tokens are in its cells: the prompt's, and what was generated but for the last token."""
        return len(self.prompt.tokens) + max(0, len(self.tokens) - 1 - self.behind)

    @property
    def position(self) -> int:
        """How many tokens its cells hold: the position of the next one."""
        shift = self.prompt.shift
        return self.evaluated - (shift.n_dropped + self.n_dropped if shift else 0)

    @property
    def evaluated_tokens(self) -> list[int]:
        """Those of its own that are in its cells."""
        return self.tokens[: self.evaluated - len(self.prompt.tokens)]


Row = Sequence | Beam
"""Who has a row in a step: its last token is evaluated."""

Holder = Prompt | Row


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a prompt begins with: `shared` tokens of a `source` that holds or will hold them, and all of a `hit` behind.

    moved: what comes behind that, and was at other places.

    shared: 0 without a source. With a hit, the first position of one of its pieces.
    """

    shared: int = 0
    source: Prompt | Sequence | None = None
    hit: Hit | None = None
    moved: tuple[Moved, ...] = ()

    @property
    def n_tokens(self) -> int:
        """How many tokens it is in all."""
        known = self.hit.n_tokens if self.hit else self.shared
        return known + sum(each.end - each.start for each in self.moved)
