"""`Middle`: a candidate for the text between a prompt and a suffix."""

import math
import re
from codecs import getincrementaldecoder
from typing import Literal

from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.backend import Sampler
from srb.engine.ports import Way
from srb.engine.sequence import Sequence
from srb.engine.telling.text import TextState
from srb.engine.ways.rows import TextRow
from srb.errors import BackendError

_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\]*_]*\s*$|\n\s*$")
"""A text that ends here may be complete. "Mr." is one of its mistakes, which the suffix's likelihood tells."""

_MIN_TOKENS = 8
"""A sentence must end at least this many tokens after the last one where the suffix was scored."""

_PATIENCE = 2
"""With `stop_at_suffix`, a text ends once this many more sentences haven't made the suffix more probable."""

_TAIL = 16  # bytes: as much of a text as it takes to see where it ends


class Middle(TextRow):
    """A text that is drawn from the prompt, with a row of its own. Implements `srb.engine.ports.Row`.

    n_before: the length of the prompt, in tokens. text: looks for stop strings; None: there are none.
    owner: the sequence that streams this text; None: it isn't known whether the text will be returned.
    at_once: whether known tokens may be evaluated together.
    """

    def __init__(
        self,
        way: Way,
        params: SamplingParams,
        seq_id: int,
        *,
        n_before: int,
        text: TextState | None,
        owner: Sequence | None = None,
        at_once: bool = True,
    ) -> None:
        super().__init__(way, n_before, [], seq_id=seq_id, at_once=at_once)
        self.params = params
        self.text = text
        self.owner = owner
        self.state: Literal["drawing", "scoring", "ended"] = "drawing"
        self.pieces: list[bytes] = []  # what each of its tokens adds to the text
        self.sampler: Sampler | None = None
        self.n_looked = 0  # how many tokens it had when the suffix was scored last
        self.looks: list[tuple[int, float]] = []  # at ends of sentences: its length, and the suffix's log-probability
        self.suffix_logprob = -math.inf  # until it has ended and is scored
        self.error: BackendError | None = None

    def push(self, token: int, piece: bytes) -> None:
        """Takes its next token, and the bytes that this adds to the text."""
        self.tokens.append(token)
        self.pieces.append(piece)
        if self.text:
            self.text.push(piece)

    def close(self) -> None:
        """Frees its sampler. The next draw makes another one."""
        if self.sampler:
            self.sampler.close()
            self.sampler = None

    @property
    def ends_sentence(self) -> bool:
        """Whether a sentence ends with its last token, as far as can be seen there."""
        tail = b""
        for piece in reversed(self.pieces):
            tail = piece + tail
            if len(tail) >= _TAIL:
                break
        return _SENTENCE_END.search(tail.decode(errors="ignore")) is not None

    @property
    def may_end(self) -> bool:
        """Whether the suffix is to be scored where it is."""
        return len(self.tokens) >= self.n_looked + _MIN_TOKENS and self.ends_sentence

    def cut_after_best(self, glance: float) -> bool:
        """Cuts it after the sentence that the suffix follows best, if that is known. Returns whether it did so.

        glance: the log-probability of the beginning of the suffix where it is now.
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

    def shown(self) -> tuple[int, bytes]:
        """The part of its text that a client sees: how many whole tokens, and the bytes after these.

        It ends before a stop string, and before a character that isn't complete.
        """
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
