import pytest

from srb.engine.kv_cache.allocator import CellAllocator, Layout


def test_seq_ids_are_leased_from_the_lowest() -> None:
    cache = CellAllocator(Layout(True, 10, 3))
    assert [cache.lease_seq(), cache.lease_seq()] == [0, 1]
    cache.release_seq(0)
    assert (cache.free_seqs, cache.lease_seq()) == (2, 0)


def test_shared_cells_are_free_when_the_last_of_those_that_share_them_has_gone() -> None:
    cache = CellAllocator(Layout(True, 100, 1))
    prompt = cache.lease(None, 0, 40)
    first, second = cache.lease(prompt, 40, 50), cache.lease(prompt, 40, 45)
    other = cache.lease(first, 43, 60)  # has 40 of the prompt and 3 of the first
    nested = cache.lease(other, 20, 30)  # has 20 of the prompt
    assert cache.leased_cells == 40 + 10 + 5 + 17 + 10
    cache.close(prompt)
    assert cache.leased_cells == 40 + 10 + 5 + 17 + 10
    cache.close(first)
    assert cache.leased_cells == 40 + 3 + 5 + 17 + 10
    cache.close(second)
    cache.close(other)
    assert cache.leased_cells == 20 + 10
    cache.close(nested)
    assert cache.leased_cells == 0


def test_the_books_refuse_what_cannot_be() -> None:
    cache = CellAllocator(Layout(True, 10, 3))
    with pytest.raises(RuntimeError, match="not free"):
        cache.lease(None, 0, 11)
    span = cache.lease(None, 0, 10)
    cache.close(span)
    with pytest.raises(RuntimeError, match="twice"):
        cache.close(span)
