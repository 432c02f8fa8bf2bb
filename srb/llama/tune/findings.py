"""What `srb tune` has measured so far, and which choice follows from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from srb.engine.costs import NEVER
from srb.llama.files.weights import FILE, converted_path
from srb.llama.native.flash_attn import MEASURED, Paces
from srb.llama.tune.probe import Attention, Timings
from srb.llama.tune.tuned import Tuned

MAX_DIVERGENCE = 0.01
"""The largest Kullback-Leibler divergence, in nats, that a choice may have from the file as it is."""

_CACHE_TYPES = ("f16", "bf16")
WAYS = ("auto", "off")
"""The ways of flash attention that are compared."""

GAIN = 0.97  # a change is worth it if it takes less than this share of the time
TIME_UP = "not tried, as the time was up"


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
        return self.timings is not None or self.note not in ("", TIME_UP)


class Findings:
    """The candidates and their times. `conclude` chooses among them, and is called again when more is known."""

    def __init__(self, path: Path, threads: int, threads_batch: int) -> None:
        self.candidates: list[Candidate] = []
        self.result: Tuned | None = None
        self.chosen: Candidate | None = None
        """The candidate that is best for most work; `result` has its weights and attention."""
        self.jobs: tuple[tuple[int, int, int], ...] = ()
        """The jobs that are compared: a short prompt, a long one, and the short one with a single alternative.

        Each has the tokens of the prompt, the number of alternatives, and the tokens of each of these."""
        self.threads = threads
        self.threads_batch = threads_batch
        self.chooses = False
        """Whether the way of attention can be chosen for each work."""
        self.apart: dict[str, int] = {}
        """For each way of attention: how many tokens a piece of a prompt has at least that has a decode of its own."""
        self.busy = 0.0
        """How many processors other programs use; 0 on an idle machine."""
        self.change = MEASURED.change
        """The seconds that a change of the context takes."""
        self._path = path

    def new(self, weights: str, attention: Attention, memory: int = 0) -> Candidate:
        """A candidate that is going to be tried."""
        self.candidates.append(Candidate(weights, attention, memory=memory))
        return self.candidates[-1]

    def of_file(self, attention: Attention) -> Candidate:
        """The candidate with the file as it is and this attention."""
        return next(each for each in self.candidates if (each.weights, each.attention) == (FILE, attention))

    def seconds(self, candidate: Candidate) -> list[float]:
        """The seconds that each of the jobs takes; empty if the candidate wasn't measured."""
        timings = candidate.timings
        return [timings.job(*job) for job in self.jobs] if timings else []

    def ratio(self, one: Candidate, other: Candidate) -> float:
        """The time that one candidate takes, divided by the time of another."""
        return _mean_ratio(self.seconds(one), self.seconds(other))

    @property
    def usual(self) -> Attention:
        """The attention of the chosen candidate."""
        assert self.chosen
        return self.chosen.attention

    def conclude(self, best: Candidate) -> None:
        """Sets `result` and `chosen` by all that was measured. best: the candidate with the fastest weights so far."""
        known = {
            each.attention: each for each in self.candidates if each.weights == best.weights and each.may_be_chosen
        }
        options: list[list[Candidate]] = []  # each is one way of attention, or both, of which `auto` chooses
        for cache_type in _CACHE_TYPES:
            ways = [known[each] for way in WAYS if (each := Attention(cache_type, way)) in known]
            options += [ways] if self.chooses and len(ways) == len(WAYS) else [[each] for each in ways]
        chosen = options[0]
        for option in options[1:]:
            if _mean_ratio(self._least_seconds(option), self._least_seconds(chosen)) < GAIN:
                chosen = option
        self.chosen = min(chosen, key=lambda each: _mean_ratio(self.seconds(each), self.seconds(best)))
        usual = self.chosen.attention
        size = (self._path if best.weights == FILE else converted_path(self._path, best.weights)).stat().st_size
        self.result = Tuned(
            weights=best.weights,
            weights_bytes=size,
            cache_type=usual.cache_type,
            flash_attn="auto" if len(chosen) > 1 else usual.flash_attn,
            threads=self.threads,
            threads_batch=self.threads_batch,
            times_as_fast=round(self.seconds(self.candidates[0])[0] / self._least_seconds(chosen)[0], 2),
            attention_compared=any(each.was_tried and each.attention.flash_attn == "off" for each in self.candidates),
            paces=self._paces(known, usual),
            busy=round(self.busy, 1),
        )

    def _paces(self, known: Mapping[Attention, Candidate], usual: Attention) -> Paces | None:
        """The costs of contexts with both ways of attention. None if one of them wasn't measured."""
        ways = {}
        for way in WAYS:
            candidate = known.get(Attention(usual.cache_type, way))
            if candidate is None or candidate.timings is None or not candidate.timings.deep:
                return None
            ways[way] = candidate.timings.pace(self.apart.get(way, NEVER))
        return Paces(ways["auto"], ways["off"], self.change, usual.flash_attn)

    def _least_seconds(self, option: list[Candidate]) -> list[float]:
        return [min(each) for each in zip(*map(self.seconds, option), strict=True)]


def _mean_ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """The geometric mean of the jobs' seconds, each divided by its seconds in `others`."""
    pairs = list(zip(seconds, others, strict=True))
    return math.prod(one / other for one, other in pairs) ** (1 / len(pairs))


def shown(attention: Attention) -> str:
    """The name of a way of flash attention for people: on or off."""
    return "off" if attention.flash_attn == "off" else "on"
