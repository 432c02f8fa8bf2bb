"""The search of `srb tune`: finds the fastest weights, attention and number of threads for a model on this machine.

Weights, attention and threads add to the time of a decode one after the other, so each is chosen by itself, in this
order. Two choices are measured in turn, twice each, so that other programs disturb both alike. The least time of each
counts, because other programs can only make a time longer.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from srb.errors import BackendError, ModelLoadError
from srb.llama.model.weights import FILE, convert, converted_path, reason_not_to_convert
from srb.llama.native.cost_model import CONTEXT_SECONDS, CostModel, can_choose_attention
from srb.llama.native.params import is_on_gpu, physical_cores
from srb.llama.sampling.candidates import Floats
from srb.llama.tune.probe import Attention, Shape, Timings, Weights, divergence
from srb.llama.tune.result import Tuned, computes_bf16, formats
from srb.options.settings import Settings

MAX_DIVERGENCE = 0.01
"""The largest Kullback-Leibler divergence, in nats, that a choice may have from the file as it is."""

DEFAULT_ATTENTION = Attention("f16", "auto")
"""llama.cpp's defaults: an f16 cache, and flash attention if it is possible."""

LENGTH = 64
"""The tokens of each alternative of a job."""

_TRIES = 2
_GAIN = 0.98  # a change is worth it if it takes less than this share of the time
_THREADS_GAIN = 0.9  # the same for threads: other programs disturb many threads more than few
_SHORT, _LONG = 512, 4096  # tokens of the jobs' prompts
_DEPTH = 1024  # tokens before the deep measurements
_CHUNK = 256  # tokens of a prefill chunk whose costs the engine needs
_SHORT_CHUNK = 128  # of one that only compares weights or threads
_MANY = 32  # rows
_SLOW = 0.008  # seconds per prompt token; slower models are measured with shorter chunks and fewer rows
_KL_TOKENS = 128


@dataclass(slots=True)
class Candidate:
    """Weights and attention that the search measures.

    Args:
        memory: bytes of the weights, and of a cache of the size in the settings.
        kl: the mean divergence from the file as it is; None if unknown.
    """

    weights: str
    attention: Attention
    timings: Timings | None = None
    memory: int = 0
    kl: float | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """The name of the candidate, for people."""
        return f"{self.weights} with {self.attention.cache_type} and flash attention {self.attention.shown}"


class Search:
    """A search for the fastest choice.

    Attributes:
        candidates: what was measured, or couldn't be.
        chosen: the candidate that is best for most work.
        jobs: what is compared: a short prompt, the same with one alternative, and a long prompt. Each has the tokens of
            the prompt, the alternatives, and the tokens of each alternative.
        made: converted weights that didn't exist before.
    """

    def __init__(self, path: Path, settings: Settings, report: Callable[[str], object]) -> None:
        self.path = path
        self.made: list[Path] = []
        self.candidates: list[Candidate] = []
        self.chosen: Candidate | None = None
        self.jobs: tuple[tuple[int, int, int], ...] = ()
        self._settings = settings
        self._report = report

    def run(self) -> Tuned:
        """Search, and return the choice. Raises `ModelLoadError` and `BackendError` if the file can't be measured."""
        with ExitStack() as stack:
            file = stack.enter_context(closing(Weights(self.path, self._settings)))
            self._prepare(file)
            as_it_is = self._new(FILE, DEFAULT_ATTENTION)
            as_it_is.kl = 0.0
            best, weights = self._choose_weights(as_it_is, file, stack)
            gain = 1 / self._ratio(best, as_it_is)
            options = self._choose_attention(best, weights)
            self.chosen = min(options, key=lambda each: self._ratio(each, options[0]))
            gain /= self._ratio(self.chosen, options[0])
            threads, threads_batch = self._choose_threads(weights)
            costs = self._cost_model(options, weights)
        source = self.path if best.weights == FILE else converted_path(self.path, best.weights)
        return Tuned(
            weights=best.weights,
            weights_bytes=source.stat().st_size,
            cache_type=self.chosen.attention.cache_type,
            flash_attn="auto" if len(options) > 1 else self.chosen.attention.flash_attn,
            threads=threads,
            threads_batch=threads_batch,
            times_as_fast=round(gain, 2),
            cost_model=costs,
        )

    def seconds(self, candidate: Candidate) -> list[float]:
        """Return the seconds of each job; of a long prompt only if that was measured."""
        timings = candidate.timings
        if timings is None:
            return []
        return [timings.job(*job) for job in (self.jobs if timings.deep else self.jobs[:2])]

    def _prepare(self, file: Weights) -> None:
        """Set the sizes of the measurements, and the probabilities that others are compared with."""
        self._report("measuring the file as it is")
        self._tokens = file.tokenize(Path(__file__).read_text())
        room = min(file.n_trained, _SHORT + _LONG + LENGTH) - LENGTH
        trial = Shape(min(64, room // 4), 0, (1,))
        token = file.measure(DEFAULT_ATTENTION, self._tokens, trial, deep=False).first / trial.chunk
        n = min(self._settings.n, self._settings.parallel)
        many = n if token > _SLOW else max(n, min(_MANY, self._settings.parallel))
        chunk = min(64 if token > _SLOW else _CHUNK, room // 4, self._settings.batch_size)
        self._shape = Shape(chunk, min(_DEPTH, room - chunk), tuple(sorted({1, n, many})))
        self._few_rows = Shape(min(_SHORT_CHUNK, chunk), 0, tuple(sorted({1, n})))
        short = min(_SHORT, room // 2)
        self.jobs = (short, n, LENGTH), (short, 1, LENGTH), (min(_LONG, room), n, LENGTH)
        self._judged = self._tokens[: min(_KL_TOKENS, room)]
        self._reference: Floats = file.log_probabilities(DEFAULT_ATTENTION, self._judged)

    def _choose_weights(self, file: Candidate, loaded: Weights, stack: ExitStack) -> tuple[Candidate, Weights]:
        """Compare the file with its weights in other formats, and return the fastest, which is loaded."""
        best, weights = file, loaded
        for name in formats(self.path):
            other = self._load(name, stack)
            if other is None:
                continue
            candidate = self._new(name, DEFAULT_ATTENTION)
            if self._is_close(candidate, other):
                self._try_in_turn([(weights, best), (other, candidate)])
            if candidate.timings and self._better(best, candidate) is candidate:
                weights.close()
                best, weights = candidate, other
            else:
                other.close()
        if not file.timings:
            self._try_in_turn([(loaded, file)])
        return best, weights

    def _load(self, name: str, stack: ExitStack) -> Weights | None:
        """Convert the weights to a format, and load them. Returns None, with a note, if that fails."""
        note = reason_not_to_convert(self.path, name)
        if note is None:
            try:
                target = converted_path(self.path, name)
                if not target.exists():
                    self.made.append(target)
                    self._report(f"converting the weights to {name}")
                convert(self.path, name)
                return stack.enter_context(closing(Weights(target, self._settings)))
            except ModelLoadError as error:
                note = error.message
        else:
            note = f"not converted: {note}"
        self._new(name, DEFAULT_ATTENTION).note = note
        return None

    def _choose_attention(self, best: Candidate, weights: Weights) -> list[Candidate]:
        """Return the chosen candidate of these weights; two if flash attention can be chosen per request."""
        # Not with the timings of the choice of weights, which are of a short context.
        auto, off = (self._new(best.weights, each) for each in (DEFAULT_ATTENTION, _no_flash(self._settings)))
        auto.kl = best.kl
        options = [auto, off] if self._is_close(off, weights) else [auto]
        self._try_in_turn([(weights, each) for each in options], deep=True)
        if len(options) == 1 or can_choose_attention(weights.window, self._settings):
            return options
        return [self._better(auto, off)]

    def _choose_threads(self, weights: Weights) -> tuple[int, int]:
        """Return the threads for a decode of one row, and of several, which an option may give."""
        assert self.chosen
        given = self._settings.threads
        cores = given or physical_cores()
        counts = sorted({cores, cores - 1, cores // 2, os.cpu_count() or cores} - {0}, key=lambda count: count != cores)
        if given or self._settings.threads_batch or len(counts) == 1:
            return cores, self._settings.threads_batch or cores
        found: dict[int, Timings] = {}
        for _ in range(_TRIES):
            for count in counts:
                self._report(f"measuring {count} threads")
                timings = weights.measure(
                    self.chosen.attention, self._tokens, self._few_rows, deep=False, threads=count
                )
                found.setdefault(count, timings).merge(timings)
        one = _fewest({count: each.shallow[1] for count, each in found.items()}, cores)
        return one, _fewest({count: each.job(*self.jobs[0]) for count, each in found.items()}, cores)

    def _cost_model(self, options: Sequence[Candidate], weights: Weights) -> CostModel | None:
        """Measure what else the engine needs, and return all costs; None if flash attention can't be chosen."""
        if len(options) < 2:
            return None
        assert self.chosen
        on, off = (each.timings.costs(each.attention.cache_type) for each in options if each.timings)
        start = time.perf_counter()
        n_cells = self._n_cells(weights)
        with closing(weights.context(self.chosen.attention, n_cells, 2 * self._settings.parallel)) as context:
            mib = n_cells * context.cell_bytes / 2**20
        per_mib = max(0.0, time.perf_counter() - start - CONTEXT_SECONDS) / mib
        return CostModel(on, off, self.chosen.attention.flash_attn, per_mib)

    def _is_close(self, candidate: Candidate, weights: Weights) -> bool:
        """Return whether the candidate's probabilities are close to those of the file. If not, it gets a note."""
        self._report(f"comparing probabilities: {candidate.name}")
        try:
            found = weights.log_probabilities(candidate.attention, self._judged)
        except (ModelLoadError, BackendError) as error:
            candidate.note = error.message
            return False
        candidate.kl = divergence(self._reference, found)
        if candidate.kl > MAX_DIVERGENCE:
            candidate.note = f"refused: more than {MAX_DIVERGENCE} from the file"
        return not candidate.note

    def _try_in_turn(self, choices: Sequence[tuple[Weights, Candidate]], *, deep: bool = False) -> None:
        for _ in range(_TRIES):
            for weights, candidate in choices:
                self._report(f"measuring {candidate.name}")
                shape = self._shape if deep else self._few_rows
                timings = weights.measure(candidate.attention, self._tokens, shape, deep=deep)
                candidate.timings = candidate.timings.merge(timings) if candidate.timings else timings
                candidate.memory = weights.n_bytes + timings.cell_bytes * self._n_cells(weights)

    def _better(self, one: Candidate, other: Candidate) -> Candidate:
        """Return the second candidate if it is faster by more than the noise, else the first."""
        return other if self._ratio(other, one) < _GAIN else one

    def _ratio(self, one: Candidate, other: Candidate) -> float:
        """Return the geometric mean of the jobs' seconds of one candidate, each divided by those of the other."""
        ratios = [mine / others for mine, others in zip(self.seconds(one), self.seconds(other), strict=True)]
        return math.prod(ratios) ** (1 / len(ratios))

    def _new(self, name: str, attention: Attention) -> Candidate:
        self.candidates.append(candidate := Candidate(name, attention))
        return candidate

    def _n_cells(self, weights: Weights) -> int:
        return self._settings.ctx_size if self._settings.ctx_size > 0 else weights.n_trained


def _no_flash(settings: Settings) -> Attention:
    """Attention without flash attention, with the type that the processor computes it with."""
    return Attention("bf16" if computes_bf16() and not is_on_gpu(settings) else "f16", "off")


def _fewest(seconds: dict[int, float], default: int) -> int:
    """Return the number with the least seconds, or the default number if that takes hardly longer."""
    best = min(seconds, key=lambda count: seconds[count])
    return best if seconds[best] < _THREADS_GAIN * seconds[default] else default
