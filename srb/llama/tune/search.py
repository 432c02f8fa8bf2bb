"""The search of `srb tune`: finds which weights, which attention and how many threads are fastest for a model here.

Each pair of weights and attention that may be the fastest is a candidate. One try measures a short piece of a prompt
and a few steps of one row, of 8 and of 32. Candidates are tried in turn, and the least of all tries counts, since other
programs can only make a time longer. So they disturb all candidates alike. A candidate that is clearly slower isn't
tried again, and the search ends when the best one is ahead of the others by more than its own tries differ.

The file's own weights come first, because they need no conversion, and every model has them. What a long prompt costs
depends on the way of attention, but not on the weights, so it is measured with those that lead.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from srb.errors import BackendError, ModelLoadError
from srb.llama.model.weights import FILE, convert, converted_path, reason_not_to_convert
from srb.llama.native.attention import ANY_CONTEXT, can_choose
from srb.llama.native.params import physical_cores
from srb.llama.sampling.candidates import Floats
from srb.llama.tune.findings import GAIN, HOPELESS, MAX_DIVERGENCE, OTHERS, TIME_UP, USUAL, Candidate, Findings, shown
from srb.llama.tune.probe import Shape, Timings, Weights, divergence, watch_others
from srb.llama.tune.tuned import computes_bf16, formats
from srb.options.settings import Settings

LENGTH = 64
"""How many tokens each alternative of a job generates."""

_SHORT, _LONG = 512, 4096
_MANY = 32  # rows
_WAYS_SHARE, _WEIGHTS_SHARE, _DEEP_SHARE, _REPEAT_SHARE = 0.4, 0.5, 0.7, 0.8
"""The shares of the budget past which no way of attention is begun with the file, no weights are begun, and so on."""

_MOST_TRIES = 6
_SLOW = 0.008  # seconds for a token of a prompt
_KL_TOKENS, _KL_BYTES = 128, 160 << 20
BUSY = 0.2
"""If other programs use at most so many processors, the machine counts as idle."""

_LOOK_SECONDS = 0.5
_DISTURBED = 3  # so many tries beside other programs, one after the other, and the machine counts as busy


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
        self._loaded: dict[str, Weights] = {}
        self._disturbed = 0  # how many of the last tries, one after the other, ran beside other programs
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
            self._loaded = {FILE: file}
            self._prepare(file)
            self._begin_with_file(file)
            for name in formats(self.path):
                self._begin_with(name, stack)
            self._measure_depth()
            self._repeat()
            chosen = self._measure_choice()
            self._search_threads(self._loaded[chosen.weights])
            self._measure_pieces(self._loaded[chosen.weights])
            self.found.conclude(chosen)

    def _prepare(self, file: Weights) -> None:
        """Sets the sizes of the measurements: a slow model gets small ones."""
        self._say("measuring the file as it is")
        self.found.chooses = can_choose(file.window, self._settings)
        self._tokens = file.tokenize(Path(__file__).read_text() + Path(__file__).with_name("probe.py").read_text())
        room = min(file.n_trained, _SHORT + _LONG + LENGTH) - LENGTH
        trial = Shape(min(64, room // 4), 0, (1,))
        token = file.measure(USUAL, self._tokens, trial, deep=False).first / trial.piece
        piece = 64 if token > _SLOW else 128
        n = min(self._settings.n, self._settings.parallel)
        many = n if token > _SLOW else max(n, min(_MANY, self._settings.parallel))
        piece = min(piece, room // 4, self._settings.batch_size)
        self._shape = Shape(piece, min(_LONG // 2, room - piece), tuple(sorted({1, n, many})))
        self._short = min(_SHORT, room // 2)
        self.found.jobs = (self._short, n, LENGTH), (min(_LONG, room), n, LENGTH), (self._short, 1, LENGTH)
        judged = min(_KL_TOKENS, room, _KL_BYTES // (4 * file.n_vocab), int(self._budget / 25 / token))
        self._judged = self._tokens[: max(64, judged)]

    # The candidates

    def _begin_with_file(self, file: Weights) -> None:
        """Tries all ways of attention with the file as it is. llama.cpp's defaults are always tried."""
        first = self.found.new(FILE, USUAL, self._memory(file))
        first.kl = 0.0
        self._measure(first)
        self.found.conclude(first)
        for attention in OTHERS:
            candidate = self.found.new(FILE, attention, self._memory(file))
            if not self._is_over(_WAYS_SHARE, candidate):
                self._try(candidate)

    def _begin_with(self, name: str, stack: ExitStack) -> None:
        """Tries weights in this format with each way of attention that isn't far behind with the file's weights."""
        ways = sorted(self.found.promising(), key=lambda way: way.cache_type == "bf16", reverse=computes_bf16())
        first = self.found.new(name, ways[0])
        weights = self._load(first, stack)
        if weights is None:
            return
        self._loaded[name] = weights
        candidates = [first, *(self.found.new(name, way) for way in ways[1:])]
        for candidate in candidates:
            candidate.memory = self._memory(weights)
            if candidate is first or not self._is_over(_WEIGHTS_SHARE, candidate):
                self._try(candidate)
        self._settle()
        if not any(self._may_win(each) for each in candidates):
            self._loaded.pop(name).close()

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
            return stack.enter_context(Weights(target, self._settings))
        except ModelLoadError as error:
            candidate.note = error.message
            return None

    # Which one is the fastest

    def _may_win(self, candidate: Candidate) -> bool:
        return candidate.weights in self._loaded and self.found.may_win(candidate, self.found.leader())

    def _settle(self) -> None:
        """Makes the leader the choice, if its probabilities are close to those of the file."""
        while True:
            leader = self.found.leader()
            for each in self.found.candidates:
                if each.pair == leader.pair and each.timings and each.kl is None:
                    self._compare(each)
            if leader.may_be_chosen:
                self.found.conclude(leader)
                return

    def _repeat(self) -> None:
        """Tries who may win in turn, until it is clear who does, or the time is up."""
        while True:
            rivals = [each for each in self.found.candidates if self._may_win(each)]
            self.found.look(rivals)
            most = max(each.n_tries for each in rivals)
            if not self.found.doubt or most >= _MOST_TRIES or self._spent > _REPEAT_SHARE:
                break
            for each in rivals:
                self._try(each, deep=each.n_deep == 1)
        self._settle()

    def _compare(self, candidate: Candidate) -> None:
        """Sets the candidate's divergence, and refuses the candidate if it is too large."""
        self._say("comparing probabilities")
        if self._reference is None:
            self._reference = self._loaded[FILE].log_probabilities(USUAL, self._judged)
        other = self._loaded[candidate.weights].log_probabilities(candidate.attention, self._judged)
        candidate.kl = divergence(self._reference, other)
        if candidate.kl > MAX_DIVERGENCE:
            candidate.note = f"refused: more than {MAX_DIVERGENCE} from the file"

    def _measure_depth(self) -> None:
        """Measures what a long prompt costs, with the leading weights and each way of attention that may win."""
        weights = self.found.leader().weights
        for each in self.found.candidates:
            if each.weights == weights and not each.n_deep and self._may_win(each) and self._spent < _DEEP_SHARE:
                self._try(each, deep=True)
        self._settle()

    def _measure_choice(self) -> Candidate:
        """Measures the chosen weights with flash attention and without. The backend uses both, each for some work.

        Returns the choice.
        """
        assert self.found.chosen
        chosen = self.found.chosen
        without = chosen.attention if chosen.attention in OTHERS else self.found.without_flash(chosen.weights)
        for attention in (USUAL, without):
            pair = chosen.weights, attention
            candidate = self.found.find(*pair) or self.found.new(*pair, chosen.memory)
            if candidate.n_deep == 0 and candidate.is_close_enough:
                self._try(candidate, deep=True)
            if candidate.timings and candidate.kl is None:
                self._compare(candidate)
        return chosen

    def _try(self, candidate: Candidate, *, deep: bool = False) -> None:
        """Measures a candidate once more, or notes why that isn't possible."""
        weights, way = candidate.weights, candidate.attention
        self._say(f"measuring {weights} weights, {way.cache_type} cache, flash attention {shown(way)}")
        candidate.note = ""
        try:
            self._measure(candidate, deep=deep)
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
                if count in found and found[count].job(*job) > HOPELESS * found[cores].job(*job):
                    continue
                if self._spent > 0.9:
                    return
                self._say(f"measuring {count} threads")
                timings = weights.measure(self.found.usual, self._tokens, self._shape, deep=False, threads=count)
                found.setdefault(count, timings).merge(timings)
        self.found.threads = _least({count: each.shallow[1] for count, each in found.items()}, cores)
        self.found.threads_batch = _least({count: each.job(*job) for count, each in found.items()}, cores)

    def _measure_pieces(self, weights: Weights) -> None:
        """Measures what else the engine needs: pieces of a prompt beside rows, streams, and making a context."""
        if self._spent > 1:
            return
        for each in self.found.ways:
            self._say("measuring pieces of a prompt beside rows")
            apart = weights.apart(each.attention, self._tokens, self.found.jobs[0][1], self._shape.piece)
            self.found.apart[each.attention] = apart
            if weights.window is None:
                self.found.streams[each.attention] = weights.in_streams(each.attention, self._tokens, self._shape)
        start = time.perf_counter()
        n_cells = self._n_cells(weights)
        context = weights.context(self.found.usual, n_cells, 2 * self._settings.parallel)
        context.close()
        seconds = time.perf_counter() - start
        self.found.change = 2 * seconds
        self.found.making = max(0.0, seconds - ANY_CONTEXT) / (n_cells * context.cell_bytes / 2**20)

    # Measurements, and the time for them

    def _n_cells(self, weights: Weights) -> int:
        return self._settings.ctx_size if self._settings.ctx_size > 0 else weights.n_trained

    def _memory(self, weights: Weights) -> int:
        return weights.n_bytes + weights.cache_bytes(self._n_cells(weights))

    def _measure(self, candidate: Candidate, *, deep: bool = False) -> None:
        with watch_others() as others:
            weights = self._loaded[candidate.weights]
            candidate.add(weights.measure(candidate.attention, self._tokens, self._shape, deep=deep))
        is_disturbed = not self.found.busy and others.busy / 2 > BUSY  # and it was idle when the search began
        self._disturbed = self._disturbed + 1 if is_disturbed else 0
        if self._disturbed == _DISTURBED:
            raise _DisturbedError(others.busy)

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


def _least(seconds: Mapping[int, float], usual: int) -> int:
    """The number with the least seconds, or the usual number if that takes hardly longer."""
    best = min(seconds, key=lambda count: seconds[count])
    return best if seconds[best] < GAIN * seconds[usual] else usual


class _DisturbedError(Exception):
    """Other programs work. busy: how many processors they use."""

    def __init__(self, busy: float) -> None:
        super().__init__(busy)
        self.busy = busy
