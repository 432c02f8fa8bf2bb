"""`BatchPlanner`: decides which tokens are in the next batch, and `BatchPlan`, one such batch."""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from srb.engine.backend import Backend, Batch, Costs
from srb.engine.decoding.base import Row
from srb.engine.lora import Lora
from srb.engine.media import MediaReader
from srb.engine.sequence import ActiveRequest, Holder, Prompt, Sequence

# Which prompts are evaluated next, and how much time they have beside the rows of running sequences. The prompt with
# the fewest tokens left goes first. A long one would starve behind them, so each prompt has a grace: for how many
# more tokens it may be passed.

PATIENCE = 2.5
"""Because others pass it, a prompt may take at most so many times as long as alone after the prompts before it."""

_LEAST_PASSING = 0.25
"""For each token of a prompt, so many tokens of later prompts may pass it, even if `PATIENCE` would allow fewer."""

_LITTLE_MORE = 1.2
"""A piece has a decode of its own if this makes the pause at most so many times as long."""

UNLIMITED = 1e9  # seconds


def passing(seconds: float, for_rows: float) -> float:
    """For each token of a prompt, how many tokens of later prompts may pass it.

    seconds: what prompts have in each step. for_rows: what the rows take.
    """
    return max(PATIENCE * seconds / (seconds + for_rows) - 1, _LEAST_PASSING) / 2


def in_turn(prefilling: list[Prompt], passing: float) -> list[Prompt]:
    """The prompts that may go next, the shortest first: all up to the first one that no other may pass any more.

    passing: for each token that a prompt has left when it comes, so many tokens of later prompts may pass it. For each
        token that is evaluated of it, or of a prompt before it, it may be passed by so many more.
    """
    for prompt in prefilling:
        if prompt.overtaking_limit is None:
            prompt.overtaking_limit = passing * left(prompt)
    last = next((k for k, prompt in enumerate(prefilling) if (prompt.overtaking_limit or 0) < 0), len(prefilling))
    return sorted(prefilling[: last + 1], key=lambda prompt: left(prompt).bit_length())


def count(prefilling: list[Prompt], prompt: Prompt, n_tokens: int, passing: float) -> None:
    """Counts tokens of a prompt as evaluated: earlier prompts were passed by them, the others may be passed by more."""
    place = prefilling.index(prompt)
    for k, each in enumerate(prefilling):
        assert each.overtaking_limit is not None
        each.overtaking_limit += n_tokens * (passing if k >= place else -1)


def enough(seconds: float, for_rows: float, before: int, costs: Costs) -> tuple[float, int]:
    """Lengthens the time for prompts beside rows, so that none is evaluated `PATIENCE` times as slowly as alone.

    A token that joins the rows takes longer than a token of a piece in a decode of its own, and small pieces join the
    rows. If that needs a pause nearly as long as the smallest piece of its own needs, there is time for this piece.

    Returns the seconds, and the least size of the first piece: that of the smallest piece of its own, or 1.
    """
    apart = costs.step + costs.of_piece(costs.apart, before)
    slower = costs.of_piece(1, before, joins=True) / costs.of_piece(1, before) / PATIENCE
    joined = max(seconds, for_rows * slower / (1 - slower)) if slower < 1 else UNLIMITED
    if apart <= seconds or for_rows + apart <= _LITTLE_MORE * (for_rows + joined):
        return max(seconds, apart), costs.apart
    return joined, 1


def left(prompt: Prompt) -> int:
    """How many tokens of a prompt aren't evaluated yet."""
    return len(prompt.tokens) - prompt.n_computed


def in_use(prompts: list[Prompt]) -> int:
    """About how many tokens are in the cells, and at least those of the longest prompt."""
    own: int = sum(each.n_computed - each.cached + sum(row.n_tokens for row in each.strategy.rows) for each in prompts)
    return max(own, *(prompt.n_computed for prompt in prompts), 0)


# `RoundRobin`: which running sequences have a row in the next step, when there are more of them than rows.


@dataclass(slots=True)
class ScheduleUnit:
    """Rows that are in one step together: those of a sequence, of a search, or of alternatives that are joint.

    name: is the same in each step.
    """

    name: Hashable
    rows: list[tuple[Prompt, Row]]

    @property
    def n_rows(self) -> int:
        """How many rows of a batch they take."""
        return sum(len(row.group) for _, row in self.rows)


class RoundRobin:
    """Divides the rows of a step fairly between the requests.

    The requests choose one after the other, and each chooses one row at a time, until no row is left. Who was left out
    last goes first. Example: of 32 rows, a request with 32 sequences gets 28 when four other requests have one sequence
    each, and each of the 32 is left out once in eight steps.

    most: how many rows there are in a step.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._n_steps = 0
        self._left_out: dict[Hashable, int] = {}  # in which step each unit was left out last

    def next(self, prompts: list[Prompt]) -> list[ScheduleUnit]:
        """The units that have their rows in the next step. Call `took` when they have had these."""
        rows = [(prompt, row) for prompt in prompts for row in prompt.strategy.rows]
        if sum(len(row.group) for _, row in rows) <= self._most:
            return [ScheduleUnit(None, rows)]
        units = _units(rows)
        requests: dict[ActiveRequest, list[ScheduleUnit]] = {}
        for unit in sorted(units, key=lambda unit: -self._left_out.get(unit.name, 0)):
            requests.setdefault(unit.rows[0][0].active, []).append(unit)
        chosen, left = set(), self._most
        for each in chain.from_iterable(zip_longest(*requests.values())):
            if each and each.n_rows <= left:
                chosen.add(each.name)
                left -= each.n_rows
        self._left_out = {unit.name: self._left_out.get(unit.name, 0) for unit in units}
        return [unit for unit in units if unit.name in chosen]

    def took(self, units: list[ScheduleUnit]) -> None:
        """Counts a step in which these units have had their rows."""
        self._n_steps += 1
        names = {unit.name for unit in units}
        for name in () if None in names else self._left_out:
            if name not in names:
                self._left_out[name] = self._n_steps


def _units(rows: list[tuple[Prompt, Row]]) -> list[ScheduleUnit]:
    units: dict[Hashable, ScheduleUnit] = {}
    for prompt, row in rows:
        name = prompt.strategy.step_group(row)
        units.setdefault(name, ScheduleUnit(name, [])).rows.append((prompt, row))
    return list(units.values())


def tokens_ahead(running: list[Row], most: int) -> dict[Row, int]:
    """How many tokens ahead are evaluated of each row, `most` in all."""
    ahead: dict[Row, int] = {}
    for row in running:
        n = len(row.group)  # each of these has a row for the token, too
        ahead[row] = min(len(row.draft_tokens), most // n)
        most -= ahead[row] * n
    return ahead


# How many tokens of which prompts are in the next batch.


@dataclass(frozen=True, slots=True)
class Budget:
    """What the pieces of one batch may take together.

    n_tokens, seconds, outputs: in tokens, in time, and in tokens with logits.
    least: the first piece has at least so many tokens, if its prompt has so many left.
    is_alone: no sequence is running. joins: the pieces are in one batch with the rows.
    """

    n_tokens: int
    seconds: float
    outputs: int
    least: int = 1
    is_alone: bool = False
    joins: bool = False


class PrefillChunks:
    """Chooses pieces of prompts, of at most `n_batch` tokens, or of `n_outputs` tokens with logits.

    reader: knows which atoms (images and sounds) are ready to be evaluated; None: there are none.
    """

    def __init__(self, n_batch: int, n_outputs: int, reader: MediaReader | None) -> None:
        self._n_batch = n_batch
        self._n_outputs = n_outputs
        self._reader = reader

    def ready(self, prefilling: list[Prompt], *, must: bool) -> list[Prompt]:
        """The prompts that needn't wait for an atom now. If all wait, and nobody else works (`must`): all of them.

        To ask whether an atom is ready also starts its preparation.
        """
        if self._reader is None:
            return prefilling
        found = [prompt for prompt in prefilling if self._is_ready(prompt, self._reader)]
        return prefilling if must and not found else found

    def _is_ready(self, prompt: Prompt, reader: MediaReader) -> bool:
        ahead = next((at for at in prompt.media_placeholders if at >= prompt.n_computed), None)
        return ahead is None or reader.is_ready(prompt.media_placeholders[ahead]) or ahead > prompt.n_computed

    def choose(
        self, in_turn: list[Prompt], awaiting: list[Prompt], costs: Costs, budget: Budget
    ) -> list[tuple[Prompt, int]]:
        """Chooses prompts, and how many tokens of each are next. Those with logits come first.

        A stretch that is whole has a batch of its own, and is never split, however long it takes.

        awaiting: the prompts that wait until another one has evaluated what they share with it.
        """
        pieces: list[tuple[Prompt, int]] = []
        with_logits: list[tuple[Prompt, int]] = []
        most, seconds, outputs, least = budget.n_tokens, budget.seconds, budget.outputs, budget.least
        pauses = _pauses(awaiting)
        for prompt in in_turn:
            is_first = not (pieces or with_logits)
            segment, evaluated = prompt.segment, prompt.n_computed
            if segment.is_whole:
                if is_first:
                    return [(prompt, segment.end - evaluated)]
                continue
            rest, fitting = left(prompt), costs.largest_piece(seconds, evaluated, joins=budget.joins)
            pause = min([*pauses.get(prompt, ()), *prompt.checkpoints[-1:], segment.end])
            if segment.has_logits:
                n_tokens = _even_piece(pause - evaluated, self._n_outputs)
                if n_tokens > outputs or not (is_first or n_tokens <= min(most, fitting)):
                    continue
                if with_logits and not (prompt.shares and with_logits[0][0].shares):
                    continue
                with_logits.append((prompt, n_tokens))
                outputs -= n_tokens
            else:
                n_tokens = max(fitting, least if is_first else 0)
                if budget.is_alone:
                    n_tokens = _even_piece(rest, self._n_batch)
                if is_first and n_tokens < rest < n_tokens + least:  # else only a small piece would be left
                    n_tokens = rest - least if rest >= 2 * least else rest
                n_tokens = min(n_tokens, rest, most, pause - evaluated)
                if n_tokens <= 0 or (n_tokens == rest and not outputs):
                    continue
                if budget.is_alone and n_tokens < rest and any(n == left(each) for each, n in with_logits + pieces):
                    break  # a prompt becomes complete with this batch: it needn't wait for more tokens of others
                pieces.append((prompt, n_tokens))
                outputs -= n_tokens == rest
            most -= n_tokens
            seconds -= costs.of_piece(n_tokens, evaluated, joins=budget.joins)
        return with_logits + pieces


def _pauses(awaiting: Iterable[Prompt]) -> dict[Prompt | Sequence, list[int]]:
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

    A small piece at the end would be computed in another way, and its logits would differ (docs/figures/older.md).
    """
    return -(-left // -(-left // most))


PAUSE = 0.25
"""While prompts are evaluated, so many seconds may pass between two tokens of a running sequence, by the costs.

The aim is 0.3 seconds. The difference is for what the costs don't know.
"""

_LONGER = 3
"""While several prompts wait, the pause is up to this many times as long. Larger pieces of prompts take less time for
each token, and each step of the rows reads all weights."""


@dataclass(slots=True)
class BatchPlan:
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

    def add_row(self, row: Row, n_drafted: int = 0) -> None:
        """Adds a row, and those together with it. n_ahead: how many of the tokens ahead are evaluated, too."""
        for k, token in enumerate((row.next_token, *row.draft_tokens[:n_drafted])):
            self.rows.append((row, [self._add(token, each.position + k, each) for each in row.group]))

    def _add(self, token: int, position: int, row: Row) -> int:
        assert row.seq_id is not None
        return self.batch.add_row(token, position, row.seq_id)

    def add_chunk(self, prompt: Prompt, n_tokens: int) -> None:
        """Adds the next tokens of a prompt. Its last token gets logits, and those of a stretch where all have some."""
        assert prompt.seq_id is not None
        end = prompt.n_computed + n_tokens
        self.batch.placeholder = prompt.media_placeholders.get(prompt.n_computed)
        outputs = n_tokens if prompt.segment.has_logits else int(end == len(prompt.tokens))
        row = self.batch.add(prompt.tokens[prompt.n_computed : end], prompt.n_computed, prompt.seq_id, outputs=outputs)
        self.chunks.append((prompt, n_tokens, row))

    def of(self, holders: list[Holder]) -> "BatchPlan":
        """A plan with only these of its holders."""
        plan = BatchPlan(Batch(self.batch.setting), is_alone=self.is_alone)
        sizes = {prompt: n_tokens for prompt, n_tokens, _ in self.chunks}
        n_rows = Counter(row for row, _ in self.rows)
        for holder in holders:
            if isinstance(holder, Prompt):
                plan.add_chunk(holder, sizes[holder])
            else:
                plan.add_row(holder, n_rows[holder] - 1)
        return plan


class _Plans(dict[Lora, BatchPlan]):
    """A plan for each setting of adapters that has rows."""

    def __init__(self, *, is_alone: bool) -> None:
        self._is_alone = is_alone

    def __missing__(self, setting: Lora) -> BatchPlan:
        self[setting] = plan = BatchPlan(Batch(setting), is_alone=self._is_alone)
        return plan


class BatchPlanner:
    """Fills one batch after the other. It counts tokens and computes their costs, and measures no time.

    While sequences are running, they have their rows (or those whose turn it is, see `RoundRobin`) about every `PAUSE`
    seconds, by the backend's costs, and prompts get the rest of the time. If the rows alone take more than half of the
    pause, prompts get as much time as the rows. A piece of a prompt that is cheaper in a decode of its own has one, in
    turn with the rows. Which prompts go next is said in `planning/order.py`, and how many tokens of each in
    `planning/pieces.py`.
    """

    def __init__(self, backend: Backend) -> None:
        self._turns = RoundRobin(backend.n_parallel)
        self._n_batch = backend.n_batch
        self._most_outputs = min(backend.n_batch, backend.n_outputs)
        self._pieces = PrefillChunks(backend.n_batch, self._most_outputs, backend.media)
        self._rows_are_next = False  # whether it is the rows' turn, if they take turns with prompts
        self._last: Lora = ()  # the adapters of the last batch

    def next(self, prompts: list[Prompt], awaiting: list[Prompt], costs: Costs) -> list[BatchPlan]:
        """Plans what is evaluated next: a batch for each setting of adapters, or none if there is nothing to do.

        prompts: those of the running requests. awaiting: those of them that wait until another prompt has evaluated
            what they share with it.
        """
        units = self._turns.next(prompts)
        running = [row for unit in units for _, row in unit.rows]
        prefilling = [prompt for prompt in prompts if not (prompt.is_computed or prompt.beginning) and prompt.living]
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
        rows = [each.position for row in ahead for each in row.group]
        rows += [row.position for row, n in ahead.items() for _ in range(n)]
        for_rows = costs.of_rows(rows) if rows else 0.0
        most, seconds, least = self._n_batch, UNLIMITED, 1
        if rows:
            pause = PAUSE * min(max(1.0, len(prefilling) / 2), _LONGER)
            seconds = max(pause - for_rows, for_rows)
        n_passing = passing(seconds, for_rows)
        first, *_ = turn = in_turn(prefilling, n_passing)
        if rows:
            seconds, least = enough(seconds, for_rows, first.n_computed, costs)
        n_drafted = sum(n * len(row.group) for row, n in ahead.items())
        budget = Budget(most, seconds - costs.step, self._most_outputs, least, is_alone=not rows)
        pieces = self._pieces.choose(turn, awaiting, costs, budget)
        n_tokens = sum(n_tokens for _, n_tokens in pieces)
        takes_turns = n_tokens >= costs.apart or any(prompt.segment.is_whole for prompt, _ in pieces)
        if rows and not takes_turns:
            n_tokens, outputs = min(most, self._n_batch - n_drafted), self._most_outputs - n_drafted
            pieces = self._pieces.choose(turn, awaiting, costs, Budget(n_tokens, seconds, outputs, joins=True))
        for prompt, n_tokens in pieces:
            plans[prompt.setting].add_chunk(prompt, n_tokens)
            count(prefilling, prompt, n_tokens, n_passing)
        return takes_turns
