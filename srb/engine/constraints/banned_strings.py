"""Keeps banned phrases out of a text: holds tokens back while they may become a phrase, takes them back when they do.

An example, with the banned phrase "the cat": " the" is held back. If " dog" follows, both are said. If " cat" follows,
both are taken back, and another token is drawn in place of " the".

The outbox gets tokens only when they are sure to stay. So stop strings, probabilities and journals never know others.
To take tokens off, `Sampling._go_back` cuts the cells as after a failed decode, and the sampler goes back to what it
was before the first of them. Another token is drawn from the logits that were kept there (`kv_cache/rollback.py`).
`avoid` goes back in the same way, and holds the first words.

Models that forget can't be cut. There an alternative goes back to its mark (`kv_cache/rollback.py`). An example:

    " on the"        " the" may become the phrase: the mark is set before it
    " on the c"      still held
    " on the cat"    back to the mark: " the" is banned there, and another token is drawn from the same logits
    " on a mat"      nothing is held: the mark stays where it is until it's needed somewhere else
"""

import codecs
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from srb.engine.backend import Backend
from srb.engine.constraints.base import Constraint, SamplingInput
from srb.engine.constraints.setup import ConstraintSetup
from srb.engine.events import StopEvent
from srb.engine.model import Tokenizer
from srb.engine.output.detokenizer import StopStrings
from srb.engine.sampling_params import ANY_CASE, AVOIDED_CHARS
from srb.engine.sequence import Sequence
from srb.engine.validation.patterns import Patterns, State, is_pattern, patterns_of

# Keeps alternatives from beginning alike. Texts are compared by their opening, which is their first words.

OPENING_WORDS = 8
OPENING_CHARS = AVOIDED_CHARS
"""An opening ends after at most so many characters, even if it has fewer words by then."""

_WIDE = "\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_WIDE}]|[^\W{_WIDE}]+")

Opening = tuple[str, ...]


def opening(text: str, *, is_whole: bool) -> Opening | None:
    """The first `OPENING_WORDS` words of a text, or all if it has fewer; None if some of them may still come.

    Neither case nor the characters between words count. A Chinese, Japanese or Korean character is a word of its own.
    is_whole: whether the text is complete.
    """
    words = [each.end() for each in _WORD.finditer(text)]
    is_there = len(words) > OPENING_WORDS or (len(words) == OPENING_WORDS and words[-1] < len(text))
    return _words(text) if is_there or is_whole or len(text) >= OPENING_CHARS else None


def _words(text: str) -> Opening:
    text = text[:OPENING_CHARS]
    return tuple(word.casefold() for word in _WORD.findall(text)[:OPENING_WORDS]) or (text.strip(),)


def opening_of(text: str | tuple[int, ...], tokenizer: Tokenizer, n_before: int = 0) -> Opening:
    """The opening of a complete text, or of the text of these tokens without its first `n_before` bytes."""
    if not isinstance(text, str):
        pieces = b"".join(tokenizer.piece(token) for token in text if not tokenizer.is_end(token))
        text = pieces[n_before:].decode(errors="replace")
    return _words(text)


class Openings:
    """The openings that an alternative must not have.

    avoided: those that its parameters name. said: those of its siblings. All siblings share this set, and the
        alternative adds its own opening to it.
    """

    def __init__(self, avoided: frozenset[Opening], said: set[Opening]) -> None:
        self._avoided = avoided
        self._said = said

    def claim(self, each: Opening) -> bool:
        """Claims an opening for this alternative. Returns False if it may not have this one."""
        if each in self._said or each in self._avoided:
            return False
        self._said.add(each)
        return True

    def release(self, each: Opening) -> None:
        """Gives back an opening that this alternative has claimed: it has taken some of these words back."""
        self._said.discard(each)


# `Phrases`: finds banned phrases and patterns in a stream of characters.

Search = tuple[int, int, State]
"""Where the searches for exact phrases, for those in any case, and for patterns are."""


class Phrases:
    """Finds any of several strings, each of them as `SamplingParams.banned_strings` has it.

    Its state begins as `start`; `advance` makes the next one for each character.
    """

    start: Search = (0, 0, Patterns.start)

    def __init__(self, strings: tuple[str, ...]) -> None:
        phrases = [each for each in strings if not is_pattern(each)]
        self._exact = StopStrings(tuple(each for each in phrases if not each.startswith(ANY_CASE)))
        self._lower = StopStrings(
            tuple("".join(map(_lower, each[len(ANY_CASE) :])) for each in phrases if each.startswith(ANY_CASE))
        )
        self._patterns = patterns_of(tuple(filter(is_pattern, strings)))

    def advance(self, state: Search, char: str) -> Search:
        """The state after `char`."""
        exact, lower, patterns = state
        return (
            self._exact.advance(exact, char),
            self._lower.advance(lower, _lower(char)),
            self._patterns.advance(patterns, char),
        )

    def depth(self, state: Search) -> int:
        """How many of the last characters may still become one of the strings."""
        return max(self._exact.depth[state[0]], self._lower.depth[state[1]], self._patterns.depth(state[2]))

    def matched(self, state: Search) -> int:
        """The length of the longest string that is complete in this state, in characters; 0: none is."""
        return max(len(self._exact.match[state[0]] or ""), len(self._lower.match[state[1]] or ""), state[2].found)

    def matched_at_end(self, state: Search) -> int:
        """The same, if the text ends here: then a word is complete that might have gone on."""
        return self._patterns.found_at_end(state[2])


def _lower(char: str) -> str:
    """A character in lower case, always as one character, so that places in the text stay the same. `lower` makes two
    of İ, for example."""
    return char.lower()[0]


MAX_REWINDS = 1000
"""How often an alternative may go back. A phrase that a model comes to at every place would never let it end."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The state of a `Watch` at one point of the text, so that it can go back there.

    decoder: the decoder's state, with the first bytes of a character that isn't complete. n_chars: how many characters
    are complete. banned, stop: the states of the searches for banned strings and for stop strings.
    """

    decoder: tuple[bytes, int]
    n_chars: int
    banned: Search
    stop: int


@dataclass(frozen=True, slots=True)
class Held:
    """A token that may be taken back.

    start: the number of its first character. p: its probability, or 0 if that doesn't matter.
    before: the state before this token.
    """

    token: int
    start: int
    p: float
    before: _Place


class Watch:
    """Watches the text that one alternative generates for banned strings, and for an opening that was there before.

    A token is held while its text may become a part of a banned string. When the string is complete, the held tokens
    are taken back, from the token in which the string begins. A character belongs to the token that has its first byte.

    The first words are held until all of them are there. If another alternative has begun with the same words, this one
    goes back to one of their tokens, in whose place another token is then drawn. It chooses the place where the tokens
    that were not taken back there have the most probability left. So the new token is as likely as can be.

    banned: finds the banned strings.
    stops: the strings that end the alternative. Behind a stop string nothing can become a banned string any more.
    openings: what the alternative isn't to begin with, or None.
    """

    def __init__(self, banned: Phrases, stops: StopStrings | None, openings: Openings | None = None) -> None:
        self.rewinds = 0
        self.rewound_tokens = 0
        self.is_exhausted = False
        self.rollback_window: list[Held] = []
        self._banned = banned
        self._stops = stops
        self._openings = openings
        self._opening: Opening | None = None  # the one that it has claimed, once its first words are there
        self._text = ""  # the generated text, until its first words are there
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = 0
        self._state = banned.start
        self._stop_state = 0
        self._n_sure = 0  # how many of the held tokens stay
        # The tokens that were taken back, with their probabilities, by their number in the alternative.
        self._taken: dict[int, dict[int, float]] = {}

    def precede(self, data: bytes) -> None:
        """Takes the bytes that come before the generated text. No banned string is looked for in these."""
        self._decoder.decode(data)

    def skip(self, piece: bytes) -> None:
        """Takes the bytes of a token that was generated, and said, before the alternative was resumed."""
        self._openings = None  # tokens are said only once the first words are there, so these were accepted
        for char in self._decoder.decode(piece):
            self._n_chars += 1
            self._state = self._banned.advance(self._state, char)
            if self._stops:
                self._stop_state = self._stops.advance(self._stop_state, char)

    def taken_at(self, number: int) -> Collection[int]:
        """The tokens that were taken back at this place of the alternative. None of them may be drawn there again."""
        return self._taken.get(number, {}).keys()

    @property
    def is_opening(self) -> bool:
        """Whether the first words aren't there yet. Only then are the probabilities of tokens needed."""
        return self._openings is not None and self._opening is None

    def give_up(self) -> None:
        """Lets everything pass from now on, because there is nothing else to draw, or no rewind left."""
        self.is_exhausted = True
        self._openings = None

    def push(
        self,
        token: int,
        piece: bytes,
        number: int,
        *,
        p: float = 0.0,
        is_last: bool = False,
    ) -> int:
        """Takes the next token and its bytes; returns how many of the last tokens are to be taken back, or 0.

        number: how many tokens come before it in the alternative.
        p: its probability, needed if `is_opening`.
        is_last: whether the text ends with this token if it stays.
        """
        decoder = self._decoder.getstate()
        before = _Place(decoder, self._n_chars, self._state, self._stop_state)
        self.rollback_window.append(Held(token, self._n_chars + bool(decoder[0]), p, before))
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
        if is_last and not stop and (n := self._banned.matched_at_end(self._state)):
            return self._rewind(self._n_chars - n, number)
        if self._openings and self._opening is None:
            self._text = self._text[: before.n_chars] + text[: self._n_chars - before.n_chars]
            text = self._text.removesuffix(stop)
            if self._stops and not (is_last or stop):  # what may become a stop string may be no part of the opening
                text = text[: len(text) - self._stops.depth[self._stop_state]]
            each = opening(text, is_whole=is_last or bool(stop))
            if each is None:
                return 0
            if not self._openings.claim(each):
                return self._take_back(self._least_sure(number), number)
            self._opening = each
        self._n_sure = len(self.rollback_window) if stop else self._count_sure()
        return 0

    def _least_sure(self, number: int) -> int:
        """The index of the held token in whose place the most probability is left.

        Left is the probability of all tokens but this one and those that were taken back in its place before.
        """
        first = number + 1 - len(self.rollback_window)
        taken = [held.p + sum(self._taken.get(first + k, {}).values()) for k, held in enumerate(self.rollback_window)]
        return taken.index(min(taken))

    def _count_sure(self) -> int:
        """How many of the held tokens stay: those that end before the text that may become a banned string."""
        sure, last = self._n_chars - self._banned.depth(self._state), len(self.rollback_window) - 1
        n = 0
        while n < last and self.rollback_window[n + 1].start <= sure:
            n += 1
        next_start = self._n_chars + bool(self._decoder.getstate()[0])
        return n + 1 if n == last and next_start <= sure else n

    def _rewind(self, first: int, number: int) -> int:
        """Takes back the held tokens from the one with character number `first` on, if one more rewind is allowed."""
        # The string may begin in a token that was already said. That token was said because the text behind it could
        # not become the string; but then that text was taken back, and another text came, which completes the string.
        # In this case the string is broken at the first token that is still held. To prevent this case, tokens would
        # have to be held until all tokens behind them are sure to stay, which could be until the end of the text.
        at = max((k for k, held in enumerate(self.rollback_window) if held.start <= first), default=0)
        return self._take_back(at, number)

    def _take_back(self, at: int, number: int) -> int:
        """Takes back the held tokens from index `at` on, if one more rewind is allowed.

        Returns how many they are; 0: no rewind is left, and they stay.
        """
        if self.rewinds == MAX_REWINDS:
            self.give_up()
            return 0
        n_tokens = len(self.rollback_window) - at
        place, held, self.rollback_window = number + 1 - n_tokens, self.rollback_window[at], self.rollback_window[:at]
        self._decoder.setstate(held.before.decoder)
        self._n_chars, self._state, self._stop_state = held.before.n_chars, held.before.banned, held.before.stop
        if self._openings and self._opening is not None and self._n_chars < len(self._text):
            self._openings.release(self._opening)  # other words come in its place, and they are compared anew
            self._opening = None
        self._taken = {other: tokens for other, tokens in self._taken.items() if place - at <= other <= place}
        self._taken.setdefault(place, {})[held.token] = held.p
        self.rewinds += 1
        self.rewound_tokens += n_tokens
        return n_tokens

    def sure(self) -> list[Held]:
        """Takes out the held tokens that are sure to stay."""
        n_final = len(self.rollback_window) if self.is_exhausted else self._n_sure
        sure, self.rollback_window, self._n_sure = self.rollback_window[:n_final], self.rollback_window[n_final:], 0
        return sure


class BannedStrings(Constraint):
    """Takes back what a `Watch` finds in the text of an alternative."""

    goes_back = True

    def __init__(self, seq: Sequence, watch: Watch, backend: Backend) -> None:
        self._seq = seq
        self._watch = watch
        self._backend = backend

    @property
    def n_held(self) -> int:  # type: ignore[override]
        """See `Constraint.n_held`."""
        return len(self._watch.rollback_window)

    def precede(self, data: bytes) -> None:
        """See `Constraint.precede`."""
        self._watch.precede(data)

    def skip(self, piece: bytes) -> None:
        """See `Constraint.skip`."""
        self._watch.skip(piece)

    def before(self, draw: SamplingInput) -> None:
        """See `Constraint.before`. What was taken back here may not come again."""
        draw.biases |= dict.fromkeys(self._watch.taken_at(len(self._seq.tokens)), -math.inf)

    def after(self, draw: SamplingInput, token: int, piece: bytes, *, is_last: bool) -> int:
        """See `Constraint.after`."""
        watch = self._watch
        if draw.biases.get(token) == -math.inf:
            watch.give_up()
        p = math.exp(self._backend.logprobs(draw.model, token, 0)[0]) if watch.is_opening else 0.0
        n_tokens = watch.push(token, piece, len(self._seq.tokens), p=p, is_last=is_last)
        watch.sure()
        return n_tokens

    def ended(self, event: StopEvent) -> StopEvent:
        """See `Constraint.ended`."""
        watch = self._watch
        return replace(
            event,
            rewinds=watch.rewinds,
            rewound_tokens=watch.rewound_tokens,
            rewinds_exhausted=watch.is_exhausted,
        )


def give(setup: ConstraintSetup) -> None:
    """Gives the rule to each alternative that has `banned_strings` or `avoid`."""
    branches, tokenizer = setup.request.branches, setup.backend.tokenizer
    strings = {each: Phrases(each) for each in {params.banned_strings for params in branches}}
    lists = {params.avoid for params in branches if params.avoid is not None}
    avoided = {texts: frozenset(opening_of(text, tokenizer) for text in texts) for texts in lists}
    said: list[set[Opening]] = [set() for _ in setup.asked]
    for index, each in enumerate(setup.resumed) if lists else ():
        if each.tokens:
            number = index // len(branches)
            said[number].add(opening_of(each.tokens, tokenizer, len(setup.asked[number][1])))
    for seq in setup.active.sequences:
        params = seq.params
        if params.banned_strings or params.avoid is not None:
            openings = None
            if params.avoid is not None:
                openings = Openings(avoided[params.avoid], said[seq.index // len(branches)])
            stops = setup.stops.get(params.stop)
            watch = Watch(strings[params.banned_strings], stops, openings)
            seq.constraints.append(BannedStrings(seq, watch, setup.backend))
