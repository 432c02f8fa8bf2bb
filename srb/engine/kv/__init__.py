"""The cells of the KV cache: who has leased them, and what they hold.

`kv_cache.py` keeps the books, `needs.py` computes how much requests need, and `cells.py` is the only file that fills
and empties cells for all kinds of requests; begin with it. `radix.py` has trees of
texts, apart by the keys of `keys.py`.

In: prompts that were admitted, sequences that have finished. Out: calls of the backend: fork, truncate, remove.
"""
