"""What a decode takes, where nobody has measured it."""

from typing import Any

import llama_cpp

from srb.engine.costs import NEVER, Costs

# Of one thread of a server processor with AVX2 or better, in a second; from bench/pieces.py on two of them.
_WEIGHTS_OF_ROWS = 1.3e10  # weights multiplied with a row
_WEIGHTS_OF_PROMPTS = 2e10
_CELLS_OF_ROWS = 1e10  # multiplications with what cells hold
_CELLS_OF_PROMPTS = 2.5e10
_BYTES = 1e10  # that all threads together read of the weights

_APART = 64  # from here on, llama.cpp's flash attention takes many rows at once through the cells

_ON_A_GPU = Costs(step=0.005, row=1e-4, prompt_token=2e-4, row_cell=0.0, prompt_cell=0.0, apart=NEVER)
"""Rows are nearly free there: this makes pieces of whole batches."""


def estimated(model: Any, n_threads: int, *, is_on_gpu: bool) -> Costs:
    """The costs of a model, by its size. It is a guess within a factor of about two; `srb tune` measures them."""
    if is_on_gpu:
        return _ON_A_GPU
    weights: int = llama_cpp.llama_model_n_params(model)
    cell: int = 4 * llama_cpp.llama_model_n_layer(model) * llama_cpp.llama_model_n_embd(model)
    return Costs(
        step=llama_cpp.llama_model_size(model) / _BYTES,
        row=weights / n_threads / _WEIGHTS_OF_ROWS,
        prompt_token=weights / n_threads / _WEIGHTS_OF_PROMPTS,
        row_cell=cell / n_threads / _CELLS_OF_ROWS,
        prompt_cell=cell / n_threads / _CELLS_OF_PROMPTS,
        apart=_APART,
    )
