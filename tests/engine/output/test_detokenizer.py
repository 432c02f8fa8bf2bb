"""Bytes to text to stop strings, however the bytes are cut into tokens."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from srb.engine.output.detokenizer import IncrementalDetokenizer, StopStrings


def run(pieces: list[bytes], *stops: str) -> tuple[list[str], str | None]:
    """Return the text shown after each piece, and at the end; and the stop string that matched."""
    state = IncrementalDetokenizer(StopStrings(stops) if stops else None)
    shown = []
    for piece in pieces:
        shown.append(state.push(piece))
        if state.matched:
            break
    return [*shown, state.flush()], state.matched


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Return the text shown and the match: the string that ends first, the longest where several do."""
    found = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, length, stop = min(found)
    return text[: end + length], stop


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


words = st.text(alphabet="ab🙂中\n", max_size=12)
stop_lists = st.lists(st.text(alphabet="ab🙂中\n", min_size=1, max_size=4), max_size=4)


@given(words, stop_lists, st.lists(st.integers(0, 60), max_size=12))
def test_agrees_with_the_reference_however_it_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    shown, matched = run(cut(text.encode(), cuts), *stops)
    assert ("".join(shown), matched) == reference(text, stops)


@example([b"\xed\xa0"])
@given(st.lists(st.binary(max_size=5), max_size=12))
def test_bytes_that_are_no_text_are_replaced_as_python_replaces_them(pieces: list[bytes]) -> None:
    whole = b"".join(pieces).decode(errors="replace")
    text = "".join(run(pieces)[0])
    assert whole.startswith(text)
    # Half a character at the end is dropped. Python takes the beginning of a surrogate for two.
    assert whole.removeprefix(text) in ("", "�", "��")


@given(words, st.lists(st.integers(0, 60), max_size=12))
def test_what_is_shown_is_always_whole_characters(text: str, cuts: list[int]) -> None:
    for shown in run(cut(text.encode(), cuts), "ab")[0]:
        assert "�" not in shown


def test_text_that_turns_out_not_to_be_a_stop_string_is_delivered() -> None:
    assert run([b"one ", b"EN", b"D or", b" EN", b"D!"], "END!") == (["one ", "", "END or", " ", "", ""], "END!")
    assert run([b"one EN"], "END!") == (["one ", "EN"], None)


def test_a_stop_string_inside_the_beginning_of_another_one_wins() -> None:
    assert run([b"xab", b"cd"], "abcd", "bc") == (["x", "a", ""], "bc")


def test_no_more_text_waits_than_a_stop_string_could_need() -> None:
    state = IncrementalDetokenizer(StopStrings(("aaaaaaaaab",)))
    shown = sum(len(state.push(b"a")) for _ in range(10_000))
    assert shown == 10_000 - 9
