"""Which of the particles the alternatives of a prompt get, and what is told of them."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace

from srb.engine.ports import Rule
from srb.engine.telling.events import StopEvent
from srb.engine.ways.particle import Particle
from srb.engine.ways.resampling import drawn_order, normalized


def chosen(particles: Many[Particle], n: int, rng: random.Random | None) -> list[Particle]:
    """The n particles after which the suffix is the likeliest, the best first, without those that have failed.

    rng: the particles have weights. Then they are drawn by these, without replacement, and a text comes twice only if
        there are too few texts.
    """
    whole = [each for each in particles if not each.error]
    if rng:
        order = drawn_order([each.log_weight for each in whole], rng)
        first = {tuple(whole[k].tokens): k for k in reversed(order)}
        whole = [whole[k] for k in sorted(order, key=lambda k: first[tuple(whole[k].tokens)] != k)][:n]
    return sorted(whole, key=lambda each: -(each.suffix_logprob or 0.0))[:n]


def shares(particles: Many[Particle]) -> dict[tuple[int, ...], float]:
    """The share of each text in the weights of all particles."""
    found: dict[tuple[int, ...], float] = {}
    for each, weight in zip(particles, normalized([each.log_weight for each in particles]), strict=True):
        found[tuple(each.tokens)] = found.get(tuple(each.tokens), 0.0) + weight
    return found


class Result(Rule):
    """Tells how well the suffix follows an alternative, and how much its text counts.

    close: called when the alternative has ended, for whatever reason.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self.suffix_logprob: float | None = None
        self.rank: int | None = None
        self.weight: float | None = None
        self._close = close

    def ended(self, event: StopEvent) -> StopEvent:
        """See `Rule.ended`."""
        self._close()
        return replace(event, suffix_logprob=self.suffix_logprob, rank=self.rank, weight=self.weight)
