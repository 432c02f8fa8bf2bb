"""llama.cpp's samplers, chained as llama-server chains them."""

from collections.abc import Iterable
from typing import Any

import llama_cpp

from srb.engine.request import SamplingParams
from srb.errors import BackendError

_GREEDY_BELOW = 1e-30  # logits divided by less may overflow a float


class LlamaSampler:
    """The sampler chain of one sequence, with a random stream of its own."""

    def __init__(self, context: int, n_vocab: int, params: SamplingParams, ends: Iterable[int]) -> None:
        chain_params = llama_cpp.llama_sampler_chain_default_params()
        chain_params.no_perf = True
        self._context = context
        self._chain: Any = _checked(llama_cpp.llama_sampler_chain_init(chain_params))
        try:
            self._fill(n_vocab, params, ends)
        except BackendError:
            self.close()
            raise

    def _fill(self, n_vocab: int, params: SamplingParams, ends: Iterable[int]) -> None:
        if params.ignore_eos:
            biases = [llama_cpp.llama_logit_bias(token, float("-inf")) for token in ends]
            array = (llama_cpp.llama_logit_bias * len(biases))(*biases)
            self._add(llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(biases), array))
        if params.temperature < _GREEDY_BELOW:
            self._add(llama_cpp.llama_sampler_init_greedy())
            return
        if params.top_k > 0:
            self._add(llama_cpp.llama_sampler_init_top_k(params.top_k))
        if params.top_p < 1:
            self._add(llama_cpp.llama_sampler_init_top_p(params.top_p, 0))
        if params.min_p > 0:
            self._add(llama_cpp.llama_sampler_init_min_p(params.min_p, 0))
        self._add(llama_cpp.llama_sampler_init_temp(params.temperature))
        self._add(llama_cpp.llama_sampler_init_dist(_fixed_seed(params.seed)))

    def _add(self, sampler: Any) -> None:
        llama_cpp.llama_sampler_chain_add(self._chain, _checked(sampler))

    def sample(self, row: int) -> int:
        """Draws from the logits of this row of the last batch."""
        token: int = llama_cpp.llama_sampler_sample(self._chain, self._context, row)
        return token

    def close(self) -> None:
        """Frees the chain and the samplers in it."""
        llama_cpp.llama_sampler_free(self._chain)


def _fixed_seed(seed: int) -> int:
    """The seed for C, where the largest one means "draw one": it gets the stream of another, far from its siblings'."""
    return seed ^ 0x8000_0000 if seed == llama_cpp.LLAMA_DEFAULT_SEED else seed


def _checked(sampler: Any) -> Any:
    # `is None` doesn't see a NULL ctypes pointer, its truth does.
    if not sampler:
        raise BackendError("llama.cpp has no memory for a sampler")
    return sampler
