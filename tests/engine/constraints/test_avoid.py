"""`avoid`: no alternative begins like another one, or like a known text, and rejected openings aren't reported."""

import dataclasses
import random
import zlib
from collections.abc import Callable

import pytest
from driver import check_idle, check_order, request, run, run_interrupted, seeds, stops, texts
from fake_backend import END, ByteTokenizer, FakeBackend, Script, says
from hypothesis import example, given
from hypothesis import strategies as st

from srb.engine.constraints.banned_strings import (
    OPENING_CHARS,
    Opening,
    Openings,
    Phrases,
    TextMatcher,
    opening,
    opening_of,
)
from srb.engine.engine import Engine
from srb.engine.events import Event, StreamEvent
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError


def words(alphabet: bytes = b"ab", end: float = 0.02) -> Script:
    """Says words of one of these letters, by the seed and all tokens so far; sometimes it ends."""

    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        if len(tokens) % 2:
            return ord(" ")
        rng = random.Random(zlib.crc32(repr((params.seed % 2, tokens)).encode()))
        return END if rng.random() < end else rng.choice(alphabet)

    return script


def openings(events: list[Event]) -> list[Opening]:
    return [opening_of(text, ByteTokenizer()) for _, text in sorted(texts(events).items())]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One two three four five six seven eight nine", "one two three four five six seven eight"),
        ("one two three four five six seven eight.", "one two three four five six seven eight"),
        ("“One, TWO three-four five 6 seven... eight\n", "one two three four five 6 seven eight"),
        ("one two three four five six seven eight", None),  # there may be more of the last word
        ("one two", None),
        ("", None),
        ("昔々あるところに、おじいさん", "昔 々 あ る と こ ろ に"),
        ("x" * OPENING_CHARS, "x" * OPENING_CHARS),
        ("... " * 50, ("... " * 50).strip()),
    ],
)
def test_the_first_words_of_a_text(text: str, found: str | None) -> None:
    expected = None if found is None else (found,) if found.startswith(".") else tuple(found.split())
    assert opening(text, is_whole=False) == expected
    if expected:
        assert opening_of(text, ByteTokenizer()) == expected
        assert opening_of((*text.encode(), END), ByteTokenizer()) == expected


def test_all_of_a_short_text_is_its_opening() -> None:
    assert opening("one two", is_whole=True) == ("one", "two")
    assert opening("", is_whole=True) == ("",) != opening("!", is_whole=True)


@example(  # a stop string that begins in the first words cuts them
    n=5,
    n_prompts=2,
    avoid=[],
    banned=("b a b", " a a"),
    stop=("b b a",),
    max_tokens=22,
    n_parallel=1,
    logprobs=None,
    window=None,
)
@given(
    n=st.integers(1, 6),
    n_prompts=st.integers(1, 2),
    avoid=st.lists(st.text("ab ", max_size=20), max_size=4),
    banned=st.sampled_from([(), ("a b",), ("b a b", " a a")]),
    stop=st.sampled_from([(), ("b b a",)]),
    max_tokens=st.integers(0, 30),
    n_parallel=st.integers(1, 4),
    logprobs=st.sampled_from([None, 1]),
    window=st.sampled_from([None, 0, 3]),
)
def test_no_two_begin_alike(
    n: int,
    n_prompts: int,
    avoid: list[str],
    banned: tuple[str, ...],
    stop: tuple[str, ...],
    max_tokens: int,
    n_parallel: int,
    logprobs: int | None,
    window: int | None,
) -> None:
    each = request(
        ["p", "q"][:n_prompts], n=n, avoid=tuple(avoid), banned_strings=banned, stop=stop, max_tokens=max_tokens
    )
    each = dataclasses.replace(each, logprobs=logprobs)
    engine = Engine(backend := FakeBackend(script=words(), n_parallel=n_parallel, window=window))
    events = run(engine, each)
    check_order(events, each)
    check_idle(engine, backend)
    if max_tokens == 0:
        return
    said = texts(events)
    for first in range(0, each.count, n):
        seen = [opening_of(said.get(index, ""), ByteTokenizer()) for index in range(first, first + n)]
        assert len(set(seen)) == n
        assert not {*seen} & {opening_of(text, ByteTokenizer()) for text in avoid}
    assert not any(phrase in text for text in said.values() for phrase in banned)
    for index, text in said.items():  # the final tokens are the text
        sampled = bytes(
            t for e in events if isinstance(e, StreamEvent) and e.index == index for t in e.sampled if t != END
        )
        assert sampled.decode().startswith(text)
    assert not any(end.rewinds_exhausted for end in stops(events).values())


def test_the_one_with_the_lower_index_stays() -> None:
    script = words(end=0)
    plain = run(Engine(FakeBackend(script=script)), request(n=1, max_tokens=24))
    each = request(max_tokens=24, avoid=())
    each = dataclasses.replace(each, branches=each.branches * 3)  # all would say the same
    events = run(Engine(FakeBackend(script=script)), each)
    assert texts(events)[0] == texts(plain)[0]
    ends = stops(events)
    assert ends[0].rewinds == 0
    assert ends[1].rewinds and ends[2].rewinds  # noqa: PT018
    assert len({*openings(events)}) == 3


def test_nothing_is_said_before_the_first_words_are_there() -> None:
    engine = Engine(FakeBackend(script=lambda params, tokens: b"a b c d e f g h i j"[len(tokens) - 1]))
    engine.add_request(request(max_tokens=19, avoid=()))
    steps = []
    while engine.has_work:
        steps.append("".join(texts(engine.step()).values()))
    assert [text for text in steps if text] == ["a b c d e f g h ", "i", " ", "j"]


def test_others_that_do_not_ask_for_it_say_what_they_like() -> None:
    each = request(n=3, max_tokens=24)
    branches = (dataclasses.replace(each.branches[0], avoid=()), each.branches[0], each.branches[0])
    events = run(Engine(FakeBackend(script=words(end=0))), dataclasses.replace(each, branches=branches))
    assert len({*openings(events)}) == 1
    assert [stops(events)[index].rewinds for index in range(3)] == [0, None, None]


def test_it_goes_back_to_where_most_is_left() -> None:
    said = {opening("a b", is_whole=True) or ()}
    matcher = TextMatcher(Phrases(()), None, Openings(frozenset(), said))
    text = [b"a", b" ", b"b", b""]

    def say(first: int, *likely: float) -> int:
        assert matcher.is_opening
        return [matcher.push(k, text[k], k, p=p, is_last=k == 3) for k, p in enumerate(likely, first)][-1]

    assert say(0, 0.9, 1.0, 0.5, 0.8) == 2
    assert matcher.rejected_at(2) == {2}
    assert len(matcher.window) == 2, "nothing is final"
    assert say(2, 0.45, 0.95) == 4  # 0.95 of the probability is gone in the third place, and at the end
    assert (matcher.rejected_at(0), matcher.rejected_at(2)) == ({0}, set())
    assert matcher.rewinds == 2


def test_after_too_many_rewinds_it_says_what_others_say(limit_rewinds: Callable[[int], None]) -> None:
    limit_rewinds(0)
    each = request(max_tokens=24, avoid=())
    each = dataclasses.replace(each, branches=each.branches * 2)
    events = run(Engine(FakeBackend(script=words(end=0))), each)
    assert len({*openings(events)}) == 1
    assert [stops(events)[index].rewinds_exhausted for index in range(2)] == [False, True]


@given(n=st.integers(1, 5), cuts=st.lists(st.integers(0, 40), min_size=1, max_size=3))
def test_an_interrupted_request_knows_what_was_said(n: int, cuts: list[int]) -> None:
    each = request(n=n, avoid=("a a a a a a a a",), max_tokens=24)
    events = run_interrupted(lambda: Engine(FakeBackend(script=words(), n_parallel=2)), each, cuts)
    assert len({*openings(events)}) == len(texts(events))


def test_the_limits() -> None:
    params = SamplingParams(avoid=("x" * 500, (1,) * 500))
    assert params.avoid == ("x" * OPENING_CHARS, (1,) * OPENING_CHARS)
    with pytest.raises(InvalidRequestError, match="avoid takes at most 1000 texts, got 1001"):
        SamplingParams(avoid=("x",) * 1001)
    with pytest.raises(InvalidRequestError, match="avoid has the token id 257"):
        Engine(FakeBackend()).add_request(request(avoid=((1, 257),)))


def test_words_that_were_taken_back_are_free_for_others() -> None:
    """A banned string takes the eighth word from the first alternative, and the second one, which is slower, has it."""
    said = says(b"a b c d e f g h i", b"a, b, c, d, e, f, g, h, j")
    each = request("p", 2, seed=0, avoid=(), banned_strings=("h i",), max_tokens=40)
    events = run(Engine(FakeBackend(script=said)), each)
    assert openings(events)[1] == tuple("abcdefgh")
    assert openings(events)[0][:7] == tuple("abcdefg")
    assert openings(events)[0] != openings(events)[1]


@pytest.mark.parametrize("banned", [("a a b", "b a b"), ("a b b a", "b b a b")])
@pytest.mark.parametrize("seed", seeds(10, first=3))
def test_a_banned_phrase_that_begins_in_the_first_words_does_not_bring_others_back(
    seed: int, banned: tuple[str, ...]
) -> None:
    """The banned string is complete after the opening was compared: the new opening is compared again."""
    each = request(str(seed), n=12, avoid=(), banned_strings=banned, max_tokens=24, seed=seed)
    events = run(Engine(FakeBackend(n_cells=500, script=words(end=0), n_parallel=12)), each)
    assert len({*openings(events)}) == 12
    assert not any(phrase in text for text in texts(events).values() for phrase in banned)
