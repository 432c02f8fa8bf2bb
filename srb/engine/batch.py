"""Decides which rows and which prefill chunks are in the next batch (continuous batching with chunked prefill).

It counts tokens and computes their costs, and measures no time, so the same requests make the same batches. While
sequences are running, each has its row about every `TARGET_LATENCY` seconds, and chunks of prompts get the rest of the
time. If there are more rows than a step may have, they take turns (`RoundRobin`). Among prompts, the one with the
fewest tokens left goes first; a long one may be overtaken by a limited number of tokens (`PrefillOrder`).
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from weakref import WeakKeyDictionary

from srb.engine.backend import Backend, Batch, Costs
from srb.engine.decoding.base import Row
from srb.engine.kv_cache.retention import RetentionPolicy
from srb.engine.lora import Lora
from srb.engine.media import MediaReader
from srb.engine.sequence import ActiveRequest, Holder, Prompt, Sequence

TARGET_LATENCY = 0.25
"""The time between two tokens of a running sequence while prompts are computed, in seconds of the costs.

The aim is 0.3 seconds. The difference is for what the costs don't know.
"""

_LONGER = 3
"""While several prompts wait, the latency may be up to this many times `TARGET_LATENCY`. Larger chunks take less time
per token, and each step of the rows reads all weights."""

_MAX_SLOWDOWN = 2.5
"""How many times longer a prompt may take than it would alone, because others overtake it."""

_LEAST_OVERTAKING = 0.25
"""For each token of a prompt, this many tokens of later prompts may overtake it, even if `_MAX_SLOWDOWN` is passed."""

_LITTLE_MORE = 1.2
"""A chunk has a decode of its own if this makes the latency at most this many times longer."""

_UNLIMITED = 1e9  # seconds


class BatchPlanner:
    """Fills one batch after the other.

    If the rows alone take more than half of the target latency, chunks get as much time as the rows. A chunk that is
    cheaper in a decode of its own has one, in turn with the rows.
    """

    def __init__(self, backend: Backend, retention: RetentionPolicy) -> None:
        self._round_robin = RoundRobin(backend.n_parallel)
        self._n_batch = backend.n_batch
        self._n_outputs = min(backend.n_batch, backend.n_outputs)
        self._order = PrefillOrder()
        self._chunks = PrefillChunks(backend.n_batch, self._n_outputs, backend.media, retention)
        self._rows_are_next = False  # while chunks and rows take turns
        self._last_lora: Lora = ()  # the adapters of the last batch

    def next(self, prompts: list[Prompt], awaiting: list[Prompt], costs: Costs) -> "list[BatchPlan]":
        """Plans what is computed next: a batch for each setting of adapters, or none if there is nothing to do.

        Args:
            prompts: those of the running requests.
            awaiting: those of them that wait until another prompt has computed what they share with it.
            costs: how long decodes take.
        """
        units = self._round_robin.next(prompts)
        running = [row for unit in units for _, row in unit.rows]
        prefilling = [prompt for prompt in prompts if not (prompt.is_computed or prompt.beginning) and prompt.living]
        prefilling = self._chunks.ready(prefilling, must=not running)
        plans = _Plans(is_alone=not running)
        # Each prompt may be complete with this batch, and then has a row of logits, too.
        drafts = _draft_counts(running, max(0, self._n_outputs - len(prefilling)))
        takes_turns = False
        if prefilling and not (running and self._rows_are_next):
            takes_turns = self._add_chunks(plans, prefilling, awaiting, drafts, costs.among(in_use(prompts)))
        if not takes_turns:
            self._round_robin.count(units)
            for prompt, row in (each for unit in units for each in unit.rows):
                plans[prompt.lora].add_row(row, drafts[row])
        self._rows_are_next = takes_turns and bool(running)
        order = sorted(plans, key=lambda lora: lora != self._last_lora)  # changing adapters takes a while
        self._last_lora = order[-1] if order else ()
        return [plans[lora] for lora in order]

    def _add_chunks(
        self, plans: "_Plans", prefilling: list[Prompt], awaiting: list[Prompt], drafts: dict[Row, int], costs: Costs
    ) -> bool:
        """Adds the next chunks of prompts to the plans.

        Args:
            drafts: the rows, and how many of their draft tokens are computed.

        Returns:
            Whether the chunks have a decode without the rows.
        """
        for_rows, seconds = _time_shares(drafts, len(prefilling), costs)
        rate = _overtaking_rate(seconds, for_rows)
        first, *_ = order = self._order.next(prefilling, rate)
        least = 1
        if drafts:
            seconds, least = _lengthened(seconds, for_rows, first.n_computed, costs)
        budget = Budget(costs, self._n_batch, seconds - costs.step, self._n_outputs, least, is_alone=not drafts)
        chunks = self._chunks.choose(order, awaiting, budget)
        n_tokens = sum(n_tokens for _, n_tokens in chunks)
        takes_turns = n_tokens >= costs.apart or any(prompt.segment.is_whole for prompt, _ in chunks)
        if drafts and not takes_turns:
            n_drafted = sum(n * len(row.group) for row, n in drafts.items())
            budget = Budget(costs, self._n_batch - n_drafted, seconds, self._n_outputs - n_drafted, joins=True)
            chunks = self._chunks.choose(order, awaiting, budget)
        for prompt, n_tokens in chunks:
            plans[prompt.lora].add_chunk(prompt, n_tokens)
            self._order.count(prefilling, prompt, n_tokens, rate)
        return takes_turns


def _time_shares(drafts: dict[Row, int], n_prefilling: int, costs: Costs) -> tuple[float, float]:
    """Returns how many seconds the rows of a step take, and how many prompts get."""
    lengths = [each.position for row in drafts for each in row.group]
    lengths += [row.position for row, n in drafts.items() for _ in range(n)]
    if not lengths:
        return 0.0, _UNLIMITED
    for_rows = costs.of_rows(lengths)
    latency = TARGET_LATENCY * min(max(1.0, n_prefilling / 2), _LONGER)
    return for_rows, max(latency - for_rows, for_rows)


def _lengthened(seconds: float, for_rows: float, before: int, costs: Costs) -> tuple[float, int]:
    """Lengthens the time for prompts with rows, so that none takes `_MAX_SLOWDOWN` times as long as alone.

    A token that joins the rows takes longer than a token of a chunk in a decode of its own, and small chunks join the
    rows. If that needs nearly as long as the smallest chunk of its own needs, there is time for this chunk.

    Returns:
        The seconds, and the least size of the first chunk: that of the smallest chunk of its own, or 1.
    """
    apart = costs.step + costs.of_chunk(costs.apart, before)
    slower = costs.of_chunk(1, before, joins=True) / costs.of_chunk(1, before) / _MAX_SLOWDOWN
    joined = max(seconds, for_rows * slower / (1 - slower)) if slower < 1 else _UNLIMITED
    if apart <= seconds or for_rows + apart <= _LITTLE_MORE * (for_rows + joined):
        return max(seconds, apart), costs.apart
    return joined, 1


def _draft_counts(running: list[Row], most: int) -> dict[Row, int]:
    """Returns how many draft tokens of each row are computed, `most` in all."""
    counts: dict[Row, int] = {}
    for row in running:
        n = len(row.group)  # each of these has a row for the token, too
        counts[row] = min(len(row.draft_tokens), most // n)
        most -= counts[row] * n
    return counts


def in_use(prompts: list[Prompt]) -> int:
    """Estimates how many tokens are in the cells: at least those of the longest prompt."""
    own: int = sum(each.n_computed - each.cached + sum(row.n_tokens for row in each.strategy.rows) for each in prompts)
    return max(own, *(prompt.n_computed for prompt in prompts), 0)


# Which prompts are computed next


class PrefillOrder:
    """Lets short prompts overtake long ones, within limits: else a long one would starve.

    A prompt's overtaking limit is how many tokens of later prompts may still be computed before it.
    """

    def __init__(self) -> None:
        self._limits: WeakKeyDictionary[Prompt, float] = WeakKeyDictionary()

    def next(self, prefilling: list[Prompt], rate: float) -> list[Prompt]:
        """Returns the prompts that may go next, the shortest first.

        These are all up to the first one that no other may overtake any more.

        Args:
            prefilling: in the order of their arrival.
            rate: for each token that a new prompt has left, the tokens that may overtake it.
        """
        for prompt in prefilling:
            self._limits.setdefault(prompt, rate * _n_left(prompt))
        last = next((k for k, prompt in enumerate(prefilling) if self._limits[prompt] < 0), len(prefilling))
        return sorted(prefilling[: last + 1], key=lambda prompt: _n_left(prompt).bit_length())

    def count(self, prefilling: list[Prompt], prompt: Prompt, n_tokens: int, rate: float) -> None:
        """Counts tokens of a prompt that are computed now.

        They have overtaken earlier prompts. The prompt itself and later ones may be overtaken by more.
        """
        place = prefilling.index(prompt)
        for k, each in enumerate(prefilling):
            self._limits[each] += n_tokens * (rate if k >= place else -1)


def _overtaking_rate(seconds: float, for_rows: float) -> float:
    """Returns how many tokens of later prompts may overtake a prompt, for each of its tokens.

    Args:
        seconds: what prompts have in each step.
        for_rows: what the rows take.
    """
    return max(_MAX_SLOWDOWN * seconds / (seconds + for_rows) - 1, _LEAST_OVERTAKING) / 2


def _n_left(prompt: Prompt) -> int:
    """Returns how many tokens of a prompt aren't computed yet."""
    return len(prompt.tokens) - prompt.n_computed


# How many tokens of which prompts are in the next batch


@dataclass(slots=True)
class Budget:
    """What the chunks of one batch may still take.

    Attributes:
        costs: how long decodes take.
        n_tokens: in tokens.
        seconds: in time.
        n_outputs: in tokens with logits.
        least: the size of the first chunk, if its prompt has that many tokens left.
        is_alone: whether no sequence is running.
        joins: whether the chunks are in one batch with rows.
    """

    costs: Costs
    n_tokens: int
    seconds: float
    n_outputs: int
    least: int = 1
    is_alone: bool = False
    joins: bool = False

    def largest_chunk(self, prompt: Prompt) -> int:
        """Returns how many tokens of a prompt there is time for."""
        return self.costs.largest_chunk(self.seconds, prompt.n_computed, joins=self.joins)

    def spend(self, prompt: Prompt, n_tokens: int, n_outputs: int) -> None:
        """Takes out what a chunk needs."""
        self.n_tokens -= n_tokens
        self.n_outputs -= n_outputs
        self.seconds -= self.costs.of_chunk(n_tokens, prompt.n_computed, joins=self.joins)


Chunk = tuple[Prompt, int]
"""A prompt, and how many of its tokens are next."""


class PrefillChunks:
    """Chooses chunks of prompts, of at most `n_batch` tokens, or of `n_outputs` tokens with logits.

    Args:
        reader: knows which images and sounds are ready to be computed; None: there are none.
        retention: knows where prompts must pause.
    """

    def __init__(self, n_batch: int, n_outputs: int, reader: MediaReader | None, retention: RetentionPolicy) -> None:
        self._n_batch = n_batch
        self._n_outputs = n_outputs
        self._reader = reader
        self._retention = retention

    def ready(self, prefilling: list[Prompt], *, must: bool) -> list[Prompt]:
        """Returns the prompts that needn't wait for an image now. If all wait, and `must`: all of them.

        Asking whether an image is ready also starts its preparation.
        """
        if self._reader is None:
            return prefilling
        found = [prompt for prompt in prefilling if self._is_ready(prompt, self._reader)]
        return prefilling if must and not found else found

    def _is_ready(self, prompt: Prompt, reader: MediaReader) -> bool:
        at = next((at for at in prompt.media_placeholders if at >= prompt.n_computed), None)
        return at is None or reader.is_ready(prompt.media_placeholders[at]) or at > prompt.n_computed

    def choose(self, order: list[Prompt], awaiting: list[Prompt], budget: Budget) -> list[Chunk]:
        """Chooses prompts, and how many tokens of each are next. Chunks with logits come first.

        A whole segment has a batch of its own, and is never split, however long it takes.

        Args:
            order: the prompts that may go next, in order.
            awaiting: the prompts that wait until another one has computed what they share with it.
            budget: is spent.
        """
        chunks: list[Chunk] = []
        scored: list[Chunk] = []
        forks = _fork_points(awaiting)
        for prompt in order:
            segment, is_first = prompt.segment, not (chunks or scored)
            if segment.is_whole:
                if is_first:
                    return [(prompt, segment.end - prompt.n_computed)]
                continue
            n_to_pause = self._pause(prompt, forks) - prompt.n_computed
            if segment.has_logits:
                n_tokens = _even_chunk(n_to_pause, self._n_outputs)
                if _fits_scored(prompt, n_tokens, scored, budget, is_first=is_first):
                    scored.append((prompt, n_tokens))
                    budget.spend(prompt, n_tokens, n_tokens)
                continue
            n_tokens, n_left = min(self._size(prompt, budget, is_first=is_first), n_to_pause), _n_left(prompt)
            if n_tokens <= 0 or (n_tokens == n_left and not budget.n_outputs):
                continue
            if budget.is_alone and n_tokens < n_left and any(n == _n_left(each) for each, n in scored + chunks):
                break  # a prompt becomes complete with this batch: it needn't wait for more tokens of others
            chunks.append((prompt, n_tokens))
            budget.spend(prompt, n_tokens, int(n_tokens == n_left))
        return scored + chunks

    def _pause(self, prompt: Prompt, forks: dict[Prompt | Sequence, list[int]]) -> int:
        """Returns after how many of its tokens a prompt must pause: at a fork, a checkpoint or its segment's end."""
        points: list[int] = [*forks.get(prompt, ()), prompt.segment.end]
        checkpoint = self._retention.next_checkpoint(prompt)
        if checkpoint is not None:
            points.append(checkpoint)
        return min(points)

    def _size(self, prompt: Prompt, budget: Budget, *, is_first: bool) -> int:
        """Returns how many tokens of a prompt without scores fit into a budget."""
        n_left, least = _n_left(prompt), budget.least
        n_tokens = max(budget.largest_chunk(prompt), least if is_first else 0)
        if budget.is_alone:
            n_tokens = _even_chunk(n_left, self._n_batch)
        if is_first and n_tokens < n_left < n_tokens + least:  # else only a small chunk would be left
            n_tokens = n_left - least if n_left >= 2 * least else n_left
        return min(n_tokens, n_left, budget.n_tokens)


def _fits_scored(prompt: Prompt, n_tokens: int, scored: list[Chunk], budget: Budget, *, is_first: bool) -> bool:
    """Returns whether a chunk with logits fits into a batch with these scored chunks."""
    if n_tokens > budget.n_outputs:
        return False
    if not is_first and n_tokens > min(budget.n_tokens, budget.largest_chunk(prompt)):
        return False
    return not scored or (prompt.shares and scored[0][0].shares)


def _fork_points(awaiting: Iterable[Prompt]) -> dict[Prompt | Sequence, list[int]]:
    """Returns for each prompt after how many of its tokens others will fork off it.

    The prompt pauses at the first of these points. The rest of it is then computed in one batch with the rests of the
    others.
    """
    points: dict[Prompt | Sequence, list[int]] = {}
    for prompt in awaiting:
        if prompt.beginning and prompt.beginning.source:
            points.setdefault(prompt.beginning.source, []).append(prompt.beginning.shared)
    return points


def _even_chunk(n_left: int, most: int) -> int:
    """Returns the size of the next chunk, so that all chunks have about the same size, of at most `most`.

    A small chunk at the end would be computed in another way, and its logits would differ (docs/figures/benchmarks.md).
    """
    return -(-n_left // -(-n_left // most))


# Which running sequences have a row in the next step, when there are more of them than rows


@dataclass(slots=True)
class ScheduleUnit:
    """Rows that are always in the same step: those of a sequence, of a search, or of joint alternatives.

    Attributes:
        key: is the same in each step.
    """

    key: Hashable
    rows: list[tuple[Prompt, Row]]

    @property
    def n_rows(self) -> int:
        """How many rows of a batch they take."""
        return sum(len(row.group) for _, row in self.rows)


class RoundRobin:
    """Divides the rows of a step fairly between the requests.

    The requests choose one after the other, and each chooses one row at a time, until no row is left. What was left out
    last goes first. Example: of 32 rows, a request with 32 sequences gets 28 when four other requests have one sequence
    each, and each of the 32 is left out once in eight steps.

    Args:
        most: how many rows there are in a step.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._n_steps = 0
        self._left_out: dict[Hashable, int] = {}  # in which step each unit was left out last

    def next(self, prompts: list[Prompt]) -> list[ScheduleUnit]:
        """Returns the units that have their rows in the next step. Call `count` when they have had these."""
        rows = [(prompt, row) for prompt in prompts for row in prompt.strategy.rows]
        if sum(len(row.group) for _, row in rows) <= self._most:
            return [ScheduleUnit(None, rows)]
        units = _units(rows)
        requests: dict[ActiveRequest, list[ScheduleUnit]] = {}
        for unit in sorted(units, key=lambda unit: -self._left_out.get(unit.key, 0)):
            requests.setdefault(unit.rows[0][0].active, []).append(unit)
        chosen, n_left = set(), self._most
        for each in chain.from_iterable(zip_longest(*requests.values())):
            if each and each.n_rows <= n_left:
                chosen.add(each.key)
                n_left -= each.n_rows
        self._left_out = {unit.key: self._left_out.get(unit.key, 0) for unit in units}
        return [unit for unit in units if unit.key in chosen]

    def count(self, units: list[ScheduleUnit]) -> None:
        """Counts a step in which these units have had their rows."""
        self._n_steps += 1
        keys = {unit.key for unit in units}
        for key in () if None in keys else self._left_out:
            if key not in keys:
                self._left_out[key] = self._n_steps


def _units(rows: list[tuple[Prompt, Row]]) -> list[ScheduleUnit]:
    units: dict[Hashable, ScheduleUnit] = {}
    for prompt, row in rows:
        key = prompt.strategy.step_group(row)
        units.setdefault(key, ScheduleUnit(key, [])).rows.append((prompt, row))
    return list(units.values())


# The plan of one batch


@dataclass(slots=True)
class BatchPlan:
    """One decode: its batch, and the sequences and prompts that have rows in it. All have the same adapters.

    Attributes:
        batch: what the backend decodes.
        rows: what has a row, with the numbers of its row and of those in its group; again for each draft token.
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
        """Whether the row with this number has computed the token that has turned out to be the next one."""
        return self.batch.positions[number] == row.position and self.batch.tokens[number] == row.next_token

    def add_row(self, row: Row, n_drafted: int = 0) -> None:
        """Adds a row and its group, with the first `n_drafted` of its draft tokens."""
        for k, token in enumerate((row.next_token, *row.draft_tokens[:n_drafted])):
            self.rows.append((row, [self._add(token, each.position + k, each) for each in row.group]))

    def _add(self, token: int, position: int, row: Row) -> int:
        assert row.seq_id is not None
        return self.batch.add_row(token, position, row.seq_id)

    def add_chunk(self, prompt: Prompt, n_tokens: int) -> None:
        """Adds the next tokens of a prompt. Its last token gets logits, or all tokens of a segment with logits."""
        assert prompt.seq_id is not None
        end = prompt.n_computed + n_tokens
        self.batch.placeholder = prompt.media_placeholders.get(prompt.n_computed)
        outputs = n_tokens if prompt.segment.has_logits else int(end == len(prompt.tokens))
        row = self.batch.add(prompt.tokens[prompt.n_computed : end], prompt.n_computed, prompt.seq_id, outputs=outputs)
        self.chunks.append((prompt, n_tokens, row))

    def of(self, holders: list[Holder]) -> "BatchPlan":
        """Returns a plan with only these of its holders."""
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

    def __missing__(self, lora: Lora) -> BatchPlan:
        self[lora] = plan = BatchPlan(Batch(lora), is_alone=self._is_alone)
        return plan
