"""Chooses the layout of the KV cache for the present work: unified or in streams.

In a unified cache, attention computes every row and every prompt token over the cells of all sequences. Without flash
attention, the shared cells of a prompt are one matrix product for all of its rows. So a unified cache is fastest for
one prompt with many alternatives, but the time for several prompts grows with the square of their number. In streams,
attention sees the cells of one sequence only, and each of these cells costs more. Flash attention is faster there,
whatever is faster in a unified cache. `Layouts` predicts the time of all running and waiting requests in each layout. A
change must save more time than it takes to make the other context and to move the cells.

`--ctx-size` is the length of one request. `max_cells` limits the memory for all cells: a context of more than
`--ctx-size` cells is made only for work that needs them.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from srb.engine.backend import TRY_AGAIN_SECONDS
from srb.engine.kv_cache.allocator import Layout, Load
from srb.llama.native.cost_model import CONTEXT_SECONDS, AttentionCosts, CostModel
from srb.llama.native.params import round_up
from srb.options.settings import Settings

CELLS_PER_ROW = 1024
"""The cache may grow to this many cells per `--parallel` row, if memory is free."""

FEWEST_STREAMS = 4
"""An alternative with a negative prompt needs this many if another alternative of its prompt follows it."""

_HORIZON = 256  # steps that a prediction looks ahead
_MARGIN = 256  # tokens that each row has room for, unless it generates fewer
_FEW_STREAMS = 8  # with fewer, each new request would need other streams
_MOVE_SECONDS = 1.1e-9  # per byte of the cells that move into another context
_CONVERSION_SECONDS = 1e-9  # per byte that the other kind of attention stores differently
_CAUTION = 2  # while something runs, a change must save this many times its cost


@dataclass(slots=True)
class Layouts:
    """Chooses among the layouts that a model and its settings allow.

    Args:
        n_cells: the longest context of one request.
        n_parallel: the most rows of a step.
        cell_bytes: bytes of memory per cell.
        flash_attn: the kinds of attention that a unified cache may have. Streams have the first.
        fixed: the only layout, if there is only one.
        unified: whether a unified cache may be chosen.
        can_move: whether sequences can move into another context.
        clock: returns the time, in seconds.
    """

    n_cells: int
    n_seqs: int
    n_parallel: int
    cell_bytes: int
    max_cells: int
    costs: CostModel
    flash_attn: tuple[str, ...]
    fixed: Layout | None = None
    unified: bool = True
    streams: bool = True
    can_move: bool = True
    clock: Callable[[], float] = time.monotonic
    _refused: dict[Layout, float] = field(default_factory=dict)  # until when, in seconds of the clock

    def choose(self, loads: Sequence[Load], present: Layout, n_used: int, *, is_open: bool) -> Layout:
        """Return the layout for these loads.

        Args:
            is_open: whether the present layout has a context.
        """
        if self.fixed or not loads or (n_used and not self.can_move):
            return self.fixed or present
        self._refused = {each: until for each, until in self._refused.items() if until > self.clock()}
        # While something runs, a unified cache keeps its kind.
        kinds = (present.flash_attn,) if n_used and present.is_unified else self.flash_attn
        options = {each: self._change(each, present, n_used) for each in self._options(loads, kinds)}
        if is_open and self._holds(present, loads, n_used):
            options[present] = 0.0
        options = {each: cost for each, cost in options.items() if each not in self._refused}
        if not options:
            return present
        caution = _CAUTION if n_used else 1
        return min(options, key=lambda each: self.seconds(loads, each) + caution * options[each])

    def refuse(self, layout: Layout) -> None:
        """Don't choose this layout for a while, nor one of more than half its cells: there is no memory for it."""
        self._refused[layout] = self.clock() + TRY_AGAIN_SECONDS

    @property
    def _most(self) -> int:
        """The most cells of the cache that there may be memory for."""
        return max(self.n_cells, min((_total(each) // 2 for each in self._refused), default=self.max_cells))

    def _options(self, loads: Sequence[Load], kinds: tuple[str, ...]) -> Iterator[Layout]:
        if self.unified:
            yield from (self._unified(loads, kind) for kind in kinds)
        if self.streams and not (self.unified and any(load.needs_unified for load in loads)):
            yield from self._in_streams(loads, self.flash_attn[0])

    def _unified(self, loads: Sequence[Load], kind: str) -> Layout:
        wanted, n_cells = sum(map(_cells, loads)), self.n_cells
        while n_cells < min(wanted, self._most):
            n_cells *= 2
        return Layout(True, max(self.n_cells, min(n_cells, self._most // 256 * 256)), self.n_seqs, kind)

    def _in_streams(self, loads: Sequence[Load], kind: str) -> Iterator[Layout]:
        """Yield streams with room for `max_tokens`, and streams with room for a margin if the former are too few.

        If even these are too few for all rows, the rows take turns, and `seconds` predicts whether that pays.
        """
        rows = min(sum(max(1, load.n_rows) for load in loads), self.n_parallel)
        fewest = max(FEWEST_STREAMS, *(min(load.n_rows, self.n_parallel) for load in loads))
        # Twice as many as there are rows: requests often come in a burst, and each change is a pause for all.
        n_seqs = max(FEWEST_STREAMS, min(max(_FEW_STREAMS, 2 << (rows - 1).bit_length()), self.n_parallel))
        for most in (self.n_cells, _MARGIN):
            longest = max(load.n_tokens + load.n_generated + min(load.max_tokens, most) for load in loads)
            n_cells = min(round_up(longest), self.n_cells)
            fitting = self._most // n_cells
            if not self.unified:  # there is no other layout for what is too long
                fitting = max(fitting, FEWEST_STREAMS)
            if fitting >= fewest or not self.unified:
                yield Layout(False, n_cells, min(n_seqs, fitting), kind)
            if fitting >= rows:
                return

    def _holds(self, layout: Layout, loads: Sequence[Load], n_used: int) -> bool:
        """Return whether each of the loads has room in this layout, at least while no other one runs.

        An empty unified cache must have room for all of them. While something runs, it is often faster to let others
        wait than to fill more cells, because attention is computed over all of them.
        """
        if layout.is_unified:
            return self.unified and (n_used > 0 or layout.n_cells >= min(sum(map(_cells, loads)), self._most))
        if self.unified and any(load.needs_unified for load in loads):
            return False
        return all(load.n_tokens + load.n_generated + 1 <= layout.n_cells for load in loads)

    def _change(self, layout: Layout, present: Layout, n_used: int) -> float:
        """Predict the seconds to make a context, and to move tokens into it."""
        mib = _total(layout) * self.cell_bytes / 2**20
        per_byte = _MOVE_SECONDS + (_CONVERSION_SECONDS if layout.flash_attn != present.flash_attn else 0.0)
        return CONTEXT_SECONDS + mib * self.costs.seconds_per_mib + n_used * self.cell_bytes * per_byte

    def seconds(self, loads: Sequence[Load], layout: Layout) -> float:
        """Predict the seconds of the loads in this layout: all their prompts, and the next steps.

        Loads that don't fit at the same time run one after the other. The average time until a row begins is added,
        because users also wait for first tokens.
        """
        costs = self.costs.of(layout.flash_attn)
        seconds, waited, n_rows = 0.0, 0.0, 0
        for wave in self._waves(loads, layout):
            prompts, rows = _prompt_seconds(wave, costs, layout), sum(load.n_rows for load in wave)
            new = sum(load.n_rows for load in wave if load.n_computed < load.n_tokens)
            waited, n_rows = waited + rows * seconds + new * prompts, n_rows + rows
            seconds += prompts + _step_seconds(wave, costs, layout)
        return seconds + waited / n_rows

    def _waves(self, loads: Sequence[Load], layout: Layout) -> Iterator[list[Load]]:
        """Yield the loads, or parts of their rows, that fit at the same time."""
        wave = list[Load]()
        rows_left, cells_left = min(layout.n_seqs, self.n_parallel), layout.n_cells
        for load in loads:
            n_rows, shared, n_computed = max(1, load.n_rows), load.n_shared, load.n_computed
            each = load.n_generated + min(load.max_tokens, _MARGIN)
            while n_rows:
                fits = min(rows_left, n_rows)
                if layout.is_unified and each:
                    fits = min(fits, (cells_left - load.n_tokens + shared) // each)
                if fits <= 0 and wave:
                    yield wave
                    wave, rows_left, cells_left = [], min(layout.n_seqs, self.n_parallel), layout.n_cells
                    shared = 0
                    continue
                fits = max(1, fits)
                part = dataclasses.replace(load, n_rows=fits, n_shared=shared, n_computed=n_computed)
                wave.append(part)
                rows_left, cells_left = rows_left - fits, cells_left - _cells(part)
                n_rows, n_computed, shared = n_rows - fits, load.n_tokens, load.n_tokens
        if wave:
            yield wave


def _prompt_seconds(loads: Sequence[Load], costs: AttentionCosts, layout: Layout) -> float:
    """Predict the seconds of the prompts of loads that run at the same time."""
    seconds = 0.0
    in_use = sum(max(0, load.n_computed - load.n_shared) + load.n_rows * load.n_generated for load in loads)
    for load in loads:
        new = load.n_tokens - load.n_computed
        others = max(0, in_use - load.n_computed) if layout.is_unified else 0
        own_cell, others_cell = costs.prompt_cells(is_unified=layout.is_unified)
        seconds += new * (costs.prompt_token + own_cell * (load.n_computed + new / 2) + others_cell * others)
        in_use += new
    return seconds


def _step_seconds(loads: Sequence[Load], costs: AttentionCosts, layout: Layout) -> float:
    """Predict the seconds of the next steps of loads that run at the same time."""
    n_rows = sum(load.n_rows for load in loads)
    lengths = [min(load.max_tokens, _HORIZON) for load in loads]
    own_cell, others_cell = costs.row_cells(n_rows, is_unified=layout.is_unified)
    owns = [load.n_tokens + load.n_generated + length / 2 for load, length in zip(loads, lengths, strict=True)]
    in_use = sum(_cells(load, length // 2) for load, length in zip(loads, lengths, strict=True))
    is_lone = n_rows == 1 and costs.lone_step > 0
    seconds = max(lengths) * (costs.lone_step - costs.row if is_lone else costs.step)
    for load, length, own in zip(loads, lengths, owns, strict=True):
        seconds += length * load.n_rows * (costs.row + own * own_cell + max(0, in_use - own) * others_cell)
    return seconds


def _cells(load: Load, more: int = _MARGIN) -> int:
    """Return the cells that a load needs in a unified cache, with up to `more` new tokens per row."""
    return load.n_tokens - load.n_shared + load.n_rows * (load.n_generated + min(load.max_tokens, more))


def _total(layout: Layout) -> int:
    return layout.n_cells if layout.is_unified else layout.n_cells * layout.n_seqs


def first_layout(settings: Settings, n_cells: int, n_seqs: int, flash_attn: str) -> Layout:
    """Return the layout at the start. n_cells: the longest context of one request."""
    if settings.reproducible:
        return Layout(False, _cells_per_stream(n_cells, settings.parallel) - 1, n_seqs, flash_attn)
    if settings.kv_layout == "streams":
        n_seqs = max(FEWEST_STREAMS, settings.parallel)
        return Layout(False, _cells_per_stream(n_cells, n_seqs), n_seqs, flash_attn)
    return Layout(True, round_up(n_cells), n_seqs, flash_attn)


def _cells_per_stream(n_cells: int, n_streams: int) -> int:
    """Return the share of each stream, a multiple of 256, as llama.cpp wants it."""
    return max(256, n_cells // n_streams // 256 * 256)
