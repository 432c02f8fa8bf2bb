"""`Prompt` and `Sequence`: the state of a prompt and of its alternatives, which all other files of the engine work on.

It says which tokens they have, which of these are in cells, and which cells and seq_ids they have leased.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from srb.engine.adapters import Lora, key_of
from srb.engine.backend import Logits, Sampler
from srb.engine.banned import Watch
from srb.engine.diversity import CONTEXT, Diversity
from srb.engine.events import FinishReason, Token
from srb.engine.keys import keys_of
from srb.engine.kv_cache import Span
from srb.engine.media import key_of_few, placed, words
from srb.engine.moved import KEY, Moved
from srb.engine.pieces import Hit
from srb.engine.radix import pack
from srb.engine.request import Resumed
from srb.engine.sampling_params import SamplingParams
from srb.engine.scores import Scores
from srb.engine.search import Beam, Search
from srb.engine.shift import UNLIMITED, Shift
from srb.engine.text import StopStrings, TextState

if TYPE_CHECKING:
    from srb.engine.active_request import ActiveRequest

State = Literal["waiting", "prefilling", "running", "idle", "finished"]
"""What a sequence is doing.

waiting: it holds nothing yet. prefilling: it has leased its cells, and its prompt is being evaluated.
running: each step evaluates a row for it; in a search, rows for the beams instead. idle: its request explores, it
holds a text, and it has nothing to evaluate now. finished: it gets no more tokens.
"""


class Prompt:
    """A prompt: it is evaluated once, in a sequence of its own, and then forked into the sequences that continue it.

    asked: its tokens as the request has them; without the last one, if healing takes that token back.
    lora: the adapters that the prompt and its sequences are evaluated with.
    begun: by index, what its alternatives have already if the request was resumed. All of them have the same tokens,
        which are evaluated as a part of the prompt.
    healed: the text of the token that healing took back. The first drawn token begins with this text.
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
        """How many beams continue it in place of its sequences; 0: its sequences are drawn."""
        # A search that was interrupted begins anew, because it finds the same texts again.
        tokens = asked if self.n_beams else asked + next(iter(begun.values())).tokens
        self.active = active
        self.asked = asked
        self.healed = healed
        self.tokens = tokens
        self.packed = pack(tokens)
        self.lora = lora
        self.media = placed(tokens, active.request.media) if active.request.media else {}
        self.words = words(asked) if self.media else asked  # its tokens as samplers see them
        # Only prompts with the same key may begin with what this one has evaluated. What was retained with one of the
        # other keys may be its beginning, too.
        how = key_of(lora) + key_of_few(self.media.values()) + (KEY if active.request.n_cache_reuse else "")
        self.keys = keys_of(active.request.shared_within, how)
        self.key = self.keys[0]
        self.evaluated = 0  # how many of its tokens are in its cells
        self.cached = 0  # how many of these came from other requests
        self.beginning: Beginning | None = None  # what it will begin with; None once it has begun
        self.checkpoints: list[int] = []  # save its state after so many tokens; the next one is the last item
        self.grace: float | None = None  # how many tokens of later prompts may still pass it; the planner sets it
        self.logits: Logits | None = None  # those behind its last token, once it is evaluated
        self.scores: Scores | None = None  # the log-probabilities of its own tokens, if they are wanted
        self.shift: Shift | None = None  # only if the context may be too small for its texts
        self.was_retained = False  # whether saving its state was tried; it is tried once
        self.saved = 0  # how many of its tokens a saved state has, while it runs
        self.seq_id: int | None = None
        self.span: Span | None = None
        self.first_tokens: set[int] = set()  # that were drawn first, also with other adapters
        self.search: Search | None = None  # only in a search, once the prompt is evaluated
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
        """Makes the prompts for one prompt of a request: one for all new alternatives, and one for each resumed one.

        A resumed alternative has tokens already. It needs a prompt of its own, because these tokens are evaluated
        before its next token. What such prompts have in common is found as between any other prompts.
        """
        living = {index: each for index, each in begun.items() if each.finished is None}
        if active.request.n_beams:
            return [cls(active, asked, living, stops, lora, healed)] if living else []
        new = {index: each for index, each in living.items() if not each.tokens}
        groups = ([new] if new else []) + [{index: each} for index, each in living.items() if each.tokens]
        return [cls(active, asked, group, stops, lora, healed) for group in groups]

    def begin_with(self, tokens: tuple[int, ...]) -> None:
        """Replaces its tokens. Call it only before the prompt has begun."""
        self.tokens, self.packed = tokens, pack(tokens)
        for seq in self.sequences:
            seq.saved = len(tokens)

    def explore_with(self, n: int) -> None:
        """Gives it n sequences that explore together what follows."""
        (first,) = self.sequences
        self.sequences += [Sequence(self, first.index, first.params, None, Resumed()) for _ in range(n - 1)]

    @property
    def is_evaluated(self) -> bool:
        """Whether all of its tokens are in its cells."""
        return self.evaluated == len(self.tokens)

    @property
    def scored_from(self) -> int:
        """From this token on, each one must be evaluated with its logits. So it can't begin with what is behind."""
        return self.scores.end - 1 if self.scores and self.scores.end < len(self.tokens) else len(self.tokens)

    def is_scored_like(self, other: "Prompt") -> bool:
        """Whether the same is wanted of its tokens as of another prompt's."""
        return self.scores is not None and other.scores is not None and self.scores.top == other.scores.top

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
        """The sequences that have a row in each step, or the beams."""
        if self.n_beams:
            return list(self.search.living) if self.search and self.living else []
        return [seq for seq in self.sequences if seq.state == "running" and not seq.leader]

    @property
    def place(self) -> int | None:
        """A seq_id whose cells have its tokens: its own, else that of a sequence that continues it, else None."""
        if self.seq_id is not None:
            return self.seq_id
        return next((seq.seq_id for seq in self.sequences if seq.has_begun and seq.seq_id is not None), None)

    @property
    def shares(self) -> bool:
        """Whether other prompts may begin with what it has evaluated."""
        return self.active.request.cache_prompt and not (self.shift and self.shift.n_dropped)


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that a sequence can go back to, if its model forgets: a number of its tokens, and the logits behind them.

    negative: the logits of its guide at the same point.
    """

    n_tokens: int
    logits: Logits
    negative: Logits | None


class Sequence:
    """One alternative: its parameters, its text, and what it has leased.

    An alternative with a negative prompt has a `guide`: a second sequence, which begins with the negative prompt and
    goes on with the tokens of the alternative, its `leader`. A guide draws nothing and says nothing. Whatever happens
    to its leader happens to it.
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
        self.watch: Watch | None = None  # looks for text that must not come; holds tokens back from the text
        self.diversity: Diversity | None = None  # one object for it and its siblings
        self.n_counted = 0  # how many of its tokens `diversity` has counted
        self.given: tuple[int, ...] = ()  # all tokens that it will have, if it is scored and not drawn
        self.begun = resumed.tokens  # generated before the request was resumed; the prompt ends with them
        self.max_tokens = 0  # beside those in `begun`; set when the request is queued, raised when the room is known
        self.room = 0  # how many of max_tokens fit at the same time; fewer than all only if the context is shifted
        self.n_dropped = 0  # how many of its own tokens have left its cells
        self.wants_rest = False  # whether it takes as many tokens as there is room for
        self.most_tokens = UNLIMITED  # if it does: the most that it takes, beside those in `begun`
        self.most_room = 0  # if it does: the room that it had at its start, before others needed some of it
        self.tokens: list[int] = []  # generated behind its prompt; the next row evaluates the last one
        self.has_begun = False  # whether it has the cells of its prompt
        self.saved = len(prompt.tokens)  # how many of its prompt's tokens and its own a saved state has, while it runs
        self.n_indexed = 0  # how many of its own tokens the prefix index has
        self.drawn_at = 0.0  # when its last token was drawn, in seconds of the engine's clock
        self.sum_logprob = resumed.sum_logprob
        self.unsaid: list[Token] = []  # if tokens are reported: those whose text, `unsaid_text`, isn't whole yet
        self.unsaid_text = ""
        self.untold: list[int] = []  # tokens that were drawn, and that no event has yet
        self.seq_id: int | None = None
        self.mark_id: int | None = None  # the seq_id that keeps the state at its mark, if its model forgets
        self.mark: Mark | None = None
        self.behind = 0  # how many tokens before the last must be evaluated again; -1: even the last is in its cells
        self.span: Span | None = None
        self.sampler: Sampler | None = None
        self.logprob: float | None = None  # this and `weight`: of its text, if a search has found it
        self.weight: float | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | None = None  # the stop string that matched, or why it was aborted

    @property
    def place(self) -> int | None:
        """The seq_id whose cells have its tokens."""
        return self.seq_id

    @property
    def both(self) -> "tuple[Sequence, ...]":
        """The sequence itself, and its guide if it has one."""
        return (self, self.guide) if self.guide else (self,)

    def allow(self, room: int) -> None:
        """Sets its room, in tokens. Unless the context is shifted, this is also the most that it may generate."""
        for each in self.both:
            if each.prompt.shift:
                each.room = min(room, each.max_tokens)
            else:
                each.room = each.max_tokens = room

    @property
    def n_own(self) -> int:
        """How many of its own tokens take room in its cells."""
        return len(self.tokens) - self.n_dropped

    @property
    def lacks_room(self) -> bool:
        """Whether tokens must leave its cells before its last token can be evaluated."""
        return self.state == "running" and self.n_own >= self.room

    @property
    def slot(self) -> int:
        """The number of the slot that remembers its tokens when it has ended."""
        return self.prompt.active.request.slot + self.index

    @property
    def length(self) -> int:
        """How many tokens were generated, also those from before the request was resumed."""
        return len(self.begun) + len(self.tokens)

    @property
    def ahead(self) -> tuple[int, ...]:
        """The tokens behind its last one that are given, without the end, which needs no row."""
        return self.given[self.length : -1]

    @property
    def n_sure(self) -> int:
        """How many of its tokens will never be taken back."""
        watch = self.leader.watch if self.leader else self.watch
        return len(self.tokens) - (len(watch.held) if watch else 0)

    @property
    def n_settled(self) -> int:
        """How many of its own tokens are in its cells and will never be taken back."""
        mark = self.leader.mark if self.leader else self.mark
        if mark and (self.behind or self.n_sure < len(self.tokens)):
            return mark.n_tokens
        return max(0, self.n_sure - 1)

    def biases(self) -> dict[int, float]:
        """What is added to the logits before the next draw, by token; -inf for those that were taken back there."""
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
        """How many tokens count as evaluated: the prompt's, and the generated ones without the last."""
        return len(self.prompt.tokens) + max(0, len(self.tokens) - 1 - self.behind)

    @property
    def position(self) -> int:
        """How many tokens its cells hold; the next token gets this position. Smaller than `evaluated` after a shift."""
        shift = self.prompt.shift
        return self.evaluated - (shift.n_dropped + self.n_dropped if shift else 0)

    @property
    def evaluated_tokens(self) -> list[int]:
        """Its own tokens that count as evaluated."""
        return self.tokens[: self.evaluated - len(self.prompt.tokens)]


Row = Sequence | Beam
"""What has a row in a step. The row evaluates its last token."""

Holder = Prompt | Row


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a prompt begins with: tokens of a living prompt or sequence, then retained ones, then moved ones.

    shared: how many tokens come from `source`; 0 without one. With a hit, one of its pieces begins at this position.
    source: holds these tokens, or will hold them.
    hit: what was retained. The pieces behind `shared` are copied back.
    moved: chunks that come behind all this, and were at other places in the text that was retained.
    """

    shared: int = 0
    source: Prompt | Sequence | None = None
    hit: Hit | None = None
    moved: tuple[Moved, ...] = ()

    @property
    def n_tokens(self) -> int:
        """How many tokens it has in all."""
        known = self.hit.n_tokens if self.hit else self.shared
        return known + sum(each.end - each.start for each in self.moved)
