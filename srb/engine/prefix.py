"""What a prompt can begin with: the longest beginning that somebody holds, will hold, or has left behind.

A full cache can be continued after any of its tokens. Other kinds of memory forget: a sliding window holds the last
tokens of a sequence, a recurrent state is of its end alone. So it isn't enough that a beginning is held: the backend is
asked whether it can be continued there (`Backend.continuable_from`), and the longest that can is taken. Example, with a
recurrent model: A is running, 900 tokens long, and B begins with the first 400 tokens of A. A has forgotten how it was
after 400 tokens. A state that was saved after 256 of them is of use: B begins with that.
"""

from dataclasses import replace
from itertools import chain, islice

from srb.engine.backend import Backend
from srb.engine.media import whole
from srb.engine.moved import find_moved
from srb.engine.pieces import Hit
from srb.engine.radix import PrefixTree, pack
from srb.engine.retained import WORTH_SHARING, Retained
from srb.engine.sequence import Beginning, Prompt, Sequence

_TRIES = 32
"""Of those that begin alike so many are asked at most whether they can be continued. The first can, but for models that
forget."""

_CHECKPOINT_EVERY = 512
"""In a long prompt of a model that forgets, the state is saved after each so many tokens, or twice as many, or four
times, ..."""

_CHECKPOINTS = 8
"""... so that there are at most so many of a prompt."""


class PrefixIndex:
    """All beginnings: those of prompts and sequences that hold cells, and those that were retained."""

    def __init__(self, backend: Backend, retained: Retained) -> None:
        self._backend = backend
        self._retained = retained
        self._tree: PrefixTree[Prompt | Sequence] = PrefixTree()
        self._growing: dict[Sequence, None] = {}

    def add(self, holder: Prompt | Sequence) -> None:
        """Lets others begin as a prompt does, or as a sequence that begins now and grows. Twice does no harm."""
        prompt = holder if isinstance(holder, Prompt) else holder.prompt
        if prompt.shares and not prompt.shift and holder not in self._tree:
            self._tree.add(holder, prompt.packed, prompt.key)
            if isinstance(holder, Sequence):
                self._growing[holder] = None

    def remove(self, holder: Prompt | Sequence) -> None:
        """Forgets somebody whom nobody can fork any more."""
        if holder in self._tree:
            self._tree.remove(holder)
            self._growing.pop(holder, None)  # type: ignore[arg-type]

    def find(self, prompt: Prompt, least: int = 0) -> Beginning | None:
        """The longest beginning of a prompt that it can have from others; None if there is none worth it.

        One that somebody holds is preferred to a retained one of the same length: it takes no cells. Where more of it
        was retained than somebody holds, it has what it can from the one, and the rest from the other. Also sets where
        the prompt's own state is to be saved while it is evaluated.

        least: so many tokens are to be shared if they can be, because there may be no room for the prompt otherwise.
        """
        prompt.checkpoints = []
        if not prompt.shares or prompt.active.request.scores_prompt:
            return None
        # The cells of one whose context is shifted are moved, and so nobody else may have them, too.
        found, known = (None, 0) if prompt.shift else self._find_living(prompt)
        hit, known_retained = self._retained.find(prompt.packed, prompt.key)
        if hit and hit.n_tokens > (found.n_tokens if found else 0):
            both = self._join(found, hit)
            found = both if both.shared >= least else found
        least = prompt.active.request.n_cache_reuse
        if found and least and self._backend.can_shift and not prompt.media:
            moved = find_moved(self._retained, prompt.packed, found.n_tokens, least, prompt.key)
            found = replace(found, moved=moved)
        if found and found.n_tokens < WORTH_SHARING:
            found = None
        self._set_checkpoints(prompt, found.n_tokens if found else 0, max(known, known_retained))
        return found

    def _join(self, found: Beginning | None, hit: Hit) -> Beginning:
        """What was retained, but for the pieces that somebody holds: these need neither be read nor have cells."""
        # A model that forgets can't be forked in the middle of what somebody holds.
        if found and self._backend.window is None:
            shared = max(start for _, start, _ in hit.pieces if start <= found.shared)
            if shared >= WORTH_SHARING:
                return Beginning(shared, found.source, hit)
        return Beginning(hit=hit)

    def _find_living(self, prompt: Prompt) -> tuple[Beginning | None, int]:
        """The longest beginning that is held or will be, and how many tokens others have in common with the prompt."""
        for seq in self._growing:
            end = seq.n_settled
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
        """How many tokens a prompt can have from a holder that has `n_common` first ones in common with it.

        The prompt's last token is evaluated again, but where the holder is a prompt that ends there, too: its logits
        are kept.
        """
        n_tokens = min(n_common, len(prompt.tokens) - 1)
        first = 0 if holder.place is None else self._backend.continuable_from(holder.place)
        if isinstance(holder, Sequence):
            return n_tokens if n_tokens >= first else 0
        if n_common == len(prompt.tokens) == len(holder.tokens):
            n_tokens = n_common
        evaluated = holder.evaluated
        if holder.beginning:  # it has not begun with that yet
            evaluated = holder.beginning.n_tokens
            first = 0 if self._backend.window is None else evaluated
        elif evaluated and holder.place is None:
            return 0
        if holder.active.request.scores_prompt:  # it can't stop for others: its pieces are even
            n_tokens = min(n_tokens, evaluated)
        return n_tokens if n_tokens >= min(first, evaluated) else 0

    def _set_checkpoints(self, prompt: Prompt, begun: int, known: int) -> None:
        """Sets where a prompt's state is to be saved: at regular points, and where others go on in another way."""
        window = self._backend.window
        if window is None or not self._retained.keeps:
            return
        every, most = max(_CHECKPOINT_EVERY, window), len(prompt.tokens) - WORTH_SHARING
        while most // every > _CHECKPOINTS:
            every *= 2
        points = {*(whole(prompt.tokens, n) for n in range(every, most + 1, every)), known}
        prompt.checkpoints = sorted((n for n in points if begun + WORTH_SHARING <= n <= most), reverse=True)
