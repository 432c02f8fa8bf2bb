"""Banned strings never appear, whatever the model samples, and however it is cut into tokens."""

import codecs
import dataclasses
import random
import zlib
from collections.abc import Callable, Collection
from itertools import accumulate, pairwise, product

import pytest
from driver import check_idle, check_order, request, run, stops, texts
from fake_backend import END, N_VOCAB, FakeBackend, Script, says
from hypothesis import given
from hypothesis import strategies as st
from refused import has, refusing

from srb.engine.constraints.banned_strings import Phrases, TextMatcher
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.validation.patterns import folded
from srb.errors import InvalidRequestError

CAT = b"the cat sat"


def few(alphabet: bytes, end: float = 0.05) -> Script:
    """Says these characters, depending on the seed and all tokens so far; sometimes it ends."""

    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        rng = random.Random(zlib.crc32(repr((params.seed, tokens)).encode()))
        return END if not params.ignore_eos and rng.random() < end else rng.choice(alphabet)

    return script


def reference(script: Script, params: SamplingParams) -> tuple[str, int, str | None]:
    """Return text, length and stop reason of a script that can't write the banned strings."""

    def sample(tokens: tuple[int, ...], refused: Collection[int]) -> int:
        token = script(params, (112, 113, *tokens))
        while token in refused:
            token = (token + 1) % N_VOCAB
        return token

    text, said, reason = refusing(sample, params, END)
    return text, len(said), reason


phrases = st.lists(
    st.builds(str.__add__, st.sampled_from(["", "(?i)"]), st.text("abAB", min_size=1, max_size=4)), max_size=6
).map(tuple)


@given(
    banned=phrases,
    stop=st.lists(st.text("abAB", min_size=1, max_size=4), max_size=2).map(tuple),
    n=st.integers(1, 5),
    seed=st.integers(0, 1000),
    max_tokens=st.integers(0, 20),
    logprobs=st.sampled_from([None, 0, 2]),
    return_tokens=st.booleans(),
    echo=st.booleans(),
    n_batch=st.sampled_from([2, 64]),
    window=st.sampled_from([None, 0, 1, 3]),
)
def test_it_says_what_a_model_would_that_refuses_them(
    banned: tuple[str, ...],
    stop: tuple[str, ...],
    n: int,
    seed: int,
    max_tokens: int,
    logprobs: int | None,
    return_tokens: bool,
    echo: bool,
    n_batch: int,
    window: int | None,
) -> None:
    params = SamplingParams(seed=seed, banned_strings=banned, stop=stop, max_tokens=max_tokens)
    each = dataclasses.replace(
        CompletionRequest(((112, 113),), params.alternatives(n)),
        logprobs=logprobs,
        return_tokens=return_tokens,
        echo=echo,
    )
    script = few(b"abAB")
    engine = Engine(backend := FakeBackend(n_batch=n_batch, n_outputs=2, script=script, window=window))
    events = run(engine, each)
    check_order(events, each)
    check_idle(engine, backend)
    said, ends = texts(events), stops(events)
    for index, branch in enumerate(each.branches):
        text, length, reason = reference(script, branch) if max_tokens else ("", 0, None)
        assert said.get(index, "") == "pq" * echo + text
        assert (ends[index].length, ends[index].stop_reason) == (length, reason)
        own = [event for event in events if isinstance(event, StreamEvent) and event.index == index]
        sampled = [token for event in own for token in event.sampled]
        generated = bytes(token for token in sampled if token != END).decode()
        assert (text + (reason or "")).startswith(generated)
        assert not any(has(generated, phrase) for phrase in banned)
        if return_tokens:
            assert [token for event in own for token in event.tokens] == [112, 113] * echo + sampled
            assert generated == text + (reason or "")
        if logprobs is not None:
            assert [event.token.id for event in own if event.token] == [112, 113] * echo + sampled
            scored = [event.token.logprob for event in own if event.token and event.sampled]
            if scored:
                assert ends[index].mean_logprob == pytest.approx(sum(each or 0 for each in scored) / len(scored))
        if banned and max_tokens:
            assert ends[index].rewinds is not None
    done = events[-1]
    assert isinstance(done, DoneEvent)
    assert done.usage.completion_tokens == sum(end.length for end in ends.values())


@given(
    pieces=st.lists(
        st.binary(min_size=1, max_size=4) | st.sampled_from(["é", "a", "🙂", "ab"]).map(str.encode), max_size=30
    ),
    banned=st.lists(st.text("aé🙂�", min_size=1, max_size=3), min_size=1, max_size=4).map(tuple),
    before=st.sampled_from([b"", b"\xc3", b"\xf0\x9f"]),
)
def test_a_phrase_is_found_wherever_tokens_and_characters_are_cut(
    pieces: list[bytes], banned: tuple[str, ...], before: bytes
) -> None:
    matcher = TextMatcher(Phrases(banned), None)
    matcher.push_prompt(before)
    pushed: list[int] = []  # the numbers of pieces
    final: list[int] = []
    for number, piece in enumerate(pieces):
        pushed.append(number)
        if n_tokens := matcher.push(number, piece, len(pushed) - 1):
            del pushed[-n_tokens:]
        n_final = len(pushed) - len(matcher.window)
        assert final == pushed[: len(final)], "final tokens are never taken back"
        final = pushed[:n_final]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(before)
        text = decoder.decode(b"".join(pieces[k] for k in pushed))
        assert not any(phrase in text for phrase in banned)
        assert final + [each.token for each in matcher.window] == pushed


@pytest.mark.parametrize("window", [None, 0, 8])
def test_it_goes_back_to_where_a_phrase_may_begin(window: int | None) -> None:
    engine = Engine(backend := FakeBackend(script=says(CAT), window=window))
    events = run(engine, request(banned_strings=("cat",), max_tokens=8))
    assert texts(events) == {0: "the dat "}
    again = window is None  # the space, for the logits after it; a mark has these
    assert backend.rows == 1 + 4 + 2 + 3 + again  # "c" and "a" are evaluated in vain
    check_idle(engine, backend)


@pytest.mark.parametrize("window", [0, 8])
def test_a_model_that_forgets_does_not_go_back_far(window: int) -> None:
    """Also where the window is never empty, and always begins in another place."""
    text = b"a" * 500 + b"b"
    engine = Engine(backend := FakeBackend(n_cells=1000, script=says(text), window=window))
    engine.add_request(request(banned_strings=("aaab",), max_tokens=600))
    events: list[Event] = []
    silent, longest = 0, 0
    while engine.has_work:
        new = engine.step()
        events += new
        silent = 0 if new else silent + 1
        longest = max(longest, silent)
    assert texts(events) == {0: "a" * 497 + "caab"}
    assert longest < 50
    assert backend.rows < 3 * len(text)
    check_idle(engine, backend)


def test_rewound_tokens_are_reported_and_not_counted() -> None:
    events = run(Engine(FakeBackend(script=says(CAT))), request(banned_strings=("cat", "d"), max_tokens=8))
    stop = stops(events)[0]
    assert (stop.length, stop.rewinds, stop.rewound_tokens, stop.rewinds_exhausted) == (8, 2, 4, False)
    assert stops(run(Engine(FakeBackend(script=says(CAT))), request()))[0].rewinds is None
    done = events[-1]
    assert isinstance(done, DoneEvent)
    assert done.usage.completion_tokens == 8


def test_a_phrase_that_begins_in_the_prompt_is_let_through() -> None:
    events = run(
        Engine(FakeBackend(script=says(b"at cat", prompt=1))), request("c", banned_strings=("cat",), max_tokens=6)
    )
    assert texts(events) == {0: "at dat"}


def test_after_too_many_rewinds_the_text_goes_on_as_it_is(limit_rewinds: Callable[[int], None]) -> None:
    for most, text in ((0, "the cat sat"), (1, "the dat sat")):
        limit_rewinds(most)
        params = {"banned_strings": ("cat", "dat"), "max_tokens": 11}

        def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
            return CAT[len(tokens) - 1]

        stop = stops(events := run(Engine(FakeBackend(script=script)), request(**params)))[0]  # type: ignore[arg-type]
        assert texts(events) == {0: text}
        assert (stop.rewinds, stop.rewinds_exhausted) == (most, True)


def test_where_nothing_else_can_be_sampled_the_text_goes_on_as_it_is() -> None:
    engine = Engine(backend := FakeBackend(script=lambda params, tokens: 97))
    backend.tokenizer.is_end = lambda token: False  # type: ignore[method-assign]
    backend.tokenizer.piece = lambda token: b"a"  # type: ignore[method-assign]
    stop = stops(run(engine, request(banned_strings=("a",), max_tokens=3)))[0]
    assert (stop.length, stop.rewinds, stop.rewinds_exhausted) == (3, N_VOCAB, True)


def test_the_limits() -> None:
    SamplingParams(banned_strings=("x" * 200, "(?i)" + "x" * 200))
    for banned in (("x" * 201,), ("",), ("(?i)",), ("x",) * 1001):
        with pytest.raises(InvalidRequestError, match="banned_strings takes"):
            SamplingParams(banned_strings=banned)
    full = tuple(f"{k:200}" for k in range(1000))
    params = SamplingParams(banned_strings=full)
    CompletionRequest(((1,),), (params, params))
    with pytest.raises(InvalidRequestError, match="200001 characters"):
        CompletionRequest(((1,),), (params, SamplingParams(banned_strings=("x",))))


def test_case_does_not_move_places() -> None:
    assert {len(folded(chr(each))) for each in range(0x20000)} == {1}  # no letter after these has a case
    matcher = TextMatcher(Phrases(("(?i)İstanbul", "(?i)ΣΑΣ")), None)
    assert [matcher.push(k, char.encode(), k) for k, char in enumerate("iSTANBUL")][-1] == 8
    assert [matcher.push(k, char.encode(), k) for k, char in enumerate("σας")][-1] == 3
    assert [matcher.push(k, char.encode(), k) for k, char in enumerate("Σασ")][-1] == 3


@pytest.mark.parametrize(
    ("banned", "text"),
    [
        ("Οδυσσεύς", "ΟΔΥΣΣΕΎΣ"),
        ("ΟΔΥΣΣΕΎΣ", "Οδυσσεύς"),
        *product(("İSTANBUL", "istanbul", "Istanbul"), ("İSTANBUL", "ISTANBUL", "istanbul", "ıstanbul")),  # noqa: RUF001
        ("İstanbul", "i\u0307stanbul"),
        ("STRAẞE", "straße"),
        ("Straße", "STRASSE"),
        ("can't", "Can’t"),  # noqa: RUF001
        ("“oh,”", '"Oh,"'),
        ("ſo", "SO"),  # noqa: RUF001
        ("µ", "Μ"),  # noqa: RUF001
        ("ÉTÉ", "été"),
        ("ﬁsh", "FISH"),
        ("ŒUVRE", "œuvre"),
        ("k", "\N{KELVIN SIGN}"),
    ],
)
def test_any_case_finds_all_forms_of_a_letter(banned: str, text: str) -> None:
    both = (banned,) if any(each in banned + text for each in "ßẞﬁ\u0307") else (banned, f"/{banned}/i")
    for phrase in ("(?i)" + banned, *both[1:]):
        phrases = Phrases((phrase,))
        *_, last = accumulate(text, phrases.advance, initial=phrases.start)
        assert phrases.matched(last) == len(text)


def test_other_letters_and_exact_phrases_are_not_folded() -> None:
    phrases = Phrases(("(?i)strasse", "can't", "ΣΑΣ", "(?i)fish", "(?i)été"))
    for text in ("Straße", "can’t", "σας", "ﬁsh", "e\u0301te\u0301"):  # noqa: RUF001
        assert not any(phrases.matched(state) for state in accumulate(text, phrases.advance, initial=phrases.start))


def test_memory_of_phrases_does_not_grow_with_the_text() -> None:
    matcher = TextMatcher(Phrases(("aaab",)), None)
    for number, _ in pairwise(range(5000)):
        assert matcher.push(number, b"a", number) == 0
        assert len(matcher.window) <= 3
