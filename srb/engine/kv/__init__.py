"""The KV cache: who holds its cells, what they hold, and how they are laid out.

`cells.py` fills, swaps and empties cells for all kinds of requests; begin with it. `kv_cache.py` counts them: it is the
allocator. `layout.py` has the two layouts, and the loads by which a backend chooses one. `memory.py` says how a
sequence goes back to an earlier token. `radix.py` has trees of texts, apart by the keys of `keys.py`.

In: prompts that were admitted, sequences that are preempted or have finished. Out: calls of the backend: fork,
truncate, remove, save, restore.

Cells are allocated on demand. `Scheduler.admit` needs cells for a prompt, and a small margin for each of its
alternatives. `Scheduler.reserve` takes the cells of each step, and if there are too few, `Cells.preempt` swaps the
youngest sequences out. The oldest one is never preempted, so all come to an end. Only the rows of a search hold all
their cells from the start (`Way.row_cells`).

The allocated cells are a tree of spans: shared cells belong to the parent, and stay allocated until the last child has
gone. `Cells.give_back` and `Cells.swap_out` are the only places that give cells back.
"""
