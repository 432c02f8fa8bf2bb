"""Chooses the layout of the KV cache by the work: unified, or in streams.

In a unified cache attention computes every row and every token of a prompt over the cells of all sequences. Without
flash attention the shared cells of a prompt are one matrix product for all of its rows, so that is the fastest way for
one prompt with many alternatives, and the time for several prompts grows with the square of their number. In streams
attention sees the cells of one sequence, each of which costs more. So `Layouts` predicts the time of what runs and
waits in each layout. Another layout must save more than making its context, and moving the cells, takes.

`max_cells` bounds the memory for cells. `--ctx-size` is the length of one request. A context of more cells is made only
for work that needs them.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import llama_cpp

from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.lora import Adapter
from srb.errors import ModelLoadError
from srb.llama.model.chat_template import ChatTemplate
from srb.llama.multimodal.projector import LlamaMedia
from srb.llama.native.attention import ANY_CONTEXT, Pace, Paces
from srb.llama.native.params import is_on_gpu, rounded
from srb.llama.tune.tuned import Choice, processor
from srb.options.settings import Settings

# What `--reproducible` asks of a model and its settings. `native/streams.py` is the context that it needs.
# docs/running/reproducible.md says what is promised, and why.

BLOCK = 64
"""The size of a prompt's blocks, in tokens. Kernels that take rows in groups take all of these alike."""


def hash_of(
    identity: str, settings: Settings, adapters: tuple[Adapter, ...], chat_template: ChatTemplate | None
) -> str:
    """A hash of what answers depend on beside their requests, with `--reproducible`; without it empty."""
    if not settings.reproducible:
        return ""
    system = llama_cpp.llama_print_system_info()  # the instructions that ggml uses
    threads = f"{settings.threads} {settings.threads_batch}"
    lengths = f"{settings.ctx_size} {settings.parallel} {settings.max_tokens}"
    loaded = " ".join(f"{each.identity} {each.scale}" for each in adapters)
    template = chat_template.source if chat_template else ""
    everything = "/".join((identity, processor(), str(system), threads, lengths, loaded, template))
    return hashlib.sha256(everything.encode()).hexdigest()[:16]


def in_one_way(choice: Choice) -> Choice:
    """With `--reproducible` the choice without flash attention, whose logits depend on the pieces of a prompt."""
    if not choice.settings.reproducible:
        return choice
    return dataclasses.replace(choice, settings=dataclasses.replace(choice.settings, flash_attn="off"))


def check_reproducible(settings: Settings, window: int | None, media: LlamaMedia | None) -> None:
    """Raises `ModelLoadError` if it can't be had. window: see `Backend.window`."""
    reason = None
    if window == 0:
        reason = "this model has a recurrent state, which can't take back the rows that are computed beside others"
    elif is_on_gpu(settings):
        reason = "it is measured on processors only; --n-gpu-layers 0 computes there"
    elif media and media.has_positions:
        reason = "the images of this model have positions of their own (M-RoPE)"
    if reason:
        raise ModelLoadError(f"--reproducible can't be had: {reason}; leave it out")


CELLS_PER_ROW = 1024
"""The cache may grow to this many cells for each of the `--parallel` rows, if memory for them is free."""

FEWEST_STREAMS = 4
"""An alternative with a negative prompt needs so many, if another one of its prompt follows it."""

_HORIZON = 64  # steps that a prediction looks ahead
_MARGIN = 256  # tokens that each row has room for, unless it generates fewer
_FEW_STREAMS = 8  # with fewer, each request that comes would need other streams
_OUT_AND_IN = 1.1e-9  # seconds for each byte of the cells that move into another context
_CONVERTED = 1e-9  # seconds for each byte that another kind of attention stores in another way
_CAUTION = 2  # while something runs, a change must save this many times its cost


@dataclass(slots=True)
class Layouts:
    """Chooses among the layouts that a model and its settings allow.

    n_cells: the longest context of one request. n_seqs: the sequences of a unified cache. n_parallel: how many rows a
        step has.
    cell_bytes: bytes of memory for each cell. max_cells: how many cells the cache may have.
    rule: the costs by which the kind of attention is chosen. paces: those by which the layout is chosen.
    kinds: the kinds of attention that may be chosen.
    fixed: the only layout, if there is only one.
    streams: whether streams may be chosen. unified: whether a unified cache may be.
    moves: whether sequences can move into another context.
    """

    n_cells: int
    n_seqs: int
    n_parallel: int
    cell_bytes: int
    max_cells: int
    rule: Paces
    paces: Paces
    kinds: tuple[str, ...]
    fixed: Layout | None = None
    unified: bool = True
    streams: bool = True
    moves: bool = True
    _refused: set[Layout] = field(default_factory=set)

    def choose(self, loads: Sequence[Load], present: Layout, n_held: int, *, is_open: bool) -> Layout:
        """The layout for these loads.

        n_held: how many tokens are in cells. is_open: whether the present layout has a context.
        """
        if self.fixed or not loads or (n_held and not self.moves):
            return self.fixed or present
        options = dict[Layout, float]()  # and the seconds that changing to each takes
        is_fixed = n_held > 0 or len(self.kinds) == 1
        kind = present.flash_attn if is_fixed else self.rule.best(list(map(_work, loads)))
        for each in self._options(loads, kind):
            cost = self._change(each, n_held)
            if n_held and each.flash_attn != present.flash_attn:
                cost += n_held * self.cell_bytes * _CONVERTED
            elif each.flash_attn not in (kind, self.rule.usual):
                cost += self.rule.change
            options[each] = cost
        if is_open and self._holds(present, loads, n_held):
            other = dataclasses.replace(present, flash_attn=kind)
            options[other] = 0.0  # `rule` has counted a change of the kind
            if not other.is_unified:
                options[present] = 0.0
        if not options:
            return present
        caution = _CAUTION if n_held else 1
        return min(options, key=lambda each: self.seconds(loads, each) + caution * options[each])

    def refuse(self, layout: Layout) -> None:
        """Takes note that there is no memory for a context with this layout."""
        self._refused.add(layout)
        self.max_cells = max(self.n_cells, min(self.max_cells, _total(layout) // 2))

    def _options(self, loads: Sequence[Load], kind: str) -> Iterator[Layout]:
        found = []
        if self.unified:
            found.append(self._unified(loads, kind))
        if self.streams and not (self.unified and any(load.needs_unified for load in loads)):
            found += [each for of_streams in self.kinds for each in self._in_streams(loads, of_streams)]
        yield from (each for each in found if each not in self._refused)

    def _unified(self, loads: Sequence[Load], kind: str) -> Layout:
        wanted, n_cells = sum(map(_cells, loads)), self.n_cells
        while n_cells < min(wanted, self.max_cells):
            n_cells *= 2
        return Layout(True, max(self.n_cells, min(n_cells, self.max_cells // 256 * 256)), self.n_seqs, kind)

    def _in_streams(self, loads: Sequence[Load], kind: str) -> Iterator[Layout]:
        """Streams with room for `max_tokens`. If so many don't fit, also those with room for a margin.

        If even these are too few for all rows, the rows take turns, and `seconds` says whether that pays.
        """
        rows = min(sum(max(1, load.n_rows) for load in loads), self.n_parallel)
        fewest = max(FEWEST_STREAMS, *(min(load.n_rows, self.n_parallel) for load in loads))
        # Twice as many as there are rows: requests often come in a burst, and each change is a pause for all.
        n_seqs = max(FEWEST_STREAMS, min(max(_FEW_STREAMS, 2 << (rows - 1).bit_length()), self.n_parallel))
        for most in (self.n_cells, _MARGIN):
            longest = max(load.n_tokens + load.n_generated + min(load.max_tokens, most) for load in loads)
            n_cells = min(rounded(longest), self.n_cells)
            fitting = self.max_cells // n_cells
            if not self.unified:  # there is no other layout for what is too long
                fitting = max(fitting, FEWEST_STREAMS)
            if fitting >= fewest or not self.unified:
                yield Layout(False, n_cells, min(n_seqs, fitting), kind)
            if fitting >= rows:
                return

    def _holds(self, layout: Layout, loads: Sequence[Load], n_held: int) -> bool:
        """Whether a layout will do: each of the loads has room in it, at least while no other one runs.

        All of them must have room in a unified cache that is empty. While something runs, it is often faster to let
        others wait than to have more in the cells, over all of which attention goes.
        """
        if layout.is_unified:
            return self.unified and (n_held > 0 or layout.n_cells >= min(sum(map(_cells, loads)), self.max_cells))
        if self.unified and any(load.needs_unified for load in loads):
            return False
        return all(load.n_tokens + load.n_generated + 1 <= layout.n_cells for load in loads)

    def _change(self, layout: Layout, n_held: int) -> float:
        """The seconds that it takes to make a context, and to move tokens into it."""
        making = ANY_CONTEXT + _total(layout) * self.cell_bytes / 2**20 * self.paces.making
        return making + n_held * self.cell_bytes * _OUT_AND_IN

    def seconds(self, loads: Sequence[Load], layout: Layout) -> float:
        """How long the loads take in this layout: all their prompts, and the next steps.

        Loads that don't fit at the same time come one after the other. How long a row waits for its turn, on average,
        is added: people wait for first tokens, too.
        """
        pace = self.paces.of(layout.flash_attn)
        seconds, waited, n_rows = 0.0, 0.0, 0
        for wave in self._waves(loads, layout):
            rows = sum(load.n_rows for load in wave)
            waited, n_rows = waited + rows * seconds, n_rows + rows
            seconds += _seconds(wave, pace, layout)
        return seconds + waited / n_rows

    def _waves(self, loads: Sequence[Load], layout: Layout) -> Iterator[list[Load]]:
        """The loads, or parts of their rows, that fit at the same time."""
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


def _seconds(loads: Sequence[Load], pace: Pace, layout: Layout) -> float:
    """How long loads take that run at the same time."""
    seconds, n_rows = 0.0, sum(load.n_rows for load in loads)
    in_use = sum(max(0, load.n_computed - load.n_shared) + load.n_rows * load.n_generated for load in loads)
    for load in loads:
        new = load.n_tokens - load.n_computed
        others = max(0, in_use - load.n_computed) if layout.is_unified else 0
        own_cell, others_cell = pace.prompt_cells(is_unified=layout.is_unified)
        seconds += new * (pace.prompt_token + own_cell * (load.n_computed + new / 2) + others_cell * others)
        in_use += new
    lengths = [min(load.max_tokens, _HORIZON) for load in loads]
    own_cell, others_cell = pace.row_cells(is_unified=layout.is_unified)
    if n_rows == 1:
        own = loads[0].n_tokens + loads[0].n_generated + lengths[0] / 2
        return seconds + lengths[0] * ((pace.lone_step or pace.step + pace.row) + own * pace.lone_row_cell)
    owns = [load.n_tokens + load.n_generated + length / 2 for load, length in zip(loads, lengths, strict=True)]
    in_use = sum(_cells(load, length // 2) for load, length in zip(loads, lengths, strict=True))
    seconds += max(lengths) * pace.step
    for load, length, own in zip(loads, lengths, owns, strict=True):
        seconds += length * load.n_rows * (pace.row + own * own_cell + max(0, in_use - own) * others_cell)
    return seconds


def _cells(load: Load, more: int = _MARGIN) -> int:
    """How many cells a load needs in a unified cache, with `more` tokens for each row."""
    return load.n_tokens - load.n_shared + load.n_rows * (load.n_generated + min(load.max_tokens, more))


def _work(load: Load) -> tuple[int, int, int]:
    return load.n_tokens, load.n_rows, load.max_tokens


def _total(layout: Layout) -> int:
    return layout.n_cells if layout.is_unified else layout.n_cells * layout.n_seqs


def first_layout(settings: Settings, n_cells: int, n_seqs: int, flash_attn: str) -> Layout:
    """The layout at the start. n_cells: the longest context of one request."""
    if settings.reproducible:
        return Layout(False, cells_each(n_cells, settings.parallel) - 1, n_seqs, flash_attn)
    if settings.kv_layout == "streams":
        n_seqs = max(FEWEST_STREAMS, settings.parallel)
        return Layout(False, cells_each(n_cells, n_seqs), n_seqs, flash_attn)
    return Layout(True, rounded(n_cells), n_seqs, flash_attn)


def cells_each(n_cells: int, n_parallel: int) -> int:
    """How many cells each of `n_parallel` streams has of so many. llama.cpp takes multiples of 256."""
    return max(256, n_cells // n_parallel // 256 * 256)
