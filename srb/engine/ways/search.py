"""`Search`: decides which beams of a prompt go on, and which texts are found.

Nothing here knows of cells, events or characters. `beams.py` carries a search out.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from itertools import count

from srb.engine.asking.model import Ranked, Ranker
from srb.engine.backend import Logits
from srb.engine.ports import Way
from srb.engine.telling.events import FinishReason
from srb.engine.ways.rows import TextRow


class Beam(TextRow):
    """A text of a search: one that goes on, or one that was found.

    tokens: the generated ones. logprob: the natural logarithm of their probability.
    score: once it is found, what texts are compared by.
    parent: the beam that it goes on from; None once it has cells of its own.
    """

    def __init__(self, search: "Search", tokens: list[int], logprob: float) -> None:
        super().__init__(search.way, search.n_before, tokens, n_held=max(0, len(tokens) - 1))
        self.search = search
        self.logprob = logprob
        self.score = 0.0
        self.parent: Beam | None = None
        self.ranked: list[Ranked] | None = None  # how it may go on, once its last token is evaluated
        self.logits: Logits | None = None  # from then on, if probabilities are reported


class Search:
    """A beam search, as Hugging Face's `transformers` does it (`GenerationMixin._beam_search`).

    In each step, every beam is continued with its likeliest tokens. The `width` likeliest of these texts that don't end
    are the next beams. A text that ends is found if it is among the first `width` of all. Found texts are compared by
    logprob / length**length_penalty, and the best `width` are kept.

    way: carries it out. n: how many texts are wanted. width: how many beams there are.
    n_before: the length of the prompt, in tokens. max_tokens: the most tokens of a text.
    ends: says why a text ends with its last token; None if it doesn't end.
    """

    def __init__(
        self,
        way: Way,
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
        self.way = way
        self.n = n
        self.width = width
        self.n_before = n_before
        self.living = [Beam(self, [], 0.0)]
        """The beams, the best first."""
        self.found: list[Beam] = []
        """The texts that have ended, the best first."""
        self.n_settled = 0
        """How many first tokens all texts have in common that the search may still return."""
        self._ranker = ranker
        self._ends = ends
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping

    @property
    def is_over(self) -> bool:
        """Whether the search has ended: no beam goes on."""
        return not self.living

    def take(self, beam: Beam, logits: Logits) -> None:
        """Takes the logits behind the last token of a beam."""
        # The ranker doesn't know which tokens complete a stop string, and so end a text: it gives twice the width.
        may_end = len(beam.tokens) >= self._min_tokens
        beam.ranked = self._ranker.rank(logits, 2 * self.width, may_end=may_end)

    def step(self) -> None:
        """Goes one token further. `take` must have been called for all beams before."""
        ways = sorted(self._ways(), key=lambda way: -way[0])
        self.living = []
        for place, (logprob, parent, token) in enumerate(ways):
            if len(self.living) == self.width:
                break
            beam = self._child(parent, token, logprob)
            if beam.finish_reason is None:
                self.living.append(beam)
            elif place < self.width:
                beam.score = logprob / len(beam.tokens) ** self._length_penalty
                insort(self.found, beam, key=lambda each: -each.score)
                del self.found[self.width :]
        if self.living and self._is_done(self.living[0]):
            self.living = []

    def settle(self) -> int:
        """Sets `n_settled`, and returns by how much it has grown."""
        texts = [each.tokens for each in (*self.living, *self.found[: self.n])]
        begun = self.n_settled
        for place in count(begun):
            if any(len(each) <= place or each[place] != texts[0][place] for each in texts):
                break
            self.n_settled += 1
        return self.n_settled - begun

    def _ways(self) -> Iterator[tuple[float, Beam, int]]:
        """All texts one token longer: their log-probability, the beam, and the token."""
        for beam in self.living:
            for token, logprob in beam.ranked or ():
                yield beam.logprob + logprob, beam, token

    def _child(self, parent: Beam, token: int, logprob: float) -> Beam:
        beam = Beam(self, [*parent.tokens, token], logprob)
        beam.parent = parent
        beam.finish_reason = self._ends(beam)
        return beam

    def _is_done(self, best: Beam) -> bool:
        if len(self.found) < self.width or self._early_stopping is True:
            return len(self.found) == self.width
        # With a penalty above 0 a longer text may have a better score, so the best beam may yet become better.
        hopes = self._early_stopping == "never" and self._length_penalty > 0
        length = self._max_tokens if hopes else len(best.tokens)
        most: float = best.logprob / length**self._length_penalty
        return self.found[-1].score >= most
