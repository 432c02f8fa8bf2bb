"""Searches: of all ways in which the texts of a prompt could go on, which ones do, and which texts are found.

Nothing here knows of cells, events or characters; `beams.py` carries a search out.
"""

import math
import random
from bisect import insort
from collections.abc import Callable, Iterator
from itertools import count

from srb.engine.backend import Logits, Ranked, Ranker
from srb.engine.events import FinishReason, Token
from srb.engine.text import TextState

_FAR = 40.0
"""e to the power of -40 is nothing beside 1."""


class Beam:
    """A text of a search: one that goes on, or one that was found.

    tokens: that were generated. logprob: the natural logarithm of their probability.
    score: what it is compared by. parent: the one that it goes on from, until it has its cells.
    """

    def __init__(self, search: "Search", tokens: list[int], logprob: float, score: float) -> None:
        self.search = search
        self.tokens = tokens
        self.logprob = logprob
        self.score = score
        self.parent: Beam | None = None
        self.text: TextState | None = None  # only where there are stop strings
        self.reported: list[list[Token]] = []  # of each token, where tokens are reported
        self.seq_id: int | None = None
        self.ranked: list[Ranked] | None = None  # how it may go on, once that is known
        self.logits: Logits | None = None  # then, where probabilities are reported
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | None = None

    @property
    def evaluated(self) -> int:
        """How many tokens are in its cells: the prompt's, and what was generated but for the last token."""
        return self.search.n_before + max(0, len(self.tokens) - 1)

    @property
    def position(self) -> int:
        """The position of the next token that is evaluated."""
        return self.evaluated


class Search:
    """A beam search, as Hugging Face's `transformers` does it (`GenerationMixin._beam_search`).

    Of all ways on from the beams, the likeliest that don't end a text are the next beams. A text that ends is found if
    it is among the first `width` of all. Found texts are compared by logprob / length**length_penalty, and the best
    `width` are kept.

    n: how many texts it is to find. width: how many beams there are.
    n_before: the length of the prompt, in tokens. max_tokens: of a text.
    ends: says why a text ends with its last token, or None.
    """

    def __init__(
        self,
        ranker: Ranker,
        ends: Callable[[Beam], FinishReason | None],
        *,
        n: int,
        width: int,
        n_before: int,
        max_tokens: int,
        min_tokens: int = 0,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
    ) -> None:
        self.n = n
        self.width = width
        self.n_before = n_before
        self.living = [Beam(self, [], 0.0, 0.0)]
        """The beams, the best first."""
        self.found: list[Beam] = []
        """The texts that have ended, the best first."""
        self.n_settled = 0
        """How many tokens all texts begin with that it may yet come to."""
        self._ranker = ranker
        self._ends = ends
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping

    @property
    def is_over(self) -> bool:
        """Whether all texts are found."""
        return not self.living

    def take(self, beam: Beam, logits: Logits) -> None:
        """Takes the logits of what follows a beam."""
        # Twice the width, since the end of a stop string ends a text like an end token.
        may_end = len(beam.tokens) >= self._min_tokens
        beam.ranked = self._ranker.rank(logits, 2 * self.width, may_end=may_end, noise=self._noise(beam))

    def step(self) -> None:
        """Goes one token further, when `take` has had the logits of all beams."""
        ways = sorted(self._ways(), key=lambda way: -way[0])
        self.living = []
        for place, (score, parent, token, logprob) in enumerate(ways):
            if len(self.living) == self.width:
                break
            beam = self._child(parent, token, logprob, score)
            if beam.finish_reason is None:
                self.living.append(beam)
            elif place < self.width:
                beam.score = logprob / len(beam.tokens) ** self._length_penalty
                insort(self.found, beam, key=lambda each: -each.score)
                del self.found[self.width :]
        if self.living and self._is_done(self.living[0]):
            self.living = []

    def settle(self) -> int:
        """Sets `n_settled`; returns how many more tokens than before that is."""
        texts = [each.tokens for each in (*self.living, *self.found[: self.n])]
        begun = self.n_settled
        for place in count(begun):
            if any(len(each) <= place or each[place] != texts[0][place] for each in texts):
                break
            self.n_settled += 1
        return self.n_settled - begun

    def weight(self, beam: Beam) -> float | None:
        """See `StopEvent.weight`."""
        return None

    def _ways(self) -> Iterator[tuple[float, Beam, int, float]]:
        """All ways on: a score, the beam, a token, and the log-probability of the text with it."""
        for beam in self.living:
            for token, logprob, _ in beam.ranked or ():
                yield beam.logprob + logprob, beam, token, beam.logprob + logprob

    def _child(self, parent: Beam, token: int, logprob: float, score: float) -> Beam:
        beam = Beam(self, [*parent.tokens, token], logprob, score)
        beam.parent = parent
        beam.finish_reason = self._ends(beam)
        return beam

    def _noise(self, _beam: Beam) -> tuple[int, ...] | None:
        return None

    def _is_done(self, best: Beam) -> bool:
        if len(self.found) < self.width or self._early_stopping is True:
            return len(self.found) == self.width
        # A penalty of more than 0 is for longer texts, and so the best beam may become better than it is.
        hopes = self._early_stopping == "never" and self._length_penalty > 0
        length = self._max_tokens if hopes else len(best.tokens)
        most: float = best.logprob / length**self._length_penalty
        return self.found[-1].score >= most


class StochasticSearch(Search):
    """Draws n different texts without replacement from all that there can be, each with its log-probability.

    A text's score is its log-probability with Gumbel noise, and the n texts with the highest scores are drawn. The
    score of a beam is the highest of all texts that begin so, so the search finds exactly these: W. Kool, H. van Hoof
    and M. Welling, "Stochastic Beams and Where to Find Them" (ICML 2019). It has n beams.
    """

    def __init__(
        self,
        ranker: Ranker,
        ends: Callable[[Beam], FinishReason | None],
        *,
        n: int,
        n_before: int,
        max_tokens: int,
        min_tokens: int,
        seed: int,
    ) -> None:
        super().__init__(ranker, ends, n=n, width=n, n_before=n_before, max_tokens=max_tokens, min_tokens=min_tokens)
        self._seed = seed
        self._highest_left = -math.inf
        """The highest score of all texts that weren't drawn."""
        # The highest of all scores has Gumbel's distribution, as the probabilities of all texts add up to 1.
        self.living[0].score = -math.log(random.Random(seed).expovariate(1.0))

    def step(self) -> None:
        """See `Search.step`. A text that was found still competes with those that go on."""
        rivals: list[tuple[float, Beam, int | None, float]] = [(each.score, each, None, 0.0) for each in self.found]
        rivals = sorted([*rivals, *self._ways()], key=lambda rival: -rival[0])
        self.living, self.found = [], []
        for score, beam, token, logprob in rivals[: self.width]:
            each = beam if token is None else self._child(beam, token, logprob, score)
            (self.living if each.finish_reason is None else self.found).append(each)
        if len(rivals) > self.width:
            self._highest_left = max(self._highest_left, rivals[self.width][0])

    def weight(self, beam: Beam) -> float:
        """Its probability over that of a score above the highest that is left (section 4.2 of the paper)."""
        above = beam.logprob - self._highest_left
        if above < -_FAR:  # to the last bit what the fraction comes to, whose two numbers may be too small for a float
            return math.exp(self._highest_left)
        return math.exp(beam.logprob) / -math.expm1(-math.exp(min(above, _FAR)))

    def _ways(self) -> Iterator[tuple[float, Beam, int, float]]:
        for beam in self.living:
            ranked, before = beam.ranked or [], beam.logprob
            for token, logprob, perturbed in ranked:
                score = _given_highest(before + perturbed, before + ranked[0][2], beam.score)
                yield score, beam, token, before + logprob

    def _noise(self, beam: Beam) -> tuple[int, ...]:
        return (self._seed, len(beam.tokens), self.living.index(beam))


def _given_highest(score: float, highest: float, wanted: float) -> float:
    """A Gumbel variable, one of several whose highest is `highest`, as it is given that the highest is `wanted`.

    Equation 23 in appendix B.3 of the paper, which neither overflows nor cancels.
    """
    if score == highest:
        return wanted
    v = wanted - score + math.log(-math.expm1(score - highest))
    return wanted - max(0.0, v) - math.log1p(math.exp(-abs(v)))
