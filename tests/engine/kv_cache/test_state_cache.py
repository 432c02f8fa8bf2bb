"""What finished requests leave for those that begin alike."""

import dataclasses

import pytest
from driver import evaluated, request, run, texts
from fake_backend import Context, FakeBackend
from memory_store import MemoryStore, StoredEntry

from srb.engine.engine import Engine
from srb.engine.kv_cache.radix import keys_of, pack
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.request import CompletionRequest


@pytest.mark.parametrize("window", [None, 0, 8])
def test_a_repeated_request_evaluates_nothing_and_says_the_same(window: int | None) -> None:
    engine = Engine(FakeBackend(window=window), cache_bytes=10_000)
    each = request("x" * 60, n=3, max_tokens=10)
    again = dataclasses.replace(each, id="again")
    assert texts(run(engine, each)) == texts(run(engine, again))
    assert engine.stats().prompt_tokens_evaluated == 60
    assert engine.stats().prompt_tokens_cached == 60


@pytest.mark.parametrize("window", [None, 0, 8])
def test_only_what_follows_an_answer_is_computed(window: int | None) -> None:
    engine = Engine(backend := FakeBackend(script=lambda params, tokens: 65, window=window), cache_bytes=10_000)
    run(engine, request("x" * 60, n=2, max_tokens=30))
    assert evaluated(engine, request("x" * 60 + "A" * 29 + "line", max_tokens=1)) == 4
    # From the middle of an answer: a saved window has been lost there.
    assert evaluated(engine, request("x" * 60 + "A" * 10 + "other", max_tokens=1)) == 5 + (0 if window is None else 10)
    assert evaluated(engine, request("x" * 30 + "yes", max_tokens=1)) == 3 + (0 if window is None else 30)
    assert backend.cells == 0


@pytest.mark.parametrize(("cache_bytes", "cache_prompt"), [(0, True), (10_000, False)])
def test_it_can_be_turned_off(cache_bytes: int, cache_prompt: bool) -> None:
    engine = Engine(FakeBackend(), cache_bytes=cache_bytes)
    each = dataclasses.replace(request("x" * 60, max_tokens=2), cache_prompt=cache_prompt)
    assert evaluated(engine, each, each) == 120
    assert engine.stats().retained_bytes == 0


def test_what_does_not_fit_into_cells_is_computed_again() -> None:
    engine = Engine(FakeBackend(n_cells=100), cache_bytes=10_000)
    run(engine, request("x" * 90, max_tokens=1))
    engine.add_request(request("r" * 15, max_tokens=30, ignore_eos=True))
    engine.step()
    engine.step()
    assert evaluated(engine, request("x" * 40 + "y", max_tokens=1)) == 41  # 90 cells aren't free while that runs


def test_the_least_recently_used_leave_first_and_none_without_what_it_continues() -> None:
    saved: list[tuple[int, int]] = []

    def save(start: int, end: int, max_bytes: int) -> bytearray:
        saved.append((start, end))
        return bytearray(50 * (end - start))

    cache = StateCache(FakeBackend(), 3000)
    trunk, logits = (1,) * 20, Context((1,))
    cache.add(pack(trunk), save, logits)
    cache.add(pack((*trunk, 2, 3)), save)
    cache.add(pack((*trunk, 4, 5, 6)), save)
    cache.add(pack((*trunk, 4, 5, 6)), save)
    cache.add(pack(trunk[:18]), save)  # known
    assert saved == [(0, 20), (20, 22), (20, 23)]
    assert (hit := cache.find(pack((*trunk, 2, 9)))[0]) is not None
    assert [(start, end) for _, start, end in hit.entries] == [(0, 20), (20, 21)]
    cache.add(pack((7,) * 26), save)  # makes the tail that wasn't used since leave
    assert (hit := cache.find(pack((*trunk, 4, 5, 6, 7)))[0]) is not None
    assert hit.n_tokens == 20
    assert (hit := cache.find(pack((*trunk, 2, 3, 7)))[0]) is not None
    assert hit.n_tokens == 22
    before = len(saved)
    cache.add(pack((8,) * 1000), save)  # is too large for all of it, by its tokens alone
    assert len(saved) == before
    assert cache.find(pack((8,) * 1000)) == (None, 0)
    assert 0 < cache.size <= 3000


def within(name: str, prompt: str) -> CompletionRequest:
    return dataclasses.replace(request(prompt, max_tokens=1), shared_within=name)


@pytest.mark.parametrize("window", [None, 0, 8])
def test_what_is_shared_within_a_name_continues_what_is_shared_with_all(window: int | None) -> None:
    """The instructions are kept once, in memory and in the store, and each name finds its own texts behind them."""
    stored: dict[str, StoredEntry] = {}
    for _ in range(2):  # the second engine has nothing but the store
        is_first = not stored
        engine = Engine(FakeBackend(window=window), cache_bytes=10_000, store=MemoryStore(stored))
        assert evaluated(engine, within("", "i" * 60)) == (60 if is_first else 0)
        assert evaluated(engine, within("ann", "i" * 60 + "a" * 20)) == (20 if is_first else 0)
        assert evaluated(engine, within("bob", "i" * 60 + "a" * 10)) == (10 if is_first else 0)
        assert evaluated(engine, within("ann", "i" * 60 + "a" * 20 + "more")) == (4 if is_first else 0)
        assert evaluated(engine, within("", "i" * 60 + "a" * 5)) == (5 if is_first else 0)
        assert evaluated(engine, within("ann", "i" * 60)) == 0  # as all find it, with its logits
    assert sorted(len(each.record.tokens) for each in stored.values()) == [4, 5, 10, 20, 60]


def test_requests_that_run_at_once_share_within_a_name_alone() -> None:
    engine = Engine(FakeBackend(n_parallel=4, n_cells=1000), cache_bytes=10_000)
    run(engine, *(within(name, "x" * 60) for name in ("ann", "bob", "ann", "bob")))
    assert engine.stats().prompt_tokens_evaluated == 120


def test_erasing_leaves_what_others_have() -> None:
    engine = Engine(FakeBackend(), cache_bytes=10_000)
    run(engine, within("", "i" * 60))
    run(engine, within("ann", "i" * 60 + "a" * 20))
    answer = engine.ask(0, lambda states: states.erase(states.slots["ann", 0], keys_of("ann")))
    run(engine)
    assert answer.result() == 80
    assert evaluated(engine, within("ann", "i" * 60 + "a" * 20)) == 20
    assert evaluated(engine, within("bob", "i" * 60)) == 0


def test_erasing_a_text_forgets_logits_that_came_later() -> None:
    stored: dict[str, StoredEntry] = {}
    engine = Engine(FakeBackend(script=lambda _params, _tokens: 65), cache_bytes=10_000, store=MemoryStore(stored))
    run(engine, request("x" * 40, max_tokens=3, ignore_eos=True))
    run(engine, request("x" * 40 + "AA", max_tokens=3, ignore_eos=True))  # the first one's answer had no logits
    assert [len(each.record.tokens) for each in stored.values()] == [40, 2, 0, 2]
    assert engine._states.erase(engine._states.slots["", 0]) == 44
    assert not stored


def test_a_copy_that_ends_within_an_entry_has_no_logits() -> None:
    engine = Engine(FakeBackend(), cache_bytes=10_000)
    run(engine, request("x" * 40, max_tokens=1))
    copies = [engine._states.copies(pack([120] * n))[-1] for n in (30, 40)]
    assert [(each.end, each.logits is None) for each in copies] == [(30, True), (40, False)]


@pytest.mark.parametrize("window", [None, 0, 8])
def test_a_copy_has_logits_that_came_later(window: int | None) -> None:
    engines = [Engine(FakeBackend(script=lambda _, _tokens: 65, window=window), cache_bytes=10_000) for _ in range(2)]
    run(engines[0], request("x" * 40, max_tokens=3, ignore_eos=True))
    run(engines[0], again := request("x" * 40 + "AA", max_tokens=1))
    engines[1]._states.put(engines[0]._states.copies(pack(again.token_ids[0])))
    assert evaluated(engines[1], again) == 0
