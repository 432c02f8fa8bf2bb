"""Bad words never appear as words of their own, whatever tokens they come in."""

import re

import pytest
from driver import request, run, stops, texts
from fake_backend import FakeBackend, says
from hypothesis import given
from hypothesis import strategies as st

from srb.engine.constraints.bad_words import BadWords
from srb.engine.engine import Engine
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError


def found(text: str, *words: str) -> str | None:
    """Return the text from the beginning of the first word that is found in it."""
    search = BadWords(words)
    state = search.start
    for end, char in enumerate(text, 1):
        before, state = state, search.advance(state, char)
        if state.found:
            return text[end - state.found :]
        assert search.depth(state) <= search.depth(before) + 1
    n_last = search.found_at_end(state)
    return text[-n_last:] if n_last else None


@pytest.mark.parametrize(
    ("text", "words", "rest"),
    [
        ("a cat", ("cat",), "cat"),
        ("a cat", (" cat", "x"), "cat"),
        ("cat", ("cat",), "cat"),
        ("cats concat", ("cat",), None),
        ("the other", ("he",), None),
        ("so he ran", ("he",), "he ran"),
        ("cat's", ("cat",), "cat's"),
        ("Cat CAT", ("cat",), None),
        ("/x/ x", ("/x/",), "/x/ x"),
        ("a.*b", (".*",), ".*b"),
        ("so, no way", ("no way",), "no way"),
        ("so, no wayward", ("no way",), None),
        ("wow!!", ("!!",), "!!"),
        ("他是坏人吗", ("坏人",), "坏人吗"),
        ("คนไม่ดี", ("ไม่",), "ไม่ดี"),
        ("나쁜놈은", ("나쁜놈",), "나쁜놈은"),
        ("Tシャツ", ("T",), "Tシャツ"),
        ("straße", ("stra",), None),
        ("a\n\nb", ("\n\n",), "\n\nb"),
        ("x", (), None),
    ],
)
def test_words_are_found(text: str, words: tuple[str, ...], rest: str | None) -> None:
    at = found(text, *words)
    assert at is None if rest is None else at is not None and rest.startswith(at)


@given(st.text("ab -", max_size=12), st.lists(st.text("ab -", min_size=1, max_size=4), max_size=4))
def test_they_are_found_as_a_regular_expression_finds_them(text: str, words: list[str]) -> None:
    edge = r"\b"

    def expression(word: str) -> str:
        word = word.lstrip() or word
        return edge * word[0].isalpha() + re.escape(word) + edge * word[-1].isalpha()

    assert bool(found(text, *words)) == any(re.search(expression(word), text) for word in words)


def test_a_word_is_taken_back() -> None:
    events = run(Engine(FakeBackend(script=says(b"a cat sat"))), request(bad_words=("cat", "sat")))
    assert texts(events)[0] == "a dat tat"
    assert stops(events)[0].rewinds == 2
    assert texts(run(Engine(FakeBackend(script=says(b"cat"))), request(bad_words=("ca",))))[0] == "cat"
    both = run(Engine(FakeBackend(script=says(b"a cat sat"))), request(bad_words=("cat",), banned_strings=("sat",)))
    assert texts(both)[0] == "a dat tat"


def test_wrong_words_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="bad_words takes strings of 1 to 200 characters, got 0"):
        SamplingParams(bad_words=("",))
    with pytest.raises(InvalidRequestError, match="bad_words takes at most 1000 strings, got 1001"):
        SamplingParams(bad_words=("a",) * 1001)
