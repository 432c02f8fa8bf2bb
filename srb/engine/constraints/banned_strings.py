"""`banned_strings`, `bad_words`, `avoid`: takes back what becomes a banned string, or an opening that another text has.

An example, with the banned string "the cat": " the" is in the rollback window, and isn't reported. If " dog" follows,
both are reported. If " cat" follows, both are taken back, and another token is sampled in place of " the".

The output processor gets only final tokens. So stop strings, probabilities and event logs never see others. To take
tokens back, `Sampling` removes their cells, and the sampler's state goes back to the one before the first of them.
Another token is sampled from the logits there. If more than the newest token goes, the token before is evaluated again
for them (`kv_cache/rollback.py`). `avoid` works in the same way: the first words are in the rollback window.

The cells of a recurrent model can't be removed. There an alternative goes back to its mark (`kv_cache/rollback.py`). An
example:

    " on the"        " the" may become the banned string: the mark is set before it
    " on the c"      still in the rollback window
    " on the cat"    back to the mark: " the" is rejected there, and another token is sampled from the same logits
    " on a mat"      the rollback window is empty: the mark stays where it is until it's needed somewhere else
"""

import codecs
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from srb.engine.backend import Backend
from srb.engine.constraints.bad_words import BadWords, WordState
from srb.engine.constraints.base import Constraint, ConstraintSetup, SamplingInput
from srb.engine.events import StopEvent
from srb.engine.model import Tokenizer
from srb.engine.output.detokenizer import StopStrings
from srb.engine.sampling_params import ANY_CASE, AVOIDED_CHARS
from srb.engine.sequence import Sequence
from srb.engine.validation.patterns import Patterns, State, folded, is_pattern, patterns_of

MAX_REWINDS = 1000
"""How often an alternative may go back. A string that a model repeats everywhere would never let it end."""

OPENING_WORDS = 8
OPENING_CHARS = AVOIDED_CHARS
"""An opening has at most this many characters, even if it has fewer words by then."""

_WIDE = "\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_WIDE}]|[^\W{_WIDE}]+")

Opening = tuple[str, ...]
"""The first words of a text, by which `avoid` compares texts."""


def opening(text: str, *, is_whole: bool) -> Opening | None:
    """Return the first `OPENING_WORDS` words of a text, or all if it has fewer; None if some may still come.

    Case and the characters between words don't count. A Chinese, Japanese or Korean character is a word of its own.
    """
    words = [each.end() for each in _WORD.finditer(text)]
    is_there = len(words) > OPENING_WORDS or (len(words) == OPENING_WORDS and words[-1] < len(text))
    return _words(text) if is_there or is_whole or len(text) >= OPENING_CHARS else None


def opening_of(text: str | tuple[int, ...], tokenizer: Tokenizer, n_before: int = 0) -> Opening:
    """Return the opening of a complete text, or of the text of these tokens without its first `n_before` bytes."""
    if not isinstance(text, str):
        pieces = b"".join(tokenizer.piece(token) for token in text if not tokenizer.is_end(token))
        text = pieces[n_before:].decode(errors="replace")
    return _words(text)


def _words(text: str) -> Opening:
    text = text[:OPENING_CHARS]
    return tuple(word.casefold() for word in _WORD.findall(text)[:OPENING_WORDS]) or (text.strip(),)


class Openings:
    """The openings that an alternative must not have.

    Args:
        avoided: Those that its parameters name.
        used: Those of its siblings. All siblings share this set, and the alternative adds its own opening.
    """

    def __init__(self, avoided: frozenset[Opening], used: set[Opening]) -> None:
        self._avoided = avoided
        self._used = used

    def claim(self, each: Opening) -> bool:
        """Claim an opening for this alternative, and return whether it may have it."""
        if each in self._used or each in self._avoided:
            return False
        self._used.add(each)
        return True

    def release(self, each: Opening) -> None:
        """Free an opening that this alternative has claimed: some of its words were taken back."""
        self._used.discard(each)


Search = tuple[int, int, State, WordState]
"""The states of the searches for exact strings, for strings in any case, for patterns and for words."""


class Phrases:
    """Finds any of several strings and words in a stream of characters.

    Args:
        strings: Each as `SamplingParams.banned_strings` has it.
        words: Each as `SamplingParams.bad_words` has it.

    The state begins as `start`; `advance` returns the next one for each character.
    """

    start: Search = (0, 0, Patterns.start, BadWords.start)

    def __init__(self, strings: tuple[str, ...], words: tuple[str, ...] = ()) -> None:
        phrases = [each for each in strings if not is_pattern(each)]
        self._exact = StopStrings(tuple(each for each in phrases if not each.startswith(ANY_CASE)))
        any_case = [each[len(ANY_CASE) :] for each in phrases if each.startswith(ANY_CASE)]
        # A phrase with ß is also found with "ss".
        self._folded = StopStrings(
            tuple("".join(map(folded, form)) for each in any_case for form in (each, each.casefold()))
        )
        self._patterns = patterns_of(tuple(filter(is_pattern, strings)))
        self._words = BadWords(words)

    def advance(self, state: Search, char: str) -> Search:
        """Return the state after `char`."""
        exact, any_case, patterns, words = state
        return (
            self._exact.advance(exact, char),
            self._folded.advance(any_case, folded(char)),
            self._patterns.advance(patterns, char),
            self._words.advance(words, char),
        )

    def depth(self, state: Search) -> int:
        """Return how many of the last characters may still become one of the strings."""
        exact, any_case, patterns, words = state
        return max(
            self._exact.depth[exact],
            self._folded.depth[any_case],
            self._patterns.depth(patterns),
            self._words.depth(words),
        )

    def matched(self, state: Search) -> int:
        """Return the length of the longest string that is complete in this state, in characters; 0: none is."""
        exact, any_case, patterns, words = state
        whole = self._exact.match[exact] or "", self._folded.match[any_case] or ""
        return max(*map(len, whole), patterns.found, words.found)

    def matched_at_end(self, state: Search) -> int:
        """Return the same if the text ends here, which completes a word that might have gone on."""
        return max(self._patterns.found_at_end(state[2]), self._words.found_at_end(state[3]))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The state of a `TextMatcher` at one point of the text.

    decoder: the decoder's state, with the first bytes of a character that isn't complete. n_chars: how many characters
    are complete. banned, stop: the states of the searches for banned strings and for stop strings.
    """

    decoder: tuple[bytes, int]
    n_chars: int
    banned: Search
    stop: int


@dataclass(frozen=True, slots=True)
class PendingToken:
    """A token of the rollback window.

    start: the number of its first character. p: its probability, or 0 if that isn't needed.
    before: the state before this token.
    """

    token: int
    start: int
    p: float
    before: _Snapshot


class TextMatcher:
    """Finds banned strings, and an opening that another text has, in the text of an alternative.

    A token is in the rollback window while its text may become a part of a banned string. When the string is complete,
    tokens are taken back from the one in which the string begins. A character belongs to the token with its first byte.

    The first words are in the rollback window until all of them are there. If another alternative has the same opening,
    this one goes back to one of their tokens, in whose place another token is then sampled: the place where the tokens
    that weren't rejected have the most probability left. So the new token is as probable as possible.

    Args:
        banned: Finds the banned strings.
        stops: The strings that end the alternative. After a stop string nothing can become a banned string.
        openings: What the alternative must not begin with, or None.
    """

    def __init__(self, banned: Phrases, stops: StopStrings | None, openings: Openings | None = None) -> None:
        self.rewinds = 0
        self.rewound_tokens = 0
        self.is_exhausted = False
        self.window: list[PendingToken] = []
        """The rollback window."""
        self._banned = banned
        self._stops = stops
        self._openings = openings
        self._opening: Opening | None = None  # the one that it has claimed, once its first words are there
        self._text = ""  # the generated text, until its first words are there
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = 0
        self._state = banned.start
        self._stop_state = 0
        # The tokens that were taken back, with their probabilities, by their number in the alternative.
        self._rejected: dict[int, dict[int, float]] = {}

    def push_prompt(self, data: bytes) -> None:
        """Process the bytes before the generated text, in which nothing is searched for."""
        self._decoder.decode(data)

    def push_resumed(self, piece: bytes) -> None:
        """Process the bytes of a token that was reported before the alternative was resumed."""
        self._openings = None  # tokens are reported only once the opening was accepted
        for char in self._decoder.decode(piece):
            self._n_chars += 1
            self._state = self._banned.advance(self._state, char)
            if self._stops:
                self._stop_state = self._stops.advance(self._stop_state, char)

    def rejected_at(self, number: int) -> Collection[int]:
        """Return the tokens that were taken back at this place of the alternative, and may not be sampled again."""
        return self._rejected.get(number, {}).keys()

    @property
    def is_opening(self) -> bool:
        """Whether the first words aren't there yet. Only then are the probabilities of tokens needed."""
        return self._openings is not None and self._opening is None

    def give_up(self) -> None:
        """Accept everything from now on, because no other token can be sampled, or no rewind is left."""
        self.is_exhausted = True
        self.window, self._openings = [], None

    def push(
        self,
        token: int,
        piece: bytes,
        number: int,
        *,
        p: float = 0.0,
        is_last: bool = False,
    ) -> int:
        """Process the next token, and return how many of the last tokens are to be taken back, or 0.

        Args:
            number: How many tokens come before it in the alternative.
            p: Its probability, needed if `is_opening`.
            is_last: Whether the text ends with this token if it stays.
        """
        if self.is_exhausted:
            return 0
        decoder = self._decoder.getstate()
        before = _Snapshot(decoder, self._n_chars, self._state, self._stop_state)
        self.window.append(PendingToken(token, self._n_chars + bool(decoder[0]), p, before))
        text = self._decoder.decode(piece)
        stop = ""
        for char in text:
            self._n_chars += 1
            self._state = self._banned.advance(self._state, char)
            if n := self._banned.matched(self._state):
                return self._take_back(self._index_of(self._n_chars - n), number)
            if self._stops:
                self._stop_state = self._stops.advance(self._stop_state, char)
                if stop := self._stops.match[self._stop_state] or "":
                    break
        if is_last and not stop and (n := self._banned.matched_at_end(self._state)):
            return self._take_back(self._index_of(self._n_chars - n), number)
        if self._openings and self._opening is None:
            self._text = self._text[: before.n_chars] + text[: self._n_chars - before.n_chars]
            text = self._text.removesuffix(stop)
            if self._stops and not (is_last or stop):  # what may become a stop string may be no part of the opening
                text = text[: len(text) - self._stops.depth[self._stop_state]]
            each = opening(text, is_whole=is_last or bool(stop))
            if each is None:
                return 0
            if not self._openings.claim(each):
                return self._take_back(self._least_certain(number), number)
            self._opening = each
        del self.window[: len(self.window) if stop else self._count_final()]
        return 0

    def _count_final(self) -> int:
        """Return how many tokens of the window end before the text that may become a banned string."""
        end, last = self._n_chars - self._banned.depth(self._state), len(self.window) - 1
        n = 0
        while n < last and self.window[n + 1].start <= end:
            n += 1
        next_start = self._n_chars + bool(self._decoder.getstate()[0])
        return n + 1 if n == last and next_start <= end else n

    def _index_of(self, char: int) -> int:
        """Return the index of the token in the window that has the character with this number."""
        # The string may begin in a token that was reported. That token was final because the text after it could not
        # become the string; but then that text was taken back, and another text came, which completes the string. In
        # this case the string is broken at the first token of the window. To prevent this case, tokens would have to
        # wait until all tokens after them are final, which could be until the end of the text.
        return max((k for k, each in enumerate(self.window) if each.start <= char), default=0)

    def _least_certain(self, number: int) -> int:
        """Return the index of the token in whose place the most probability is left.

        Left is the probability of all tokens but this one and those that were taken back in its place before.
        """
        first = number + 1 - len(self.window)
        used = [each.p + sum(self._rejected.get(first + k, {}).values()) for k, each in enumerate(self.window)]
        return used.index(min(used))

    def _take_back(self, at: int, number: int) -> int:
        """Take the tokens of the window from index `at` on back, if one more rewind is allowed.

        Returns:
            How many they are; 0: no rewind is left, and they stay.
        """
        if self.rewinds == MAX_REWINDS:
            self.give_up()
            return 0
        n_tokens = len(self.window) - at
        place, first, self.window = number + 1 - n_tokens, self.window[at], self.window[:at]
        self._decoder.setstate(first.before.decoder)
        self._n_chars, self._state, self._stop_state = first.before.n_chars, first.before.banned, first.before.stop
        if self._openings and self._opening is not None and self._n_chars < len(self._text):
            self._openings.release(self._opening)  # other words come in its place, and they are compared anew
            self._opening = None
        self._rejected = {other: tokens for other, tokens in self._rejected.items() if place - at <= other <= place}
        self._rejected.setdefault(place, {})[first.token] = first.p
        self.rewinds += 1
        self.rewound_tokens += n_tokens
        return n_tokens


class BannedStrings(Constraint):
    """Takes back what a `TextMatcher` finds in the text of an alternative."""

    may_roll_back = True

    def __init__(self, seq: Sequence, matcher: TextMatcher, backend: Backend) -> None:
        self._seq = seq
        self._matcher = matcher
        self._backend = backend

    @property
    def rollback_window(self) -> int:  # type: ignore[override]
        return len(self._matcher.window)

    def push_prompt(self, data: bytes) -> None:
        self._matcher.push_prompt(data)

    def push_resumed(self, piece: bytes) -> None:
        self._matcher.push_resumed(piece)

    def before_sampling(self, inputs: SamplingInput) -> None:
        """Ban the tokens that were taken back here."""
        inputs.ban(self._matcher.rejected_at(len(self._seq.tokens)))

    def after_sampling(self, inputs: SamplingInput, token: int, piece: bytes, *, is_last: bool) -> int:
        matcher, number = self._matcher, len(self._seq.tokens)
        if token in matcher.rejected_at(number):
            matcher.give_up()
        p = math.exp(self._backend.logprobs(inputs.model_logits, token, 0)[0]) if matcher.is_opening else 0.0
        return matcher.push(token, piece, number, p=p, is_last=is_last)

    def stop_event(self, event: StopEvent) -> StopEvent:
        matcher = self._matcher
        return replace(
            event,
            rewinds=matcher.rewinds,
            rewound_tokens=matcher.rewound_tokens,
            rewinds_exhausted=matcher.is_exhausted,
        )


def build(setup: ConstraintSetup) -> None:
    """Add the constraint to each alternative that has `banned_strings`, `bad_words` or `avoid`."""
    branches, tokenizer = setup.request.branches, setup.backend.tokenizer
    phrases = {each: Phrases(*each) for each in {(params.banned_strings, params.bad_words) for params in branches}}
    lists = {params.avoid for params in branches if params.avoid is not None}
    avoided = {texts: frozenset(opening_of(text, tokenizer) for text in texts) for texts in lists}
    used: list[set[Opening]] = [set() for _ in setup.asked]
    for index, each in enumerate(setup.resumed) if lists else ():
        if each.tokens:
            number = index // len(branches)
            used[number].add(opening_of(each.tokens, tokenizer, len(setup.asked[number][1])))
    for seq in setup.active.sequences:
        params = seq.params
        if params.banned_strings or params.bad_words or params.avoid is not None:
            openings = None
            if params.avoid is not None:
                openings = Openings(avoided[params.avoid], used[seq.index // len(branches)])
            stops = setup.stops.get(params.stop)
            matcher = TextMatcher(phrases[params.banned_strings, params.bad_words], stops, openings)
            seq.constraints.append(BannedStrings(seq, matcher, setup.backend))
