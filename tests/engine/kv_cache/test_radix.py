"""The radix tree, compared with a list that is searched from end to end."""

from hypothesis import given
from hypothesis import strategies as st

from srb.engine.kv_cache.radix import PrefixTree, common_prefix, pack

# Few different tokens, so that many begin alike.
tokens = st.lists(st.integers(0, 2), max_size=12).map(tuple)
keys = st.sampled_from([None, "an adapter"])
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), tokens, keys),
        st.tuples(st.just("grow"), st.integers(0, 20), tokens),
        st.tuples(st.just("remove"), st.integers(0, 20), st.none()),
    ),
    max_size=25,
)


def in_common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((k for k, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))


@given(changes, tokens, keys)
def test_it_finds_what_a_search_from_end_to_end_finds(
    steps: list[tuple[str, object, object]], wanted: tuple[int, ...], key: str | None
) -> None:
    tree: PrefixTree[int] = PrefixTree()
    expected: dict[int, tuple[tuple[int, ...], object]] = {}
    for number, (kind, first, second) in enumerate(steps):
        if kind == "add":
            assert isinstance(first, tuple)
            expected[number] = first, second
            tree.add(number, pack(first), second)
        elif expected:
            assert isinstance(first, int)
            holder = list(expected)[first % len(expected)]
            if kind == "grow":
                assert isinstance(second, tuple)
                expected[holder] = expected[holder][0] + second, expected[holder][1]
                tree.grow(holder, pack(second))
            else:
                del expected[holder]
                tree.remove(holder)
    alike = {holder: own for holder, (own, their_key) in expected.items() if their_key == key}
    match = tree.find(pack(wanted), key)
    longest = max((in_common(own, wanted) for own in alike.values()), default=0)
    assert match.n_tokens == longest
    assert set(match.below()) == {each for each, own in alike.items() if in_common(own, wanted) == longest}
    ends = [(len(own), each) for each, own in alike.items() if own == wanted[: len(own)]]
    assert sorted(match.ends()) == sorted(ends)
    assert [end for end, _ in match.ends()] == sorted((end for end, _ in ends), reverse=True)
    for holder, (_, their_key) in expected.items():
        tree.remove(holder)
        left = {key for holder, (_, key) in expected.items() if holder in tree}
        assert bool(list(tree.runs(their_key))) == (their_key in left)
    assert not list(tree.runs())


@given(tokens, tokens, tokens)
def test_common_prefix(run: tuple[int, ...], before: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert common_prefix(pack(run), pack(before + other), len(before)) == in_common(run, other)


def test_runs_are_joined_again_when_texts_no_longer_part() -> None:
    tree: PrefixTree[str] = PrefixTree()
    tree.add("story", pack((1, 2, 3, 4)))
    tree.add("other", pack((1, 2, 9)))
    tree.remove("other")
    assert [(start, tuple(run)) for start, run in tree.runs() if run] == [(0, (1, 2, 3, 4))]
    assert list(tree.find(pack((1, 2, 3, 4))).ends()) == [(4, "story")]
