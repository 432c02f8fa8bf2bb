"""`ContextShift`: prompts and texts that are longer than the context.

An example, with n_keep = 2, and n_discard left out. The alternatives 0 and 1 share a prompt:

    "a b c d e f g h" ─┬─ "i j"     no room is left for the next tokens
                       └─ "k l"
    "a b f g h" ─┬─ "i j"           half of the tokens after "a b" were discarded. The cells of the prompt were moved
                 └─ "k l"           once, for both alternatives, and each has room for one or two more tokens
    "a b j" ...                     in the end each alternative can only discard its own tokens

All alternatives of a prompt discard their common tokens at the same time. This works because all of them have generated
the same number of tokens, so they go on sharing cells. A shift doesn't change the text that a client gets: `n_shifted`
counts the tokens that have left the cells, and `position` is where the next row goes. Tokens, text, samplers and event
logs know nothing of it.

- The alternatives divide one context equally, whatever else runs. When its part is full, an alternative makes room
  before the next batch. So a text doesn't depend on the load.
- The room of the tokens that leave a prompt is divided equally between all alternatives, also the finished ones. So no
  text depends on when its siblings end. No cell is copied; a copy of the prompt for each would need n times as many.
- No other prompt may share these cells, because they move. So such a prompt isn't in the tree of running prompts, and
  begins only with cached states, which are copied. It is cached before its first token leaves, and not after.
- All alternatives begin together, so there may be at most as many as run at once. A prompt that is too long is cut when
  it comes. When the request is resumed, each alternative is cut to an equal part of the context.
- A request that fits is left as it is: `may_shift` is asked once.
"""

from srb.engine.decoding.base import EngineParts
from srb.engine.decoding.sampling import Sampling
from srb.engine.kv_cache.radix import pack
from srb.engine.request import CompletionRequest
from srb.engine.sequence import Prompt, Sequence

LEAST_CELLS = 8
"""The least number of cells for each alternative of a request with context shift."""

_LEAST_ROOM = 16
"""A prompt isn't cut if it leaves room for this many tokens of each alternative, or half of the context for all."""

_LEAST_PROMPT = 4
"""The least number of tokens that stay after the first `n_keep` of a prompt that is cut, as in llama-server."""


def may_shift(request: CompletionRequest, n_cells: int, default_max_tokens: int) -> bool:
    """Return whether a request asks for context_shift, and one of its alternatives may not fit into the context."""
    longest = max(map(len, request.prompts))
    limits = {default_max_tokens if params.max_tokens is None else params.max_tokens for params in request.branches}
    return request.context_shift and (-1 in limits or longest + max(0, max(limits) - 1) > n_cells)


class ContextShift(Sampling):
    """Samples as `Sampling` does. When the cells are full, it discards tokens and goes on."""

    in_lockstep = True
    shifts_context = True
    is_divisible = False
    needs_unified = True

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        super().__init__(prompt, parts)
        request, special = prompt.active.request, parts.backend.tokenizer.special
        n_keep = len(prompt.asked) if request.n_keep == -1 else request.n_keep + (prompt.tokens[0] == special.bos)
        self._n_keep = min(n_keep, len(prompt.tokens))
        self._n_discard = request.n_discard
        self.own_shifts: dict[Sequence, int] = {}
        self._room = 0  # the number of tokens that each sequence has room for
        self._cut()

    def _cut(self) -> None:
        """Cut the prompt so that it fits into the context, as llama-server used to do it.

        Its first tokens stay. As many blocks after them are left out as must be; a block is half as long as the room
        after the first tokens. So the prompts of a growing chat begin alike for a while.
        """
        prompt = self._prompt
        tokens, n = prompt.tokens, len(prompt.sequences)
        # A request has several prompts if it was resumed, or has different adapters.
        part = self._parts.backend.n_cells * n // len(self._active.sequences)
        most = part - n * max(2, min(_LEAST_ROOM, part // (2 * n)))
        if len(tokens) <= most:
            return
        n_keep = self._n_keep = min(self._n_keep, most - _LEAST_PROMPT)
        block = (most - n_keep) // 2
        self.n_truncated = (len(tokens) - n_keep - block) // block * block
        prompt.tokens = tokens[:n_keep] + tokens[n_keep + self.n_truncated :]
        prompt.packed = pack(prompt.tokens)

    def set_max_tokens(self, seq: Sequence, requested: int, limit: int, n_cells: int) -> None:
        """Divide one context equally between all sequences of the request."""
        prompt, n = self._prompt, len(self._prompt.sequences)
        seq.max_tokens = max(0, (limit if requested == -1 else requested) - len(seq.resumed_tokens))
        self._room = (n_cells * n // len(self._active.sequences) - len(prompt.tokens)) // n + 1

    def before_step(self) -> None:
        """Discard tokens of sequences whose cells are full.

        Tokens that siblings share leave the cells of all siblings at once, so that shared cells are moved only once.
        """
        prompt, backend = self._prompt, self._parts.backend
        full = {seq: self._n_to_discard(seq) for seq in self.rows if seq.n_own >= self._room}
        if not full:
            return
        if from_prompt := max(n for n, _ in full.values()):
            self._parts.cells.retention.cache_prompt(prompt)
            # Finished sequences that still have cells are among these: they share the cells that move.
            sharing = (prompt.seq_id, *(each.seq_id for each in prompt.sequences if each.is_forked))
            seq_ids = [seq_id for seq_id in sharing if seq_id is not None]
            backend.discard(seq_ids, self._n_keep, self._n_keep + from_prompt, prompt.position)
            self.n_shifted += from_prompt
        start = prompt.position
        for seq, (_, own) in full.items():
            if own:
                assert seq.seq_id is not None
                backend.discard([seq.seq_id], start, start + own, start)
                self.own_shifts[seq] = seq.n_shifted + own
        # Finished sequences count, too, so that a text doesn't depend on when its siblings end.
        self._parts.scheduler.drop(prompt, from_prompt)
        self._room += from_prompt // len(prompt.sequences)

    def _n_to_discard(self, seq: Sequence) -> tuple[int, int]:
        """Return how many tokens of its prompt, and of its own, a full sequence discards.

        All sequences share the room that the prompt gives up, so the prompt loses at least one token for each.
        """
        n, of_prompt = len(self._prompt.sequences), self._prompt.position - self._n_keep
        n_left = of_prompt + seq.n_own - 1
        least = n if of_prompt >= n else of_prompt + 1
        n_discard = min(max(self._n_discard or n_left // 2, least), max(1, n_left - 1))
        from_prompt = min(n_discard, of_prompt)
        own = n_discard - from_prompt
        return from_prompt, own if own or from_prompt >= n else 1
