"""What llama.cpp lacks: smoothing, mirostat 1, `logits_processor`, guards of XTC and `typ_p`, limits for DRY."""

import ctypes
import math
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

import llama_cpp
import numpy as np

from srb.engine.sampling_params import LogitsProcessor
from srb.errors import InvalidRequestError, LogitsProcessorError
from srb.llama.sampling.candidates import Floats, Places, largest_of, rows_of

MAX_TOKENS = 20_000
"""How many notes the breakers of one alternative may take. Copying them takes about 1 ms then, and tokenizing 0.8 s."""
MAX_BREAKERS = 128
"""How many breakers the different DRY settings of a request may have in total. Each takes 5 ms with 50,000 tokens."""

_MIROSTAT_M = 100  # candidates for the estimate of Zipf's exponent; llama-server's value
_FARTHEST = np.float32(80)  # below the highest logit; e to the power of -104 is 0 as a float
_MAX_BYTES = 40  # llama.cpp cuts longer breakers off


def smoothing(factor: float, curve: float, logits: Floats) -> Floats:
    """Apply smoothing ("quadratic sampling") to logits, as KoboldCpp and text-generation-webui do.

    Probable tokens come closer together, and the others move away. With d = logit - highest, a logit becomes
    highest - factor * ((3 - curve) / 2 * d^2 - (curve - 1) / 2 * d^3). A curve of 1 has no cubic part.
    """
    highest = logits.max()
    if highest == -np.inf:
        return logits
    distance = np.where(logits > -np.inf, logits - highest, 0)
    moved = highest - factor * ((3 - curve) / 2 * distance**2 - (curve - 1) / 2 * distance**3)
    return np.where(logits > -np.inf, moved, -np.inf).astype(np.float32)


def drop_impossible(array: Any) -> None:
    """Drop impossible candidates: those with a logit of -inf, and those whose probability is 0 as a float.

    Some samplers of llama.cpp don't survive them: `typ_p` computes 0 * -inf, the dynamic temperature counts them when
    it computes the largest possible entropy, and XTC with a threshold of 0 leaves one of them.
    """
    rows = rows_of(array)
    remaining = rows[rows["logit"] > rows["logit"].max() - _FARTHEST]
    if 0 < len(remaining) < len(rows):
        rows[: len(remaining)] = remaining
        array.size = len(remaining)


class Mirostat:
    """Keeps the candidates that mirostat 1 keeps, and learns from each token (Basu et al., ICLR 2021).

    llama.cpp's own computes the number of candidates as a C integer. This overflows once `mu` has grown, as it does
    where texts surprise less than `tau`, and from then on llama.cpp takes the likeliest token only.

    Args:
        tau: the surprise to aim for, in bits.
    """

    def __init__(self, n_vocab: int, tau: float, eta: float) -> None:
        self._n_vocab, self._tau, self._eta = n_vocab, tau, eta
        self._mu = [2 * tau]  # before each token, so that tokens can be taken back

    def narrow(self, array: Any) -> None:
        """Keep the most probable candidates."""
        rows = rows_of(array)
        if (k := self._n_candidates(rows["logit"])) < len(rows):
            rows[:k] = rows[largest_of(rows["logit"], k)]
            array.size = k
            array.sorted = False

    def _n_candidates(self, logits: Floats) -> int:
        n = min(len(logits), _MIROSTAT_M)
        if n < 2:
            return n
        best = logits[largest_of(logits, n)].astype(np.float64)
        places = np.arange(1, n)
        t, b = np.log((places + 1) / places), best[:-1] - best[1:]
        s = max(float(t @ b / (t @ t)), 1e-9)  # Zipf's exponent
        x = (1 - s) * math.log(self._n_vocab)
        zipf = math.log(self._n_vocab) * (math.expm1(x) / x if x else 1)  # (1 - n_vocab ** (1 - s)) / (s - 1)
        log_k = (self._mu[-1] * math.log(2) - math.log(zipf)) / s
        return max(1, int(math.exp(log_k))) if log_k < math.log(len(logits)) else len(logits)

    def accept(self, logprob: float) -> None:
        """Learn from a token, whose log-probability among the candidates is given."""
        self._mu.append(self._mu[-1] - self._eta * (-logprob / math.log(2) - self._tau))

    def go_back(self, n_tokens: int) -> None:
        """Forget the last tokens. Those that a resumed text began with aren't known."""
        del self._mu[max(1, len(self._mu) - n_tokens) :]


class XtcGuard:
    """Undoes a step of XTC if it has dropped a token that ends the text or a line, as text-generation-webui does.

    `before` and `after` run around llama.cpp's XTC. They have no state between steps.

    Args:
        spared: the tokens that XTC may not drop.
    """

    def __init__(self, spared: Places) -> None:
        self._spared = spared
        self._first = self._size = 0

    def before(self, array: Any) -> None:
        """Note the candidates."""
        self._first, self._size = ctypes.addressof(array.data.contents), array.size

    def after(self, array: Any) -> None:
        """Put back what XTC has dropped, if a spared token is among it."""
        # XTC sorts the candidates, and moves the beginning of the array behind those that it drops.
        n_dropped = self._size - array.size
        if not n_dropped:
            return
        whole = llama_cpp.llama_token_data_array(
            ctypes.cast(self._first, llama_cpp.llama_token_data_p), self._size, array.selected, True
        )
        if np.isin(rows_of(whole)["id"][:n_dropped], self._spared).any():
            array.data, array.size = whole.data, whole.size


def as_read(breakers: Iterable[str]) -> dict[bytes, str]:
    """Return the breakers as llama.cpp reads them, without duplicates, and their texts."""
    read = {text.encode(errors="replace").partition(b"\0")[0][:_MAX_BYTES]: text for text in breakers}
    read.pop(b"", None)
    return read


def check_breakers(texts: bytes, lists: Iterable[tuple[str, ...]]) -> None:
    """Refuse DRY's sequence breakers if they would take too long.

    llama.cpp looks for each breaker in the texts of all tokens. It notes the tokens that contain the breaker, and those
    that end where it begins, and for each of the latter it tokenizes the rest of the breaker. This happens in a worker
    thread, but each alternative's sampler copies the notes in the engine's thread. Raises `InvalidRequestError`.

    Args:
        texts: those of all tokens, with a zero byte after each.
        lists: the breakers of each different DRY setting.
    """
    settings = [as_read(each) for each in lists]
    n_breakers = sum(map(len, settings))
    if n_breakers > MAX_BREAKERS:
        raise InvalidRequestError(
            f"dry_sequence_breakers: the different DRY settings of branches have {n_breakers} breakers in total; the "
            f"limit is {MAX_BREAKERS}; give more branches the same DRY settings, or fewer breakers",
            param="dry_sequence_breakers",
        )
    counts: dict[bytes, int] = {}

    def count(text: bytes) -> int:
        if text not in counts:
            counts[text] = texts.count(text)
        return counts[text]

    def ends(breaker: bytes) -> int:
        starts = (breaker[:n] for n in range(1, len(breaker)))
        return sum(count(start + b"\0") for start in takewhile(count, starts))

    n_all_ends = 0
    for breakers in settings:
        n_ends = {breaker: ends(breaker) for breaker in breakers}
        n_notes = {breaker: count(breaker) + n_ends[breaker] for breaker in breakers}
        n_all_ends += sum(n_ends.values())
        if (n := max(sum(n_notes.values()), n_all_ends)) > MAX_TOKENS:
            worst = max(n_notes, key=n_notes.__getitem__)
            raise InvalidRequestError(
                f"dry_sequence_breakers are in {n} texts of the model's tokens, or begin at their ends; the limit is "
                f"{MAX_TOKENS}; leave out {breakers[worst]!r}, which has {n_notes[worst]} of them",
                param="dry_sequence_breakers",
            )


class ProcessorCall:
    """Calls a request's `logits_processor` with the tokens of one sequence.

    An exception becomes a `LogitsProcessorError`, which ends this alternative only.
    """

    def __init__(self, function: LogitsProcessor, prompt: tuple[int, ...]) -> None:
        self._function = function
        self._tokens = np.array(prompt, np.int32)  # grows by doubling
        self._n_tokens = len(prompt)

    def accept(self, token: int) -> None:
        """Append the sequence's next token."""
        if self._n_tokens == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty_like(self._tokens)))
        self._tokens[self._n_tokens] = token
        self._n_tokens += 1

    def go_back(self, n_tokens: int) -> None:
        """Remove the last tokens."""
        self._n_tokens -= n_tokens

    def process(self, logits: Floats) -> Floats:
        """Return the logits as changed by the function; `logits` itself stays the same.

        Raises `LogitsProcessorError`.
        """
        tokens = self._tokens[: self._n_tokens]
        tokens.flags.writeable = False
        row = logits.copy()
        try:
            # The function gets a view, so that a change of the shape doesn't change that of the row.
            result = self._function(tokens, row[:])
        except Exception as error:
            raise LogitsProcessorError(f"logits_processor raised {type(error).__name__}: {error}") from error
        if result is not None:
            raise LogitsProcessorError(
                f"logits_processor must change the logits in place and return None, got {type(result).__name__}"
            )
        if not math.isfinite(largest := float(row.max())):  # NaN is the largest of all
            raise LogitsProcessorError(
                "logits_processor must leave at least one finite logit, and otherwise only -inf, for a ban; "
                f"the largest logit is {largest}"
            )
        return row
