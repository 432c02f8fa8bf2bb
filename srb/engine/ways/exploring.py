"""`Exploring`: finds the tree of likely continuations. Each sequence holds a text of the tree, and evaluates the next.

To evaluate a text, the sequence that holds most of it is forked. So the common beginning of texts is evaluated once,
and is in the cells once, as long as a sequence holds it. There are fewer sequences than texts. When a new text needs a
sequence, it gets the one whose text isn't needed any more, or will be needed last. If that text is wanted later, it is
evaluated again. About half of the sequences evaluate at the same time. The others hold the texts that the next ones
continue.

The sequences are half of the places (`--parallel`), and share one index. What they hold isn't in the prefix index,
because it changes in every step. An earlier version had the tree above the engine, as requests of one token that leave
sharing to the prefix index. That, too, evaluates each text once. But it puts each text's cells and logits into
`Retained` (75 MiB for 350 texts of a small model), where they push out what others need; it restores them for each
next text; and it waits in the queue with each step.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many
from itertools import takewhile
from operator import eq

from srb.engine.asking.request import Resumed
from srb.engine.backend import Logits
from srb.engine.sequence import Prompt, Sequence
from srb.engine.telling.events import NodeEvent
from srb.engine.ways.tools import OfPrompt, Tools
from srb.engine.ways.tree import Candidate, Path, Teller, Tree

_IN_SIGHT = 4
"""To know which sequences will be needed, so many of the next texts are looked at, for each sequence."""


class Exploring(OfPrompt):
    """Explores what follows the one prompt of a request. The prompt is evaluated, and all sequences begin with it."""

    needs_unified = True
    holds_texts = False  # a sequence holds another text in every step

    def __init__(self, prompt: Prompt, tools: Tools) -> None:
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
    def n_drawn(self) -> int:  # type: ignore[override]
        """How many tokens there are in the nodes that weren't told before an interruption."""
        return self._n_new

    @property
    def n_begun(self) -> int:  # type: ignore[override]
        """How many tokens there are in the other nodes."""
        return self._teller.n_tokens - self._n_new

    @property
    def rows(self) -> list[Sequence]:
        """See `Way.rows`."""
        return [seq for seq in self._prompt.sequences if seq.state == "running"]

    def size(self, seq: Sequence, wanted: int, most: int, n_cells: int) -> None:
        """Sets how long a text may be, and leaves out the sequences that an empty cache has no room for."""
        super().size(seq, wanted, most, n_cells)
        room = n_cells - len(self._prompt.tokens)
        most_sequences = max(1, room // max(1, seq.max_tokens - 1))
        self._prompt.sequences = self._prompt.sequences[:most_sequences]

    def begin(self, seq: Sequence) -> None:
        """See `Way.begin`."""
        if not seq.has_begun:
            self._tools.cells.fork(seq)
            self._holders.hold(seq, ())
        seq.state = "idle"

    def take(self, seq: Sequence, logits: Logits, beside: Many[Logits]) -> None:
        """See `Way.take`."""
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
        self._tools.outbox.found(self._found())
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
