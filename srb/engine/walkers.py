"""`Walkers`: the sequences of a request that explores. Each sequence holds a text of the tree, and evaluates the next.

To evaluate a text, the sequence that holds most of it is forked. So the common beginning of texts is evaluated once,
and is in the cells once, as long as a sequence holds it. There are fewer sequences than texts. When a new text needs a
sequence, it gets the one whose text isn't needed any more, or will be needed last. If that text is wanted later, it is
evaluated again. About half of the sequences evaluate at the same time. The others hold the texts that the next ones
continue.
"""

from collections.abc import Iterable, Iterator

from srb.engine.active_request import ActiveRequest
from srb.engine.backend import Backend, Logits
from srb.engine.cells import Cells
from srb.engine.events import FinishReason, NodeEvent
from srb.engine.explore import Candidate, Path, Teller, Tree
from srb.engine.sequence import Sequence

_IN_SIGHT = 4
"""To know which sequences will be needed, so many of the next texts are looked at, for each sequence."""


class Walkers:
    """Explores what follows the one prompt of a request. The prompt is evaluated, and all sequences begin with it."""

    def __init__(self, active: ActiveRequest, backend: Backend, cells: Cells) -> None:
        request, (prompt,) = active.request, active.prompts
        assert request.explore
        assert prompt.logits is not None
        self._top_k = request.explore.top_k
        self._backend = backend
        self._cells = cells
        self._prompt = prompt
        told = request.resumed[0].nodes if request.resumed else ()
        self._tree = Tree(request.explore, backend.tokenizer.is_end, told)
        self._teller = Teller(request, backend.tokenizer)
        self.n_new = 0
        """How many tokens there are in the nodes that weren't told before an interruption."""
        self._tasks: dict[Sequence, Candidate] = {}
        (root,) = self._tree.wanted(1)
        self._tree.take(root, *self._outlook(prompt.logits))

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to tell."""
        return self._tree.is_done

    @property
    def finish_reason(self) -> FinishReason:
        """Why it is done: `stop` if every node that there is was told, else `length`."""
        return "stop" if self._tree.is_whole else "length"

    @property
    def n_tokens(self) -> int:
        """How many tokens the nodes that were told have."""
        return self._teller.n_tokens

    def found(self) -> Iterator[NodeEvent]:
        """The nodes that can be told now, in their order."""
        for node, is_new in self._tree.nodes():
            event = self._teller.event(node)
            if is_new:
                self.n_new += len(event.tokens)
                yield event

    def take(self, seq: Sequence, logits: Logits) -> None:
        """Takes the logits that a sequence has evaluated."""
        task = self._tasks[seq]
        if len(seq.tokens) < len(task.path):  # tokens that no sequence holds any more are evaluated again, one by one
            seq.tokens.append(task.path[len(seq.tokens)])
        elif self._tree.take(task, *self._outlook(logits)):
            seq.tokens.append(task.path[-1])
        else:
            del self._tasks[seq]
            seq.state = "idle"

    def go_on(self) -> None:
        """Gives idle sequences the texts that are evaluated next."""
        sequences = self._prompt.living
        wanted = self._tree.wanted((len(sequences) + 1) // 2 - len(self._tasks))
        spare = self._spare(sequences, wanted) if wanted else iter(())
        for candidate in wanted:
            before = candidate.path[:-1]
            source, n_tokens = _best(sequences, before)
            if any(_n_shared(task.path, before) > n_tokens for task in self._tasks.values()):
                self._tree.give_back(candidate)  # it waits for a sequence that will soon hold more of it
                continue
            is_at_end = source.state == "idle" and len(source.tokens) == n_tokens
            seq = source if is_at_end else next(each for each in spare if each.state == "idle")
            self._cells.hold(seq, source, len(self._prompt.tokens) + n_tokens)
            seq.tokens = list(candidate.path[: n_tokens + 1])
            seq.state = "running"
            self._tasks[seq] = candidate

    def _spare(self, sequences: list[Sequence], wanted: list[Candidate]) -> Iterator[Sequence]:
        """All sequences, in this order: those whose texts aren't needed, then those whose texts are needed last."""
        coming = self._tree.coming(_IN_SIGHT * len(sequences))
        needed = dict.fromkeys(_best(sequences, each.path[:-1])[0] for each in (*wanted, *coming))
        return iter([*(seq for seq in sequences if seq not in needed), *reversed(needed)])

    def _outlook(self, logits: Logits) -> tuple[list[tuple[int, float]], float]:
        """The likeliest tokens of a row with their log-probabilities, and its entropy."""
        _, top = self._backend.logprobs(logits, 0, self._top_k)
        return top, self._backend.entropy(logits)


def _best(sequences: list[Sequence], path: Path) -> tuple[Sequence, int]:
    """The sequence that holds most of a text, and how many of its tokens. If several do, one that can simply go on."""
    best, most, is_free = sequences[0], -1, False
    for seq in sequences:
        n_held = len(seq.tokens) - (seq.state == "running")  # the last token is being evaluated
        n_tokens = _n_shared(seq.tokens[:n_held], path)
        goes_on = seq.state == "idle" and n_held == n_tokens
        if (n_tokens, goes_on) > (most, is_free):
            best, most, is_free = seq, n_tokens, goes_on
    return best, most


def _n_shared(one: Iterable[int], other: Iterable[int]) -> int:
    """How many first tokens two texts have in common."""
    n_tokens = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n_tokens += 1
    return n_tokens
