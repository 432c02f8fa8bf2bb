"""The five ports by which features reach the heart of the engine. The heart asks them, and knows no feature.

| port | there is one | what it decides |
|---|---|---|
| `Way` | for each prompt | how the prompt is continued: by drawing, searching, exploring |
| `Rule` | for each alternative and feature | what may be drawn, and whether it stays: diversity, banned phrases |
| `Part` | for each thing that a prompt begins with | how cells come to hold it: a fork, a retained state |
| `Listener` | for each engine and feature | nothing: it is told what was evaluated, and what is given back |
| `Report` | for each request | what is told of a token beside its text |

`ways/__init__.py` and `rules/__init__.py` choose those of a request. A new way or rule is a file, and a line there.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Protocol

from srb.engine.backend import Logits, Sampler
from srb.engine.telling.events import Event, StopEvent, Token


class Row(Protocol):
    """What has a row in a step: a sequence that draws, or a beam, say. The row evaluates its next token."""

    seq_id: int | None

    @property
    def way(self) -> "Way": ...

    @property
    def together(self) -> "Sequence[Row]":
        """The row itself, and further rows of the same alternative, which are always in the same step."""

    @property
    def next_token(self) -> int:
        """The token that the next step evaluates."""

    @property
    def position(self) -> int:
        """The position of this token: how many tokens the cells hold."""

    @property
    def n_tokens(self) -> int:
        """How many tokens were generated behind the prompt."""

    @property
    def ahead(self) -> Sequence[int]:
        """The tokens behind the next one that are known, or guessed, and may be evaluated before they are drawn."""

    @property
    def is_over(self) -> bool:
        """Whether it needs no more steps."""


class Way:
    """How a prompt is continued. There is one for each prompt, and only the engine's thread calls it.

    Each sequence of a prompt has cells and a row of its own, unless the way has `n_rows` rows in place of these: the
    sequences of a search only get the texts that it finds.
    """

    n_rows = 0
    """How many rows it has itself, each with a seq_id, in place of those of its sequences; 0: these have rows."""

    begins_anew = False
    """Whether it begins with the prompt again after an interruption, and finds what it had found before."""

    is_divisible = False
    """Whether its sequences can be preempted one by one, and computed again from their tokens."""

    needs_unified = False
    """Whether its rows fork or move cells in nearly every step, which is slow or impossible in streams."""

    holds_texts = True
    """Whether a sequence holds the text of its alternative, which other prompts may begin with."""

    slides = False
    """Whether tokens leave its cells while it goes on, so that other prompts can't share them."""

    n_drawn = 0
    """How many tokens it has found since the request came."""

    n_begun = 0
    """How many tokens it had already then, because the request goes on after an interruption."""

    @property
    def rows(self) -> Sequence[Row]:
        """What has a row in the next step."""
        return ()

    def unit(self, row: Row) -> Hashable:
        """What all rows are named that are always in the same step as a row: by its own name, it is alone."""
        return id(row)

    row_cells = 0
    """How many cells each of its own rows needs at most."""

    def group(self, seq: Any) -> Hashable:
        """Names the sequences that are admitted, preempted and resumed together: by its own name, it is alone."""
        return id(seq)

    def size(self, seq: Any, wanted: int, most: int, n_cells: int) -> None:
        """Sets how many tokens a sequence may generate in a context of `n_cells` cells.

        wanted: how many it asks for; -1: until the context is full, but at most `most`.
        """
        raise NotImplementedError

    def before_step(self) -> None:
        """Called before each step, for each prompt that holds cells. It may make room in these cells."""

    def begin(self, row: Any) -> None:
        """Lets one of the prompt's sequences go on. Its prompt is evaluated now, and those of its companions are.

        Called again for a sequence that has gone back so far that nothing of it is left to evaluate.
        """

    def take(self, row: Any, logits: Logits, beside: Sequence[Logits]) -> None:
        """Takes the logits behind the token that a row has evaluated. They are valid until the next step.

        beside: those of the rows that are together with it. It is called once for each token of a row, and for each one
        ahead that was drawn, also when the row has ended with the one before.
        """

    def after_step(self) -> None:
        """Called when all rows of a decode, or all sequences that begin now, were taken."""

    def lost(self, row: Any) -> Collection[Any]:
        """Which sequences end because a row can't be evaluated; None: because the prompt itself can't be."""
        raise NotImplementedError


class Draw:
    """One draw of an alternative, which its rules may change before it.

    logits: those that the sampler will see. model: those of the model, which are reported. beside: its companions'.
    excluded: tokens that aren't drawn, unless nothing else is left. biases: what is added to the logits of tokens;
    -inf: the token is drawn only if no other can be.
    """

    __slots__ = ("beside", "biases", "excluded", "logits", "model")

    def __init__(self, logits: Logits, beside: Sequence[Logits]) -> None:
        self.logits = self.model = logits
        self.beside = beside
        self.excluded: Collection[int] = ()
        self.biases: dict[int, float] = {}


class Rule:
    """What changes the draws of one alternative. Only the engine's thread calls it, and its rules in their order."""

    goes_back = False
    """Whether it may take tokens back."""

    n_held = 0
    """How many of the last tokens it may still take back. They aren't told before that is decided."""

    def between_steps(self) -> None:
        """Called between two steps: what the rule then learns of siblings is the same for all of them."""

    def precede(self, data: bytes) -> None:
        """Takes the bytes of text that come before the first token."""

    def skip(self, piece: bytes) -> None:
        """Takes the bytes of a token that was told before the request was interrupted."""

    def before(self, draw: Draw) -> None:
        """Changes the next draw. Raises `BackendError`."""

    def after(self, draw: Draw, token: int, piece: bytes, *, is_last: bool) -> int:
        """Takes the token that was drawn; returns how many of the last tokens, this one included, are taken back.

        piece: the bytes that the token adds to the text. is_last: whether the text ends with it. Raises `BackendError`.
        """
        return 0

    def taken_back(self) -> None:
        """Called when tokens of the alternative were taken back, for whichever rule."""

    def ended(self, event: StopEvent) -> StopEvent:
        """The event of the alternative's end, with what there is to tell of this rule."""
        return event


class Part(Protocol):
    """Something that a prompt begins with, behind what it shares, so that these tokens needn't be evaluated."""

    @property
    def n_tokens(self) -> int:
        """How many tokens it has."""

    def apply(self, prompt: Any) -> int:
        """Puts it into the prompt's cells, behind what is there, if it fits; returns how many tokens the prompt has."""


class Listener:
    """Is told what happens to prompts and sequences. Only the engine's thread calls it."""

    def begin_step(self) -> None:
        """Called at the beginning of each step."""

    def before_decode(self) -> None:
        """Called before each decode, when there is nothing to tell a client."""

    def evaluated(self, prompt: Any, n_tokens: int, last_row: int) -> None:
        """Called when so many more tokens of a prompt were evaluated. last_row: the number of the last one's row."""

    def shares(self, source: Any, prompt: Any) -> None:
        """Called before a prompt begins with what another holder, `source`, has evaluated."""

    def inherits(self, prompt: Any, heir: Any) -> None:
        """Called when a prompt has ended for which others wait, and one of these evaluates in its place."""

    def begins(self, prompt: Any) -> None:
        """Called when a prompt is evaluated, before one of its sequences begins."""

    def forked(self, seq: Any) -> None:
        """Called when a sequence has the cells of its prompt. From now on it goes on by itself."""

    def gives_away(self, prompt: Any) -> None:
        """Called before the last sequence that continues a prompt gets the prompt's seq_id, which then has its text."""

    def loses_end(self, prompt: Any) -> None:
        """Called when something is about to change the cells of an evaluated prompt, so that its end is lost."""

    def lets_go(self, seq: Any, *, is_idle: bool, is_waited_for: bool) -> bool:
        """Whether the cells of a finished sequence may be given back now. If not, the sequence waits with its cells.

        is_idle: no sequence is running. is_waited_for: somebody waits for the sequence's cells, or for the engine.
        """
        return True

    def leaves(self, seq: Any) -> None:
        """Called before the cells of a finished sequence are given back."""


class Line(Protocol):
    """What a report needs of an alternative: the text that it has said."""

    index: int
    untold: list[int]
    """The tokens that were drawn, and that no event has yet."""

    @property
    def is_whole(self) -> bool:
        """Whether no text is kept back."""

    @property
    def sampler(self) -> Sampler | None:
        """What has drawn its last token."""


class Report(Protocol):
    """What is told of the tokens of a request. It is chosen once, when the request comes."""

    echoes: bool
    """Whether the text of an alternative begins with its prompt."""

    def of(self, line: Line, token: int, logits: Logits) -> list[Token]:
        """What is to be told of a token that was just drawn from these logits. Raises `BackendError`."""

    def say(self, line: Line, tokens: list[Token], text: str, *, is_last: bool = False) -> Iterable[Event]:
        """The events of text, and of the reported tokens that it came from."""

    def end(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        """The event of an alternative's end, with the mean of its tokens' log-probabilities if this is to be told."""
