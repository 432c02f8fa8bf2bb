"""The search of `srb tune`: finds the fastest weights, attention and number of threads for a model on this machine.

Each pair of weights and attention that may be the fastest is a candidate. A try measures a short prefill chunk, and a
few steps of 1, 8 and 32 rows. Candidates are tried in turn, so that other programs disturb all of them equally. The
least time of all tries counts, because other programs can only make a time longer. A candidate that is clearly slower
isn't tried again. The search ends when the lead of the best candidate is larger than the spread of its tries.

The file's own weights come first, because they need no conversion. The cost of a long prompt depends on the attention
but not on the weights, so it is measured with the fastest weights.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from srb.errors import BackendError, ModelLoadError
from srb.llama.model.weights import FILE, convert, converted_path, reason_not_to_convert
from srb.llama.native.cost_model import CONTEXT_SECONDS, can_choose_attention
from srb.llama.native.params import physical_cores
from srb.llama.sampling.candidates import Floats
from srb.llama.tune.comparison import (
    DEFAULT_ATTENTION,
    GAIN,
    HOPELESS,
    MAX_DIVERGENCE,
    OTHER_ATTENTIONS,
    TIME_UP,
    Candidate,
    Comparison,
)
from srb.llama.tune.probe import OtherPrograms, Shape, Timings, Weights, divergence
from srb.llama.tune.result import computes_bf16, formats
from srb.options.settings import Settings

LENGTH = 64
"""The tokens of each alternative of a job."""

_SHORT, _LONG = 512, 4096
_MANY = 32  # rows
_ATTENTION_SHARE, _WEIGHTS_SHARE, _DEEP_SHARE, _REPEAT_SHARE = 0.4, 0.5, 0.7, 0.8
"""The shares of the budget after which no further attention is tried with the file, no further weights, and so on."""

_MOST_TRIES = 6
_SLOW = 0.008  # seconds per prompt token
_KL_TOKENS, _KL_BYTES = 128, 160 << 20
BUSY = 0.2
"""The machine counts as idle if other programs use at most this many processors."""

_LOOK_SECONDS = 0.5
_DISTURBED = 3  # after this many disturbed tries in a row, the machine counts as busy


class Search:
    """A search for the fastest choice. `run` may be interrupted; `comparison.result` then has the best choice so far.

    Args:
        budget: in seconds.
        report: called with what is being done, and with the share of the budget that is spent.

    Attributes:
        made: converted weights that didn't exist before.
    """

    def __init__(self, path: Path, settings: Settings, budget: float, report: Callable[[str, float], object]) -> None:
        self.path = path
        self.made: list[Path] = []
        self._settings = settings
        self._budget = budget
        self._report = report
        self._start = time.monotonic()
        self._reference: Floats | None = None
        self._loaded: dict[str, Weights] = {}
        self._disturbed = 0  # how many of the last tries, in a row, other programs disturbed
        self._cores = settings.threads or physical_cores()
        self.comparison = Comparison(path, self._cores, settings.threads_batch or self._cores)

    def run(self) -> None:
        """Search. If the machine becomes busy, the search starts again with fewer threads.

        Raises `ModelLoadError` and `BackendError` if the file as it is can't be measured.
        """
        self._say("checking how busy the machine is")
        others = OtherPrograms()
        time.sleep(_LOOK_SECONDS)
        try:
            self._search(others.busy())
        except _DisturbedError as error:
            self.comparison.candidates.clear()
            self._reference = None  # the second search may judge by fewer tokens
            self._start = time.monotonic()
            self._search(error.busy)

    def _search(self, busy: float) -> None:
        """Search with as many threads as processors are free. With more, a waiting thread would stall all others."""
        if busy > BUSY:
            self.comparison.busy = busy
            free = max(1, round(self._cores - busy))
            self._settings = dataclasses.replace(self._settings, threads=free, threads_batch=free)
        with ExitStack() as stack:
            file = stack.enter_context(Weights(self.path, self._settings))
            self._loaded = {FILE: file}
            self._prepare(file)
            self._try_file(file)
            for name in formats(self.path):
                self._try_weights(name, stack)
            self._measure_depth()
            self._repeat()
            chosen = self._measure_choice()
            self._search_threads(self._loaded[chosen.weights])
            self._measure_rest(self._loaded[chosen.weights])
            self.comparison.conclude(chosen)

    def _prepare(self, file: Weights) -> None:
        """Set the sizes of the measurements: a slow model gets small ones."""
        self._say("measuring the file as it is")
        self.comparison.can_choose_attention = can_choose_attention(file.window, self._settings)
        self._tokens = file.tokenize(Path(__file__).read_text() + Path(__file__).with_name("probe.py").read_text())
        room = min(file.n_trained, _SHORT + _LONG + LENGTH) - LENGTH
        trial = Shape(min(64, room // 4), 0, (1,))
        token = file.measure(DEFAULT_ATTENTION, self._tokens, trial, deep=False).first / trial.chunk
        chunk = 64 if token > _SLOW else 128
        n = min(self._settings.n, self._settings.parallel)
        many = n if token > _SLOW else max(n, min(_MANY, self._settings.parallel))
        chunk = min(chunk, room // 4, self._settings.batch_size)
        self._shape = Shape(chunk, min(_LONG // 2, room - chunk), tuple(sorted({1, n, many})))
        self._short = min(_SHORT, room // 2)
        self.comparison.jobs = (self._short, n, LENGTH), (min(_LONG, room), n, LENGTH), (self._short, 1, LENGTH)
        judged = min(_KL_TOKENS, room, _KL_BYTES // (4 * file.n_vocab), int(self._budget / 25 / token))
        self._judged = self._tokens[: max(64, judged)]

    def _try_file(self, file: Weights) -> None:
        """Try all attention settings with the file as it is. llama.cpp's defaults are always tried."""
        first = self.comparison.new(FILE, DEFAULT_ATTENTION, self._memory(file))
        first.kl = 0.0
        self._measure(first)
        self.comparison.conclude(first)
        for attention in OTHER_ATTENTIONS:
            candidate = self.comparison.new(FILE, attention, self._memory(file))
            if not self._is_over(_ATTENTION_SHARE, candidate):
                self._try(candidate)

    def _try_weights(self, name: str, stack: ExitStack) -> None:
        """Try weights in this format with each attention that isn't much slower with the file's weights."""
        attentions = self.comparison.promising()
        attentions.sort(key=lambda attention: attention.cache_type == "bf16", reverse=computes_bf16())
        first = self.comparison.new(name, attentions[0])
        weights = self._load(first, stack)
        if weights is None:
            return
        self._loaded[name] = weights
        candidates = [first, *(self.comparison.new(name, attention) for attention in attentions[1:])]
        for candidate in candidates:
            candidate.memory = self._memory(weights)
            if candidate is first or not self._is_over(_WEIGHTS_SHARE, candidate):
                self._try(candidate)
        self._settle()
        if not any(self._may_win(each) for each in candidates):
            self._loaded.pop(name).close()

    def _load(self, candidate: Candidate, stack: ExitStack) -> Weights | None:
        """Convert the weights to the candidate's format, and load them. Returns None, with a note, if that fails."""
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
            return stack.enter_context(Weights(target, self._settings))
        except ModelLoadError as error:
            candidate.note = error.message
            return None

    def _may_win(self, candidate: Candidate) -> bool:
        return candidate.weights in self._loaded and self.comparison.may_win(candidate, self.comparison.fastest())

    def _settle(self) -> None:
        """Choose the fastest candidate with probabilities close to those of the file."""
        while True:
            fastest = self.comparison.fastest()
            for each in self.comparison.candidates:
                if each.pair == fastest.pair and each.timings and each.kl is None:
                    self._compare(each)
            if fastest.may_be_chosen:
                self.comparison.conclude(fastest)
                return

    def _repeat(self) -> None:
        """Try the candidates that may win in turn, until it is clear which does, or the time is up."""
        while True:
            rivals = [each for each in self.comparison.candidates if self._may_win(each)]
            self.comparison.judge(rivals)
            most = max(each.n_tries for each in rivals)
            if not self.comparison.doubt or most >= _MOST_TRIES or self._spent > _REPEAT_SHARE:
                break
            for each in rivals:
                self._try(each, deep=each.n_deep == 1)
        self._settle()

    def _compare(self, candidate: Candidate) -> None:
        """Set the candidate's divergence, and refuse the candidate if it is too large."""
        self._say("comparing probabilities")
        if self._reference is None:
            self._reference = self._loaded[FILE].log_probabilities(DEFAULT_ATTENTION, self._judged)
        other = self._loaded[candidate.weights].log_probabilities(candidate.attention, self._judged)
        candidate.kl = divergence(self._reference, other)
        if candidate.kl > MAX_DIVERGENCE:
            candidate.note = f"refused: more than {MAX_DIVERGENCE} from the file"

    def _measure_depth(self) -> None:
        """Measure the cost of a long prompt, with the fastest weights and each attention that may win."""
        weights = self.comparison.fastest().weights
        for each in self.comparison.candidates:
            if each.weights == weights and not each.n_deep and self._may_win(each) and self._spent < _DEEP_SHARE:
                self._try(each, deep=True)
        self._settle()

    def _measure_choice(self) -> Candidate:
        """Measure the chosen weights with flash attention and without, because the backend uses both.

        Returns:
            The choice.
        """
        assert self.comparison.chosen
        chosen = self.comparison.chosen
        without = (
            chosen.attention if chosen.attention in OTHER_ATTENTIONS else self.comparison.without_flash(chosen.weights)
        )
        for attention in (DEFAULT_ATTENTION, without):
            pair = chosen.weights, attention
            candidate = self.comparison.find(*pair) or self.comparison.new(*pair, chosen.memory)
            if candidate.n_deep == 0 and candidate.is_close_enough:
                self._try(candidate, deep=True)
            if candidate.timings and candidate.kl is None:
                self._compare(candidate)
        return chosen

    def _try(self, candidate: Candidate, *, deep: bool = False) -> None:
        """Measure a candidate once more, or note why that fails."""
        self._say(f"measuring {candidate.name}")
        candidate.note = ""
        try:
            self._measure(candidate, deep=deep)
        except (ModelLoadError, BackendError) as error:
            candidate.note = error.message

    def _search_threads(self, weights: Weights) -> None:
        """Compare numbers of threads, unless the number is given, or other programs use processors."""
        cores = self._cores
        counts = sorted({cores, cores - 1, cores // 2, os.cpu_count() or cores} - {0}, key=lambda count: count != cores)
        if self._settings.threads or self._settings.threads_batch or len(counts) == 1:
            return
        found: dict[int, Timings] = {}
        job = self.comparison.jobs[0]
        for _ in range(2):
            for count in counts:
                if count in found and found[count].job(*job) > HOPELESS * found[cores].job(*job):
                    continue
                if self._spent > 0.9:
                    return
                self._say(f"measuring {count} threads")
                timings = weights.measure(
                    self.comparison.preferred, self._tokens, self._shape, deep=False, threads=count
                )
                found.setdefault(count, timings).merge(timings)
        self.comparison.threads = _least({count: each.shallow[1] for count, each in found.items()}, cores)
        self.comparison.threads_batch = _least({count: each.job(*job) for count, each in found.items()}, cores)

    def _measure_rest(self, weights: Weights) -> None:
        """Measure what else the engine needs: prefill chunks in batches with rows, streams, and making a context."""
        if self._spent > 1:
            return
        n_rows = self.comparison.jobs[0][1]
        for each in self.comparison.attentions:
            self._say("measuring prefill chunks in batches with rows")
            size = weights.separate_from(each.attention, self._tokens, n_rows, self._shape.chunk)
            self.comparison.separate_from[each.attention] = size
            if weights.window is None:
                self.comparison.streams[each.attention] = weights.in_streams(each.attention, self._tokens, self._shape)
        start = time.perf_counter()
        n_cells = self._n_cells(weights)
        context = weights.context(self.comparison.preferred, n_cells, 2 * self._settings.parallel)
        context.close()
        seconds = time.perf_counter() - start
        self.comparison.switch_seconds = 2 * seconds
        self.comparison.seconds_per_mib = max(0.0, seconds - CONTEXT_SECONDS) / (n_cells * context.cell_bytes / 2**20)

    def _n_cells(self, weights: Weights) -> int:
        return self._settings.ctx_size if self._settings.ctx_size > 0 else weights.n_trained

    def _memory(self, weights: Weights) -> int:
        return weights.n_bytes + weights.cache_bytes(self._n_cells(weights))

    def _measure(self, candidate: Candidate, *, deep: bool = False) -> None:
        others = OtherPrograms()
        weights = self._loaded[candidate.weights]
        candidate.add(weights.measure(candidate.attention, self._tokens, self._shape, deep=deep))
        busy = others.busy()
        is_disturbed = not self.comparison.busy and busy / 2 > BUSY  # and it was idle when the search began
        self._disturbed = self._disturbed + 1 if is_disturbed else 0
        if self._disturbed == _DISTURBED:
            raise _DisturbedError(busy)

    @property
    def _spent(self) -> float:
        """The share of the budget that is spent."""
        return (time.monotonic() - self._start) / self._budget

    def _is_over(self, share: float, candidate: Candidate) -> bool:
        """Return whether this share of the budget is spent. If so, a candidate that wasn't measured gets a note."""
        if self._spent < share:
            return False
        if candidate.timings is None:
            candidate.note = TIME_UP
        return True

    def _say(self, what: str) -> None:
        self._report(what, self._spent)


def _least(seconds: Mapping[int, float], default: int) -> int:
    """Return the number with the least seconds, or the default number if that takes hardly longer."""
    best = min(seconds, key=lambda count: seconds[count])
    return best if seconds[best] < GAIN * seconds[default] else default


class _DisturbedError(Exception):
    """Other programs run. busy: how many processors they use."""

    def __init__(self, busy: float) -> None:
        super().__init__(busy)
        self.busy = busy
