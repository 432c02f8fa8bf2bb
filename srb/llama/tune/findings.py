"""What `srb tune` has measured so far, and which choice follows from it."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from srb.engine.backend import NEVER
from srb.llama.model.weights import FILE, converted_path
from srb.llama.native.attention import MEASURED, Pace, Paces
from srb.llama.tune.probe import Attention, Timings
from srb.llama.tune.tuned import Tuned

MAX_DIVERGENCE = 0.01
"""The largest Kullback-Leibler divergence, in nats, that a choice may have from the file as it is."""

USUAL = Attention("f16", "auto")
"""llama.cpp's defaults: an f16 cache, and flash attention if it is possible."""

OTHERS = Attention("f16", "off"), Attention("bf16", "off")
"""The other ways of attention that may win. A bf16 cache with flash attention is slow on all known processors."""

GAIN = 0.98  # a change is worth it if it takes less than this share of the time
HOPELESS = 1.2  # who takes so many times the best one's time isn't tried again
_HOPELESS_AT_ONCE = 1.6  # the same after a single try
TIME_UP = "not tried, as the time was up"


@dataclass(slots=True)
class Candidate:
    """A pair of weights and attention that the search tries or has tried.

    timings: the least times of all tries. again: the least but one. memory: bytes of the weights, and of a cache as
    large as the settings want it. kl: the mean divergence from the file as it is, or None if it isn't known. note: why
    it wasn't measured, or why it is refused. n_tries: how often it was measured. n_deep: how often of these after many
    tokens.
    """

    weights: str
    attention: Attention
    timings: Timings | None = None
    again: Timings | None = None
    memory: int = 0
    kl: float | None = None
    note: str = ""
    n_tries: int = 0
    n_deep: int = 0

    def add(self, timings: Timings) -> None:
        """Takes the times of one more try."""
        self.n_tries += 1
        self.n_deep += bool(timings.deep)
        if self.timings is None:
            self.timings = timings
            return
        greater = self.timings.merge(timings)
        if self.again is None:
            self.again = greater
        else:
            self.again.merge(greater)

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"{self.weights} with {self.attention.cache_type} and flash attention {shown(self.attention)}"

    @property
    def pair(self) -> tuple[str, str]:
        """The weights and the type of the cache. The way of attention may change from request to request."""
        return self.weights, self.attention.cache_type

    @property
    def is_close_enough(self) -> bool:
        """Whether nothing is known against its probabilities."""
        return self.kl is None or self.kl <= MAX_DIVERGENCE

    @property
    def may_be_chosen(self) -> bool:
        """Whether the candidate was measured, and its probabilities are close enough to those of the file as it is."""
        return self.timings is not None and self.kl is not None and self.is_close_enough


class Findings:
    """The candidates and their times. `conclude` chooses among them, and is called again when more is known."""

    def __init__(self, path: Path, threads: int, threads_batch: int) -> None:
        self.candidates: list[Candidate] = []
        self.result: Tuned | None = None
        self.chosen: Candidate | None = None
        """The candidate that is best for most work; `result` has its weights and attention."""
        self.ways: list[Candidate] = []
        """The ways of attention that `result` has: with flash attention and without, or the chosen one alone."""
        self.jobs: tuple[tuple[int, int, int], ...] = ()
        """The jobs that are compared: a short prompt, a long one, and the short one with a single alternative.

        Each has the tokens of the prompt, the number of alternatives, and the tokens of each of these."""
        self.threads = threads
        self.threads_batch = threads_batch
        self.chooses = False
        """Whether the way of attention can be chosen for each work."""
        self.apart: dict[Attention, int] = {}
        """For each way of attention: how many tokens a piece of a prompt has at least that has a decode of its own."""
        self.streams: dict[Attention, tuple[float, float]] = {}
        """For each way of attention: the seconds of a row and of a prompt's token for each cell, in streams."""
        self.busy = 0.0
        """How many processors other programs use; 0 on an idle machine."""
        self.doubt = ""
        """Why it isn't clear that the choice is the fastest; empty if it is clear."""
        self.change = MEASURED.change
        """The seconds that a change of the context takes."""
        self.making = MEASURED.making
        """The seconds that a context takes for each MiB of its cells."""
        self._path = path

    def new(self, weights: str, attention: Attention, memory: int = 0) -> Candidate:
        """A candidate that is going to be tried."""
        candidate = Candidate(weights, attention, memory=memory)
        self.candidates.append(candidate)
        return candidate

    def find(self, weights: str, attention: Attention) -> Candidate | None:
        """The candidate with these weights and this attention. None if there is none yet."""
        return next((each for each in self.candidates if (each.weights, each.attention) == (weights, attention)), None)

    def seconds(self, candidate: Candidate) -> list[float]:
        """The seconds that each of the jobs takes; empty if the candidate wasn't measured."""
        return self._seconds(candidate, candidate.timings)

    def _seconds(self, candidate: Candidate, timings: Timings | None) -> list[float]:
        return [self._whole(candidate, timings).job(*job) for job in self.jobs] if timings else []

    def _whole(self, candidate: Candidate, timings: Timings) -> Timings:
        """The times, with what a long prompt costs. If that wasn't measured with its own weights, others show it."""
        if candidate.n_deep:
            known = candidate
        else:
            same = [each for each in self.candidates if each.attention == candidate.attention and each.n_deep]
            known = max(same, key=lambda each: each.n_deep, default=candidate)
        return timings.at_depth_of(known.timings) if known.timings and known.n_deep else timings

    def ratio(self, one: Candidate, other: Candidate) -> float:
        """The time that one candidate takes, divided by the time of another."""
        return _mean_ratio(self.seconds(one), self.seconds(other))

    def leader(self) -> Candidate:
        """The fastest candidate that isn't refused. The simpler one if two are close."""
        leader = self.candidates[0]
        for each in self.candidates[1:]:
            is_among = each.timings and each.is_close_enough
            if is_among and self.ratio(each, leader) < (1 if each.pair == leader.pair else GAIN):
                leader = each
        return leader

    def may_win(self, candidate: Candidate, leader: Candidate) -> bool:
        """Whether more tries may show that a candidate is as fast as the leader."""
        if not candidate.timings or not candidate.is_close_enough:
            return False
        return self.ratio(candidate, leader) < (HOPELESS if candidate.n_tries > 1 else _HOPELESS_AT_ONCE)

    def promising(self) -> list[Attention]:
        """The ways of attention that may win, by the file's weights; the fastest comes first."""
        tried = [each for each in self.candidates if each.weights == FILE and each.timings and each.is_close_enough]
        tried = sorted(tried, key=lambda each: self.ratio(each, self.candidates[0]))
        return [each.attention for each in tried if self.may_win(each, tried[0])]

    def without_flash(self, weights: str) -> Attention:
        """The fastest way without flash attention that was tried with these weights."""
        found = [self.find(weights, way) for way in OTHERS]
        tried = [each for each in found if each and each.timings and each.is_close_enough]
        return min(tried, key=lambda each: self.ratio(each, self.candidates[0])).attention if tried else OTHERS[0]

    def look(self, rivals: list[Candidate]) -> None:
        """Sets `doubt`, if something wasn't tried, or if tries differ by more than the leader is ahead of a rival."""
        leader, self.doubt = self.leader(), ""
        for each in self.candidates:
            if each.note == TIME_UP:
                self.doubt = f"There was no time to try {each.name}."
        for each in rivals:
            apart = self.ratio(each, leader) - 1
            differ = max(self._differ(each), self._differ(leader))
            if each.pair != leader.pair and differ > max(apart, 1 - GAIN):
                but = f"tries differed by {differ:.0%}" if differ < math.inf else "there was time for a single try only"
                self.doubt = f"{each.name} took {apart:.0%} longer than {leader.name}, but {but}."

    @property
    def usual(self) -> Attention:
        """The attention of the chosen candidate."""
        assert self.chosen
        return self.chosen.attention

    def conclude(self, best: Candidate) -> None:
        """Sets `result` and `chosen` by all that was measured. best: the candidate with the fastest weights so far."""
        found = [self.find(best.weights, way) for way in (USUAL, *OTHERS)]
        known = [each for each in found if each and each.may_be_chosen]
        options = [[each] for each in known]
        if self.chooses and known[0].attention == USUAL and len(known) > 1:  # then `auto` chooses one of two
            options = [[known[0], each] for each in known[1:]]
        chosen = options[0]
        for option in options[1:]:
            if _mean_ratio(self._least_seconds(option), self._least_seconds(chosen)) < GAIN:
                chosen = option
        self.ways = chosen
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
            paces=self._paces(),
            busy=round(self.busy, 1),
            unsure=bool(self.doubt),
        )

    def _paces(self) -> Paces | None:
        """The costs of contexts with both ways of attention. None if one of them wasn't measured."""
        paces = list[Pace]()
        for each in self.ways:
            timings = each.timings and self._whole(each, each.timings)
            if timings and timings.deep:
                pace = timings.pace(self.apart.get(each.attention, NEVER))
                row_cell, prompt_cell = self.streams.get(each.attention, (0.0, 0.0))
                paces.append(
                    dataclasses.replace(
                        pace,
                        cache_type=each.attention.cache_type,
                        stream_row_cell=row_cell,
                        stream_prompt_cell=prompt_cell,
                    )
                )
        if len(paces) < 2:
            return None
        on, off = paces
        return Paces(on, off, self.change, self.usual.flash_attn, self.making)

    def _differ(self, candidate: Candidate) -> float:
        """By which share the least times of a candidate differ from the least but one; infinite after a single try."""
        again = self._seconds(candidate, candidate.again)
        return _mean_ratio(again, self.seconds(candidate)) - 1 if again else math.inf

    def _least_seconds(self, option: list[Candidate]) -> list[float]:
        return [min(each) for each in zip(*map(self.seconds, option), strict=True)]


def _mean_ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """The geometric mean of the jobs' seconds, each divided by its seconds in `others`."""
    pairs = list(zip(seconds, others, strict=True))
    return math.prod(one / other for one, other in pairs) ** (1 / len(pairs))


def shown(attention: Attention) -> str:
    """The name of a way of flash attention for people: on or off."""
    return "off" if attention.flash_attn == "off" else "on"
