"""`PrefixCache`: finds what a prompt can begin with, so that this part of it needn't be evaluated again.

It takes the longest beginning that a living prompt or sequence has, or will have soon, or that was retained.

A full cache can be continued after any of its tokens. Other kinds of memory forget: a sliding window has only the last
tokens of a sequence, and a recurrent state belongs to the sequence's end alone. So it isn't enough that a sequence
holds a beginning. The backend is asked whether the sequence can be continued there (`Backend.continuable_from`), and
the longest beginning that can is taken. An example with a recurrent model: sequence A is running and has 900 tokens,
and prompt B begins with the first 400 tokens of A. The state of A after 400 tokens is gone. But if a state was saved
after 256 of them, B begins with this state.

The index looks in two radix trees of the same kind: one of what holds cells, or will hold them, and one of what was
retained. Living sequences are preferred, because a fork takes no cells. The time of an answer depends only on the
prompt's own length, however many others wait, run or are kept. An example of the first tree:

    "Once upon a time, " ─┬─ "there was a king" ─┬─ " who"        held: alternative 0
                          │   held: prompt A     └─ "'s daughter" held: alternative 1
                          └─ "in a wood"   held: prompt B

    new prompt: "Once upon a time, there was a king's horse"
    It shares "Once upon a time, there was a king's " with alternative 1: it is forked off that one, and evaluates
    " horse".

- If a living sequence holds the beginning, the prompt is forked off it (`Cells.share`): at once, or when that sequence
  has come so far. If several prompts wait for a sequence that is aborted, one of them takes over its work.
- If more of the beginning was retained, it is copied back into cells (`restored.py`). For the pieces that a living
  sequence holds, the prompt is forked off that sequence, and the other pieces are put behind.
- A scored prompt can begin only with what has log-probabilities (`Prompt.outputs_from`): with what another scored
  prompt holds, or with retained states that have them.
- A tree keeps apart what has another key (`radix.py`). The server names who shares a request after its API
  key, so that no key learns by `cached_tokens` what another one has sent. What was retained without a name, as the text
  of `--preload`, is found with every name, and pieces with a name continue its pieces.
"""

from dataclasses import dataclass
from itertools import chain, islice

from srb.engine.backend import Backend
from srb.engine.kv_cache.entries import Hit
from srb.engine.kv_cache.radix import WORTH_SHARING, PrefixTree, pack
from srb.engine.kv_cache.rollback import Rollback
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.listener import Listener
from srb.engine.media import whole
from srb.engine.sequence import Beginning, Prompt, Sequence

# `RestoredPrefix`: the part of a prompt's beginning that was retained, and is copied back into cells.


@dataclass(frozen=True, slots=True)
class RestoredPrefix:
    """The pieces of a hit behind the first `shared` tokens. Implements `srb.engine.ports.Part`."""

    backend: Backend
    retained: StateCache
    hit: Hit
    shared: int = 0

    @property
    def n_tokens(self) -> int:
        """How many tokens it has."""
        return self.hit.n_tokens - self.shared

    def apply(self, prompt: Prompt) -> int:
        """See `Part.apply`. A state can be restored only if one of its pieces begins just where the prompt is now."""
        assert prompt.seq_id is not None
        known = prompt.n_computed
        if all(start != known for _, start, _ in self.hit.pieces):
            return known
        for state, start, end in self.retained.states(self.hit, known):
            if not self.backend.restore(state, prompt.seq_id, start, end):
                break
            known = end
        logits = self.retained.logits(self.hit) if known == len(prompt.tokens) else None
        known = len(prompt.tokens) if logits is not None else prompt.begins_at(min(known, len(prompt.tokens) - 1))
        if not self.backend.truncate(prompt.seq_id, known):
            self.backend.remove(prompt.seq_id)
            known = 0
        prompt.saved = known
        prompt.logits = logits if known == len(prompt.tokens) else None
        return known


_TRIES = 32
"""For at most so many holders that begin alike, the backend is asked whether they can be continued. Unless the model
forgets, the first one can."""

_CHECKPOINT_EVERY = 512
"""If the model forgets, the state of a long prompt is saved each time that so many more of its tokens are evaluated, or
twice as many, or four times as many and so on, so that there are at most `_CHECKPOINTS` states."""

_CHECKPOINTS = 8
"""At most so many states of one prompt are saved at regular distances."""


class PrefixCache(Listener):
    """Knows all beginnings: those of prompts and sequences that hold cells, or will, and those that were retained."""

    def __init__(self, backend: Backend, retained: StateCache, memory: Rollback) -> None:
        self._backend = backend
        self._memory = memory
        self._retained = retained
        self._tree: PrefixTree[Prompt | Sequence] = PrefixTree()
        self._growing: dict[Sequence, None] = {}

    def add(self, holder: Prompt | Sequence) -> None:
        """Lets other prompts share this prompt, or this sequence as it grows. To add one twice does no harm."""
        prompt = holder if isinstance(holder, Prompt) else holder.prompt
        if prompt.shares and not prompt.strategy.shifts_context and holder not in self._tree:
            self._tree.add(holder, prompt.packed, prompt.key)
            if isinstance(holder, Sequence):
                self._growing[holder] = None

    def forked(self, seq: Sequence) -> None:
        """See `Listener.forked`."""
        if seq.strategy.caches_texts:
            self.add(seq)

    def gives_away(self, prompt: Prompt) -> None:
        """See `Listener.gives_away`. A model that forgets can't be forked off the prompt's end any more."""
        if self._memory.forgets:
            self.remove(prompt)

    def remove(self, holder: Prompt | Sequence) -> None:
        """Forgets a prompt or a sequence that can no longer be forked."""
        if holder in self._tree:
            self._tree.remove(holder)
            if isinstance(holder, Sequence):
                self._growing.pop(holder, None)
                holder.n_indexed = 0

    def find(self, prompt: Prompt) -> Beginning | None:
        """The longest beginning of a prompt that others have; None if there is none of at least `WORTH_SHARING` tokens.

        If a living sequence and a retained state have the same length, the sequence is taken, because a fork takes no
        cells. If more was retained, the prompt is forked off the sequence as far as possible, and the rest is copied.
        This method also sets where the prompt's own state will be saved while it is evaluated.
        """
        prompt.checkpoints = []
        if not prompt.shares:
            return None
        if prompt.scores:
            self._retained.score(prompt.scores, prompt.keys)
        # Shifting the context moves the cells of a prompt, so it may not share them with another prompt.
        found, known = (None, 0) if prompt.strategy.shifts_context else self._find_living(prompt)
        hit, known_retained = self._retained.find(prompt.packed, prompt.keys, prompt.outputs_from)
        hit = hit and hit.up_to(prompt.begins_at(hit.n_tokens))
        if hit and hit.n_tokens > (found.n_tokens if found else 0):
            found = self._join(found, hit)
        if found and found.n_tokens < WORTH_SHARING:
            found = None
        if prompt.scores:
            prompt.scores.cut(1 + (found.n_tokens if found else 0))
        self._set_checkpoints(prompt, found.n_tokens if found else 0, max(known, known_retained))
        return found

    def _join(self, found: Beginning | None, hit: Hit) -> Beginning:
        """Shares what a living sequence has of a hit; only the other pieces are read, and take cells."""
        # If the model forgets, a sequence can't be forked in the middle of its tokens. Blocks are of one origin.
        if found and self._backend.window is None and not self._backend.block_size:
            shared = max(start for _, start, _ in hit.pieces if start <= found.shared)
            if shared >= WORTH_SHARING:
                return Beginning(shared, found.source, RestoredPrefix(self._backend, self._retained, hit, shared))
        return Beginning(rest=RestoredPrefix(self._backend, self._retained, hit))

    def _find_living(self, prompt: Prompt) -> tuple[Beginning | None, int]:
        """The longest beginning that is held or will be, and how many of the prompt's tokens the tree has in all."""
        for seq in self._growing:
            end = self._memory.n_settled(seq)
            self._tree.grow(seq, pack(seq.tokens[seq.n_indexed : end]))
            seq.n_indexed = end
        match = self._tree.find(prompt.packed, prompt.key)
        candidates = [(match.n_tokens, holder) for holder in islice(match.below(), _TRIES)]
        best: Beginning | None = None
        for n_common, holder in chain(candidates, islice(match.ends(), _TRIES)):
            if best and best.n_tokens >= n_common:
                break
            n_tokens = self._can_share(prompt, holder, n_common)
            if n_tokens > (best.n_tokens if best else 0):
                best = Beginning(n_tokens, holder)
        return best, match.n_tokens

    def _can_share(self, prompt: Prompt, holder: Prompt | Sequence, n_common: int) -> int:
        """How many tokens a prompt can share with a holder, if they have their first `n_common` tokens in common.

        The prompt's last token must be evaluated for its logits, unless the holder is a prompt with the same tokens:
        its logits are kept. If the prompt is scored, see `scores.py`: it shares less, because logits are lacking.
        """
        n_tokens = min(n_common, len(prompt.tokens) - 1)
        first = 0 if holder.source_id is None else self._backend.continuable_from(holder.source_id)
        if isinstance(holder, Sequence):
            n_tokens = min(n_tokens, prompt.outputs_from)
            return n_tokens if n_tokens >= first else 0
        is_same = n_common == len(prompt.tokens) == len(holder.tokens)
        n_tokens = n_common if is_same else prompt.begins_at(n_tokens)
        if prompt.scores:
            n_scored = n_common - (not is_same) if prompt.scores.is_like(holder.scores) else 0
            n_tokens = prompt.begins_at(min(n_tokens, max(n_scored, prompt.outputs_from)))
        evaluated = holder.n_computed
        if holder.beginning:  # it waits for these tokens, so they don't count as evaluated yet
            evaluated = holder.beginning.n_tokens
            first = 0 if self._backend.window is None else evaluated
        elif evaluated and holder.source_id is None:
            return 0
        return n_tokens if n_tokens >= min(first, evaluated) else 0

    def _set_checkpoints(self, prompt: Prompt, begun: int, known: int) -> None:
        """Sets where a prompt's state will be saved: at regular points, and where it parts from what others have."""
        window = self._backend.window
        if window is None or not self._retained.keeps:
            return
        every, most = max(_CHECKPOINT_EVERY, window), len(prompt.tokens) - WORTH_SHARING
        while most // every > _CHECKPOINTS:
            every *= 2
        parting = known - 1 if prompt.scores else known  # a scored prompt needs the logits behind what it shares
        points = {*(whole(prompt.tokens, n) for n in range(every, most + 1, every)), parting}
        least, end = begun + WORTH_SHARING, len(prompt.tokens)
        prompt.checkpoints = sorted((n for n in points if least <= n < end), reverse=True)
