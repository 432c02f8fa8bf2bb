"""Ranks the tokens that a beam of a search may continue with, by their probabilities."""

import numpy as np

from srb.engine.asking.model import Ranked
from srb.engine.asking.sampling_params import SamplingParams
from srb.llama.sampling.logprobs import Floats, largest_of
from srb.llama.text.tokenizer import LlamaTokenizer


class LlamaRanker:
    """Ranks tokens by the model's probabilities, after adding biases. Implements `srb.engine.backend.Ranker`."""

    def __init__(self, tokenizer: LlamaTokenizer, params: SamplingParams) -> None:
        self._ends = np.fromiter(tokenizer.ends, np.intp)
        biases = dict.fromkeys(tokenizer.suppressed, -np.inf) | dict(params.logit_bias)
        if params.ignore_eos:
            biases |= dict.fromkeys(tokenizer.ends, -np.inf)
        self._biased = np.fromiter(biases.keys(), np.intp)
        self._biases = np.fromiter(biases.values(), np.float32)

    def rank(self, logits: Floats, top: int, *, may_end: bool) -> list[Ranked]:
        """The likeliest tokens. See `Ranker.rank`."""
        scores = logits.copy()
        scores[self._biased] += self._biases
        if not may_end:
            scores[self._ends] = -np.inf
        highest = scores.max()
        if highest == -np.inf:
            return []
        scores -= highest
        logprobs = scores - np.log(np.exp(scores).sum())
        best = largest_of(logprobs, min(top + len(self._ends), len(logprobs)))
        best = best[logprobs[best] > -np.inf]
        return list(zip(best.tolist(), logprobs[best].tolist(), strict=True))
