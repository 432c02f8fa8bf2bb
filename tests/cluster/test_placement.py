"""Where requests go. Prompts are made of few tokens, so that many begin alike."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srb.cluster.placement import BLOCK, SLACK, Placement, blocks_of, pack_blocks, unpack_blocks

names = st.sampled_from("abcde")
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(lambda words: prompt(*words))


def prompt(*words: int) -> list[int]:
    """The blocks of a prompt, a block for each word."""
    return blocks_of([word for word in words for _ in range(BLOCK)])


def placement(loads: dict[str, int]) -> Placement:
    those = Placement()
    those.set_replicas(loads)
    for name, load in loads.items():
        those.report(name, load, ())
    return those


def first(those: Placement, blocks: Sequence[int]) -> str:
    name = those.choose([blocks])
    assert name
    return name


def test_blocks_are_chained() -> None:
    tokens = list(range(4 * BLOCK))
    blocks = blocks_of(tokens)
    assert len(set(blocks)) == 4
    assert blocks_of(tokens[:-1]) == blocks[:3]
    assert blocks_of([1, *tokens[1:]])[3] != blocks[3]
    assert blocks_of(tokens[BLOCK:])[0] != blocks[1]


def test_a_prompt_shorter_than_a_block_has_one_of_its_own() -> None:
    assert len({*blocks_of([1]), *blocks_of([1, 2]), *blocks_of([2])}) == 3
    assert blocks_of(tuple(range(BLOCK))) == blocks_of(list(range(BLOCK + 1)))


def test_a_prompt_that_is_shared_within_a_name_has_blocks_of_its_own() -> None:
    tokens = list(range(3 * BLOCK))
    names = ("", "ann", "bob")
    assert len({block for name in names for block in blocks_of(tokens, within=name)}) == 9
    blocks = blocks_of(tokens, within="ann")
    assert blocks_of(tokens, blocks[:2], within="ann") == blocks


def test_blocks_are_packed_in_8_bytes() -> None:
    blocks = blocks_of(list(range(1000)))
    assert len(pack_blocks(blocks)) == 8 * len(blocks)
    assert list(unpack_blocks(pack_blocks(blocks))) == blocks


PROGRAM = """
import json
from srb.cluster.placement import Placement, blocks_of
those = Placement()
those.set_replicas({"c", "b", "d", "a"})
for k in range(50):
    print(json.dumps(those.choose([blocks_of([k])], {"b", "d"})))
"""


@pytest.mark.starts
def test_another_process_chooses_the_same() -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environ["PYTHONHASHSEED"] = "2" if environ.get("PYTHONHASHSEED") == "1" else "1"  # not that of this process
    other = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=True, capture_output=True, text=True)
    with redirect_stdout(io.StringIO()) as here:
        exec(PROGRAM)
    answer = other.stdout
    assert answer == here.getvalue()
    chosen = [json.loads(line) for line in answer.splitlines()]
    assert {*chosen} == {"a", "c"}


def test_the_longest_prompt_of_a_request_decides() -> None:
    those = placement(dict.fromkeys("ab", 0))
    for short, long in (("a", "b"), ("b", "a")):
        those.report(short, 0, prompt(1))
        those.report(long, 0, prompt(2, 2))
        assert those.choose([prompt(1), prompt(2, 2)]) == long


def test_a_running_prompt_counts_as_cached_where_it_went() -> None:
    for name in "abc":
        those = placement(dict.fromkeys("abc", 100))
        those.begin("r", name, 1, [prompt(7, 7), prompt(8, 8)])
        assert first(those, prompt(7, 7)) == first(those, prompt(8, 8)) == name
        those.report(name, 100, ())
        assert first(those, prompt(7, 7)) == name


def test_a_famous_beginning_spreads() -> None:
    those = placement(dict.fromkeys("abcd", 0))
    for number in range(100):
        those.begin(number, first(those, prompt(1, 1, 1)), 8, [prompt(1, 1, 1)])
    assert max(map(those.load, "abcd")) <= SLACK * 800 / 4 + 8


@pytest.mark.parametrize("others", [0, 8, 32])
def test_the_parts_of_a_request_go_to_different_replicas(others: int) -> None:
    those = placement(dict.fromkeys("ab", others))
    for part in (1, 2):
        those.begin(part, first(those, prompt(1, 2, 3)), 32, [prompt(1, 2, 3)])
    assert [those.load("a"), those.load("b")] == [others + 32] * 2


def test_the_suspected_come_last() -> None:
    those = placement({"a": 0, "b": 5, "c": 9, "d": 50})
    those.report("a", 0, prompt(1))
    assert those.choose([prompt(1)]) == "a"
    assert those.choose([prompt(1)], {"a", "c", "gone"}) == "b"
    assert those.choose([prompt(1)], set("abcd")) == "a"


def test_a_load_that_is_reported_is_not_counted_twice() -> None:
    those = placement({"a": 0})
    those.begin("mine", "a", 8, [prompt(1)])
    assert those.load("a") == 8
    those.report("a", 8, ())
    assert those.load("a") == 8
    those.report("a", 20, ())
    those.begin("more", "a", 4, [prompt(1)])
    assert those.load("a") == 24
    those.end("mine")
    assert those.load("a") == 16
    those.report("a", 0, ())
    assert those.load("a") == 4


def test_the_number_of_unreported_blocks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srb.cluster.placement.MAX_UNREPORTED", 10)
    those = placement({"a": 0})
    those.report("a", 0, prompt(1, 1, 1))
    for word in range(100):
        those.begin(word, "a", 1, [prompt(word, 2)])
        assert first(those, prompt(word, 2)) == "a"
        those.end(word)
        assert those.n_blocks <= 13


@given(
    st.dictionaries(names, st.integers(0, 100), min_size=1),
    prompts,
    st.lists(st.tuples(names, prompts)),
)
def test_the_best_one_is_that_of_a_plain_search(
    loads: dict[str, int], wanted: list[int], known: list[tuple[str, list[int]]]
) -> None:
    those = placement(loads)
    depth = dict.fromkeys(loads, 0)
    for name, load in loads.items():
        blocks = {block for other, prompt in known if other == name for block in prompt}
        those.report(name, load, blocks)
        depth[name] = sum(block in blocks for block in wanted)
    chosen = first(those, wanted)
    fitting = [name for name, load in loads.items() if load <= SLACK * sum(loads.values()) / len(loads)]
    assert chosen in fitting
    most = max(depth[name] for name in fitting)
    if 2 * most >= len(wanted):
        assert depth[chosen] == most
        assert loads[chosen] == min(loads[name] for name in fitting if depth[name] == most)


changes = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 9), names, st.integers(1, 64), prompts),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("replicas"), st.sets(names)),
        st.tuples(st.just("report"), names, st.lists(prompts, max_size=3)),
    ),
    max_size=40,
)


@given(changes)
def test_loads_come_back_to_nothing(steps: list[tuple[object, ...]]) -> None:
    those = Placement()
    there: set[str] = set()
    flying: dict[object, tuple[str, int, list[int]]] = {}
    for kind, *arguments in steps:
        match kind, arguments:
            case "begin", [request_id, str(name), int(weight), list(blocks)]:
                those.begin(request_id, name, weight, [blocks])
                flying.pop(request_id, None)
                if name in there:
                    flying[request_id] = name, weight, blocks
            case "end", [request_id]:
                those.end(request_id)
                flying.pop(request_id, None)
            case "replicas", [set(new)]:
                those.set_replicas(new)
                there = new
                flying = {key: each for key, each in flying.items() if each[0] in there}
            case "report", [str(name), list(known)]:
                those.report(name, 0, {block for blocks in known for block in blocks})
        for name in there:
            assert those.load(name) == sum(weight for other, weight, _ in flying.values() if other == name)
    for request_id in range(10):
        those.end(request_id)
    assert {name: those.load(name) for name in there} == dict.fromkeys(there, 0)
    for name in there:
        those.report(name, 0, ())
    assert those.n_blocks == 0
    those.set_replicas(())
    assert not any(vars(those).values())


reports = st.dictionaries(names, st.tuples(st.integers(0, 20), st.lists(prompts, max_size=3)), min_size=1)


@given(reports, st.lists(st.tuples(prompts, names)), prompts)
def test_a_fresh_one_chooses_the_same_after_the_same_reports(
    told: dict[str, tuple[int, list[list[int]]]], before: list[tuple[list[int], str]], wanted: list[int]
) -> None:
    old, fresh = Placement(), Placement()
    old.set_replicas("edcba")
    for number, (blocks, name) in enumerate(before):
        old.begin(number, name, 3, [blocks])
    for number in range(len(before)):
        old.end(number)
    for those in (old, fresh):
        those.set_replicas(told)
        for name, (load, known) in told.items():
            those.report(name, load, {block for blocks in known for block in blocks})
    assert old.choose([wanted]) == fresh.choose([wanted])


@given(names)
def test_only_the_prompts_of_a_replica_that_leaves_move(leaving: str) -> None:
    those = placement(dict.fromkeys("abcde", 0))
    before = {word: first(those, prompt(word)) for word in range(200)}
    assert set(before.values()) == set("abcde")
    those.set_replicas(set("abcde") - {leaving})
    after = {word: first(those, prompt(word)) for word in range(200)}
    assert leaving not in after.values()
    assert {word for word in before if before[word] != after[word]} == {
        word for word, name in before.items() if name == leaving
    }
    those.set_replicas("abcde")
    assert {word: first(those, prompt(word)) for word in range(200)} == before
