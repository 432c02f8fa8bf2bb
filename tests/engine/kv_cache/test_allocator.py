import pytest

from srb.engine.kv_cache.allocator import CellAllocator, Layout


def test_the_lowest_free_seq_id_is_allocated() -> None:
    cache = CellAllocator(Layout(True, 10, 3))
    assert [cache.allocate_seq(), cache.allocate_seq()] == [0, 1]
    cache.free_seq(0)
    assert (cache.free_seqs, cache.allocate_seq()) == (2, 0)


def test_shared_cells_are_free_when_the_last_span_that_shares_them_is_freed() -> None:
    cache = CellAllocator(Layout(True, 100, 1))
    prompt = cache.allocate(None, 0, 40)
    first, second = cache.allocate(prompt, 40, 50), cache.allocate(prompt, 40, 45)
    other = cache.allocate(first, 43, 60)  # has 40 of the prompt and 3 of the first
    nested = cache.allocate(other, 20, 30)  # has 20 of the prompt
    assert cache.used_cells == 40 + 10 + 5 + 17 + 10
    cache.free(prompt)
    assert cache.used_cells == 40 + 10 + 5 + 17 + 10
    cache.free(first)
    assert cache.used_cells == 40 + 3 + 5 + 17 + 10
    cache.free(second)
    cache.free(other)
    assert cache.used_cells == 20 + 10
    cache.free(nested)
    assert cache.used_cells == 0


def test_too_many_cells_and_freeing_twice_are_refused() -> None:
    cache = CellAllocator(Layout(True, 10, 3))
    with pytest.raises(RuntimeError, match="not free"):
        cache.allocate(None, 0, 11)
    span = cache.allocate(None, 0, 10)
    cache.free(span)
    with pytest.raises(RuntimeError, match="twice"):
        cache.free(span)
