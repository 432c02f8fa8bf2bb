"""The tree of likely continuations: what to evaluate next, and what there is to tell.

It is a best-first search over the tokens that may follow. A node is told when nothing that isn't known yet can be
likelier. So the nodes come in the order of their probability, exactly, and what is told is the beginning of the list of
all nodes that there are, sorted. It doesn't depend on how many are evaluated at once.
"""

import codecs
import heapq
import math
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from srb.engine.backend import Tokenizer
from srb.engine.events import NodeEvent
from srb.engine.request import CompletionRequest, Explore

_LONGEST_CHARACTER = 4  # bytes of UTF-8

Path = tuple[int, ...]
"""The tokens of a text, from the prompt on."""


@dataclass(eq=False, slots=True)
class Candidate:
    """A text that may become a node: with one token more than its parent, and those that a run has added.

    logprob: of its own tokens. cumulative: of all. depth: of the node that it is or will be.
    finish_reason, entropy: as in `NodeEvent`.
    """

    parent: "Candidate | None"
    path: Path
    logprob: float = 0.0
    cumulative: float = 0.0
    depth: int = 0
    entropy: float | None = None
    finish_reason: Literal["stop", "length"] | None = None
    id: int | None = None  # when it is told
    decoder: tuple[bytes, int] = (b"", 0)  # then: the character that isn't complete

    @property
    def rank(self) -> "Rank":
        """Sorts candidates: the likelier first, and of equal ones the parent."""
        return -self.cumulative, self.path, self

    def add(self, token: int, logprob: float) -> None:
        """A run goes on with a token."""
        self.path += (token,)
        self.logprob += logprob
        self.cumulative += logprob


Rank = tuple[float, Path, Candidate]


class Tree:
    """The candidates of a prompt, and which are nodes: those `wanted` are evaluated, and it `take`s what comes of that.

    is_end: whether a token ends the generation. told: the texts of the nodes that need not be told again.
    """

    def __init__(self, explore: Explore, is_end: Callable[[int], bool], told: tuple[Path, ...] = ()) -> None:
        self._explore = explore
        self._is_end = is_end
        self._ids = {path: k for k, path in enumerate(told, 1)}
        self._left = explore.max_nodes - len(told)
        self._open = [Candidate(None, ()).rank]  # to be evaluated; a heap
        self._known: list[Rank] = []  # nodes, sorted
        self._taken: set[Candidate] = set()  # being evaluated

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to tell."""
        return self._left <= 0 or self.is_whole

    @property
    def is_whole(self) -> bool:
        """Whether there are no other nodes than those that were told."""
        return not (self._open or self._known or self._taken)

    def wanted(self, n: int) -> list[Candidate]:
        """Up to n candidates whose last token is to be evaluated, the likeliest first. Each is taken, or given back."""
        wanted: list[Candidate] = []
        # As many nodes as are still to be told are known: those that are less likely won't be.
        last = self._known[self._left - 1] if len(self._known) >= self._left else None
        while self._open and len(wanted) < n and (last is None or self._open[0] < last):
            wanted.append(heapq.heappop(self._open)[-1])
        self._taken.update(wanted)
        return wanted

    def coming(self, n: int) -> list[Candidate]:
        """The n likeliest that will be wanted next, as far as is known."""
        coming: list[Candidate] = []
        places = [(self._open[0], 0)] if self._open else []  # in the heap, of which all but n stay unseen
        while places and len(coming) < n:
            rank, place = heapq.heappop(places)
            coming.append(rank[-1])
            for below in range(2 * place + 1, min(2 * place + 3, len(self._open))):
                heapq.heappush(places, (self._open[below], below))
        return coming

    def give_back(self, candidate: Candidate) -> None:
        """Takes one back that can't be evaluated now."""
        self._taken.remove(candidate)
        heapq.heappush(self._open, candidate.rank)

    def take(self, candidate: Candidate, top: list[tuple[int, float]], entropy: float) -> bool:
        """Takes the likeliest tokens that follow a candidate, with their log-probabilities, and the entropy.

        Returns whether it runs on: then the token that it has got is to be evaluated, too.
        """
        explore = self._explore
        hesitates = entropy >= explore.min_entropy
        if candidate.parent and not hesitates:
            token, logprob = top[0]
            candidate.add(token, logprob)
            self._see_end(candidate)
            if candidate.finish_reason is None:
                return True
        else:
            candidate.entropy = entropy
            if candidate.parent and candidate.depth == explore.depth:
                candidate.finish_reason = "length"
            else:
                self._go_on(candidate, top if hesitates else top[:1], explore.min_probability if hesitates else 0)
        self._taken.remove(candidate)
        if candidate.parent:
            insort(self._known, candidate.rank)
        return False

    def _go_on(self, candidate: Candidate, top: list[tuple[int, float]], least: float) -> None:
        for token, logprob in top:
            if logprob == -math.inf or math.exp(logprob) < least:
                return
            child = Candidate(candidate, candidate.path, 0.0, candidate.cumulative, candidate.depth + 1)
            child.add(token, logprob)
            self._see_end(child)
            if child.finish_reason:
                insort(self._known, child.rank)
            else:
                heapq.heappush(self._open, child.rank)

    def _see_end(self, candidate: Candidate) -> None:
        """Ends a candidate after which nothing is to be evaluated."""
        if self._is_end(candidate.path[-1]):
            candidate.finish_reason = "stop"
        elif len(candidate.path) >= self._explore.max_path:
            candidate.finish_reason = "length"

    def nodes(self) -> Iterator[tuple[Candidate, bool]]:
        """The nodes that can be told now, in their order, and whether they are to be: some were told before."""
        while self._known and self._left > 0:
            first = min([*self._open[:1], *(each.rank for each in self._taken)], default=None)
            if first and first < self._known[0]:
                return
            node = self._known.pop(0)[-1]
            is_new = node.path not in self._ids
            node.id = self._ids.setdefault(node.path, len(self._ids) + 1)
            self._left -= is_new
            yield node, is_new


class Teller:
    """Turns nodes into events."""

    def __init__(self, request: CompletionRequest, tokenizer: Tokenizer) -> None:
        self.n_tokens = 0
        """How many tokens the nodes have that were told."""
        self._request_id = request.id
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in request.token_ids[0][-_LONGEST_CHARACTER:]:  # a node may complete a character of the prompt
            self._decoder.decode(tokenizer.special_piece(token))
        self._root = self._decoder.getstate()

    def event(self, node: Candidate) -> NodeEvent:
        """The event of a node whose parent was told."""
        parent = node.parent
        assert parent
        assert node.id
        tokens = node.path[len(parent.path) :]
        self._decoder.setstate(parent.decoder if parent.id else self._root)
        pieces = [self._tokenizer.piece(token) for token in tokens if not self._tokenizer.is_end(token)]
        text = self._decoder.decode(b"".join(pieces))
        node.decoder = self._decoder.getstate()
        self.n_tokens += len(tokens)
        return NodeEvent(
            self._request_id,
            node.id,
            parent.id,
            text,
            tokens,
            node.logprob,
            node.cumulative,
            node.entropy,
            node.finish_reason,
        )
