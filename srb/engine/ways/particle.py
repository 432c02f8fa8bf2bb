"""`Particle`: a text that is drawn beside others, each with a row of its own."""

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence as Many
from typing import Literal

from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.backend import Sampler
from srb.engine.ports import Way
from srb.engine.telling.events import FinishReason, Token
from srb.engine.telling.text import TextState
from srb.errors import BackendError

_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\]*_]*\s*$|\n\s*$")
"""A text that ends here may be complete. "Mr." is one of its mistakes, which the suffix's likelihood tells."""

LEAST = 8
"""A particle is weighed where it has so many tokens more than when it was weighed last, and a sentence ends."""

_MOST = 48
"""If no sentence ends, it is weighed after so many more tokens."""

_PATIENCE = 2
"""With `stop_at_suffix`, it ends when so many sentences haven't made the suffix likelier than it was before them."""

_TAIL = 16  # bytes: as much of a text as it takes to see where it ends


class Particle:
    """A text that is drawn beside others. Implements `srb.engine.ports.Row`.

    number: its place, which has a seed and a seq_id of its own. n_before: the length of the prompt, in tokens.
    text: looks for stop strings; None: there are none. begun: the tokens that it has already.
    at_once: whether known tokens may be evaluated together.
    """

    def __init__(
        self,
        way: Way,
        number: int,
        params: SamplingParams,
        seq_id: int,
        *,
        n_before: int,
        text: TextState | None,
        begun: Many[int] = (),
        at_once: bool = True,
    ) -> None:
        self.way = way
        self.number = number
        self.params = params
        self.seq_id: int | None = seq_id
        self.n_before = n_before
        self.text = text
        self.tokens = list(begun)
        self.n_held = 0  # how many of its tokens are in its cells
        self.state: Literal["drawing", "looking", "waiting", "ended"] = "drawing"
        self.sampler: Sampler | None = None
        self.pieces: list[bytes] = []  # what each of its tokens adds to the text
        self.reported: list[list[Token]] = []  # for each token, if tokens are reported
        self.base = 0.0  # what its log-weight has beside the twist
        self.twist = 0.0  # how likely the suffix was when it was looked at last
        self.n_looked = 0  # how many tokens it had then
        self.looks: list[tuple[int, float]] = []  # at ends of sentences: how many tokens it had, and how likely it was
        self.suffix_logprob: float | None = None  # once it has ended and is scored
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | None = None
        self.error: BackendError | None = None
        self._at_once = at_once

    @property
    def together(self) -> "tuple[Particle]":
        """Itself; see `Row.together`."""
        return (self,)

    @property
    def next_token(self) -> int:
        """The token that its next row evaluates."""
        return self.tokens[self.n_held]

    @property
    def ahead(self) -> list[int]:
        """The tokens behind this one: those that it had before the request was interrupted."""
        return self.tokens[self.n_held + 1 :] if self._at_once else []

    @property
    def n_tokens(self) -> int:
        """How many tokens it has behind the prompt."""
        return len(self.tokens)

    @property
    def position(self) -> int:
        """How many tokens are in its cells: the prompt's, and its own without the last."""
        return self.n_before + self.n_held

    @property
    def is_over(self) -> bool:
        """Whether it needs no more steps."""
        return self not in self.way.rows

    @property
    def log_weight(self) -> float:
        """The natural logarithm of its weight."""
        return self.base + self.twist

    @property
    def ends_sentence(self) -> bool:
        """Whether a sentence ends with its last token, as far as can be seen there."""
        tail = b""
        for piece in reversed(self.pieces):
            tail = piece + tail
            if len(tail) >= _TAIL:
                break
        return _SENTENCE_END.search(tail.decode(errors="ignore")) is not None

    def push(self, piece: bytes) -> None:
        """Takes the bytes that its next token adds to the text."""
        self.pieces.append(piece)
        if self.text:
            self.text.push(piece)

    def close(self) -> None:
        """Frees its sampler. The next draw makes another one."""
        if self.sampler:
            self.sampler.close()
            self.sampler = None

    def copy_from(self, other: "Particle") -> None:
        """Becomes a copy of another particle, in its own place: its seed draws what comes next."""
        self.close()
        self.text = other.text and other.text.copy()
        for name in ("tokens", "pieces", "reported", "looks"):
            setattr(self, name, getattr(other, name).copy())
        for name in ("n_held", "state", "twist", "n_looked", "suffix_logprob", "finish_reason", "stop_reason", "error"):
            setattr(self, name, getattr(other, name))

    @property
    def n_new(self) -> int:
        """How many tokens more it has than when it was weighed last."""
        return len(self.tokens) - self.n_looked

    def is_due(self, *, within: bool) -> bool:
        """Whether it is to be weighed where it is. within: whether this may be within a sentence."""
        return self.n_new >= LEAST and (self.ends_sentence or (within and self.n_new >= _MOST))

    def cut_after_best(self, glance: float) -> bool:
        """Takes back all behind the sentence that the suffix follows best, if that is known. Returns whether it did so.

        glance: how likely the beginning of the suffix is where it is now.
        """
        if self.ends_sentence or self.finish_reason == "stop":
            self.looks.append((len(self.tokens), glance))
        if not self.looks:
            return False
        best = max(range(len(self.looks)), key=lambda k: self.looks[k][1])
        n_tokens, _ = self.looks[best]
        is_known = self.finish_reason is not None or len(self.looks) - 1 - best >= _PATIENCE
        if not is_known or n_tokens == len(self.tokens):
            return False
        del self.tokens[n_tokens:], self.pieces[n_tokens:], self.reported[n_tokens:]
        self.text, self.looks, self.stop_reason = None, [], "suffix"
        return True

    def middle(self) -> tuple[int, bytes]:
        """How many of its tokens its text has whole, and the bytes behind these: those before a stop string, or before
        a character that isn't complete."""
        text = b"".join(self.pieces)
        if self.text is None or self.text.matched is None:
            end = len(text) - _n_unfinished(text)
            if end == len(text):
                return len(self.tokens), b""
        else:
            end = text.find(self.text.matched.encode())
            if end < 0:  # it has bytes that aren't UTF-8
                return len(self.tokens) - 1, b""
        n_tokens = n_bytes = 0
        while n_bytes + len(self.pieces[n_tokens]) <= end:
            n_bytes += len(self.pieces[n_tokens])
            n_tokens += 1
        return n_tokens, text[n_bytes:end]


def _n_unfinished(text: bytes) -> int:
    """How many bytes at the end of a text are the beginning of a character, which nobody is shown."""
    decoder = getincrementaldecoder("utf-8")(errors="ignore")
    decoder.decode(text[-_TAIL:])
    return len(decoder.getstate()[0])
