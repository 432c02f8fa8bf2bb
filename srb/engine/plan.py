"""`Planner`: decides which tokens are in the next batch, and `Plan`, one such batch."""

from collections import Counter
from dataclasses import dataclass, field

from srb.engine.backend import Batch
from srb.engine.costs import Costs
from srb.engine.ports import Row
from srb.engine.prompts.adapters import Lora
from srb.engine.prompts.media import MediaReader
from srb.engine.sequence import Holder, Prompt, Sequence
from srb.engine.turns import Turns

PAUSE = 0.25
"""While prompts are evaluated, so many seconds may pass between two tokens of a running sequence, by the costs.

The aim is 0.3 seconds. The difference is for what the costs don't know.
"""

_PATIENCE = 2.5
"""Because others pass it, a prompt may take at most so many times as long as alone after the prompts before it."""

_LEAST_PASSING = 0.25
"""For each token of a prompt, so many tokens of later prompts may pass it, even if `_PATIENCE` would allow fewer."""

_LITTLE_MORE = 1.2
"""A piece has a decode of its own if this makes the pause at most so many times as long."""

_UNLIMITED = 1e9  # seconds


@dataclass(slots=True)
class Plan:
    """One decode: its batch, and the sequences and prompts that have rows in it. All have the same adapters.

    rows: what has a row, with the numbers of its row and of those together with it; again for each token ahead.
    chunks: each prompt with the number of its tokens in the batch, and the number of its last row of logits.
    is_alone: whether no sequence is running, so that only the prompts in the batch wait for it.
    """

    batch: Batch = field(default_factory=Batch)
    rows: list[tuple[Row, list[int]]] = field(default_factory=list)
    chunks: list[tuple[Prompt, int, int]] = field(default_factory=list)
    is_alone: bool = False

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def holders(self) -> list[Holder]:
        """The rows and prompts that have tokens in it."""
        return [*dict.fromkeys(row for row, _ in self.rows), *(prompt for prompt, _, _ in self.chunks)]

    def add_row(self, row: Row, n_ahead: int = 0) -> None:
        """Adds a row, and those together with it. n_ahead: how many of the tokens ahead are evaluated, too."""
        self.rows.append((row, [self._add(each.next_token, each.position, each) for each in row.together]))
        if n_ahead:
            for position, token in enumerate(row.ahead[:n_ahead], row.position + 1):
                self.rows.append((row, [self._add(token, position, row)]))

    def _add(self, token: int, position: int, row: Row) -> int:
        assert row.seq_id is not None
        return self.batch.add_row(token, position, row.seq_id)

    def add_chunk(self, prompt: Prompt, n_tokens: int) -> None:
        """Adds the next tokens of a prompt. Those that are scored get logits, else only its last token does."""
        assert prompt.seq_id is not None
        end = prompt.evaluated + n_tokens
        self.batch.atom = prompt.atoms.get(prompt.evaluated)
        outputs = n_tokens if prompt.evaluated >= prompt.outputs_from else int(end == len(prompt.tokens))
        row = self.batch.add(prompt.tokens[prompt.evaluated : end], prompt.evaluated, prompt.seq_id, outputs=outputs)
        self.chunks.append((prompt, n_tokens, row))

    def of(self, holders: list[Holder]) -> "Plan":
        """A plan with only these of its holders."""
        plan = Plan(Batch(self.batch.setting), is_alone=self.is_alone)
        sizes = {prompt: n_tokens for prompt, n_tokens, _ in self.chunks}
        n_rows = Counter(row for row, _ in self.rows)
        for holder in holders:
            if isinstance(holder, Prompt):
                plan.add_chunk(holder, sizes[holder])
            else:
                plan.add_row(holder, n_rows[holder] - 1)
        return plan


class Planner:
    """Fills one batch after the other. It counts tokens and computes their costs, and measures no time.

    While sequences are running, they have their rows (or those whose turn it is, see `Turns`) about every `PAUSE`
    seconds, by the backend's costs, and prompts get the rest of the time. If the rows alone take more than half of the
    pause, prompts get as much time as the rows. A piece of a prompt that is cheaper in a decode of its own has one, in
    turn with the rows.

    The prompt with the fewest tokens left goes first. Later prompts may pass an earlier one as long as it takes at most
    `_PATIENCE` times as long as alone after the prompts before it.

    Atoms (images and sounds) that aren't ready are waited for only if there is nothing else to do.

    n_parallel: how many rows fit into a batch.
    n_batch, n_outputs: how many prompt tokens fit into it beside these, and how many of them with logits.
    atoms: knows which atoms are ready to be evaluated; None: there are none.
    prefill_chunk: how many tokens of prompts come after each row of running sequences; 0: as `PAUSE` says.
    """

    def __init__(
        self, n_parallel: int, n_batch: int, n_outputs: int, prefill_chunk: int, atoms: MediaReader | None = None
    ) -> None:
        self._turns = Turns(n_parallel)
        self._n_batch = n_batch
        self._most_outputs = min(n_batch, n_outputs)
        self._prefill_chunk = prefill_chunk
        self._atoms = atoms
        self._rows_are_next = False  # whether it is the rows' turn, if they take turns with prompts
        self._last: Lora = ()  # the adapters of the last batch

    def next(self, prompts: list[Prompt], awaiting: list[Prompt], costs: Costs) -> list[Plan]:
        """Plans what is evaluated next: a batch for each setting of adapters, or none if there is nothing to do.

        prompts: those of the running requests. awaiting: those of them that wait until another prompt has evaluated
            what they share with it.
        """
        units = self._turns.next(prompts)
        running = [row for unit in units for _, row in unit.rows]
        prefilling = [prompt for prompt in prompts if not (prompt.is_evaluated or prompt.beginning) and prompt.living]
        if self._atoms and (ready := self._ready(prefilling)) != prefilling and (running or ready):
            prefilling = ready
        plans: dict[Lora, Plan] = {}

        def plan_of(prompt: Prompt) -> Plan:
            if prompt.setting not in plans:
                plans[prompt.setting] = Plan(Batch(prompt.setting), is_alone=not running)
            return plans[prompt.setting]

        ahead = _ahead(running, self._most_outputs)
        n_ahead = sum(ahead.values())
        costs = costs.among(_in_use(prompts))
        takes_turns = False
        if prefilling and not (running and self._rows_are_next):
            rows = [each.position for row in running for each in row.together]
            rows += [row.position for row, n in ahead.items() for _ in range(n)]
            for_rows = costs.of_rows(rows) if running else 0.0
            most, seconds = self._n_batch, _UNLIMITED
            if running and self._prefill_chunk:
                most = min(most, self._prefill_chunk)
            elif running:
                seconds = max(PAUSE - for_rows, for_rows)
            passing = max(_PATIENCE * seconds / (seconds + for_rows) - 1, _LEAST_PASSING) / 2
            in_turn = _in_turn(prefilling, passing)
            least = 1
            if running and not self._prefill_chunk:
                seconds, least = _enough(seconds, for_rows, in_turn[0].evaluated, costs)
            pieces = self._pieces(in_turn, awaiting, most, seconds - costs.step, costs, least, is_alone=not running)
            n_tokens = sum(n_tokens for _, n_tokens in pieces)
            takes_turns = n_tokens >= costs.apart or any(_is_atom(prompt) for prompt, _ in pieces)
            if running and not takes_turns:
                most = min(most, self._n_batch - n_ahead)
                pieces = self._pieces(in_turn, awaiting, most, seconds, costs, 1, n_ahead=n_ahead, joins=True)
            for prompt, n_tokens in pieces:
                plan_of(prompt).add_chunk(prompt, n_tokens)
                _count(prefilling, prompt, n_tokens, passing)
        if not takes_turns:
            self._turns.took(units)
            for prompt, row in (each for unit in units for each in unit.rows):
                plan_of(prompt).add_row(row, ahead.get(row, 0))
        self._rows_are_next = takes_turns and bool(running)
        order = sorted(plans, key=lambda setting: setting != self._last)  # to change it takes a while
        self._last = order[-1] if order else ()
        return [plans[setting] for setting in order]

    def _ready(self, prefilling: list[Prompt]) -> list[Prompt]:
        """The prompts that needn't wait for an atom now. To ask whether one is ready also starts its preparation."""
        assert self._atoms
        found = []
        for prompt in prefilling:
            ahead = next((at for at in prompt.atoms if at >= prompt.evaluated), None)
            if ahead is None or self._atoms.is_ready(prompt.atoms[ahead]) or ahead > prompt.evaluated:
                found.append(prompt)
        return found

    def _pieces(
        self,
        in_turn: list[Prompt],
        awaiting: list[Prompt],
        most: int,
        seconds: float,
        costs: Costs,
        least: int,
        *,
        n_ahead: int = 0,
        is_alone: bool = False,
        joins: bool = False,
    ) -> list[tuple[Prompt, int]]:
        """Chooses prompts, and how many tokens of each are next.

        An atom has a batch of its own, and is never split, however long it takes.

        most, seconds: the limits of all pieces together, in tokens and in time.
        least: the first piece has at least so many tokens, if its prompt has so many left.
        n_ahead: how many given tokens are in the same batch.
        is_alone: whether no sequence is running. joins: whether the pieces are in one batch with the rows.
        """
        pieces: list[tuple[Prompt, int]] = []
        scored: list[tuple[Prompt, int]] = []
        outputs = self._most_outputs - n_ahead
        pauses = _pauses(awaiting)
        for prompt in in_turn:
            is_first = not (pieces or scored)
            if _is_atom(prompt):
                if is_first:
                    return [(prompt, len(prompt.atoms[prompt.evaluated].tokens))]
                continue
            left, fitting = _left(prompt), costs.largest_piece(seconds, prompt.evaluated, joins=joins)
            atom = [at for at in prompt.atoms if at > prompt.evaluated][:1]
            wants_all = prompt.evaluated >= prompt.outputs_from
            end = len(prompt.tokens) if wants_all else prompt.outputs_from
            pause = min([*pauses.get(prompt, ()), *prompt.checkpoints[-1:], *atom, end])
            if wants_all:
                n_tokens = _even_piece(pause - prompt.evaluated, self._most_outputs)
                if n_tokens > outputs or not (is_first or n_tokens <= min(most, fitting)):
                    continue
                if scored and not (prompt.shares and scored[0][0].shares):
                    continue
                scored.append((prompt, n_tokens))
                outputs -= n_tokens
            else:
                n_tokens = _even_piece(left, self._n_batch) if is_alone else max(fitting, least if is_first else 0)
                if is_first and n_tokens < left < n_tokens + least:  # else only a small piece would be left
                    n_tokens = left - least if left >= 2 * least else left
                n_tokens = min(n_tokens, left, most, pause - prompt.evaluated)
                if n_tokens <= 0:
                    continue
                if is_alone and n_tokens < left and any(n == _left(each) for each, n in scored + pieces):
                    break  # a prompt becomes complete with this batch: it needn't wait for more tokens of others
                pieces.append((prompt, n_tokens))
            most -= n_tokens
            seconds -= costs.of_piece(n_tokens, prompt.evaluated, joins=joins)
        return scored + pieces


def _in_use(prompts: list[Prompt]) -> int:
    """About how many tokens are in the cells, and at least those of the longest prompt."""
    own = sum(each.evaluated - each.cached + sum(row.n_tokens for row in each.way.rows) for each in prompts)
    return max(own, *(prompt.evaluated for prompt in prompts), 0)


def _is_atom(prompt: Prompt) -> bool:
    """Whether the next token of a prompt is the first of an atom."""
    return prompt.evaluated in prompt.atoms


def _ahead(running: list[Row], most: int) -> dict[Row, int]:
    """How many tokens ahead are evaluated of each row that has some, `most` in all."""
    ahead: dict[Row, int] = {}
    for row in running:
        if n_tokens := min(len(row.ahead), most):
            ahead[row] = n_tokens
            most -= n_tokens
    return ahead


def _left(prompt: Prompt) -> int:
    return len(prompt.tokens) - prompt.evaluated


def _enough(seconds: float, for_rows: float, before: int, costs: Costs) -> tuple[float, int]:
    """Lengthens the time for prompts beside rows, so that none is evaluated `_PATIENCE` times as slowly as alone.

    A token that joins the rows takes longer than a token of a piece in a decode of its own, and small pieces join the
    rows. If that needs a pause nearly as long as the smallest piece of its own needs, there is time for this piece.

    Returns the seconds, and the least size of the first piece: that of the smallest piece of its own, or 1.
    """
    apart = costs.step + costs.of_piece(costs.apart, before)
    slower = costs.of_piece(1, before, joins=True) / costs.of_piece(1, before) / _PATIENCE
    joined = max(seconds, for_rows * slower / (1 - slower)) if slower < 1 else _UNLIMITED
    if apart <= seconds or for_rows + apart <= _LITTLE_MORE * (for_rows + joined):
        return max(seconds, apart), costs.apart
    return joined, 1


def _in_turn(prefilling: list[Prompt], passing: float) -> list[Prompt]:
    """The prompts that may go next, the shortest first: all up to the first one that no other may pass any more.

    passing: for each token that a prompt has left when it comes, so many tokens of later prompts may pass it. For each
        token that is evaluated of it, or of a prompt before it, it may be passed by so many more.
    """
    for prompt in prefilling:
        if prompt.grace is None:
            prompt.grace = passing * _left(prompt)
    last = next((k for k, prompt in enumerate(prefilling) if (prompt.grace or 0) < 0), len(prefilling))
    return sorted(prefilling[: last + 1], key=_left)


def _count(prefilling: list[Prompt], prompt: Prompt, n_tokens: int, passing: float) -> None:
    """Counts tokens of a prompt as evaluated: earlier prompts were passed by them, the others may be passed by more."""
    place = prefilling.index(prompt)
    for k, each in enumerate(prefilling):
        assert each.grace is not None
        each.grace += n_tokens * (passing if k >= place else -1)


def _pauses(awaiting: list[Prompt]) -> dict[Prompt | Sequence, list[int]]:
    """For each prompt, after how many of its tokens others will fork off it.

    The prompt stops at the first of these points. The rest of it is then evaluated in one batch with the rests of the
    others.
    """
    pauses: dict[Prompt | Sequence, list[int]] = {}
    for prompt in awaiting:
        if prompt.beginning and prompt.beginning.source:
            pauses.setdefault(prompt.beginning.source, []).append(prompt.beginning.shared)
    return pauses


def _even_piece(left: int, most: int) -> int:
    """The size of the next piece of `left` tokens, so that all pieces have about the same size, of at most `most`.

    A small piece at the end would be computed in another way, and its logits would differ (docs/benchmarks.md).
    """
    return -(-left // -(-left // most))
