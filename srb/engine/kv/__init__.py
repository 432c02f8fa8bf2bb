"""The cells of the KV cache: who has leased them, and what they hold.

`kv_cache.py` keeps the books, `needs.py` computes how much requests need, `room.py` divides what is free, and
`cells.py` fills and empties cells for all kinds of requests; begin with it. `memory.py` says how a sequence goes back.
`radix.py` has trees of texts, apart by the keys of `keys.py`.

In: prompts that were admitted, sequences that have finished. Out: calls of the backend: fork, truncate, remove.
"""
