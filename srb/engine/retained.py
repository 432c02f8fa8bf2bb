"""What finished requests have evaluated, kept in memory outside of the KV cache for those that begin alike.

It doesn't stay in cells, because there it would slow every step down: attention walks all cells in use.
"""

from collections.abc import Callable
from dataclasses import dataclass

from srb.engine.backend import Logits
from srb.engine.kv_cache import common_prefix


@dataclass(slots=True, eq=False)
class _Node:
    """The state of `tokens` from `start` on; what comes before is its parent's."""

    tokens: tuple[int, ...]
    start: int
    state: bytearray
    parent: "_Node | None"
    logits: Logits | None

    @property
    def size(self) -> int:
        """In bytes."""
        return 8 * len(self.tokens) + len(self.state) + (0 if self.logits is None else self.logits.nbytes)


@dataclass(frozen=True, slots=True)
class Hit:
    """What is known of some tokens: the first `n_tokens`.

    pieces: their states, each with its first position and the one after its last.
    logits: of what follows the last of all tokens, if these are all known.
    """

    n_tokens: int
    pieces: list[tuple[bytearray, int, int]]
    logits: Logits | None


class Retained:
    """States of sequences, up to `max_bytes`; those that were used least recently leave first.

    can_cut: whether a state can be used without its end. That of a sliding window can't: it holds the window only.
    """

    def __init__(self, max_bytes: int, *, can_cut: bool) -> None:
        self.max_bytes = max_bytes
        self.size = 0  # bytes
        self._can_cut = can_cut
        self._nodes: dict[tuple[int, ...], _Node] = {}  # the least recently used first, and children before parents

    def find(self, tokens: tuple[int, ...]) -> Hit | None:
        """The longest known beginning of some tokens, without the last one where its logits aren't known."""
        exact = self._nodes.get(tokens)
        logits = exact.logits if exact else None
        node, n_tokens = self._longest(tokens[:-1] if logits is None else tokens)
        if node is None:
            return None
        self._touch(node)
        if exact:
            self._touch(exact)
        pieces: list[tuple[bytearray, int, int]] = []
        last, end = node, n_tokens
        while True:
            pieces.insert(0, (last.state, last.start, end))
            if last.parent is None:
                return Hit(n_tokens, pieces, logits)
            last, end = last.parent, last.start

    def add(
        self, tokens: tuple[int, ...], save: Callable[[int, int], bytearray | None], logits: Logits | None = None
    ) -> None:
        """Keeps the state of a sequence. `save` gives that of positions from, to; None if it can't."""
        node = self._nodes.get(tokens)
        if node is None:
            parent, start = self._longest(tokens)
            if start == len(tokens) and logits is None:
                return
            state = save(start, len(tokens)) if start < len(tokens) else bytearray()
            if state is None:
                return
            node = _Node(tokens, start, state, parent, logits)
            if node.size > self.max_bytes:
                return
            self._nodes[tokens] = node
            self.size += node.size
        elif node.logits is None and logits is not None:
            node.logits = logits
            self.size += logits.nbytes
        self._touch(node)
        while self.size > self.max_bytes:
            oldest = next(iter(self._nodes.values()))
            del self._nodes[oldest.tokens]
            self.size -= oldest.size

    def _longest(self, tokens: tuple[int, ...]) -> tuple[_Node | None, int]:
        """Where the longest known beginning ends, and how long it is."""
        ends = (self._cut(node, common_prefix(node.tokens, tokens)) for node in self._nodes.values())
        return max(ends, key=lambda end: end[1], default=(None, 0))

    def _cut(self, node: _Node | None, n_tokens: int) -> tuple[_Node | None, int]:
        """The node that holds the last of the first `n_tokens`, or of as many as can be used."""
        while node and not (node.start < n_tokens and (self._can_cut or n_tokens == len(node.tokens))):
            n_tokens = min(n_tokens, node.start)
            node = node.parent
        return node, n_tokens

    def _touch(self, node: _Node | None) -> None:
        while node:
            self._nodes[node.tokens] = self._nodes.pop(node.tokens)
            node = node.parent
