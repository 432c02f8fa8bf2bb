"""A radix tree of token runs. It finds which prompts, alternatives or cache entries begin like some tokens do.

The time for this only depends on the number of these tokens. What the tree has is called a holder. Each holder is at
the node where its tokens end:

    (root) ── "Once upon a time," ─┬─ " there was"      alternative 0
                the prompt         └─ " a king" ── "s"  alternative 1, and alternative 2 at " a kings"

A node has the run of tokens that leads to it from its parent. A run is split where texts part, and joined again when
they no longer do. The structure is that of D. R. Morrison, "PATRICIA" (JACM 15(4), 1968), with tokens for bits.

A text has a key, and only prompts with its key may begin with what it has computed. The key has all that must be equal
besides the tokens: who shares the text (`CompletionRequest.shared_within`), adapters, images. A prompt of a request
with `shared_within` is looked up with two keys: its own, and the key that it would have if it were shared with all. An
example, with requests that are shared within "a" and within "b":

    for all: tokens 0 to 900            instructions, found by both
    └─ within "a": tokens 900 to 950    a question, found by the first one alone
"""

from array import array
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from srb.engine.media import whole

Keys = tuple[str, ...]
"""The keys that a text is looked for with. The first one is its own: what is cached of the text has this key."""

FOR_ALL: Keys = ("",)


def keys_of(within: str, how: str = "") -> Keys:
    """Returns the keys of a text. within: `shared_within`. how: what else must be equal; empty for most texts."""
    return (f"{within}\n{how}", how) if within else (how,)


Tokens: TypeAlias = "array[int]"
"""Token ids, packed into 4 bytes each, so that runs of them are compared in C."""

WORTH_SHARING = 16
"""Fewer tokens in common aren't worth sharing: such texts have nothing to do with each other."""

Holder = TypeVar("Holder", bound=Hashable)


def pack(tokens: Sequence[int]) -> Tokens:
    """Packs token ids as this tree takes them. Packing 100,000 takes some milliseconds."""
    return array("i", tokens)


def common_prefix(run: Tokens, tokens: Tokens, start: int) -> int:
    """Returns how many first tokens a run has in common with `tokens[start:]`."""
    low, high = 0, min(len(run), len(tokens) - start)
    if run[:high] == tokens[start : start + high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if run[low:middle] == tokens[start + low : start + middle]:
            low = middle
        else:
            high = middle - 1
    return low


class _Node(Generic[Holder]):
    """The end of a run. `end` is how many tokens there are from the root to here."""

    __slots__ = ("children", "end", "holders", "parent", "run")

    def __init__(self, run: Tokens, end: int, parent: "_Node[Holder] | None") -> None:
        self.run = run
        self.end = end
        self.parent = parent
        self.children: dict[int, _Node[Holder]] = {}
        self.holders: dict[Holder, None] = {}  # in the order in which they came


class PrefixTree(Generic[Holder]):
    """Holders by their tokens. Each key has a tree of its own, so a holder with another key is never found."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node[Holder]] = {}
        self._places: dict[Holder, tuple[Hashable, _Node[Holder]]] = {}

    def __contains__(self, holder: Holder) -> bool:
        return holder in self._places

    def add(self, holder: Holder, tokens: Tokens, key: Hashable = None) -> None:
        """Puts a holder, which must not be in the tree, where its tokens end."""
        root = self._roots.setdefault(key, _Node(pack(()), 0, None))
        self._put(holder, key, self._reach(root, tokens))

    def grow(self, holder: Holder, tokens: Tokens) -> None:
        """Adds tokens after those of a holder. If it is alone at a leaf, the time depends only on their number."""
        key, node = self._places[holder]
        if len(node.holders) == 1 and not node.children and node.parent:
            node.run.extend(tokens)
            node.end += len(tokens)
        elif tokens:
            del node.holders[holder]
            self._put(holder, key, self._reach(node, tokens))
            self._tidy(key, node)

    def remove(self, holder: Holder) -> None:
        """Takes a holder out."""
        key, node = self._places.pop(holder)
        del node.holders[holder]
        self._tidy(key, node)

    def find(self, tokens: Tokens, key: Hashable = None) -> "Match[Holder]":
        """Follows some tokens as far as any holder has them, but never into the middle of an image."""
        path: list[_Node[Holder]] = []
        node, at = self._roots.get(key), 0
        while node:
            path.append(node)
            child = node.children.get(tokens[at]) if at < len(tokens) else None
            if child:
                n_tokens = common_prefix(child.run, tokens, at)
                at += n_tokens
                if n_tokens < len(child.run):
                    return Match(whole(tokens, at), path, child)
            node = child
        return Match(whole(tokens, at), path, path[-1] if path else None)

    def runs(self, key: Hashable = None) -> Iterator[tuple[int, Tokens]]:
        """Yields all runs, each with how many tokens come before it, in the order of a walk: children after parents.

        An example: (0, "Once upon a time,"), (17, " there was"), (17, " a king").
        """
        nodes = [self._roots[key]] if key in self._roots else []
        while nodes:
            node = nodes.pop()
            yield node.end - len(node.run), node.run
            nodes.extend(node.children.values())

    def _put(self, holder: Holder, key: Hashable, node: _Node[Holder]) -> None:
        node.holders[holder] = None
        self._places[holder] = key, node

    def _reach(self, node: _Node[Holder], tokens: Tokens) -> _Node[Holder]:
        """Returns the node that these tokens lead to from another node. It is made if it isn't there."""
        at = 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                node.children[tokens[at]] = child = _Node(tokens[at:], node.end + len(tokens) - at, node)
                return child
            n_tokens = common_prefix(child.run, tokens, at)
            node = child if n_tokens == len(child.run) else self._split(child, n_tokens)
            at += n_tokens
        return node

    def _split(self, node: _Node[Holder], n_tokens: int) -> _Node[Holder]:
        """Splits a run after `n_tokens`, and returns the node of the first part."""
        assert node.parent
        upper: _Node[Holder] = _Node(node.run[:n_tokens], node.end - len(node.run) + n_tokens, node.parent)
        node.parent.children[node.run[0]] = upper
        node.run = node.run[n_tokens:]
        upper.children[node.run[0]] = node
        node.parent = upper
        return upper

    def _tidy(self, key: Hashable, node: _Node[Holder]) -> None:
        """Removes a node that has no holders and no children, and joins runs that needn't be split any more."""
        while node.parent and not node.holders and not node.children:
            del node.parent.children[node.run[0]]
            node = node.parent
        if node.parent is None:
            if not node.children and not node.holders:
                del self._roots[key]
        elif not node.holders and len(node.children) == 1:
            (child,) = node.children.values()
            child.run = node.run + child.run
            child.parent = node.parent
            node.parent.children[child.run[0]] = child


class Match(Generic[Holder]):
    """What `PrefixTree.find` found: holders have the first `n_tokens` of the tokens, and no holder has more."""

    def __init__(self, n_tokens: int, path: list[_Node[Holder]], last: _Node[Holder] | None) -> None:
        self.n_tokens = n_tokens
        self._path = path
        self._last = last

    def below(self) -> Iterator[Holder]:
        """Yields the holders that share all `n_tokens`, one level of the tree after the other."""
        nodes = deque([self._last] if self._last else ())
        while nodes:
            node = nodes.popleft()
            yield from node.holders
            nodes.extend(node.children.values())

    def ends(self) -> Iterator[tuple[int, Holder]]:
        """Yields the holders whose tokens the searched ones begin with, and their number, the longest first."""
        for node in reversed(self._path):
            for holder in node.holders:
                yield node.end, holder
