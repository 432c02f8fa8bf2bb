"""Patterns in `banned_strings`: what they match, which are refused, and that none is ever seen. Takes 2 s."""

import re

import pytest
from driver import request, run, stops, texts
from fake_backend import END, FakeBackend
from hypothesis import given, reject
from hypothesis import strategies as st

from srb.engine.engine import Engine
from srb.engine.sampling_params import SamplingParams
from srb.engine.validation.patterns import Patterns
from srb.errors import InvalidRequestError

leaves = st.sampled_from(["a", "b", "B", "[ab]", "[^a]", ".", r"\w", r"\W", r"\s", r"\b", r"\B", " ", "[a-c ]", r"\."])
expressions = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map("".join),
        st.lists(parts, min_size=2, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        st.builds("({}){}".format, parts, st.sampled_from(["?", "{2}", "{1,3}", "{0,2}", "{0,2}?"])),
    ),
    max_leaves=6,
)


def found_at(patterns: Patterns, text: str) -> list[tuple[int, int]]:
    """The ends of prefixes of a text at which matches are seen, with their lengths; then that at the text's end."""
    state, found = patterns.start, []
    for end, char in enumerate(text, 1):
        state = patterns.advance(state, char)
        assert patterns.depth(state) <= end
        found.append((end, state.found))
    found.append((len(text), patterns.found_at_end(state)))
    return [(end, n) for end, n in found if n]


def longest(expression: str, text: str, any_case: bool) -> dict[int, int]:
    """By the end of each match of Python's `re` that isn't empty, the start of the longest one."""
    flags = re.IGNORECASE if any_case else 0
    found: dict[int, int] = {}
    for end in range(len(text) + 1):
        # The text after the match counts for \b, so it is looked at, not cut off.
        whole = re.compile(f"(?:{expression})(?=(?s:.{{{len(text) - end}}})\\Z)", flags)
        for start in range(end):
            if (match := whole.match(text, start)) and match.end() == end:
                found.setdefault(end, start)
    return found


@given(expressions, st.text("abB .c", max_size=8), st.booleans())
def test_what_matches_is_what_re_finds(expression: str, text: str, any_case: bool) -> None:
    try:
        patterns = Patterns((f"/{expression}/{'i' * any_case}",))
    except InvalidRequestError:  # it matches the empty text
        reject()
    expected = longest(expression, text, any_case)
    seen = found_at(patterns, text)
    # A match is seen at its end, or one character later if it ends at a border of words.
    starts = {end - n for end, n in seen}
    assert starts >= {start for end, start in expected.items() if start == min(expected.values())}
    assert bool(seen) == bool(expected)
    if expected:
        assert seen[0][0] - min(expected) in (0, 1)
        assert seen[0][0] - seen[0][1] in {start for end, start in expected.items() if end <= seen[0][0]}


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("/a+/", 'no bound at "+"'),
        ("/a*b/", 'no bound at "*"'),
        ("/a{2,}/", 'no bound at "{2,}"'),
        ("/(a{100}){3}/", "more than 200 characters"),
        ("/" + "a" * 201 + "/", "up to 201 characters; the limit is 200"),
        ("/" + "a?" * 501 + "/", "longer than 1000 characters"),
        ("/a/gm", "has the flag m, which"),
        ("/a?/", "matches the empty text"),
        ("/()/", "matches the empty text"),
        ("/(a/", '"(" without a ")"'),
        ("/a)/", '")" without a "("'),
        ("/[ab/", "ends too early"),
        ("/^a/", 'has a "^"'),
        ("/(?=a)/", "begins with (?"),
        (r"/a\1/", r'"\1"'),
        ("/a{3,2}/", "the wrong way round: {3,2}"),
        ("/[z-a]/", "the wrong way round: z-a"),
        ("/a{2}{3}/", "repeats a repetition"),
        ("/?a/", "nothing before"),
        ("/" + "(" * 51 + "a" + ")" * 51 + "/", "more than 50 deep"),
        ("/" + "(a|b|c|d)" * 3 + r"(\b){99}" * 11 + "/", "more than 1000 parts"),
    ],
)
def test_what_is_refused_says_why(pattern: str, what: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(banned_strings=(pattern,))
    assert caught.value.param == "banned_strings"
    assert what in caught.value.message


def test_characters_of_a_class_have_any_case() -> None:
    assert found_at(Patterns(("/[aB]{3}/i",)), "-Abb") == [(4, 3), (4, 3)]


def test_a_word_is_complete_where_the_text_ends() -> None:
    def script(_params: SamplingParams, tokens: tuple[int, ...]) -> int:
        said: tuple[int, ...] = (*b"to delve", END)
        return said[len(tokens) - 1] if len(tokens) < 10 else END

    said = texts(run(Engine(FakeBackend(script=script)), request("p", 1, banned_strings=(r"/\bdelve\b/",))))
    assert not re.search(r"\bdelve\b", said[0])
    assert said[0].startswith("to ")


def test_what_may_become_a_longer_word_is_held_and_then_said() -> None:
    def script(_params: SamplingParams, tokens: tuple[int, ...]) -> int:
        said: tuple[int, ...] = (*b"to delves", END)
        return said[len(tokens) - 1]

    events = run(Engine(FakeBackend(script=script)), request("p", 1, banned_strings=(r"/\bdelve\b/",)))
    assert texts(events)[0] == "to delves"
    assert stops(events)[0].rewinds == 0
