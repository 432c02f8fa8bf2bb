"""`Exploration`: finds the tree of the most probable continuations. Each sequence has a text of the tree in its cells.

To evaluate a text, the sequence that has most of it is forked. So the common beginning of texts is evaluated once, and
is in the cells once, as long as a sequence has it. There are fewer sequences than texts. When a new text needs a
sequence, it gets the one whose text isn't needed any more, or will be needed last. If that text is wanted later, it is
evaluated again. About half of the sequences evaluate at the same time. The others keep the texts that come next.

The sequences are half of `--parallel`, and share one index. Their texts aren't in the prefix cache, because they change
in every step. An earlier version had the tree above the engine, as requests of one token that leave sharing to the
prefix cache. That, too, evaluates each text once. But it caches each text's cells and logits (75 MiB for 350 texts of a
small model), where they evict other entries; it restores them for each next text; and it queues in each step.
"""

import codecs
import heapq
import math
from bisect import insort
from collections import abc
from dataclasses import dataclass
from typing import Literal

from srb.engine.backend import Logits
from srb.engine.decoding.base import DecodingStrategy, EngineParts
from srb.engine.events import NodeEvent
from srb.engine.kv_cache.radix import PrefixTree, pack
from srb.engine.model import Tokenizer
from srb.engine.output.detokenizer import LONGEST_CHARACTER
from srb.engine.request import CompletionRequest, Explore, Resumed
from srb.engine.sequence import Prompt, Sequence

Path = tuple[int, ...]
"""The tokens of a text, without the prompt."""


@dataclass(eq=False, slots=True)
class Candidate:
    """A text that may become a node: its parent's, one more token, and the tokens that a run has added.

    A run adds the most probable token while the entropy is low (`Explore.min_entropy`).

    logprob: of the tokens after its parent's. cumulative: of all tokens. depth: of the node that it is or will be.
    finish_reason, entropy: as in `NodeEvent`. id: set when it is reported, as is decoder: the state with the first
    bytes of a character that isn't complete.
    """

    parent: "Candidate | None"
    path: Path
    logprob: float = 0.0
    cumulative: float = 0.0
    depth: int = 0
    entropy: float | None = None
    finish_reason: Literal["stop", "length"] | None = None
    id: int | None = None
    decoder: tuple[bytes, int] = (b"", 0)

    @property
    def rank(self) -> "Rank":
        """A sort key: the more probable text comes first. Of two that are equally probable, the parent comes first."""
        return -self.cumulative, self.path, self

    def add(self, token: int, logprob: float) -> None:
        """Append a token."""
        self.path += (token,)
        self.logprob += logprob
        self.cumulative += logprob


Rank = tuple[float, Path, Candidate]


class Tree:
    """The tree of one prompt: its candidates, and which of them are nodes.

    The tree is searched best-first: the most probable text is evaluated next. A node is reported once no unknown node
    can be more probable. So the nodes come exactly in the order of their probability, and they don't depend on how many
    texts are evaluated at once.

    `pop_next` returns the candidates to evaluate, `add_result` gets the results, and `nodes` returns what can be
    reported.

    Args:
        explore: What is asked for.
        is_end: Returns whether a token ends the generation.
        reported: The texts of the nodes that were reported before an interruption.
    """

    def __init__(self, explore: Explore, is_end: abc.Callable[[int], bool], reported: abc.Sequence[Path] = ()) -> None:
        self._explore = explore
        self._is_end = is_end
        self._ids = {path: k for k, path in enumerate(reported, 1)}
        self._left = explore.max_nodes - len(reported)
        self._open = [Candidate(None, ()).rank]  # to be evaluated; a heap
        self._known: list[Rank] = []  # nodes that aren't reported yet, sorted
        self._evaluating: set[Candidate] = set()

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to report."""
        return self._left <= 0 or self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether all nodes of the tree were reported."""
        return not (self._open or self._known or self._evaluating)

    def pop_next(self, n: int) -> list[Candidate]:
        """Return up to n candidates whose last token is to be evaluated, the most probable first.

        Each of them must be passed to `add_result` or `put_back`.
        """
        candidates: list[Candidate] = []
        # Once as many nodes are known as are left to report, these come before any candidate that is less probable.
        last = self._known[self._left - 1] if len(self._known) >= self._left else None
        while self._open and len(candidates) < n and (last is None or self._open[0] < last):
            candidates.append(heapq.heappop(self._open)[-1])
        self._evaluating.update(candidates)
        return candidates

    def peek(self, n: int) -> list[Candidate]:
        """Return the n most probable of the candidates that `pop_next` will return, as far as is known now."""
        candidates: list[Candidate] = []
        places = [(self._open[0], 0)] if self._open else []  # the heap is walked from its root, as far as needed
        while places and len(candidates) < n:
            rank, place = heapq.heappop(places)
            candidates.append(rank[-1])
            for below in range(2 * place + 1, min(2 * place + 3, len(self._open))):
                heapq.heappush(places, (self._open[below], below))
        return candidates

    def put_back(self, candidate: Candidate) -> None:
        """Put back a candidate that can't be evaluated now."""
        self._evaluating.remove(candidate)
        heapq.heappush(self._open, candidate.rank)

    def add_result(self, candidate: Candidate, top: list[tuple[int, float]], entropy: float) -> bool:
        """Add the distribution after a candidate.

        Args:
            top: The most probable tokens that follow it, with their log-probabilities.
            entropy: The entropy of the distribution, in nats.

        Returns:
            Whether the candidate runs on: it has got one more token, which is to be evaluated, too.
        """
        explore = self._explore
        branches = entropy >= explore.min_entropy
        if candidate.parent and not branches:
            token, logprob = top[0]
            candidate.add(token, logprob)
            self._set_finish_reason(candidate)
            if candidate.finish_reason is None:
                return True
        else:
            candidate.entropy = entropy
            if candidate.parent and candidate.depth == explore.depth:
                candidate.finish_reason = "length"
            else:
                self._extend(candidate, top if branches else top[:1], explore.min_probability if branches else 0)
        self._evaluating.remove(candidate)
        if candidate.parent:
            insort(self._known, candidate.rank)
        return False

    def _extend(self, candidate: Candidate, top: list[tuple[int, float]], min_probability: float) -> None:
        for token, logprob in top:
            if logprob == -math.inf or math.exp(logprob) < min_probability:
                return
            child = Candidate(candidate, candidate.path, 0.0, candidate.cumulative, candidate.depth + 1)
            child.add(token, logprob)
            self._set_finish_reason(child)
            if child.finish_reason:
                insort(self._known, child.rank)
            else:
                heapq.heappush(self._open, child.rank)

    def _set_finish_reason(self, candidate: Candidate) -> None:
        """End a candidate if nothing can follow it: after an end token, or when its text is as long as allowed."""
        if self._is_end(candidate.path[-1]):
            candidate.finish_reason = "stop"
        elif len(candidate.path) >= self._explore.max_path:
            candidate.finish_reason = "length"

    def nodes(self) -> abc.Iterator[tuple[Candidate, bool]]:
        """Yield the nodes that can be reported now, in their order, each with whether it is new.

        A node that was reported before an interruption isn't new.
        """
        while self._known and self._left > 0:
            first = min([*self._open[:1], *(each.rank for each in self._evaluating)], default=None)
            if first and first < self._known[0]:
                return
            node = self._known.pop(0)[-1]
            is_new = node.path not in self._ids
            node.id = self._ids.setdefault(node.path, len(self._ids) + 1)
            self._left -= is_new
            yield node, is_new


class NodeDetokenizer:
    """Turns nodes into events."""

    def __init__(self, request: CompletionRequest, tokenizer: Tokenizer) -> None:
        self.n_tokens = 0
        """The number of tokens in the nodes that were turned into events."""
        self._request_id = request.id
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in request.token_ids[0][-LONGEST_CHARACTER:]:  # a node may complete a character of the prompt
            self._decoder.decode(tokenizer.special_piece(token))
        self._root = self._decoder.getstate()

    def event(self, node: Candidate) -> NodeEvent:
        """Return the event of a node. That of its parent must have been made before."""
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


_LOOK_AHEAD = 4
"""How many of the next texts, for each sequence, decide which sequences will be needed."""


class Exploration(DecodingStrategy[Sequence]):
    """Explores what follows the one prompt of a request. All sequences begin with the prompt."""

    needs_unified = True
    caches_texts = False  # a sequence has another text in every step

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        super().__init__(prompt, parts)
        request = prompt.active.request
        assert request.explore
        self._top_k = request.explore.top_k
        reported = request.resumed[0].nodes if request.resumed else ()
        self._tree = Tree(request.explore, parts.backend.tokenizer.is_end, reported)
        self._detokenizer = NodeDetokenizer(request, parts.backend.tokenizer)
        self._n_new = 0
        self._texts: PrefixTree[Sequence] = PrefixTree()  # what each sequence has in its cells after the prompt
        self._tasks: dict[Sequence, Candidate] = {}
        self._has_begun = False
        (first,) = prompt.sequences
        n_sequences = max(1, parts.backend.n_parallel // 2)
        prompt.sequences += [
            Sequence(prompt, first.index, first.params, None, Resumed()) for _ in range(n_sequences - 1)
        ]

    @property
    def n_sampled(self) -> int:
        """The number of tokens in the nodes that weren't reported before an interruption."""
        return self._n_new

    @property
    def n_resumed(self) -> int:
        """The number of tokens in the other nodes."""
        return self._detokenizer.n_tokens - self._n_new

    @property
    def rows(self) -> list[Sequence]:
        return [seq for seq in self._prompt.sequences if seq.state == "running"]

    def set_max_tokens(self, seq: Sequence, requested: int, limit: int, n_cells: int) -> None:
        """Set the length of a text, and leave out the sequences that an empty KV cache has no room for."""
        super().set_max_tokens(seq, requested, limit, n_cells)
        room = n_cells - len(self._prompt.tokens)
        most_sequences = max(1, room // max(1, seq.max_tokens - 1))
        self._prompt.sequences = self._prompt.sequences[:most_sequences]

    def begin_sequence(self, seq: Sequence) -> None:
        if not seq.is_forked:
            self._parts.cells.fork(seq)
            self._texts.add(seq, pack(()))
        seq.state = "idle"

    def process_logits(self, seq: Sequence, logits: Logits, negative_logits: abc.Sequence[Logits]) -> None:
        """Add a distribution to the tree, or go on to the next token of the text."""
        if seq.state != "running":  # when one sequence ends, all end with it
            return
        task = self._tasks[seq]
        seq.n_own_computed += 1
        self._texts.grow(seq, pack(seq.tokens[-1:]))
        if len(seq.tokens) < len(task.path):  # tokens that no sequence has any more are evaluated again, one by one
            seq.tokens.append(task.path[len(seq.tokens)])
        elif self._tree.add_result(task, *self._distribution(logits)):
            seq.tokens.append(task.path[-1])
        else:
            del self._tasks[seq]
            seq.state = "idle"

    def after_step(self) -> None:
        """Report nodes, and give idle sequences the texts that are evaluated next."""
        if not self._prompt.living:
            return
        if not self._has_begun:
            self._has_begun = True
            assert self._prompt.logits is not None
            (root,) = self._tree.pop_next(1)
            self._tree.add_result(root, *self._distribution(self._prompt.logits))
        self._parts.output.add_nodes(self._new_nodes())
        if self._tree.is_done:
            for seq in self._prompt.living:
                self._parts.runner.finish(seq, "stop" if self._tree.is_complete else "length", None)
        else:
            self._assign()

    def _new_nodes(self) -> abc.Iterator[NodeEvent]:
        for node, is_new in self._tree.nodes():
            event = self._detokenizer.event(node)
            if is_new:
                self._n_new += len(event.tokens)
                yield event

    def _assign(self) -> None:
        sequences = self._prompt.living
        candidates = self._tree.pop_next((len(sequences) + 1) // 2 - len(self._tasks))
        spare = self._spare(sequences, candidates) if candidates else iter(())
        for candidate in candidates:
            before = candidate.path[:-1]
            source, n_tokens = self._longest(before)
            longer = before[: n_tokens + 1]
            if n_tokens < len(before) and any(task.path[: n_tokens + 1] == longer for task in self._tasks.values()):
                self._tree.put_back(candidate)  # it waits for a sequence that will soon have more of it
                continue
            is_at_end = source.state == "idle" and len(source.tokens) == n_tokens
            seq = source if is_at_end else next(each for each in spare if each.state == "idle")
            self._fork(seq, source, len(self._prompt.tokens) + n_tokens)
            self._texts.remove(seq)
            self._texts.add(seq, pack(before[:n_tokens]))
            seq.tokens[:], seq.n_own_computed = candidate.path[: n_tokens + 1], n_tokens
            seq.state = "running"
            self._tasks[seq] = candidate

    def _longest(self, text: Path) -> tuple[Sequence, int]:
        """Return the sequence that has most of a text, first one with nothing else, and the number of these tokens."""
        match = self._texts.find(pack(text))
        return next(match.below()), match.n_tokens

    def _fork(self, seq: Sequence, source: Sequence, n_tokens: int) -> None:
        """Give a sequence the first `n_tokens` of the source, which may be the sequence itself, and nothing else."""
        backend = self._parts.backend
        assert seq.seq_id is not None
        assert source.seq_id is not None
        if seq is source:
            backend.truncate(seq.seq_id, n_tokens)
            return
        backend.remove(seq.seq_id)
        self._parts.cells.fork_seq(source.seq_id, seq.seq_id, n_tokens)

    def _spare(self, sequences: list[Sequence], candidates: list[Candidate]) -> abc.Iterator[Sequence]:
        """Yield the sequences whose texts aren't needed, then the others, the one that is needed last first."""
        coming = self._tree.peek(_LOOK_AHEAD * len(sequences))
        texts = dict.fromkeys(each.path[:-1] for each in (*candidates, *coming))
        needed = dict.fromkeys(self._longest(text)[0] for text in texts)
        return iter([*(seq for seq in sequences if seq not in needed), *reversed(needed)])

    def _distribution(self, logits: Logits) -> tuple[list[tuple[int, float]], float]:
        """Return the most probable tokens with their log-probabilities, and the entropy."""
        _, top = self._parts.backend.logprobs(logits, 0, self._top_k)
        return top, self._parts.backend.entropy(logits)
