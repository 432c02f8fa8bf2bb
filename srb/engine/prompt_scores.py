"""The log-probabilities of a prompt's own tokens, for requests with `prompt_logprobs`, or `echo` and `logprobs`.

Where a scored prompt begins with what another one has computed, it also copies the log-probabilities of these tokens.
Those of token k come from the logits after the k tokens before it. So a prompt can begin after k tokens only if the
log-probability of token k is known, too. An example, with two texts that part after 6 tokens:

    "The capital of France is" " Paris"     computed first: its tokens 1 to 5 have log-probabilities now
    "The capital of France is" " Rome"      copies those of the tokens 1 to 4, and begins after "France":
                                            the logits after "is" are gone, and " Rome" needs them

They are cached with the last entry of a prompt, in memory alone.
"""

from array import array

from srb.engine.backend import Logprobs
from srb.engine.kv_cache.radix import Tokens, common_prefix


class Scores:
    """The log-probabilities of `tokens`, from the token 1 on up to `end`: the first token of a prompt has none.

    Args:
        tokens: those of the prompt.
        top: how many of the likeliest tokens are known at each place, fewer if the vocabulary is smaller.
    """

    def __init__(self, tokens: Tokens, top: int) -> None:
        self.tokens = tokens
        self.top = top
        self.n_reported = 0
        """How many of the tokens were reported."""
        self._logprobs = array("d")
        self._ranks = array("i")
        self._likeliest = array("i")  # as many at each place as at any other one
        self._likeliest_logprobs = array("d")

    @property
    def end(self) -> int:
        """The first token whose log-probability isn't known yet."""
        return 1 + len(self._logprobs)

    def is_like(self, other: "Scores | None") -> bool:
        """Whether the same is known of other tokens."""
        return other is not None and self.top == other.top

    @property
    def nbytes(self) -> int:
        """The memory that it takes in bytes, without the tokens."""
        arrays = self._logprobs, self._ranks, self._likeliest, self._likeliest_logprobs
        return sum(each.itemsize * len(each) for each in arrays)

    def append(self, logprobs: Logprobs, rank: int) -> None:
        """Adds the log-probability and the rank of the token `end`, and the likeliest tokens there."""
        logprob, likeliest = logprobs
        self._logprobs.append(logprob)
        self._ranks.append(rank)
        for token, p in likeliest:
            self._likeliest.append(token)
            self._likeliest_logprobs.append(p)

    def of(self, place: int, top: int | None = None) -> Logprobs:
        """Returns the log-probability of the token at a place, and the likeliest tokens there: `top`, or all."""
        width = len(self._likeliest) // len(self._logprobs)
        some = slice((place - 1) * width, (place - 1) * width + min(width, self.top if top is None else top))
        return self._logprobs[place - 1], list(zip(self._likeliest[some], self._likeliest_logprobs[some], strict=True))

    def rank(self, place: int) -> int:
        """Returns how many tokens are at least as probable at a place as its own."""
        return self._ranks[place - 1]

    def take(self, known: "Scores") -> None:
        """Copies what isn't known yet from another text that begins alike, unless this has fewer likeliest tokens."""
        n_common = common_prefix(known.tokens, self.tokens, 0) if known.top >= self.top else 0
        for place in range(self.end, min(n_common, known.end)):
            self.append(known.of(place, self.top), known.rank(place))

    def cut(self, n_tokens: int) -> None:
        """Forgets the log-probabilities of all but the first `n_tokens`."""
        width = len(self._likeliest) // max(1, len(self._logprobs))
        del self._logprobs[n_tokens - 1 :]
        del self._ranks[n_tokens - 1 :]
        del self._likeliest[(n_tokens - 1) * width :]
        del self._likeliest_logprobs[(n_tokens - 1) * width :]
