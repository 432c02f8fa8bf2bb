"""The tree of likely continuations of a prompt: which text to evaluate next, and which nodes can be told.

The tree is searched best-first: the likeliest text is evaluated next. A node is told once no node that isn't known yet
can be likelier. So the nodes come exactly in the order of their probability. They are the first ones of the sorted list
of all nodes, and they don't depend on how many texts are evaluated at once.
"""

import codecs
import heapq
import math
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from srb.engine.asking.model import Tokenizer
from srb.engine.asking.request import CompletionRequest, Explore
from srb.engine.telling.events import NodeEvent
from srb.engine.telling.outbox import LONGEST_CHARACTER

Path = tuple[int, ...]
"""The tokens of a text, from the prompt on."""


@dataclass(eq=False, slots=True)
class Candidate:
    """A text that may become a node: it has one token more than its parent, and the tokens that a run has added.

    A run goes on with the likeliest token while the model hardly hesitates; see `Explore.min_entropy`.

    logprob: of the tokens behind its parent's. cumulative: of all tokens. depth: of the node that it is or will be.
    finish_reason, entropy: as in `NodeEvent`.
    """

    parent: "Candidate | None"
    path: Path
    logprob: float = 0.0
    cumulative: float = 0.0
    depth: int = 0
    entropy: float | None = None
    finish_reason: Literal["stop", "length"] | None = None
    id: int | None = None  # set when it is told
    decoder: tuple[bytes, int] = (b"", 0)  # set when it is told: the first bytes of a character that isn't complete

    @property
    def rank(self) -> "Rank":
        """Sorts candidates: the likelier one comes first. Of two that are equally likely, the parent comes first."""
        return -self.cumulative, self.path, self

    def add(self, token: int, logprob: float) -> None:
        """Adds the next token of a run."""
        self.path += (token,)
        self.logprob += logprob
        self.cumulative += logprob


Rank = tuple[float, Path, Candidate]


class Tree:
    """The tree of one prompt: its candidates, and which of them are nodes.

    `wanted` says which candidates to evaluate, `take` gets the results, and `nodes` gives what can be told.

    is_end: whether a token ends the generation. told: the texts of the nodes that were told before an interruption.
    """

    def __init__(self, explore: Explore, is_end: Callable[[int], bool], told: tuple[Path, ...] = ()) -> None:
        self._explore = explore
        self._is_end = is_end
        self._ids = {path: k for k, path in enumerate(told, 1)}
        self._left = explore.max_nodes - len(told)
        self._open = [Candidate(None, ()).rank]  # to be evaluated; a heap
        self._known: list[Rank] = []  # nodes that weren't told yet, sorted
        self._taken: set[Candidate] = set()  # being evaluated

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to tell."""
        return self._left <= 0 or self.is_whole

    @property
    def is_whole(self) -> bool:
        """Whether all nodes of the tree were told."""
        return not (self._open or self._known or self._taken)

    def wanted(self, n: int) -> list[Candidate]:
        """Up to n candidates whose last token is to be evaluated, the likeliest first.

        Each of them must be passed to `take` or `give_back`.
        """
        wanted: list[Candidate] = []
        # Once as many nodes are known as are left to tell, these come before any candidate that is less likely.
        last = self._known[self._left - 1] if len(self._known) >= self._left else None
        while self._open and len(wanted) < n and (last is None or self._open[0] < last):
            wanted.append(heapq.heappop(self._open)[-1])
        self._taken.update(wanted)
        return wanted

    def coming(self, n: int) -> list[Candidate]:
        """The n likeliest of the candidates that will be wanted next, as far as is known now."""
        coming: list[Candidate] = []
        places = [(self._open[0], 0)] if self._open else []  # the heap is walked from its root, as far as needed
        while places and len(coming) < n:
            rank, place = heapq.heappop(places)
            coming.append(rank[-1])
            for below in range(2 * place + 1, min(2 * place + 3, len(self._open))):
                heapq.heappush(places, (self._open[below], below))
        return coming

    def give_back(self, candidate: Candidate) -> None:
        """Takes back a candidate that can't be evaluated now. It will be wanted again."""
        self._taken.remove(candidate)
        heapq.heappush(self._open, candidate.rank)

    def take(self, candidate: Candidate, top: list[tuple[int, float]], entropy: float) -> bool:
        """Takes the likeliest tokens that follow a candidate, with their log-probabilities, and the entropy there.

        Returns whether the candidate runs on. It has got one more token then, which is to be evaluated, too.
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
        """Ends a candidate if nothing can follow it: after an end token, or when its text is as long as allowed."""
        if self._is_end(candidate.path[-1]):
            candidate.finish_reason = "stop"
        elif len(candidate.path) >= self._explore.max_path:
            candidate.finish_reason = "length"

    def nodes(self) -> Iterator[tuple[Candidate, bool]]:
        """The nodes that can be told now, in their order, each with whether it is new.

        A node that was told before an interruption isn't new, and isn't told again.
        """
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
        """How many tokens there are in the nodes that were turned into events."""
        self._request_id = request.id
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in request.token_ids[0][-LONGEST_CHARACTER:]:  # a node may complete a character of the prompt
            self._decoder.decode(tokenizer.special_piece(token))
        self._root = self._decoder.getstate()

    def event(self, node: Candidate) -> NodeEvent:
        """Makes the event of a node. Its parent's event must have been made before."""
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
