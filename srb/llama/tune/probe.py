"""Measures how long a model takes with some weights and a way of attention. `srb tune` chooses by these times."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import llama_cpp
import numpy as np

from srb.engine.backend import NEVER, Batch
from srb.engine.kv_cache.allocator import Layout
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.native.attention import Pace
from srb.llama.native.context import Context, window_of
from srb.llama.native.params import load_model, start
from srb.llama.native.state import raised
from srb.llama.native.streams import Streams
from srb.llama.sampling.candidates import Floats
from srb.options.settings import Settings

# Measures how many processors other programs use. What `srb tune` times beside them is slower by an unknown amount.


@dataclass(slots=True)
class Others:
    """The result of `watch_others`. busy: how many processors the others used; set when the block ends."""

    busy: float = 0.0


@contextmanager
def watch_others() -> Iterator[Others]:
    """Measures how many processors other programs use while the block runs. The result is set when it ends."""
    result, before, start = Others(), busy_elsewhere(), time.monotonic()
    yield result
    result.busy = max(0.0, (busy_elsewhere() - before) / (time.monotonic() - start))


def busy_elsewhere() -> float:
    """The processor seconds since the start of the machine that others used, not this process or its children.

    0 if the system doesn't tell.
    """
    try:
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _waiting, irq, softirq, steal = ticks
    mine = os.times()
    used = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return used - mine.user - mine.system - mine.children_user - mine.children_system


_PIECE = 128  # tokens whose logits are held at once
_STEPS = 3  # so many steps are timed for each number of rows
_ENOUGH_SECONDS = 0.2  # after so many seconds no further step is timed
_WARMING = 16  # so many tokens are evaluated before the timing, to bring the weights into memory
_PIECES_BESIDE = (32, 128, 512)
_STREAM, _STREAMS = 1024, 4  # so many tokens, and sequences, are in streams to measure them
_ROUNDS = 2  # of which the least times count
_GAIN_APART = 1.03  # a decode of its own must be faster by this factor


@dataclass(frozen=True, slots=True)
class Attention:
    """A way of attention: the type of the cache, and flash attention `auto` or `off`."""

    cache_type: str
    flash_attn: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What is measured: a piece of a prompt, and steps after this piece and after `depth` tokens.

    piece: tokens of the piece. rows: the numbers of rows of the steps.
    """

    piece: int
    depth: int
    rows: tuple[int, ...]


@dataclass(slots=True)
class Timings:
    """Measured times in seconds. Each is the least of all repetitions, since other programs can only make it longer.

    first, last: of a piece of a prompt, at its beginning and after `depth` tokens.
    shallow, deep: of a step, by its number of rows, after the first piece and after `depth` tokens.
    walks_all: whether each row walks all cells in use, as without flash attention.
    """

    shape: Shape
    walks_all: bool
    first: float = float("inf")
    last: float = float("inf")
    shallow: dict[int, float] = field(default_factory=dict)
    deep: dict[int, float] = field(default_factory=dict)

    def merge(self, other: "Timings") -> "Timings":
        """Adds another repetition: keeps the lesser of each two times, and returns the greater ones."""
        greater = dataclasses.replace(other, shallow={}, deep={})
        self.first, greater.first = sorted((self.first, other.first))
        self.last, greater.last = sorted((self.last, other.last))
        for mine, others, rest in (
            (self.shallow, other.shallow, greater.shallow),
            (self.deep, other.deep, greater.deep),
        ):
            for n, seconds in others.items():
                mine[n], rest[n] = sorted((seconds, mine.get(n, seconds)))
        return greater

    def at_depth_of(self, other: "Timings") -> "Timings":
        """These times, completed by the time that `other` takes longer at its depth.

        Both have the same way of attention. What a depth costs doesn't depend on the weights, so it can be taken over.
        """
        deep = {n: seconds + other.deep[n] - other.shallow[n] for n, seconds in self.shallow.items()}
        return dataclasses.replace(self, last=self.first + other.last - other.first, deep=deep)

    def job(self, tokens: int, n: int, length: int) -> float:
        """The seconds for a prompt of so many tokens, and n alternatives of `length` tokens that continue it.

        n: one of the shape's rows.
        """
        walked = tokens + (n if self.walks_all else 1) * length / 2
        step = self.shallow[n] + n * self._row_cell(n) * (walked - self.shape.piece)
        return tokens * (self._token + tokens / 2 * self._token_cell) + length * step

    def pace(self, apart: int) -> Pace:
        """The costs that these times mean, in the form that the engine uses. apart: see `Costs`."""
        few, many = (self.shape.rows[0], *self.shape.rows)[-2:]
        row_cell = self._row_cell(many)
        bases = [self.shallow[n] - n * row_cell * self.shape.piece for n in (few, many)]
        row = max(0.0, bases[1] - bases[0]) / max(1, many - few)
        return Pace(
            step=max(0.0, bases[1] - many * row),
            row=row,
            prompt_token=self._token,
            row_cell=row_cell,
            prompt_cell=self._token_cell,
            apart=apart,
            walks_all=self.walks_all,
            lone_step=max(0.0, self.shallow[1] - self._row_cell(1) * self.shape.piece),
            lone_row_cell=self._row_cell(1),
        )

    @property
    def _token_cell(self) -> float:
        """Seconds for a token of a prompt and a cell before it."""
        return max(0.0, self.last - self.first) / self.shape.piece / self.shape.depth if self.deep else 0.0

    @property
    def _token(self) -> float:
        return max(0.0, self.first / self.shape.piece - self.shape.piece / 2 * self._token_cell)

    def _row_cell(self, n: int) -> float:
        if n not in self.deep:
            return 0.0
        return max(0.0, self.deep[n] - self.shallow[n]) / n / (self.shape.depth - self.shape.piece)


class Weights:
    """A loaded model without a context. Use it as a context manager. Raises `ModelLoadError`."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._settings = settings
        start(settings)
        with ExitStack() as stack:
            self._model = load_model(path, settings, lambda _fraction: True)
            stack.callback(llama_cpp.llama_model_free, self._model)
            self._exit = stack.pop_all()
        self.n_bytes: int = llama_cpp.llama_model_size(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self.n_trained: int = llama_cpp.llama_model_n_ctx_train(self._model)
        self.window = window_of(self._model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the model."""
        self._exit.close()

    def cache_bytes(self, n_cells: int) -> int:
        """The bytes of a cache of so many cells, in f16 or bf16."""
        get = llama_cpp.llama_model_n_head_kv(self._model), llama_cpp.llama_model_n_layer(self._model)
        head = llama_cpp.llama_model_n_embd(self._model) // llama_cpp.llama_model_n_head(self._model)
        return int(2 * 2 * math.prod(get) * head * n_cells)

    def tokenize(self, text: str) -> tuple[int, ...]:
        """The tokens of a text."""
        tokenizer = LlamaTokenizer(llama_cpp.llama_model_get_vocab(self._model))
        tokens = tokenizer.tokenize(text)
        tokenizer.close()
        return tokens

    def context(
        self, attention: Attention, n_cells: int, n_rows: int, threads: int | None = None, *, in_streams: bool = False
    ) -> Context:
        """A context with this attention. Raises `ModelLoadError`.

        n_cells: in streams, those of each sequence. threads: None: those of the settings.
        """
        settings = dataclasses.replace(
            self._settings,
            cache_type_k=attention.cache_type,
            cache_type_v=attention.cache_type,
            threads=threads or self._settings.threads,
            threads_batch=threads or self._settings.threads_batch,
        )
        return (Streams if in_streams else Context)(
            self._model,
            settings,
            Layout(not in_streams, n_cells, n_rows + 2, attention.flash_attn),
            n_outputs=max(n_rows + 1, _PIECE),
        )

    def log_probabilities(self, attention: Attention, tokens: tuple[int, ...]) -> Floats:
        """The natural logarithms of the probabilities of what follows each token; shape (len(tokens), n_vocab)."""
        context = self.context(attention, len(tokens), 1)
        rows = []
        try:
            for start in range(0, len(tokens), _PIECE):
                batch = Batch()
                piece = tokens[start : start + _PIECE]
                batch.add(piece, start, 0, outputs=len(piece))
                context.decode(batch, None)
                logits = np.stack([context.logits(row) for row in range(len(piece))])
                logits -= logits.max(axis=1, keepdims=True)
                rows.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        finally:
            context.close()
        return np.concatenate(rows)

    def measure(
        self, attention: Attention, tokens: tuple[int, ...], shape: Shape, *, deep: bool, threads: int | None = None
    ) -> Timings:
        """The times of one repetition.

        tokens: those of any text, for the prompts. deep: whether to measure after `depth` tokens, too.
        """
        n_rows = max(shape.rows)
        n_cells = shape.piece + (shape.depth if deep else 0) + 2 * n_rows
        context = self.context(attention, n_cells, n_rows, threads)
        try:
            bench = _Bench(context, tokens)
            result = Timings(shape, attention.flash_attn == "off")
            result.first = bench.piece(shape.piece)
            result.shallow = {n: bench.rows(n) for n in shape.rows}
            if deep:
                bench.grow(shape.depth, by_moving=self.window is None)
                result.deep = {n: bench.rows(n) for n in shape.rows}
                result.last = bench.piece(shape.piece)
        finally:
            context.close()
        return result

    def in_streams(self, attention: Attention, tokens: tuple[int, ...], shape: Shape) -> tuple[float, float]:
        """The seconds of a row, and of a prompt's token, for each cell of its own sequence, in streams.

        Not for models that forget: they have no streams.
        """
        depth, n_cells = min(shape.depth, _STREAM), min(shape.depth, _STREAM) + shape.piece + 1
        context = self.context(attention, n_cells, 1)
        try:
            bench = _Bench(context, tokens)
            bench.piece(min(shape.piece, depth // 2))
            bench.grow(depth, by_moving=True)
            depth = bench.length
            state = context.save(0, 0, depth, 1 << 40)
        finally:
            context.close()
        context = self.context(attention, n_cells, _STREAMS, in_streams=True)
        least = [float("inf")] * 4
        try:
            for _ in range(_ROUNDS):
                if not state or not context.restore(state, 0, 0, depth):
                    return 0.0, 0.0
                bench, found = _Bench(context, tokens, depth), list[float]()
                found += bench.rows(_STREAMS, warm=True), bench.piece(shape.piece)
                bench.cut(depth // 4)
                found.append(bench.rows(_STREAMS, warm=True))
                bench.cut(0)
                found.append(bench.piece(shape.piece))
                least = [min(pair) for pair in zip(least, found, strict=True)]
        finally:
            context.close()
        deep_rows, deep_piece, rows, piece = least
        row_cell = max(0.0, deep_rows - rows) / _STREAMS / (depth - depth // 4)
        return row_cell, max(0.0, deep_piece - piece) / shape.piece / depth

    def apart(self, attention: Attention, tokens: tuple[int, ...], n: int, largest: int) -> int:
        """The size from which on a piece of a prompt is cheaper in a decode of its own than beside n rows.

        It is one of the sizes that were tried, up to `largest` tokens, or `NEVER`.
        """
        sizes = [size for size in _PIECES_BESIDE if size <= largest]
        context = self.context(attention, largest * 2 + n + 64, n + 1)
        try:
            bench = _Bench(context, tokens)
            bench.piece(min(256, largest))
            result = NEVER
            for size in reversed(sizes):
                together, rows, piece = bench.beside(n, size)
                if (rows + piece) * _GAIN_APART > together:
                    break
                result = size
        finally:
            context.close()
        return result


class _Bench:
    """Times decodes on a context. Sequence 0 has the prompt."""

    def __init__(self, context: Context, tokens: tuple[int, ...], length: int = 0) -> None:
        self._context = context
        self._tokens = tokens
        self.length = length
        """How many tokens the prompt has."""

    def piece(self, n_tokens: int) -> float:
        """Evaluates the next tokens of the prompt, and returns the seconds that this takes."""
        if not self.length:
            self._decode(self._part(min(_WARMING, n_tokens), 0, 0))
            self._context.remove(0)
        seconds = self._decode(self._part(n_tokens, self.length, 0))
        self.length += n_tokens
        return seconds

    def grow(self, depth: int, *, by_moving: bool) -> None:
        """Makes the prompt `depth` tokens long.

        by_moving: by restoring a saved state again and again, instead of evaluating tokens. The times don't depend on
            what the cells hold.
        """
        start = self.length
        state = self._context.save(0, 0, start, 1 << 40) if by_moving else None
        while self.length < depth:
            longer = raised(state, self.length) if state else None
            if longer is None or not self._context.restore(longer, 0, self.length, self.length + start):
                self.piece(start)
            else:
                self.length += start

    def cut(self, n_tokens: int) -> None:
        """Leaves the prompt its first tokens."""
        self._context.truncate(0, n_tokens)
        self.length = n_tokens

    def rows(self, n: int, *, warm: bool = False) -> float:
        """The seconds of a step of n sequences that continue the prompt.

        warm: whether a step before isn't counted, such as one that copies cells.
        """
        for seq_id in range(1, n + 1):
            self._context.fork(0, seq_id, self.length)
        if warm:
            self._step(n)
        found: list[float] = []
        while len(found) < _STEPS and sum(found) < _ENOUGH_SECONDS:
            found.append(self._step(n))
        self._remove(n)
        return min(found)

    def beside(self, n: int, size: int) -> tuple[float, float, float]:
        """The seconds of a decode with n rows and a piece of a prompt, of the rows alone, and of the piece alone."""
        for seq_id in range(1, n + 1):
            self._context.fork(0, seq_id, self.length)
        kinds: tuple[Callable[[], Batch], ...] = (
            lambda: self._rows(n, self._part(size, 0, n + 1)),
            lambda: self._rows(n, Batch()),
            lambda: self._part(size, 0, n + 1),
        )
        least = [float("inf")] * 3
        for _ in range(2):
            for i, make in enumerate(kinds):
                least[i] = min(least[i], self._decode(make()))
                self._truncate(n)
                self._context.remove(n + 1)
        self._remove(n)
        return least[0], least[1], least[2]

    def _step(self, n: int) -> float:
        seconds = self._decode(self._rows(n, Batch()))
        self._truncate(n)
        return seconds

    def _rows(self, n: int, batch: Batch) -> Batch:
        for seq_id in range(1, n + 1):
            batch.add_row(self._tokens[seq_id], self.length, seq_id)
        return batch

    def _part(self, n_tokens: int, start: int, seq_id: int) -> Batch:
        batch = Batch()
        tokens = (self._tokens * (1 + n_tokens // len(self._tokens)))[:n_tokens]
        batch.add(tokens, start, seq_id, outputs=1)
        return batch

    def _truncate(self, n: int) -> None:
        for seq_id in range(1, n + 1):
            if not self._context.truncate(seq_id, self.length):  # a recurrent state can't be cut
                self._context.remove(seq_id)
                self._context.fork(0, seq_id, self.length)

    def _remove(self, n: int) -> None:
        for seq_id in range(1, n + 1):
            self._context.remove(seq_id)

    def _decode(self, batch: Batch) -> float:
        start = time.perf_counter()
        self._context.decode(batch, None)
        return time.perf_counter() - start


def divergence(reference: Floats, other: Floats) -> float:
    """The mean Kullback-Leibler divergence of `other` from `reference`, in nats. Both are rows of log-probabilities."""
    return float((np.exp(reference) * (reference - other)).sum(axis=1).mean())
