"""`Phrases`: finds banned phrases and patterns in a stream of characters."""

from srb.engine.asking.pattern_syntax import is_pattern
from srb.engine.asking.patterns import Patterns, State, patterns_of
from srb.engine.asking.sampling_params import ANY_CASE
from srb.engine.telling.text import StopStrings

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
