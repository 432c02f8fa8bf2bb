"""Measures how long a model takes with some weights and attention settings. `srb tune` compares these times."""

import dataclasses
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import llama_cpp
import numpy as np

from srb.engine.backend import Batch
from srb.engine.kv_cache.allocator import Layout
from srb.llama.model.loader import load_model
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.native.context import Context, window_of
from srb.llama.native.cost_model import AttentionCosts
from srb.llama.native.params import start
from srb.llama.native.state import raised
from srb.llama.sampling.candidates import Floats
from srb.options.settings import Settings

_LOGITS_CHUNK = 128  # tokens whose logits are in memory at once
_STEPS = 3  # timed steps for each number of rows
_ENOUGH_SECONDS = 0.2  # after this many seconds no further step is timed
_WARM_UP = 16  # tokens that are decoded before the timing, to bring the weights into memory


@dataclass(frozen=True, slots=True)
class Attention:
    """The cache type, and flash attention: `auto` or `off`."""

    cache_type: str
    flash_attn: str

    @property
    def shown(self) -> str:
        """Whether flash attention is used, for people: on or off."""
        return "off" if self.flash_attn == "off" else "on"


@dataclass(frozen=True, slots=True)
class Shape:
    """What is measured: a prefill chunk, and steps after this chunk and after `depth` tokens.

    Args:
        rows: the numbers of rows of the steps.
    """

    chunk: int
    depth: int
    rows: tuple[int, ...]


@dataclass(slots=True)
class Timings:
    """Measured times in seconds. Each is the least of all repetitions, since other programs can only make it longer.

    Args:
        walks_all: whether rows attend over all cells in use, as without flash attention.
        first, last: of a prefill chunk, at the beginning of a prompt and after `depth` tokens.
        shallow, deep: of a step, by its number of rows, after the first chunk and after `depth` tokens.
        cell_bytes: the bytes of memory per cell of the cache.
    """

    shape: Shape
    walks_all: bool
    first: float = float("inf")
    last: float = float("inf")
    shallow: dict[int, float] = field(default_factory=dict)
    deep: dict[int, float] = field(default_factory=dict)
    cell_bytes: int = 0

    def merge(self, other: "Timings") -> "Timings":
        """Add another repetition: keep the lesser of each two times. Returns itself."""
        self.first, self.last = min(self.first, other.first), min(self.last, other.last)
        for mine, others in ((self.shallow, other.shallow), (self.deep, other.deep)):
            mine.update({n: min(seconds, mine[n]) for n, seconds in others.items()})
        return self

    def job(self, tokens: int, n: int, length: int) -> float:
        """Predict the seconds of a prompt of `tokens` tokens, and of n alternatives of `length` tokens.

        Args:
            n: one of the shape's rows.
        """
        walked = tokens + (n if self.walks_all else 1) * length / 2
        step = self.shallow[n] + n * self._row_cell(n) * (walked - self.shape.chunk)
        return tokens * (self._token + tokens / 2 * self._token_cell) + length * step

    def costs(self, cache_type: str) -> AttentionCosts:
        """Return the costs in the form that the engine uses."""
        few, many = (self.shape.rows[0], *self.shape.rows)[-2:]
        row_cell = self._row_cell(many)
        bases = [self.shallow[n] - n * row_cell * self.shape.chunk for n in (few, many)]
        row = max(0.0, bases[1] - bases[0]) / max(1, many - few)
        return AttentionCosts(
            step=max(0.0, bases[1] - many * row),
            row=row,
            prompt_token=self._token,
            row_cell=row_cell,
            prompt_cell=self._token_cell,
            walks_all=self.walks_all,
            lone_step=max(0.0, self.shallow[1] - self._row_cell(1) * self.shape.chunk),
            lone_row_cell=self._row_cell(1),
            cache_type=cache_type,
        )

    @property
    def _token_cell(self) -> float:
        """The seconds of a prompt token per cell before it."""
        return max(0.0, self.last - self.first) / self.shape.chunk / self.shape.depth if self.deep else 0.0

    @property
    def _token(self) -> float:
        return max(0.0, self.first / self.shape.chunk - self.shape.chunk / 2 * self._token_cell)

    def _row_cell(self, n: int) -> float:
        if n not in self.deep:
            return 0.0
        return max(0.0, self.deep[n] - self.shallow[n]) / n / (self.shape.depth - self.shape.chunk)


class Weights:
    """A loaded model without a context. `close` must be called. Raises `ModelLoadError`."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._settings = settings
        start(settings)
        self._model = load_model(path, settings)
        self.n_bytes: int = llama_cpp.llama_model_size(self._model)
        self.n_trained: int = llama_cpp.llama_model_n_ctx_train(self._model)
        self.window = window_of(self._model)

    def close(self) -> None:
        """Free the model. May be called again."""
        model, self._model = self._model, None
        if model:
            llama_cpp.llama_model_free(model)

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text."""
        tokenizer = LlamaTokenizer(llama_cpp.llama_model_get_vocab(self._model))
        tokens = tokenizer.tokenize(text)
        tokenizer.close()
        return tokens

    def context(self, attention: Attention, n_cells: int, n_rows: int, threads: int | None = None) -> Context:
        """Make a context with this attention, with the settings' threads if none are given. Raises `ModelLoadError`."""
        settings = dataclasses.replace(
            self._settings,
            cache_type_k=attention.cache_type,
            cache_type_v=attention.cache_type,
            threads=threads or self._settings.threads,
            threads_batch=threads or self._settings.threads_batch,
        )
        return Context(
            self._model,
            settings,
            Layout(True, n_cells, n_rows + 2, attention.flash_attn),
            n_outputs=max(n_rows + 1, _LOGITS_CHUNK),
        )

    def log_probabilities(self, attention: Attention, tokens: tuple[int, ...]) -> Floats:
        """Return the log-probabilities of what follows each token, of shape (len(tokens), n_vocab)."""
        rows = []
        with closing(self.context(attention, len(tokens), 1)) as context:
            for start in range(0, len(tokens), _LOGITS_CHUNK):
                batch = Batch()
                chunk = tokens[start : start + _LOGITS_CHUNK]
                batch.add(chunk, start, 0, outputs=len(chunk))
                context.decode(batch, None)
                logits = np.stack([context.logits(row) for row in range(len(chunk))])
                logits -= logits.max(axis=1, keepdims=True)
                rows.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        return np.concatenate(rows)

    def measure(
        self, attention: Attention, tokens: tuple[int, ...], shape: Shape, *, deep: bool, threads: int | None = None
    ) -> Timings:
        """Measure once. tokens: of any text, for the prompts. deep: whether to measure after `depth` tokens, too."""
        n_rows = max(shape.rows)
        n_cells = shape.chunk + (shape.depth if deep else 0) + 2 * n_rows
        with closing(self.context(attention, n_cells, n_rows, threads)) as context:
            bench = _Bench(context, tokens)
            result = Timings(shape, attention.flash_attn == "off", cell_bytes=context.cell_bytes)
            result.first = bench.chunk(shape.chunk)
            result.shallow = {n: bench.rows(n) for n in shape.rows}
            if deep:
                bench.grow(shape.depth, by_moving=self.window is None)
                result.deep = {n: bench.rows(n) for n in shape.rows}
                result.last = bench.chunk(shape.chunk)
        return result


class _Bench:
    """Times decodes in a context. Sequence 0 has the prompt, of `length` tokens."""

    def __init__(self, context: Context, tokens: tuple[int, ...]) -> None:
        self._context = context
        self._tokens = tokens
        self.length = 0

    def chunk(self, n_tokens: int) -> float:
        """Decode the next tokens of the prompt, and return the seconds."""
        tokens = (self._tokens * (1 + n_tokens // len(self._tokens)))[:n_tokens]
        if not self.length:
            self._decode(tokens[:_WARM_UP])
            self._context.remove(0)
        seconds = self._decode(tokens)
        self.length += n_tokens
        return seconds

    def grow(self, depth: int, *, by_moving: bool) -> None:
        """Make the prompt `depth` tokens long.

        Args:
            by_moving: restore a saved state again and again instead of decoding tokens. Times don't depend on what the
                cells hold.
        """
        start = self.length
        state = self._context.save(0, 0, start, 1 << 40) if by_moving else None
        while self.length < depth:
            longer = raised(state, self.length) if state else None
            if longer is None or not self._context.restore(longer, 0, self.length, self.length + start):
                self.chunk(start)
            else:
                self.length += start

    def rows(self, n: int) -> float:
        """Measure a step of n sequences that continue the prompt."""
        batch = Batch()
        for seq_id in range(1, n + 1):
            self._context.fork(0, seq_id, self.length)
            batch.add_row(self._tokens[seq_id], self.length, seq_id)
        found: list[float] = []
        while len(found) < _STEPS and sum(found) < _ENOUGH_SECONDS:
            found.append(self._timed(batch))
            for seq_id in range(1, n + 1):
                if not self._context.truncate(seq_id, self.length):  # a recurrent state can't be truncated
                    self._context.remove(seq_id)
                    self._context.fork(0, seq_id, self.length)
        for seq_id in range(1, n + 1):
            self._context.remove(seq_id)
        return min(found)

    def _decode(self, tokens: tuple[int, ...]) -> float:
        batch = Batch()
        batch.add(tokens, self.length, 0, outputs=1)
        return self._timed(batch)

    def _timed(self, batch: Batch) -> float:
        start = time.perf_counter()
        self._context.decode(batch, None)
        return time.perf_counter() - start


def divergence(reference: Floats, other: Floats) -> float:
    """Return the mean Kullback-Leibler divergence of `other` from `reference`, in nats, from log-probabilities."""
    return float((np.exp(reference) * (reference - other)).sum(axis=1).mean())
