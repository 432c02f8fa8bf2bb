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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from srb.engine.costs import NEVER
from srb.errors import BackendError, ModelLoadError
from srb.llama.context import physical_cores
from srb.llama.flash_attn import MEASURED, Paces, can_choose
from srb.llama.logprobs import Floats
from srb.llama.others import watch_others
from srb.llama.probe import Attention, Shape, Timings, Weights, divergence
from srb.llama.tensors import read_tensors
from srb.llama.tuned import Tuned
from srb.llama.weights import FILE, FORMATS, convert, converted_path, mixed, reason_not_to_convert
from srb.settings import Settings

LENGTH = 64
"""How many tokens each alternative of a job generates."""

MAX_DIVERGENCE = 0.01
"""The largest Kullback-Leibler divergence, in nats, that a choice may have from the file as it is."""

USUAL = Attention("f16", "auto")
"""llama.cpp's defaults: an f16 cache, and flash attention if it is possible."""

_CACHE_TYPES = ("f16", "bf16")
_WAYS = ("auto", "off")
_OTHERS = {Attention("f16", "off"): 0.7, Attention("bf16", "off"): 0.35, Attention("bf16", "auto"): 0.35}
"""The other ways of attention, the most promising first. Each has a share of the budget; past it, it isn't begun."""

_SHORT, _LONG = 512, 4096
_MANY = 32  # rows
_GAIN = 0.97  # a change is worth it if it takes less than this share of the time
_HOPELESS = 1.25  # a candidate that takes more than so many times the best one's time isn't measured again
_AGAIN_SHARE, _WEIGHTS_SHARE = 0.3, 0.75  # of the budget: past these no attention is repeated, and no weights are begun
_FAST, _SLOW, _VERY_SLOW = 0.001, 0.008, 0.05  # seconds for a token of a prompt
_SHARE_OF_MIX = 0.05  # a type that fewer of the weights have isn't worth a format of its own
_KL_TOKENS, _KL_BYTES = 512, 160 << 20
BUSY = 0.2
"""If other programs use at most so many processors, the machine counts as idle."""

_LOOK_SECONDS = 0.5
_TIME_UP = "not tried, as the time was up"


@dataclass(slots=True)
class Candidate:
    """A pair of weights and attention that the search tries or has tried.

    memory: bytes of the weights, and of a cache as large as the settings want it. kl: the mean divergence from the file
    as it is, or None if it isn't known. note: why it wasn't measured, or why it is refused.
    """

    weights: str
    attention: Attention
    timings: Timings | None = None
    memory: int = 0
    kl: float | None = None
    note: str = ""

    @property
    def may_be_chosen(self) -> bool:
        """Whether the candidate was measured, and its probabilities are close enough to those of the file as it is."""
        return self.timings is not None and self.kl is not None and self.kl <= MAX_DIVERGENCE

    @property
    def was_tried(self) -> bool:
        """Whether there was time for the candidate, also if it failed."""
        return self.timings is not None or self.note not in ("", _TIME_UP)


class Search:
    """A search for the fastest choice. `run` may be stopped at any time; `result` is then the best choice so far.

    budget: in seconds. told: called with what is being done, and with the share of the budget that is spent.
    """

    def __init__(self, path: Path, settings: Settings, budget: float, told: Callable[[str, float], object]) -> None:
        self.path = path
        self.candidates: list[Candidate] = []
        self.result: Tuned | None = None
        self.chosen: Candidate | None = None
        """The candidate that is best for most work; `result` has its weights and attention."""
        self.made: list[Path] = []
        """Converted weights that weren't there before."""
        self.busy = 0.0
        """How many processors other programs use."""
        self.jobs: tuple[tuple[int, int, int], ...] = ()
        """The jobs that are compared: a short prompt, a long one, and the short one with a single alternative.

        Each has the tokens of the prompt, the number of alternatives, and the tokens of each of these."""
        self._settings = settings
        self._budget = budget
        self._told = told
        self._began = time.monotonic()
        self._reference: Floats | None = None
        self._apart: dict[str, int] = {}
        self._change = MEASURED.change
        self._cores = settings.threads or physical_cores()
        self._threads = self._cores
        self._threads_batch = settings.threads_batch or self._threads

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
            self.candidates.clear()
            self._began = time.monotonic()
            self._search(error.busy)

    def _search(self, busy: float) -> None:
        """Searches with as many threads as processors are free. With more, one thread that waits would hold up all."""
        self.busy = busy
        if busy > BUSY:
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
            self._conclude(best)

    def seconds(self, candidate: Candidate) -> list[float]:
        """The seconds that each of the jobs takes; empty if the candidate wasn't measured."""
        timings = candidate.timings
        return [timings.job(*job) for job in self.jobs] if timings else []

    # Weights

    def _prepare(self, file: Weights) -> None:
        """Sets the sizes of the measurements: a slow model gets small ones."""
        self._say("measuring the file as it is")
        self._chooses = can_choose(file.window, self._settings)
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
        self.jobs = (self._short, n, LENGTH), (min(_LONG, room), n, LENGTH), (self._short, 1, LENGTH)
        judged = min(_KL_TOKENS, room, _KL_BYTES // (4 * file.n_vocab), int(self._budget / 25 / token))
        self._judged = self._tokens[: max(64, judged)]

    def _search_weights(self, file: Weights, stack: ExitStack) -> tuple[Candidate, Weights]:
        """Compares formats with the attention that is best for the file as it is."""
        assert self.chosen
        best, weights = self.chosen, file
        for name in self._formats():
            candidate = self._new(name, self._usual, None)
            other = self._load(candidate, stack)
            if other is None:
                continue
            self._say(f"measuring {name} weights")
            self._measure(candidate, other)
            if self._ratio(candidate, best) < _HOPELESS and self._spent < _WEIGHTS_SHARE:
                self._measure(best, weights)
                self._measure(candidate, other)
            self._compare(candidate, other, file)
            if candidate.may_be_chosen and self._ratio(candidate, best) < _GAIN:
                best, weights, other = candidate, other, weights
                self._conclude(best)
            if other is not file:
                other.close()
        return best, weights

    def _formats(self) -> list[str]:
        """The formats to try: all weights in one, or only those of a type that the file has among others."""
        sizes: dict[str, int] = {}
        for each in read_tensors(self.path):
            if each.is_matrix:
                sizes[each.type] = sizes.get(each.type, 0) + math.prod(each.shape)
        whole = [name for name in ("q8_0", "bf16", "f16") if set(sizes) != {name}]
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
        first = self._new(FILE, USUAL, file)
        first.kl = 0.0
        self._measure(first, file, deep=True)
        self._conclude(first)
        others = [self._new(FILE, each, file) for each in _OTHERS]
        for each, limit in zip(others, _OTHERS.values(), strict=True):
            if not self._is_over(limit, each):
                self._try(each, file, file, deep=True)
        self._conclude(first)
        for each in (first, *others):
            if each.timings is None or self._spent > _AGAIN_SHARE:
                continue
            if self._ratio(each, self._of_file(self._usual)) < _HOPELESS:
                self._try(each, file, file, deep=True)
        self._conclude(first)

    def _measure_other_ways(self, best: Candidate, weights: Weights, file: Weights) -> None:
        """Measures the chosen weights with the other way of attention, which the backend uses for some work."""
        if best.weights == FILE:
            return
        for way in _WAYS:
            attention = Attention(best.attention.cache_type, way)
            if attention != best.attention and self._of_file(attention).may_be_chosen:
                self._try(self._new(best.weights, attention, weights), weights, file)

    def _try(self, candidate: Candidate, weights: Weights, file: Weights, *, deep: bool = False) -> None:
        """Measures a way of attention, or notes why that isn't possible."""
        self._say(f"measuring {candidate.attention.cache_type} cache, flash attention {shown(candidate.attention)}")
        try:
            self._measure(candidate, weights, deep=deep)
            if candidate.kl is None:
                self._compare(candidate, weights, file)
        except (ModelLoadError, BackendError) as error:
            candidate.note = error.message

    def _of_file(self, attention: Attention) -> Candidate:
        """The candidate with the file as it is and this attention."""
        return next(each for each in self.candidates if (each.weights, each.attention) == (FILE, attention))

    # Threads, and pieces

    def _search_threads(self, weights: Weights) -> None:
        """Compares numbers of threads, unless the number is given, or other programs use processors."""
        cores = self._cores
        counts = sorted({cores, cores - 1, cores // 2, os.cpu_count() or cores} - {0}, key=lambda count: count != cores)
        if self._settings.threads or self._settings.threads_batch or len(counts) == 1:
            return
        found: dict[int, Timings] = {}
        for _ in range(2):
            for count in counts:
                if count in found and found[count].job(*self.jobs[0]) > _HOPELESS * found[cores].job(*self.jobs[0]):
                    continue
                if self._spent > 0.9:
                    return
                self._say(f"measuring {count} threads")
                timings = weights.measure(self._usual, self._tokens, self._shape, deep=False, threads=count)
                found.setdefault(count, timings).merge(timings)
        self._threads = _least({count: each.shallow[1] for count, each in found.items()}, cores)
        self._threads_batch = _least({count: each.job(*self.jobs[0]) for count, each in found.items()}, cores)

    def _measure_pieces(self, weights: Weights) -> None:
        """Measures what else the engine needs: pieces of a prompt beside rows, and how long a new context takes."""
        if self._spent > 1:
            return
        for way in _WAYS:
            self._say("measuring pieces of a prompt beside rows")
            each = Attention(self._usual.cache_type, way)
            self._apart[way] = weights.apart(each, self._tokens, self.jobs[0][1], self._shape.piece)
        start = time.perf_counter()
        n_cells = self._n_cells(weights)
        weights.context(self._usual, n_cells, 2 * self._settings.parallel).close()
        self._change = 2 * (time.perf_counter() - start)

    # What is known

    @property
    def _usual(self) -> Attention:
        assert self.chosen
        return self.chosen.attention

    def _conclude(self, best: Candidate) -> None:
        """Sets `result` and `chosen` by all that was measured. best: the candidate with the fastest weights so far."""
        known = {
            each.attention: each for each in self.candidates if each.weights == best.weights and each.may_be_chosen
        }
        options: list[list[Candidate]] = []  # each is one way of attention, or both, of which `auto` chooses
        for cache_type in _CACHE_TYPES:
            ways = [known[each] for way in _WAYS if (each := Attention(cache_type, way)) in known]
            options += [ways] if self._chooses and len(ways) == len(_WAYS) else [[each] for each in ways]
        chosen = options[0]
        for option in options[1:]:
            if _mean_ratio(self._least_seconds(option), self._least_seconds(chosen)) < _GAIN:
                chosen = option
        self.chosen = min(chosen, key=lambda each: _mean_ratio(self.seconds(each), self.seconds(best)))
        usual = self.chosen.attention
        size = (self.path if best.weights == FILE else converted_path(self.path, best.weights)).stat().st_size
        self.result = Tuned(
            weights=best.weights,
            weights_bytes=size,
            cache_type=usual.cache_type,
            flash_attn="auto" if len(chosen) > 1 else usual.flash_attn,
            threads=self._threads,
            threads_batch=self._threads_batch,
            times_as_fast=round(self.seconds(self.candidates[0])[0] / self._least_seconds(chosen)[0], 2),
            attention_compared=any(each.was_tried and each.attention.flash_attn == "off" for each in self.candidates),
            paces=self._paces(known, usual),
        )

    def _paces(self, known: Mapping[Attention, Candidate], usual: Attention) -> Paces | None:
        """The costs of contexts with both ways of attention. None if one of them wasn't measured."""
        ways = {}
        for way in _WAYS:
            candidate = known.get(Attention(usual.cache_type, way))
            if candidate is None or candidate.timings is None or not candidate.timings.deep:
                return None
            ways[way] = candidate.timings.pace(self._apart.get(way, NEVER))
        return Paces(ways["auto"], ways["off"], self._change, usual.flash_attn)

    def _least_seconds(self, option: list[Candidate]) -> list[float]:
        return [min(each) for each in zip(*map(self.seconds, option), strict=True)]

    def _ratio(self, one: Candidate, other: Candidate) -> float:
        return _mean_ratio(self.seconds(one), self.seconds(other))

    def _new(self, name: str, attention: Attention, weights: Weights | None) -> Candidate:
        memory = self._memory(weights) if weights else 0
        self.candidates.append(Candidate(name, attention, memory=memory))
        return self.candidates[-1]

    def _n_cells(self, weights: Weights) -> int:
        return self._settings.ctx_size if self._settings.ctx_size > 0 else weights.n_trained

    def _memory(self, weights: Weights) -> int:
        return weights.n_bytes + weights.cache_bytes(self._n_cells(weights))

    def _measure(self, candidate: Candidate, weights: Weights, *, deep: bool = False) -> None:
        with watch_others() as others:
            timings = weights.measure(candidate.attention, self._tokens, self._shape, deep=deep)
        if self.busy <= BUSY < others.busy / 2:  # the machine was idle when the search began, and isn't any more
            raise _DisturbedError(others.busy)
        if candidate.timings is None:
            candidate.timings = timings
        else:
            candidate.timings.merge(timings)
        if not deep and (known := self._of_file(candidate.attention).timings):
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
            candidate.note = _TIME_UP
        return True

    def _say(self, what: str) -> None:
        self._told(what, self._spent)


def shown(attention: Attention) -> str:
    """The name of a way of flash attention for people: on or off."""
    return "off" if attention.flash_attn == "off" else "on"


def _mean_ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """The geometric mean of the jobs' seconds, each divided by its seconds in `others`."""
    pairs = list(zip(seconds, others, strict=True))
    return math.prod(one / other for one, other in pairs) ** (1 / len(pairs))


def _least(seconds: Mapping[int, float], usual: int) -> int:
    """The number with the least seconds, or the usual number if that takes hardly longer."""
    best = min(seconds, key=lambda count: seconds[count])
    return best if seconds[best] < _GAIN * seconds[usual] else usual


class _DisturbedError(Exception):
    """Other programs have begun to work. busy: how many processors they use."""

    def __init__(self, busy: float) -> None:
        super().__init__(busy)
        self.busy = busy
