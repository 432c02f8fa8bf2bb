"""The cells of the KV cache: who has leased them, and what they hold.

`kv_cache.py` keeps the books, `needs.py` computes how much requests need, `room.py` divides what is free, and
`cells.py` fills and empties cells for all kinds of requests; begin with it. `memory.py` says how a sequence goes back.
`radix.py` has trees of texts, apart by the keys of `keys.py`.

In: prompts that were admitted, sequences that have finished. Out: calls of the backend: fork, truncate, remove.

`Scheduler.admit` leases the cells that a prompt and its alternatives can need at most: one for each token of the prompt
that it doesn't share, and max_tokens - 1 for each alternative, because the last token is never evaluated. So a running
alternative never lacks a cell. The leases are a tree of spans: shared cells belong to the parent, and stay leased until
the last child has gone. `Cells.give_back` is the only place that gives cells back. Only one request may run in part:
two such requests would wait for each other's cells for ever.
"""
