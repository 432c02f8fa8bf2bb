"""`Planner`: decides which tokens are in the next batch, and `Plan`, one such batch."""

from collections import Counter
from dataclasses import dataclass, field

from srb.engine.backend import Backend, Batch
from srb.engine.costs import Costs
from srb.engine.planning.order import UNLIMITED, count, enough, in_turn, in_use, passing
from srb.engine.planning.pieces import Budget, Pieces
from srb.engine.planning.turns import Turns, tokens_ahead
from srb.engine.ports import Row
from srb.engine.prompts.adapters import Lora
from srb.engine.sequence import Holder, Prompt

PAUSE = 0.25
"""While prompts are evaluated, so many seconds may pass between two tokens of a running sequence, by the costs.

The aim is 0.3 seconds. The difference is for what the costs don't know.
"""

_LONGER = 3
"""While several prompts wait, the pause is up to this many times as long. Larger pieces of prompts take less time for
each token, and each step of the rows reads all weights."""


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

    def is_of(self, row: Row, number: int) -> bool:
        """Whether the row with this number is of the token that has turned out to be the next one."""
        return self.batch.positions[number] == row.position and self.batch.tokens[number] == row.next_token

    def add_row(self, row: Row, n_ahead: int = 0) -> None:
        """Adds a row, and those together with it. n_ahead: how many of the tokens ahead are evaluated, too."""
        for k, token in enumerate((row.next_token, *row.ahead[:n_ahead])):
            self.rows.append((row, [self._add(token, each.position + k, each) for each in row.together]))

    def _add(self, token: int, position: int, row: Row) -> int:
        assert row.seq_id is not None
        return self.batch.add_row(token, position, row.seq_id)

    def add_chunk(self, prompt: Prompt, n_tokens: int) -> None:
        """Adds the next tokens of a prompt. Its last token gets logits, and those of a stretch where all have some."""
        assert prompt.seq_id is not None
        end = prompt.evaluated + n_tokens
        self.batch.atom = prompt.atoms.get(prompt.evaluated)
        outputs = n_tokens if prompt.stretch.has_logits else int(end == len(prompt.tokens))
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


class _Plans(dict[Lora, Plan]):
    """A plan for each setting of adapters that has rows."""

    def __init__(self, *, is_alone: bool) -> None:
        self._is_alone = is_alone

    def __missing__(self, setting: Lora) -> Plan:
        self[setting] = plan = Plan(Batch(setting), is_alone=self._is_alone)
        return plan


class Planner:
    """Fills one batch after the other. It counts tokens and computes their costs, and measures no time.

    While sequences are running, they have their rows (or those whose turn it is, see `Turns`) about every `PAUSE`
    seconds, by the backend's costs, and prompts get the rest of the time. If the rows alone take more than half of the
    pause, prompts get as much time as the rows. A piece of a prompt that is cheaper in a decode of its own has one, in
    turn with the rows. Which prompts go next is said in `planning/order.py`, and how many tokens of each in
    `planning/pieces.py`.
    """

    def __init__(self, backend: Backend) -> None:
        self._turns = Turns(backend.n_parallel)
        self._n_batch = backend.n_batch
        self._most_outputs = min(backend.n_batch, backend.n_outputs)
        self._pieces = Pieces(backend.n_batch, self._most_outputs, backend.media)
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
        prefilling = self._pieces.ready(prefilling, must=not running)
        plans = _Plans(is_alone=not running)
        # Each prompt may be complete with this batch, and then has a row of logits, too.
        ahead = tokens_ahead(running, max(0, self._most_outputs - len(prefilling)))
        takes_turns = False
        if prefilling and not (running and self._rows_are_next):
            takes_turns = self._add_chunks(plans, prefilling, awaiting, ahead, costs.among(in_use(prompts)))
        if not takes_turns:
            self._turns.took(units)
            for prompt, row in (each for unit in units for each in unit.rows):
                plans[prompt.setting].add_row(row, ahead[row])
        self._rows_are_next = takes_turns and bool(running)
        order = sorted(plans, key=lambda setting: setting != self._last)  # to change it takes a while
        self._last = order[-1] if order else ()
        return [plans[setting] for setting in order]

    def _add_chunks(
        self, plans: _Plans, prefilling: list[Prompt], awaiting: list[Prompt], ahead: dict[Row, int], costs: Costs
    ) -> bool:
        """Adds the next pieces of prompts to the plans. Returns whether they have a decode without the rows.

        ahead: the rows, and how many of their tokens ahead are evaluated, too.
        """
        rows = [each.position for row in ahead for each in row.together]
        rows += [row.position for row, n in ahead.items() for _ in range(n)]
        for_rows = costs.of_rows(rows) if rows else 0.0
        most, seconds, least = self._n_batch, UNLIMITED, 1
        if rows:
            pause = PAUSE * min(max(1.0, len(prefilling) / 2), _LONGER)
            seconds = max(pause - for_rows, for_rows)
        n_passing = passing(seconds, for_rows)
        first, *_ = turn = in_turn(prefilling, n_passing)
        if rows:
            seconds, least = enough(seconds, for_rows, first.evaluated, costs)
        n_ahead = sum(n * len(row.together) for row, n in ahead.items())
        budget = Budget(most, seconds - costs.step, self._most_outputs, least, is_alone=not rows)
        pieces = self._pieces.choose(turn, awaiting, costs, budget)
        n_tokens = sum(n_tokens for _, n_tokens in pieces)
        takes_turns = n_tokens >= costs.apart or any(prompt.stretch.is_whole for prompt, _ in pieces)
        if rows and not takes_turns:
            n_tokens, outputs = min(most, self._n_batch - n_ahead), self._most_outputs - n_ahead
            pieces = self._pieces.choose(turn, awaiting, costs, Budget(n_tokens, seconds, outputs, joins=True))
        for prompt, n_tokens in pieces:
            plans[prompt.setting].add_chunk(prompt, n_tokens)
            count(prefilling, prompt, n_tokens, n_passing)
        return takes_turns
