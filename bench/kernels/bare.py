"""A llama.cpp context, and decodes in it, without srb's code. `par.py` and `shapes.py` measure with it."""

from typing import Any

import llama_cpp

from srb.llama.native.context import new_context

BATCH = 512  # tokens


class Bare:
    """A context with these `llama_context_params`. Raises `ModelLoadError` if llama.cpp can't create it."""

    def __init__(self, model: Any, params: Any) -> None:
        self._context = new_context(model, params, "a context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def begin(self, n_tokens: int, n: int) -> None:
        """Evaluate a prompt of `n_tokens` tokens and fork it to n sequences. All other sequences are emptied."""
        llama_cpp.llama_memory_clear(self._memory, False)
        for first in range(0, n_tokens, BATCH):
            self.decode(range(first, min(first + BATCH, n_tokens)), range(1), has_logits=False)
        for seq_id in range(1, n):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, seq_id, -1, -1)

    def decode(self, positions: range, seq_ids: range, *, has_logits: bool = True) -> None:
        """Evaluate a token at each of these positions in each of these sequences."""
        rows = [(position, seq_id) for position in positions for seq_id in seq_ids]
        batch = self._batch
        for place, (position, seq_id) in enumerate(rows):
            batch.token[place], batch.pos[place], batch.logits[place] = 1000 + position, position, has_logits
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, seq_id
        batch.n_tokens = len(rows)
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self._context)
