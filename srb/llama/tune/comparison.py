"""Compares what `srb tune` has measured so far, and chooses."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from srb.engine.backend import NEVER
from srb.llama.model.weights import FILE, converted_path
from srb.llama.native.cost_model import DEFAULT_COST_MODEL, AttentionCosts, CostModel
from srb.llama.tune.probe import Attention, Timings
from srb.llama.tune.result import Tuned

MAX_DIVERGENCE = 0.01
"""The largest Kullback-Leibler divergence, in nats, that a choice may have from the file as it is."""

DEFAULT_ATTENTION = Attention("f16", "auto")
"""llama.cpp's defaults: an f16 cache, and flash attention if it is possible."""

OTHER_ATTENTIONS = Attention("f16", "off"), Attention("bf16", "off")
"""The other settings that may win. A bf16 cache with flash attention is slow on all known processors."""

GAIN = 0.98  # a change is worth it if it takes less than this share of the time
HOPELESS = 1.2  # a candidate that takes this many times as long as the best isn't measured again
_HOPELESS_AT_ONCE = 1.6  # the same after one measurement
TIME_UP = "not tried, because the time was up"


@dataclass(slots=True)
class Candidate:
    """A pair of weights and attention that the search measures.

    Args:
        timings: the least times of all measurements.
        again: the second least times.
        memory: bytes of the weights, and of a cache of the size in the settings.
        kl: the mean divergence from the file as it is; None if unknown.
        note: why it wasn't measured, or why it is refused.
        n_tries: how often it was measured, and n_deep how often after a long prompt.
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
        """Add a measurement."""
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
        """The name of the candidate, for people."""
        return f"{self.weights} with {self.attention.cache_type} and flash attention {shown(self.attention)}"

    @property
    def pair(self) -> tuple[str, str]:
        """The weights and the cache type. Flash attention may change from request to request."""
        return self.weights, self.attention.cache_type

    @property
    def is_close_enough(self) -> bool:
        """Whether its probabilities are close enough to those of the file, as far as known."""
        return self.kl is None or self.kl <= MAX_DIVERGENCE

    @property
    def may_be_chosen(self) -> bool:
        """Whether it was measured, and its probabilities are known to be close enough to those of the file."""
        return self.timings is not None and self.kl is not None and self.is_close_enough


class Comparison:
    """The candidates and their times. `conclude` chooses among them, and is called again after more measurements.

    Attributes:
        result: the choice so far; None before the first `conclude`.
        chosen: the candidate that is best for most work; `result` has its weights and attention.
        attentions: the candidates that `result` uses: with flash attention and without, or the chosen one alone.
        jobs: what is compared: a short prompt, a long one, and the short one with one alternative. Each has the tokens
            of the prompt, the alternatives, and the tokens of each alternative.
        can_choose_attention: whether flash attention can be chosen per request.
        separate_from: for each attention, the tokens from which on a prefill chunk is faster in a decode of its own.
        streams: for each attention, the seconds of a row and of a prompt token per cell, in streams.
        busy: how many processors other programs use; 0 on an idle machine.
        doubt: why the choice may not be the fastest; empty if it is.
        switch_seconds, seconds_per_mib: `CostModel`.
    """

    def __init__(self, path: Path, threads: int, threads_batch: int) -> None:
        self.candidates: list[Candidate] = []
        self.result: Tuned | None = None
        self.chosen: Candidate | None = None
        self.attentions: list[Candidate] = []
        self.jobs: tuple[tuple[int, int, int], ...] = ()
        self.threads, self.threads_batch = threads, threads_batch
        self.can_choose_attention = False
        self.separate_from: dict[Attention, int] = {}
        self.streams: dict[Attention, tuple[float, float]] = {}
        self.busy = 0.0
        self.doubt = ""
        self.switch_seconds = DEFAULT_COST_MODEL.switch_seconds
        self.seconds_per_mib = DEFAULT_COST_MODEL.seconds_per_mib
        self._path = path

    def new(self, weights: str, attention: Attention, memory: int = 0) -> Candidate:
        """Add a candidate."""
        candidate = Candidate(weights, attention, memory=memory)
        self.candidates.append(candidate)
        return candidate

    def find(self, weights: str, attention: Attention) -> Candidate | None:
        """Return the candidate with these weights and this attention; None if there is none yet."""
        return next((each for each in self.candidates if (each.weights, each.attention) == (weights, attention)), None)

    def seconds(self, candidate: Candidate) -> list[float]:
        """Return the seconds of each job; empty if the candidate wasn't measured."""
        return self._seconds(candidate, candidate.timings)

    def _seconds(self, candidate: Candidate, timings: Timings | None) -> list[float]:
        return [self._whole(candidate, timings).job(*job) for job in self.jobs] if timings else []

    def _whole(self, candidate: Candidate, timings: Timings) -> Timings:
        """Return the times with the costs of a long prompt, which may have been measured with other weights."""
        if candidate.n_deep:
            deepest = candidate
        else:
            same = [each for each in self.candidates if each.attention == candidate.attention and each.n_deep]
            deepest = max(same, key=lambda each: each.n_deep, default=candidate)
        return timings.at_depth_of(deepest.timings) if deepest.timings and deepest.n_deep else timings

    def ratio(self, one: Candidate, other: Candidate) -> float:
        """Return the time of one candidate, divided by the time of another."""
        return _mean_ratio(self.seconds(one), self.seconds(other))

    def fastest(self) -> Candidate:
        """Return the fastest candidate that isn't refused; of two close ones the simpler."""
        fastest = self.candidates[0]
        for each in self.candidates[1:]:
            is_eligible = each.timings and each.is_close_enough
            if is_eligible and self.ratio(each, fastest) < (1 if each.pair == fastest.pair else GAIN):
                fastest = each
        return fastest

    def may_win(self, candidate: Candidate, fastest: Candidate) -> bool:
        """Return whether more measurements may show that a candidate is as fast as the fastest."""
        if not candidate.timings or not candidate.is_close_enough:
            return False
        return self.ratio(candidate, fastest) < (HOPELESS if candidate.n_tries > 1 else _HOPELESS_AT_ONCE)

    def promising(self) -> list[Attention]:
        """Return the attention settings that may win, measured with the file's weights; the fastest comes first."""
        tried = [each for each in self.candidates if each.weights == FILE and each.timings and each.is_close_enough]
        tried = sorted(tried, key=lambda each: self.ratio(each, self.candidates[0]))
        return [each.attention for each in tried if self.may_win(each, tried[0])]

    def without_flash(self, weights: str) -> Attention:
        """Return the fastest setting without flash attention that was measured with these weights."""
        found = [self.find(weights, attention) for attention in OTHER_ATTENTIONS]
        tried = [each for each in found if each and each.timings and each.is_close_enough]
        return (
            min(tried, key=lambda each: self.ratio(each, self.candidates[0])).attention
            if tried
            else OTHER_ATTENTIONS[0]
        )

    def judge(self, rivals: list[Candidate]) -> None:
        """Set `doubt` if something wasn't measured, or if measurements differ by more than the lead over a rival."""
        fastest, self.doubt = self.fastest(), ""
        for each in self.candidates:
            if each.note == TIME_UP:
                self.doubt = f"There was no time to try {each.name}."
        for each in rivals:
            lead = self.ratio(each, fastest) - 1
            spread = max(self._spread(each), self._spread(fastest))
            if each.pair != fastest.pair and spread > max(lead, 1 - GAIN):
                but = f"tries differed by {spread:.0%}" if spread < math.inf else "there was time for one try only"
                self.doubt = f"{each.name} took {lead:.0%} longer than {fastest.name}, but {but}."

    @property
    def preferred(self) -> Attention:
        """The attention of the chosen candidate."""
        assert self.chosen
        return self.chosen.attention

    def conclude(self, best: Candidate) -> None:
        """Set `result` and `chosen`. best: the candidate with the fastest weights so far."""
        found = [self.find(best.weights, attention) for attention in (DEFAULT_ATTENTION, *OTHER_ATTENTIONS)]
        known = [each for each in found if each and each.may_be_chosen]
        options = [[each] for each in known]
        if self.can_choose_attention and known[0].attention == DEFAULT_ATTENTION and len(known) > 1:
            # `auto` chooses one of two per request.
            options = [[known[0], each] for each in known[1:]]
        chosen = options[0]
        for option in options[1:]:
            if _mean_ratio(self._least_seconds(option), self._least_seconds(chosen)) < GAIN:
                chosen = option
        self.attentions = chosen
        self.chosen = min(chosen, key=lambda each: _mean_ratio(self.seconds(each), self.seconds(best)))
        preferred = self.chosen.attention
        size = (self._path if best.weights == FILE else converted_path(self._path, best.weights)).stat().st_size
        self.result = Tuned(
            weights=best.weights,
            weights_bytes=size,
            cache_type=preferred.cache_type,
            flash_attn="auto" if len(chosen) > 1 else preferred.flash_attn,
            threads=self.threads,
            threads_batch=self.threads_batch,
            times_as_fast=round(self.seconds(self.candidates[0])[0] / self._least_seconds(chosen)[0], 2),
            cost_model=self._cost_model(),
            busy=round(self.busy, 1),
            unsure=bool(self.doubt),
        )

    def _cost_model(self) -> CostModel | None:
        """Return the costs with flash attention and without; None if one of them wasn't measured."""
        found = list[AttentionCosts]()
        for each in self.attentions:
            timings = each.timings and self._whole(each, each.timings)
            if timings and timings.deep:
                costs = timings.costs(self.separate_from.get(each.attention, NEVER))
                row_cell, prompt_cell = self.streams.get(each.attention, (0.0, 0.0))
                costs = dataclasses.replace(costs, stream_row_cell=row_cell, stream_prompt_cell=prompt_cell)
                found.append(dataclasses.replace(costs, cache_type=each.attention.cache_type))
        if len(found) < 2:
            return None
        on, off = found
        return CostModel(on, off, self.switch_seconds, self.preferred.flash_attn, self.seconds_per_mib)

    def _spread(self, candidate: Candidate) -> float:
        """Return the difference of the two least times of a candidate as a share; infinite after one measurement."""
        again = self._seconds(candidate, candidate.again)
        return _mean_ratio(again, self.seconds(candidate)) - 1 if again else math.inf

    def _least_seconds(self, option: list[Candidate]) -> list[float]:
        return [min(each) for each in zip(*map(self.seconds, option), strict=True)]


def _mean_ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the geometric mean of the jobs' seconds, each divided by its seconds in `others`."""
    pairs = list(zip(seconds, others, strict=True))
    return math.prod(one / other for one, other in pairs) ** (1 / len(pairs))


def shown(attention: Attention) -> str:
    """Return whether flash attention is used, for people: on or off."""
    return "off" if attention.flash_attn == "off" else "on"
