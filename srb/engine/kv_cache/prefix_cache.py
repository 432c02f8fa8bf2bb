"""The prefix cache: finds what a prompt can begin with, so that this part of it isn't computed again.

It takes the longest beginning that a living prompt or sequence has, or will have soon, or whose state is cached. There
are two radix trees: one of the living, one of cached states (`StateCache`). The living are preferred, because a fork
takes no cells. A lookup takes time for the prompt's own length only, whatever else waits, runs or is cached:

    "Once upon a time, " ─┬─ "there was a king" ─┬─ " who"        alternative 0
                          │   prompt A           └─ "'s daughter" alternative 1
                          └─ "in a wood"   prompt B

    new prompt: "Once upon a time, there was a king's horse"
    It shares "Once upon a time, there was a king's " with alternative 1: it is forked off that one, and computes
    " horse".

- If a living sequence has the beginning, the prompt is forked off it (`Cells.share`): at once, or when that sequence
  has come so far. If that one goes before, what it has computed is cached, and those that wait are admitted again.
- If more of the beginning is cached, its entries are copied back into cells (`PrefixCache.restore`). For the entries
  that a living sequence has, the prompt is forked off that sequence, and the other entries are put after these.
- A full cache can be continued after any token. Other models forget: a sliding window has only the last tokens of a
  sequence, and a recurrent state belongs to the sequence's end alone. So the backend is asked where a sequence can be
  continued (`Backend.continuable_from`). With a recurrent model, prompt B can't share the first 400 tokens of sequence
  A if A has 900. But if A's state was cached after 256 of them, B begins with this state.
- A scored prompt can begin only with what has log-probabilities (`Prompt.outputs_from`): with what another scored
  prompt has, or with cached states that have them.
- A tree keeps apart what has another key (`radix.py`). The server names who shares a request after its API key, so no
  key learns from `cached_tokens` what another one has sent. What was cached without a name, as the text of `--preload`,
  is found with every name, and entries with a name continue its entries.
"""

from itertools import chain, islice

from srb.engine.backend import Backend
from srb.engine.kv_cache.entries import Hit
from srb.engine.kv_cache.radix import WORTH_SHARING, PrefixTree, pack
from srb.engine.kv_cache.retention import RetentionPolicy
from srb.engine.kv_cache.rollback import Rollback
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.sequence import Beginning, Prompt, Sequence

_TRIES = 32
"""The most prompts and sequences with the same beginning for which the backend is asked where they can be continued.
Unless the model forgets, the first one can."""


class PrefixCache:
    """Finds beginnings: those of living prompts and sequences, and cached ones.

    Args:
        states: the cached ones.
        retention: caches the state of a new prompt at checkpoints, which depend on what was found.
    """

    def __init__(self, backend: Backend, states: StateCache, rollback: Rollback, retention: RetentionPolicy) -> None:
        self._backend = backend
        self._rollback = rollback
        self._states = states
        self._retention = retention
        self._tree: PrefixTree[Prompt | Sequence] = PrefixTree()
        self._n_indexed: dict[Sequence, int] = {}  # how many of its own tokens the tree has of each sequence

    def add(self, holder: Prompt | Sequence) -> None:
        """Lets other prompts share this prompt, or this sequence as it grows. Adding one twice does no harm."""
        prompt = holder if isinstance(holder, Prompt) else holder.prompt
        if isinstance(holder, Sequence) and not holder.strategy.caches_texts:
            return
        if prompt.shares and not prompt.strategy.shifts_context and holder not in self._tree:
            self._tree.add(holder, prompt.packed, prompt.key)
            if isinstance(holder, Sequence):
                self._n_indexed[holder] = 0

    def remove(self, holder: Prompt | Sequence) -> None:
        """Forgets a prompt or a sequence that can no longer be forked."""
        if holder in self._tree:
            self._tree.remove(holder)
            if isinstance(holder, Sequence):
                del self._n_indexed[holder]

    def find(self, prompt: Prompt) -> Beginning | None:
        """Returns the longest beginning of a prompt that others have, and plans the prompt's checkpoints.

        If a living sequence and a cached state have the same length, the sequence is taken. If more is cached, the
        prompt is forked off the sequence as far as possible, and the rest is restored. None: there is no beginning of
        at least `WORTH_SHARING` tokens.
        """
        found, n_known = self._find(prompt) if prompt.shares else (None, 0)
        self._retention.plan_checkpoints(prompt, found.n_tokens if found else 0, n_known)
        return found

    def restore(self, prompt: Prompt, hit: Hit) -> int:
        """Copies a cached beginning into a prompt's cells, and returns how many tokens these have now.

        This needs an entry that begins just where the prompt is now.
        """
        assert prompt.seq_id is not None
        n_tokens, length = prompt.n_computed, len(prompt.tokens)
        if all(start != n_tokens for _, start, _ in hit.entries):
            return n_tokens
        for state, start, end in self._states.states(hit, n_tokens):
            if not self._backend.restore(state, prompt.seq_id, start, end):
                break
            n_tokens = end
        logits = self._states.logits(hit) if n_tokens == length else None
        if logits is None:  # the last token must be computed
            n_tokens = prompt.begins_at(min(n_tokens, length - 1))
        if not self._backend.truncate(prompt.seq_id, n_tokens):
            self._backend.remove(prompt.seq_id)
            n_tokens = 0
        prompt.logits = logits if n_tokens == length else None
        return n_tokens

    def _find(self, prompt: Prompt) -> tuple[Beginning | None, int]:
        """Returns the longest beginning, and how many of the prompt's tokens are known in all."""
        if prompt.scores:
            self._states.score(prompt.scores, prompt.keys)
        # Shifting the context moves the cells of a prompt, so it may not share them with another prompt.
        found, n_living = (None, 0) if prompt.strategy.shifts_context else self._find_living(prompt)
        hit, n_cached = self._states.find(prompt.packed, prompt.keys, prompt.outputs_from)
        hit = hit and hit.up_to(prompt.begins_at(hit.n_tokens))
        if hit and hit.n_tokens > (found.n_tokens if found else 0):
            found = self._join(found, hit)
        if found and found.n_tokens < WORTH_SHARING:
            found = None
        if prompt.scores:
            prompt.scores.cut(1 + (found.n_tokens if found else 0))
        return found, max(n_living, n_cached)

    def _join(self, found: Beginning | None, hit: Hit) -> Beginning:
        """Shares what a living sequence has of a hit; only the other entries are read, and take cells."""
        # If the model forgets, a sequence can't be forked in the middle of its tokens. Blocks are of one origin.
        if found and self._backend.window is None and not self._backend.block_size:
            shared = max(start for _, start, _ in hit.entries if start <= found.shared)
            if shared >= WORTH_SHARING:
                return Beginning(shared, found.source, hit)
        return Beginning(hit=hit)

    def _find_living(self, prompt: Prompt) -> tuple[Beginning | None, int]:
        """Returns the longest living beginning, and how many of the prompt's tokens the tree has in all."""
        for seq, start in self._n_indexed.items():
            end = self._n_indexed[seq] = self._rollback.n_settled(seq)
            self._tree.grow(seq, pack(seq.tokens[start:end]))
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
        """Returns how many tokens a prompt can share with a holder, if their first `n_common` tokens are the same.

        The prompt's last token must be computed for its logits, unless the holder is a prompt with the same tokens:
        its logits are there. A scored prompt shares less, because logits are lacking (`prompt_logprobs.py`).
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
        if holder.beginning and self._backend.window is not None:
            first = holder.beginning.n_tokens  # it waits for these tokens, and can't be continued before their end
        elif holder.n_computed and holder.source_id is None:
            return 0
        return n_tokens if n_tokens >= first else 0
