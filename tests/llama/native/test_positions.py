"""Positions of tokens after images, compared with sequences that are written out, without C."""

from hypothesis import given
from hypothesis import strategies as st

from srb.llama.native.batch import Positions

Part = tuple[int, int] | int
"""An image with its cells and positions, or a number of tokens."""

PARTS = st.lists(st.one_of(st.integers(1, 5), st.tuples(st.integers(1, 12), st.integers(1, 5))), max_size=6)


def written(positions: Positions, seq_id: int, parts: list[Part]) -> list[int]:
    """Adds parts to a sequence; returns the position before each of its possible ends, None inside of images."""
    places, n_tokens, place = {0: 0}, 0, 0
    for part in parts:
        if isinstance(part, int):
            for _ in range(part):
                n_tokens, place = n_tokens + 1, place + 1
                places[n_tokens] = place
        else:
            positions.add(seq_id, (n_tokens, *part))
            n_tokens, place = n_tokens + part[0], place + part[1]
            places[n_tokens] = place
    return [places.get(n, -1) for n in range(n_tokens + 1)]


@given(PARTS, st.data())
def test_they_are_the_same_after_forks_cuts_and_a_saved_state(parts: list[Part], data: st.DataObject) -> None:
    positions = Positions()
    places = written(positions, 0, parts)
    ends = [n for n, place in enumerate(places) if place >= 0]
    assert [positions.of(0, n) for n in ends] == [places[n] for n in ends]
    assert [positions.tokens_in(0, places[n]) for n in ends] == ends
    middle, end = sorted((data.draw(st.sampled_from(ends)), data.draw(st.sampled_from(ends))))
    positions.fork(0, 1, middle)
    state = positions.packed(0, middle, places.index(places[ends[-1]]) if places else 0)
    for n in ends:
        if n <= middle:
            assert positions.of(1, n) == places[n]
            assert positions.is_length(1, n, places[n])
    assert bytes(positions.take(bytearray(b"cells" + state), 1, end)) == b"cells"
    assert [positions.of(1, n) for n in ends if n <= end] == [places[n] for n in ends if n <= end]
    positions.truncate(0, middle)
    assert [positions.of(0, n) for n in ends if n <= middle] == [places[n] for n in ends if n <= middle]
    positions.remove(0)
    positions.remove(1)
    assert not positions


def test_a_sequence_that_ends_with_an_image_may_end_anywhere_in_it() -> None:
    positions = Positions()
    positions.add(0, (10, 6, 3))
    assert [positions.is_length(0, 16, n) for n in range(9, 16)] == [False, False, True, True, True, False, False]
    assert [positions.tokens_in(0, n) for n in range(9, 16)] == [9, 10, 16, 16, 16, 17, 18]
    assert positions.is_length(0, 20, 17)
    assert not positions.is_length(0, 20, 20)
