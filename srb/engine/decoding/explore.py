"""`Exploration`: finds the tree of likely continuations. Each sequence holds a text of the tree, and evaluates the
next.

To evaluate a text, the sequence that holds most of it is forked. So the common beginning of texts is evaluated once,
and is in the cells once, as long as a sequence holds it. There are fewer sequences than texts. When a new text needs a
sequence, it gets the one whose text isn't needed any more, or will be needed last. If that text is wanted later, it is
evaluated again. About half of the sequences evaluate at the same time. The others hold the texts that the next ones
continue.

The sequences are half of the places (`--parallel`), and share one index. What they hold isn't in the prefix index,
because it changes in every step. An earlier version had the tree above the engine, as requests of one token that leave
sharing to the prefix index. That, too, evaluates each text once. But it puts each text's cells and logits into
`StateCache` (75 MiB for 350 texts of a small model), where they push out what others need; it restores them for each
next text; and it waits in the queue with each step.
"""

import codecs
import heapq
import math
from bisect import insort
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from typing import Literal

from srb.engine.backend import Logits
from srb.engine.decoding.strategy import EngineParts, PromptStrategy
from srb.engine.events import NodeEvent
from srb.engine.model import Tokenizer
from srb.engine.output.processor import LONGEST_CHARACTER
from srb.engine.request import CompletionRequest, Explore, Resumed
from srb.engine.sequence import Prompt, Sequence

# The tree of likely continuations of a prompt: which text to evaluate next, and which nodes can be told. The tree is
# searched best-first: the likeliest text is evaluated next. A node is told once no node that isn't known yet can be
# likelier. So the nodes come exactly in the order of their probability. They are the first ones of the sorted list
# of all nodes, and they don't depend on how many texts are evaluated at once.

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


_IN_SIGHT = 4
"""To know which sequences will be needed, so many of the next texts are looked at, for each sequence."""


class Exploration(PromptStrategy):
    """Explores what follows the one prompt of a request. The prompt is evaluated, and all sequences begin with it."""

    needs_unified = True
    holds_texts = False  # a sequence holds another text in every step

    def __init__(self, prompt: Prompt, tools: EngineParts) -> None:
        super().__init__(prompt, tools)
        request = prompt.active.request
        assert request.explore
        self._top_k = request.explore.top_k
        told = request.resumed[0].nodes if request.resumed else ()
        self._tree = Tree(request.explore, tools.backend.tokenizer.is_end, told)
        self._teller = Teller(request, tools.backend.tokenizer)
        self._n_new = 0
        self._holders = Holders()
        self._tasks: dict[Sequence, Candidate] = {}
        self._has_begun = False
        (first,) = prompt.sequences
        n_sequences = max(1, tools.backend.n_parallel // 2)
        prompt.sequences += [
            Sequence(prompt, first.index, first.params, None, Resumed()) for _ in range(n_sequences - 1)
        ]

    @property
    def n_sampled(self) -> int:  # type: ignore[override]
        """How many tokens there are in the nodes that weren't told before an interruption."""
        return self._n_new

    @property
    def n_resumed(self) -> int:  # type: ignore[override]
        """How many tokens there are in the other nodes."""
        return self._teller.n_tokens - self._n_new

    @property
    def rows(self) -> list[Sequence]:
        """See `DecodingStrategy.rows`."""
        return [seq for seq in self._prompt.sequences if seq.state == "running"]

    def size(self, seq: Sequence, wanted: int, most: int, n_cells: int) -> None:
        """Sets how long a text may be, and leaves out the sequences that an empty cache has no room for."""
        super().size(seq, wanted, most, n_cells)
        room = n_cells - len(self._prompt.tokens)
        most_sequences = max(1, room // max(1, seq.max_tokens - 1))
        self._prompt.sequences = self._prompt.sequences[:most_sequences]

    def begin(self, seq: Sequence) -> None:
        """See `DecodingStrategy.begin`."""
        if not seq.has_begun:
            self._tools.cells.fork(seq)
            self._holders.hold(seq, ())
        seq.state = "idle"

    def take(self, seq: Sequence, logits: Logits, beside: Many[Logits]) -> None:
        """See `DecodingStrategy.take`."""
        if seq.state != "running":  # when one sequence ends, all end with it
            return
        task = self._tasks[seq]
        self._holders.hold(seq, tuple(seq.tokens))
        if len(seq.tokens) < len(task.path):  # tokens that no sequence holds any more are evaluated again, one by one
            seq.tokens.append(task.path[len(seq.tokens)])
        elif self._tree.take(task, *self._outlook(logits)):
            seq.tokens.append(task.path[-1])
        else:
            del self._tasks[seq]
            seq.state = "idle"

    def after_step(self) -> None:
        """Tells the nodes that can be told now, and gives idle sequences the texts that are evaluated next."""
        if not self._prompt.living:
            return
        if not self._has_begun:
            self._has_begun = True
            assert self._prompt.logits is not None
            (root,) = self._tree.wanted(1)
            self._tree.take(root, *self._outlook(self._prompt.logits))
        self._tools.output.found(self._found())
        if self._tree.is_done:
            for seq in self._prompt.living:
                self._tools.decoding.finish(seq, "stop" if self._tree.is_whole else "length", None)
        else:
            self._go_on()

    def lost(self, row: Sequence | None) -> list[Sequence]:
        """All sequences: a text that one of them can't evaluate, no other one can evaluate either."""
        return self._prompt.living

    def _found(self) -> Iterator[NodeEvent]:
        for node, is_new in self._tree.nodes():
            event = self._teller.event(node)
            if is_new:
                self._n_new += len(event.tokens)
                yield event

    def _go_on(self) -> None:
        sequences = self._prompt.living
        wanted = self._tree.wanted((len(sequences) + 1) // 2 - len(self._tasks))
        spare = self._spare(sequences, wanted) if wanted else iter(())
        for candidate in wanted:
            before = candidate.path[:-1]
            source, n_tokens = self._holders.best(before)
            longer = before[: n_tokens + 1]
            if n_tokens < len(before) and any(task.path[: n_tokens + 1] == longer for task in self._tasks.values()):
                self._tree.give_back(candidate)  # it waits for a sequence that will soon hold more of it
                continue
            is_at_end = source.state == "idle" and len(source.tokens) == n_tokens
            seq = source if is_at_end else next(each for each in spare if each.state == "idle")
            self._hold(seq, source, len(self._prompt.tokens) + n_tokens)
            self._holders.hold(seq, before[:n_tokens])
            seq.tokens = list(candidate.path[: n_tokens + 1])
            seq.state = "running"
            self._tasks[seq] = candidate

    def _hold(self, seq: Sequence, source: Sequence, n_tokens: int) -> None:
        """Lets a sequence hold only the first `n_tokens` of the source, which may be the sequence itself."""
        backend = self._tools.backend
        assert seq.seq_id is not None
        assert source.seq_id is not None
        if seq is source:
            backend.truncate(seq.seq_id, n_tokens)
            return
        backend.remove(seq.seq_id)
        self._tools.cells.fork_seq(source.seq_id, seq.seq_id, n_tokens)

    def _spare(self, sequences: list[Sequence], wanted: list[Candidate]) -> Iterator[Sequence]:
        """All sequences, in this order: those whose texts aren't needed, then those whose texts are needed last."""
        coming = self._tree.coming(_IN_SIGHT * len(sequences))
        texts = dict.fromkeys(each.path[:-1] for each in (*wanted, *coming))
        needed = dict.fromkeys(self._holders.best(text)[0] for text in texts)
        return iter([*(seq for seq in sequences if seq not in needed), *reversed(needed)])

    def _outlook(self, logits: Logits) -> tuple[list[tuple[int, float]], float]:
        """The likeliest tokens of a row with their log-probabilities, and its entropy."""
        _, top = self._tools.backend.logprobs(logits, 0, self._top_k)
        return top, self._tools.backend.entropy(logits)


class Holders:
    """Knows which sequences hold each beginning of a text, so that texts needn't be compared one by one.

    With 127 sequences, comparing took 50 ms of each step.
    """

    def __init__(self) -> None:
        self._texts: dict[Sequence, Path] = {}
        self._of: dict[Path, dict[Sequence, None]] = {}

    def hold(self, seq: Sequence, text: Path) -> None:
        """From now on, a sequence holds this text. The token that it is evaluating isn't in it."""
        before = self._texts.get(seq, ())
        n_same = sum(takewhile(bool, map(eq, before, text)))
        for end in range(n_same + 1, len(before) + 1):
            del self._of[before[:end]][seq]
        for end in range(n_same + 1 if seq in self._texts else 0, len(text) + 1):
            self._of.setdefault(text[:end], {})[seq] = None
        self._texts[seq] = text

    def best(self, text: Path) -> tuple[Sequence, int]:
        """The sequence that holds most of a text, and how many of its tokens. If several do, one that can go on."""
        n_tokens = next(n for n in range(len(text), -1, -1) if self._of.get(text[:n]))
        holders = self._of[text[:n_tokens]]
        goes_on = (seq for seq in holders if seq.state == "idle" and len(self._texts[seq]) == n_tokens)
        return next(goes_on, next(iter(holders))), n_tokens
