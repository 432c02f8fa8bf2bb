import pytest

from srb.engine.kv_cache import KVCache


def test_what_is_leased_is_not_free_until_it_is_given_back() -> None:
    cache = KVCache(n_cells=10, n_seqs=3)
    seq_ids = cache.lease(7, 2)
    assert seq_ids == [0, 1]
    assert (cache.leased_cells, cache.leased_seqs) == (7, 2)
    assert cache.has_room(3, 1)
    assert not cache.has_room(4, 1)
    assert not cache.has_room(3, 2)
    cache.release(4, [0])
    assert cache.lease(0, 1) == [0]
    cache.release(3, [1, 0])
    assert (cache.leased_cells, cache.leased_seqs) == (0, 0)


def test_the_books_refuse_what_cannot_be() -> None:
    cache = KVCache(n_cells=10, n_seqs=3)
    with pytest.raises(RuntimeError, match="not free"):
        cache.lease(11, 1)
    with pytest.raises(KeyError):
        cache.release(0, [1])
    with pytest.raises(RuntimeError, match="nobody had leased"):
        cache.release(1)
