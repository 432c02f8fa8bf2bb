"""The search of `srb tune`: finds which weights, which attention and how many threads are fastest for a model here.

The times of weights and of attention add up. So there are two searches, one after the other, and not one of all pairs.
Attention comes first, because it needs no conversion, every model has it, and it makes the greater difference if many
rows continue a long prompt.

Candidates are measured in turn, and the least time of all repetitions counts. So other programs on the machine disturb
all candidates alike. A candidate that is clearly slower isn't measured again.
"""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import llama_cpp

from srb.errors import BackendError, ModelLoadError
from srb.llama.files.tensors import read_tensors
from srb.llama.files.weights import FILE, FORMATS, convert, converted_path, mixed, reason_not_to_convert
from srb.llama.native.context import physical_cores
from srb.llama.native.flash_attn import can_choose
from srb.llama.sampling.logprobs import Floats
from srb.llama.tune.background_load import watch_others
from srb.llama.tune.findings import GAIN, MAX_DIVERGENCE, TIME_UP, WAYS, Candidate, Findings, shown
from srb.llama.tune.probe import Attention, Shape, Timings, Weights, divergence
from srb.options.settings import Settings

LENGTH = 64
"""How many tokens each alternative of a job generates."""

USUAL = Attention("f16", "auto")
"""llama.cpp's defaults: an f16 cache, and flash attention if it is possible."""

_OTHERS = {Attention("f16", "off"): 0.7, Attention("bf16", "off"): 0.35, Attention("bf16", "auto"): 0.35}
"""The other ways of attention, the most promising first. Each has a share of the budget; past it, it isn't begun."""

_SHORT, _LONG = 512, 4096
_MANY = 32  # rows
_HOPELESS = 1.25  # a candidate that takes more than so many times the best one's time isn't measured again
_AGAIN_SHARE, _WEIGHTS_SHARE = 0.3, 0.75  # of the budget: past these no attention is repeated, and no weights are begun
_FAST, _SLOW, _VERY_SLOW = 0.001, 0.008, 0.05  # seconds for a token of a prompt
_SHARE_OF_MIX = 0.05  # a type that fewer of the weights have isn't worth a format of its own
_KL_TOKENS, _KL_BYTES = 512, 160 << 20
BUSY = 0.2
"""If other programs use at most so many processors, the machine counts as idle."""

_LOOK_SECONDS = 0.5


class Search:
    """A search for the fastest choice. `run` may be stopped at any time; `found.result` is then the best choice so far.

    budget: in seconds. told: called with what is being done, and with the share of the budget that is spent.
    """

    def __init__(self, path: Path, settings: Settings, budget: float, told: Callable[[str, float], object]) -> None:
        self.path = path
        self.made: list[Path] = []
        """Converted weights that weren't there before."""
        self._settings = settings
        self._budget = budget
        self._told = told
        self._began = time.monotonic()
        self._reference: Floats | None = None
        self._cores = settings.threads or physical_cores()
        self.found = Findings(path, self._cores, settings.threads_batch or self._cores)

    def run(self) -> None:
        """Searches. If the machine becomes busy meanwhile, the search begins again with fewer threads.

        Raises `ModelLoadError` and `BackendError` if the file as it is can't be measured.
        """
        self._say("looking how busy the machine is")
        with watch_others() as others:
            time.sleep(_LOOK_SECONDS)
        try:
            self._search(others.busy)
        except _DisturbedError as error:
            self.found.candidates.clear()
            self._reference = None  # the second search may judge by fewer tokens
            self._began = time.monotonic()
            self._search(error.busy)

    def _search(self, busy: float) -> None:
        """Searches with as many threads as processors are free. With more, one thread that waits would hold up all."""
        if busy > BUSY:
            self.found.busy = busy
            free = max(1, round(self._cores - busy))
            self._settings = dataclasses.replace(self._settings, threads=free, threads_batch=free)
        with ExitStack() as stack:
            file = stack.enter_context(Weights(self.path, self._settings))
            self._prepare(file)
            self._search_attention(file)
            best, weights = self._search_weights(file, stack)
            self._measure_other_ways(best, weights, file)
            self._search_threads(weights)
            self._measure_pieces(weights)
            self.found.conclude(best)

    # Weights

    def _prepare(self, file: Weights) -> None:
        """Sets the sizes of the measurements: a slow model gets small ones."""
        self._say("measuring the file as it is")
        self.found.chooses = can_choose(file.window, self._settings)
        self._tokens = file.tokenize(Path(__file__).read_text() + Path(__file__).with_name("probe.py").read_text())
        room = min(file.n_trained, _SHORT + _LONG + LENGTH) - LENGTH
        trial = Shape(min(64, room // 4), 0, (1,))
        token = file.measure(USUAL, self._tokens, trial, deep=False).first / trial.piece
        piece = 64 if token > _VERY_SLOW else 128 if token > _SLOW else 256 if token > _FAST else _SHORT
        n = min(self._settings.n, self._settings.parallel)
        many = n if token > _SLOW else max(n, min(_MANY, self._settings.parallel))
        piece = min(piece, room // 4, self._settings.batch_size)
        self._shape = Shape(piece, min(_LONG // 2, room - piece), tuple(sorted({1, n, many})))
        self._short = min(_SHORT, room // 2)
        self.found.jobs = (self._short, n, LENGTH), (min(_LONG, room), n, LENGTH), (self._short, 1, LENGTH)
        judged = min(_KL_TOKENS, room, _KL_BYTES // (4 * file.n_vocab), int(self._budget / 25 / token))
        self._judged = self._tokens[: max(64, judged)]

    def _search_weights(self, file: Weights, stack: ExitStack) -> tuple[Candidate, Weights]:
        """Compares formats with the attention that is best for the file as it is."""
        assert self.found.chosen
        best, weights = self.found.chosen, file
        for name in self._formats():
            candidate = self.found.new(name, self.found.usual)
            other = self._load(candidate, stack)
            if other is None:
                continue
            self._say(f"measuring {name} weights")
            self._measure(candidate, other)
            if self.found.ratio(candidate, best) < _HOPELESS and self._spent < _WEIGHTS_SHARE:
                self._measure(best, weights)
                self._measure(candidate, other)
            self._compare(candidate, other, file)
            if candidate.may_be_chosen and self.found.ratio(candidate, best) < GAIN:
                best, weights, other = candidate, other, weights
                self.found.conclude(best)
            if other is not file:
                other.close()
        return best, weights

    def _formats(self) -> list[str]:
        """The formats to try: all weights in one, or only those of a type that the file has among others."""
        sizes: dict[str, int] = {}
        for each in read_tensors(self.path):
            if each.is_matrix:
                sizes[each.type] = sizes.get(each.type, 0) + math.prod(each.shape)
        names = ("bf16", "q8_0", "f16") if _computes_bf16() else ("q8_0", "bf16", "f16")  # the time may be up early
        whole = [name for name in names if set(sizes) != {name}]
        parts = [kind for kind in sizes if kind not in (*FORMATS, "f32")]
        large = [kind for kind in parts if sizes[kind] > _SHARE_OF_MIX * sum(sizes.values())]
        return whole + ([mixed(kind, "q8_0") for kind in large] if len(parts) > 1 else [])

    def _load(self, candidate: Candidate, stack: ExitStack) -> Weights | None:
        """Converts the weights to the candidate's format, and loads them. None, with a note, if that isn't possible."""
        name = candidate.weights
        if self._is_over(_WEIGHTS_SHARE, candidate):
            return None
        if reason := reason_not_to_convert(self.path, name):
            candidate.note = f"not converted: {reason}"
            return None
        try:
            target = converted_path(self.path, name)
            if not target.exists():
                self.made.append(target)
            convert(self.path, name, lambda _fraction: self._say(f"converting the weights to {name}"))
            weights = stack.enter_context(Weights(target, self._settings))
        except ModelLoadError as error:
            candidate.note = error.message
            return None
        candidate.memory = self._memory(weights)
        return weights

    def _compare(self, candidate: Candidate, weights: Weights, file: Weights) -> None:
        """Sets the candidate's divergence, and refuses the candidate if it is too large."""
        self._say("comparing probabilities")
        if self._reference is None:
            self._reference = file.log_probabilities(USUAL, self._judged)
        candidate.kl = divergence(self._reference, weights.log_probabilities(candidate.attention, self._judged))
        if candidate.kl > MAX_DIVERGENCE:
            candidate.note = f"refused: more than {MAX_DIVERGENCE} from the file"

    # Attention

    def _search_attention(self, file: Weights) -> None:
        """Compares ways of attention with the file as it is. llama.cpp's defaults are always measured."""
        first = self.found.new(FILE, USUAL, self._memory(file))
        first.kl = 0.0
        self._measure(first, file, deep=True)
        self.found.conclude(first)
        others = [self.found.new(FILE, each, self._memory(file)) for each in _OTHERS]
        for each, limit in zip(others, _OTHERS.values(), strict=True):
            if not self._is_over(limit, each):
                self._try(each, file, file, deep=True)
        self.found.conclude(first)
        for each in (first, *others):
            if each.timings is None or self._spent > _AGAIN_SHARE:
                continue
            if self.found.ratio(each, self.found.of_file(self.found.usual)) < _HOPELESS:
                self._try(each, file, file, deep=True)
        self.found.conclude(first)

    def _measure_other_ways(self, best: Candidate, weights: Weights, file: Weights) -> None:
        """Measures the chosen weights with the other way of attention, which the backend uses for some work."""
        if best.weights == FILE:
            return
        for way in WAYS:
            attention = Attention(best.attention.cache_type, way)
            if attention != best.attention and self.found.of_file(attention).may_be_chosen:
                self._try(self.found.new(best.weights, attention, self._memory(weights)), weights, file)

    def _try(self, candidate: Candidate, weights: Weights, file: Weights, *, deep: bool = False) -> None:
        """Measures a way of attention, or notes why that isn't possible."""
        self._say(f"measuring {candidate.attention.cache_type} cache, flash attention {shown(candidate.attention)}")
        try:
            self._measure(candidate, weights, deep=deep)
            if candidate.kl is None:
                self._compare(candidate, weights, file)
        except (ModelLoadError, BackendError) as error:
            candidate.note = error.message

    # Threads, and pieces

    def _search_threads(self, weights: Weights) -> None:
        """Compares numbers of threads, unless the number is given, or other programs use processors."""
        cores = self._cores
        counts = sorted({cores, cores - 1, cores // 2, os.cpu_count() or cores} - {0}, key=lambda count: count != cores)
        if self._settings.threads or self._settings.threads_batch or len(counts) == 1:
            return
        found: dict[int, Timings] = {}
        job = self.found.jobs[0]
        for _ in range(2):
            for count in counts:
                if count in found and found[count].job(*job) > _HOPELESS * found[cores].job(*job):
                    continue
                if self._spent > 0.9:
                    return
                self._say(f"measuring {count} threads")
                timings = weights.measure(self.found.usual, self._tokens, self._shape, deep=False, threads=count)
                found.setdefault(count, timings).merge(timings)
        self.found.threads = _least({count: each.shallow[1] for count, each in found.items()}, cores)
        self.found.threads_batch = _least({count: each.job(*job) for count, each in found.items()}, cores)

    def _measure_pieces(self, weights: Weights) -> None:
        """Measures what else the engine needs: pieces of a prompt beside rows, and how long a new context takes."""
        if self._spent > 1:
            return
        for way in WAYS:
            self._say("measuring pieces of a prompt beside rows")
            each = Attention(self.found.usual.cache_type, way)
            self.found.apart[way] = weights.apart(each, self._tokens, self.found.jobs[0][1], self._shape.piece)
        start = time.perf_counter()
        n_cells = self._n_cells(weights)
        weights.context(self.found.usual, n_cells, 2 * self._settings.parallel).close()
        self.found.change = 2 * (time.perf_counter() - start)

    # Measurements, and the time for them

    def _n_cells(self, weights: Weights) -> int:
        return self._settings.ctx_size if self._settings.ctx_size > 0 else weights.n_trained

    def _memory(self, weights: Weights) -> int:
        return weights.n_bytes + weights.cache_bytes(self._n_cells(weights))

    def _measure(self, candidate: Candidate, weights: Weights, *, deep: bool = False) -> None:
        with watch_others() as others:
            timings = weights.measure(candidate.attention, self._tokens, self._shape, deep=deep)
        if (
            not self.found.busy and others.busy / 2 > BUSY
        ):  # the machine was idle when the search began, and isn't any more
            raise _DisturbedError(others.busy)
        if candidate.timings is None:
            candidate.timings = timings
        else:
            candidate.timings.merge(timings)
        if not deep and (known := self.found.of_file(candidate.attention).timings):
            candidate.timings = candidate.timings.at_depth_of(known)

    @property
    def _spent(self) -> float:
        """The share of the budget that is spent."""
        return (time.monotonic() - self._began) / self._budget

    def _is_over(self, share: float, candidate: Candidate) -> bool:
        """Whether this share of the budget is spent. If so, a candidate that wasn't measured notes it."""
        if self._spent < share:
            return False
        if candidate.timings is None:
            candidate.note = TIME_UP
        return True

    def _say(self, what: str) -> None:
        self._told(what, self._spent)


def _computes_bf16() -> bool:
    """Whether the processor has instructions for bf16, with which such weights are often the fastest."""
    return b"BF16 = 1" in llama_cpp.llama_print_system_info()


def _least(seconds: Mapping[int, float], usual: int) -> int:
    """The number with the least seconds, or the usual number if that takes hardly longer."""
    best = min(seconds, key=lambda count: seconds[count])
    return best if seconds[best] < GAIN * seconds[usual] else usual


class _DisturbedError(Exception):
    """Other programs have begun to work. busy: how many processors they use."""

    def __init__(self, busy: float) -> None:
        super().__init__(busy)
        self.busy = busy
