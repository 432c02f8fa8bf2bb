"""Texts that never come: tokens are held back while their text may become one, and taken back when it does."""

import codecs
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from srb.engine.events import Token
from srb.engine.opening import Openings, opening
from srb.engine.sampling_params import ANY_CASE
from srb.engine.text import StopStrings


class BannedStrings:
    """Finds any of several strings in a stream of characters. A state is what `advance` goes on from."""

    start = (0, 0)

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._exact = StopStrings(tuple(each for each in strings if not each.startswith(ANY_CASE)))
        self._lower = StopStrings(
            tuple("".join(map(_lower, each[len(ANY_CASE) :])) for each in strings if each.startswith(ANY_CASE))
        )

    def advance(self, state: tuple[int, int], char: str) -> tuple[int, int]:
        """The state after `char`."""
        return self._exact.advance(state[0], char), self._lower.advance(state[1], _lower(char))

    def depth(self, state: tuple[int, int]) -> int:
        """How many of the last characters may yet become one of the strings."""
        return max(self._exact.depth[state[0]], self._lower.depth[state[1]])

    def matched(self, state: tuple[int, int]) -> int:
        """How many characters the longest string has that is complete now; 0: none is."""
        return max(len(self._exact.match[state[0]] or ""), len(self._lower.match[state[1]] or ""))


def _lower(char: str) -> str:
    """One character for one, so that places in the text stay the same: İ would become two."""
    return char.lower()[0]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a text is: what the decoder holds of a character, how many characters are whole, and what may be found."""

    decoder: tuple[bytes, int]
    n_chars: int
    banned: tuple[int, int]
    stop: int


@dataclass(frozen=True, slots=True)
class Held:
    """A token that may be taken back.

    reported: what is to be said of it. piece: what it adds to the text. start: the number of its first character.
    p: its probability, or 0.
    """

    token: int
    reported: list[Token]
    piece: bytes
    start: int
    p: float
    before: _Place


class Watch:
    """Watches the text that one alternative generates for banned strings, and for a beginning that was there before.

    A token is held while its text may become a part of one. When one is complete, all tokens from that on which it
    begins in are taken back, of those that are held. A character belongs to the token that has its first byte.

    The first words are held until all of them are there. If others have begun with the same, the alternative goes back
    to the token of them in whose place the most probability is left for tokens that weren't taken back there. So what
    is drawn instead is as likely as can be.

    openings: what it isn't to begin with, or None.
    stops: the strings that end the alternative. What has come to its end can't become anything else.
    max_rewinds: how often tokens may be taken back. When one more is needed, all is left as it is from then on.
    """

    def __init__(
        self, banned: BannedStrings, stops: StopStrings | None, max_rewinds: int, openings: Openings | None = None
    ) -> None:
        self.rewinds = 0
        self.rewound_tokens = 0
        self.is_exhausted = False
        self.held: list[Held] = []
        self._banned = banned
        self._stops = stops
        self._openings = openings  # until its first words are there
        self._text = ""  # until then
        self._max_rewinds = max_rewinds
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = 0
        self._state = banned.start
        self._stop_state = 0
        self._n_sure = 0  # how many of the held ones stay
        # The tokens that were taken back, with their probabilities, by their number in the alternative.
        self._taken: dict[int, dict[int, float]] = {}

    def precede(self, data: bytes) -> None:
        """Takes the bytes of what comes before the generated text, and isn't looked at."""
        self._decoder.decode(data)

    def skip(self, piece: bytes) -> None:
        """Takes the bytes of a token that was generated, and said, before the alternative was resumed."""
        self._openings = None  # nothing is said before the first words are there
        for char in self._decoder.decode(piece):
            self._n_chars += 1
            self._state = self._banned.advance(self._state, char)
            if self._stops:
                self._stop_state = self._stops.advance(self._stop_state, char)

    def taken_at(self, number: int) -> Collection[int]:
        """The tokens that were taken back at a place of the alternative, which another one is to be drawn for."""
        return self._taken.get(number, {}).keys()

    @property
    def is_opening(self) -> bool:
        """Whether the first words aren't there yet, so that it matters how probable a token is."""
        return self._openings is not None

    def give_up(self) -> None:
        """Lets everything pass from now on: there is nothing else to draw."""
        self.is_exhausted = True
        self._openings = None

    def push(
        self,
        token: int,
        reported: list[Token],
        piece: bytes,
        number: int,
        *,
        p: float = 0.0,
        is_last: bool = False,
    ) -> int:
        """Takes the next token and its bytes; returns how many of the last tokens are to be taken back, or 0.

        number: how many tokens come before it in the alternative.
        p: how probable it was, if `is_opening`.
        is_last: nothing comes behind it if it stays.
        """
        decoder = self._decoder.getstate()
        before = _Place(decoder, self._n_chars, self._state, self._stop_state)
        self.held.append(Held(token, reported, piece, self._n_chars + bool(decoder[0]), p, before))
        text = self._decoder.decode(piece)
        if self.is_exhausted:
            return 0
        stop = ""
        for char in text:
            self._n_chars += 1
            self._state = self._banned.advance(self._state, char)
            if n := self._banned.matched(self._state):
                return self._rewind(self._n_chars - n, number)
            if self._stops:
                self._stop_state = self._stops.advance(self._stop_state, char)
                if stop := self._stops.match[self._stop_state] or "":
                    break
        if self._openings:
            self._text = self._text[: before.n_chars] + text[: self._n_chars - before.n_chars]
            each = opening(self._text.removesuffix(stop), is_whole=is_last or bool(stop))
            if each is None:
                return 0
            if not self._openings.claim(each):
                return self._take_back(self._least_sure(number), number)
            self._openings = None
        self._n_sure = len(self.held) if stop else self._count_sure()
        return 0

    def _least_sure(self, number: int) -> int:
        """Which of the held tokens has left the most probability to those that weren't taken back in its place."""
        first = number + 1 - len(self.held)
        taken = [held.p + sum(self._taken.get(first + k, {}).values()) for k, held in enumerate(self.held)]
        return taken.index(min(taken))

    def _count_sure(self) -> int:
        """How many of the held tokens stay: a token does if the next one begins before what may become a string."""
        sure, last = self._n_chars - self._banned.depth(self._state), len(self.held) - 1
        n = 0
        while n < last and self.held[n + 1].start <= sure:
            n += 1
        next_start = self._n_chars + bool(self._decoder.getstate()[0])
        return n + 1 if n == last and next_start <= sure else n

    def _rewind(self, first: int, number: int) -> int:
        """Goes back to before the token that has the character number `first`, if it may."""
        # A string may have begun in a token that was said, because what came behind it couldn't become that string, and
        # was taken back since. Then it is broken at the first token that wasn't said. To hold tokens until all behind
        # them stays could be to hold all of a text.
        at = max((k for k, held in enumerate(self.held) if held.start <= first), default=0)
        return self._take_back(at, number)

    def _take_back(self, at: int, number: int) -> int:
        """Takes back the held tokens from this one on, if it may."""
        if self.rewinds == self._max_rewinds:
            self.give_up()
            return 0
        n_tokens = len(self.held) - at
        place, held, self.held = number + 1 - n_tokens, self.held[at], self.held[:at]
        self._decoder.setstate(held.before.decoder)
        self._n_chars, self._state, self._stop_state = held.before.n_chars, held.before.banned, held.before.stop
        self._taken = {other: tokens for other, tokens in self._taken.items() if place - at <= other <= place}
        self._taken.setdefault(place, {})[held.token] = held.p
        self.rewinds += 1
        self.rewound_tokens += n_tokens
        return n_tokens

    def sure(self) -> Iterator[Held]:
        """The tokens that stay, which are no longer held."""
        n_sure = len(self.held) if self.is_exhausted else self._n_sure
        sure, self.held, self._n_sure = self.held[:n_sure], self.held[n_sure:], 0
        yield from sure

    def rest(self) -> Iterator[Held]:
        """All tokens that are held, now that nothing more comes."""
        rest, self.held = self.held, []
        yield from rest
