"""`ContextShift`: prompts and texts that are longer than the context. It decides which of their tokens stay in the
cells.

An example, with n_keep = 2, and n_discard left out. The alternatives 0 and 1 have a prompt in common:

    "a b c d e f g h" ─┬─ "i j"     no room is left for the next tokens
                       └─ "k l"
    "a b f g h" ─┬─ "i j"           half of the tokens behind "a b" have left. The cells of the prompt were moved once,
                 └─ "k l"           for both alternatives, and each has room for one or two tokens more
    "a b j" ...                     in the end each alternative can lose only tokens of its own

All alternatives of a prompt lose their common tokens at the same time. This works because they have all generated
equally many tokens, and so they go on sharing cells. The text that a client gets is not changed by a shift.

What was said and what the cells hold are then two things: `n_shifted` counts what has left the cells, and `position` is
where the next row goes. Tokens, text, samplers and journals know nothing of it.

- The alternatives divide one context equally, whatever else runs. When its part is full, an alternative makes room
  before the next batch. So a text doesn't depend on the load.
- The room of the tokens that leave a prompt is divided equally between all alternatives, also those that have ended. So
  no text depends on when its siblings end. No cell is copied; a copy of the prompt for each would need n times as many.
- Nobody else may have these cells, because they move. So such a prompt is never in the tree of living beginnings, and
  begins only with what was retained, which is copied. It is retained before its first token leaves, and not after.
- All alternatives begin together, so there may be at most as many as run at once. A prompt that is too long is cut when
  it comes, and when the request is resumed, each alternative to an equal part of the context.
- A request that fits is left as it is: `may_shift` is asked once.
"""

from srb.engine.decoding.sampling import Sampling
from srb.engine.decoding.strategy import EngineParts
from srb.engine.kv_cache.radix import pack
from srb.engine.request import CompletionRequest
from srb.engine.sequence import Prompt, Sequence

LEAST_CELLS = 8
"""A request whose context may be shifted needs at least so many cells of the cache for each alternative."""

_LEAST_ROOM = 16
"""A prompt isn't cut if it leaves each alternative room for so many tokens, or half of the context to all of them."""

_LEAST_PROMPT = 4
"""When a prompt is cut, at least so many tokens stay behind its first `n_keep`, as in llama-server."""


def may_shift(request: CompletionRequest, n_cells: int, default_max_tokens: int) -> bool:
    """Whether a request asks for context_shift, and may need it: one alternative alone may not fit into the context."""
    longest = max(map(len, request.prompts))
    wanted = {default_max_tokens if params.max_tokens is None else params.max_tokens for params in request.branches}
    return request.context_shift and (-1 in wanted or longest + max(0, max(wanted) - 1) > n_cells)


class ContextShift(Sampling):
    """Draws as `Sampling` does, but makes room in the cells when they are full, and goes on."""

    keeps_step = True
    shifts_context = True
    is_divisible = False
    needs_unified = True

    def __init__(self, prompt: Prompt, tools: EngineParts) -> None:
        super().__init__(prompt, tools)
        request, special = prompt.active.request, tools.backend.tokenizer.special
        n_keep = len(prompt.asked) if request.n_keep == -1 else request.n_keep + (prompt.tokens[0] == special.bos)
        self._n_keep = min(n_keep, len(prompt.tokens))
        self._n_discard = request.n_discard
        self._room = 0  # for how many tokens each sequence has room now
        self._cut()

    def _cut(self) -> None:
        """Cuts the prompt so that it fits into the context, as llama-server used to do it.

        Its first tokens stay, and as many blocks behind them leave as must. A block is half as long as the room behind
        the first tokens. So the prompts of a chat that grows begin alike for a while.
        """
        prompt = self._prompt
        tokens, n = prompt.tokens, len(prompt.sequences)
        # A request has several prompts if it was resumed, or has different adapters.
        part = self._tools.backend.n_cells * n // len(self._active.sequences)
        most = part - n * max(2, min(_LEAST_ROOM, part // (2 * n)))
        if len(tokens) <= most:
            return
        n_keep = self._n_keep = min(self._n_keep, most - _LEAST_PROMPT)
        block = (most - n_keep) // 2
        prompt.n_cut = (len(tokens) - n_keep - block) // block * block
        prompt.tokens = tokens[:n_keep] + tokens[n_keep + prompt.n_cut :]
        prompt.packed = pack(prompt.tokens)
        for seq in prompt.sequences:
            seq.saved = len(prompt.tokens)

    def size(self, seq: Sequence, wanted: int, most: int, n_cells: int) -> None:
        """Divides one context equally between all sequences of the request."""
        prompt, n = self._prompt, len(self._prompt.sequences)
        seq.max_tokens = max(0, (most if wanted == -1 else wanted) - len(seq.resumed_tokens))
        self._room = (n_cells * n // len(self._active.sequences) - len(prompt.tokens)) // n + 1

    def before_step(self) -> None:
        """Makes room for sequences whose cells are full: some of the tokens that they have seen leave the cells.

        Tokens that siblings share leave the cells of all siblings at once, so that shared cells are moved only once.
        """
        prompt, backend = self._prompt, self._tools.backend
        lacking = {seq: self._to_drop(seq) for seq in self.rows if seq.n_own >= self._room}
        if not lacking:
            return
        if from_prompt := max(n for n, _ in lacking.values()):
            self._tools.cells.loses_end(prompt)
            # These include sequences that have finished and still hold their cells: they share the cells that move.
            holders = (prompt.seq_id, *(each.seq_id for each in prompt.sequences if each.has_begun))
            seq_ids = [seq_id for seq_id in holders if seq_id is not None]
            backend.discard(seq_ids, self._n_keep, self._n_keep + from_prompt, prompt.position)
            prompt.n_shifted += from_prompt
        start = prompt.position
        for seq, (_, own) in lacking.items():
            if own:
                assert seq.seq_id is not None
                backend.discard([seq.seq_id], start, start + own, start)
                seq.n_shifted += own
        # Sequences that have ended are counted, too, so that a text doesn't depend on when its siblings end.
        self._tools.scheduler.drop(prompt, from_prompt)
        self._room += from_prompt // len(prompt.sequences)

    def _to_drop(self, seq: Sequence) -> tuple[int, int]:
        """How many tokens of its prompt, and of its own, a sequence without room must lose now.

        Room that the prompt gives up is shared by all of its sequences, so it loses at least one token for each.
        """
        n, of_prompt = len(self._prompt.sequences), self._prompt.position - self._n_keep
        n_left = of_prompt + seq.n_own - 1
        least = n if of_prompt >= n else of_prompt + 1
        n_discard = min(max(self._n_discard or n_left // 2, least), max(1, n_left - 1))
        from_prompt = min(n_discard, of_prompt)
        own = n_discard - from_prompt
        return from_prompt, own if own or from_prompt >= n else 1
