"""Decides which rows and which prefill chunks are in the next batch (continuous batching with chunked prefill).

First come the rows of running sequences; if there are more than a step may have, they take turns (`RoundRobin`). Then
prompts get a budget: the tokens that fit into the rest of the target latency, by the measured costs. It measures no
time, so the same requests make the same batches. Prompts are computed in the order of their arrival. Those that fit
into one budget take turns with the oldest one, so that a short prompt doesn't wait for long ones, nor a long one for
ever.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from srb.engine.backend import Backend, Batch, Costs
from srb.engine.decoding.base import Row
from srb.engine.kv_cache.retention import RetentionPolicy
from srb.engine.lora import Lora
from srb.engine.media import MediaReader
from srb.engine.sequence import ActiveRequest, Holder, Prompt, Sequence

TARGET_LATENCY = 0.25
"""The time between two tokens of a running sequence while one prompt is computed, in seconds of the costs.

The aim is 0.3 seconds. The difference is for what the costs don't know.
"""

TARGET_LATENCY_OF_SEVERAL = 0.8
"""The same from when several prompts wait until the last of them is computed; the aim is a second.

Each step of the rows reads all weights, and small chunks are slower.
"""

Chunk = tuple[Prompt, int]
"""A prompt, and how many of its tokens are next."""


class BatchPlanner:
    """Fills one batch after the other.

    If the rows alone take more than half of the target latency, prompts get as much time as the rows.

    Args:
        retention: knows where prompts must pause.
    """

    def __init__(self, backend: Backend, retention: RetentionPolicy) -> None:
        self._round_robin = RoundRobin(backend.n_parallel)
        self._n_batch = backend.n_batch
        self._n_outputs = min(backend.n_batch, backend.n_outputs)
        self._media = backend.media
        self._retention = retention
        self._rows_are_next = False  # whether the rows had no place in the last batch, so that chunks have none now
        self._oldest_is_next = False  # whether the last chunks began with a shorter prompt than the oldest one
        self._are_several = False  # whether several prompts waited, until the last of them is computed
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
        prefilling = _ready(prefilling, self._media, must=not running)
        self._are_several = len(prefilling) > 1 or (self._are_several and bool(prefilling))
        # Each prompt may be complete with this batch, and then has a row of logits, too.
        drafts = _draft_counts(running, max(0, self._n_outputs - len(prefilling)))
        chunks = list[Chunk]()
        if prefilling and not (running and self._rows_are_next):
            budget = self._budget(drafts, costs.among(in_use(prompts)))
            chunks = self._chunks(prefilling, awaiting, budget)
        self._rows_are_next = rows_wait = bool(running and chunks) and (costs.in_turn or chunks[0][0].segment.is_whole)
        rows = [] if rows_wait else [each for unit in units for each in unit.rows]
        if not rows_wait:
            self._round_robin.count(units)
        loras = dict.fromkeys(prompt.lora for prompt, _ in (*chunks, *rows))
        plans = {lora: BatchPlan(Batch(lora), is_alone=not running) for lora in loras}
        for prompt, n_tokens in chunks:
            plans[prompt.lora].add_chunk(prompt, n_tokens)
        for prompt, row in rows:
            plans[prompt.lora].add_row(row, drafts[row])
        order = sorted(plans, key=lambda lora: lora != self._last_lora)  # changing adapters takes a while
        self._last_lora = order[-1] if order else ()
        return [plans[lora] for lora in order]

    def _budget(self, drafts: dict[Row, int], costs: Costs) -> "_Budget":
        """Returns what prompts may have.

        Args:
            drafts: the rows, and how many of their draft tokens are computed.
        """
        if not drafts:
            return _Budget(costs, math.inf, self._n_batch, self._n_outputs)
        lengths = [each.position for row in drafts for each in row.group]
        lengths += [row.position for row, n in drafts.items() for _ in range(n)]
        for_rows = costs.of_rows(lengths)
        latency = TARGET_LATENCY_OF_SEVERAL if self._are_several else TARGET_LATENCY
        seconds = max(latency - for_rows - costs.in_turn * costs.step, for_rows)
        n_drafted = 0 if costs.in_turn else sum(n * len(row.group) for row, n in drafts.items())
        return _Budget(costs, seconds, self._n_batch - n_drafted, self._n_outputs - n_drafted)

    def _chunks(self, prefilling: list[Prompt], awaiting: list[Prompt], budget: "_Budget") -> list[Chunk]:
        """Chooses prompts, and how many tokens of each are next. The first may have a part, others only all they need.

        A whole segment is never split, however long it takes. It has a batch of its own, and so have scored prompts
        that share nothing, so that their scores don't depend on others.

        Args:
            prefilling: in the order of their arrival.
            budget: is spent.
        """
        forks, oldest = _fork_points(awaiting), prefilling[0]
        order = [prompt for prompt in prefilling if budget.has_all(prompt)]
        if self._oldest_is_next or not order:
            order = list(dict.fromkeys((oldest, *order)))
        self._oldest_is_next = order[0] is not oldest
        chunks = list[Chunk]()
        for prompt in order:
            segment = prompt.segment
            is_alone = segment.is_whole or (segment.has_logits and not prompt.shares)
            if chunks and (is_alone or not budget.has_all(prompt)):
                continue
            n_tokens = (segment.end if segment.is_whole else self._pause(prompt, forks)) - prompt.n_computed
            if not segment.is_whole:
                n_tokens = _even_chunk(n_tokens, budget.largest_chunk(prompt))
            chunks.append((prompt, n_tokens))
            if is_alone:
                break
            budget.spend(prompt, n_tokens)
        return chunks

    def _pause(self, prompt: Prompt, forks: dict[Prompt | Sequence, list[int]]) -> int:
        """Returns after how many of its tokens a prompt must pause: at a fork, a checkpoint or its segment's end."""
        points: list[int] = [*forks.get(prompt, ()), prompt.segment.end]
        checkpoint = self._retention.next_checkpoint(prompt)
        if checkpoint is not None:
            points.append(checkpoint)
        return min(points)


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


# Which prefill chunks are in the next batch


@dataclass(slots=True)
class _Budget:
    """What prompts may still have of one batch.

    Attributes:
        costs: how long decodes take.
        seconds: the time.
        n_tokens: in tokens.
        n_outputs: in tokens with logits.
    """

    costs: Costs
    seconds: float
    n_tokens: int
    n_outputs: int

    def has_all(self, prompt: Prompt) -> bool:
        """Whether all that a prompt lacks fits."""
        return self.n_outputs > 0 and len(prompt.tokens) - prompt.n_computed <= self._largest(prompt)

    def largest_chunk(self, prompt: Prompt) -> int:
        """Returns how many tokens of a prompt fit: at least one, or as many as may have logits, if they get these.

        Scored prompts are computed in chunks of the same size however little time there is, because logits depend on
        it.
        """
        return max(1, self.n_outputs if prompt.segment.has_logits else self._largest(prompt))

    def _largest(self, prompt: Prompt) -> int:
        n_tokens = min(self.n_tokens, self.seconds / self.costs.of_prompt_token(prompt.n_computed))
        return int(min(n_tokens, self.n_outputs) if prompt.segment.has_logits else n_tokens)

    def spend(self, prompt: Prompt, n_tokens: int) -> None:
        """Takes out what a chunk needs."""
        self.n_tokens -= n_tokens
        self.n_outputs -= n_tokens if prompt.segment.has_logits else 1
        self.seconds -= n_tokens * self.costs.of_prompt_token(prompt.n_computed)


def _ready(prefilling: list[Prompt], reader: MediaReader | None, *, must: bool) -> list[Prompt]:
    """Returns the prompts that needn't wait for an image now. If all wait, and `must`: all of them.

    Asking whether an image is ready also starts its preparation.
    """
    if reader is None:
        return prefilling
    found = [prompt for prompt in prefilling if _is_ready(prompt, reader)]
    return prefilling if must and not found else found


def _is_ready(prompt: Prompt, reader: MediaReader) -> bool:
    at = next((at for at in prompt.media_placeholders if at >= prompt.n_computed), None)
    return at is None or reader.is_ready(prompt.media_placeholders[at]) or at > prompt.n_computed


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
