"""Estimates how long decodes take, for models that `srb tune` hasn't measured."""

from typing import Any

import llama_cpp

from srb.engine.costs import NEVER, Costs

# What one thread of a server processor with AVX2 or better does in a second: bench/kernels/pieces.py on two of them.
_WEIGHTS_OF_ROWS = 1.3e10  # weights multiplied with a row
_WEIGHTS_OF_PROMPTS = 2e10
_CELLS_OF_ROWS = 1e10  # multiplications with numbers that cells hold
_CELLS_OF_PROMPTS = 2.5e10
_BYTES = 1e10  # bytes of weights that all threads read together

_LONE = 0.7  # a decode with one row takes so much of what a line through the times of several rows says

_APART = 64  # from so many rows on, llama.cpp's flash attention takes them through the cells together

_ON_A_GPU = Costs(step=0.005, row=1e-4, prompt_token=2e-4, row_cell=0.0, prompt_cell=0.0, apart=NEVER)
"""On a GPU, rows are nearly free. These costs make pieces that fill whole batches."""


def estimated(model: Any, n_threads: int, *, is_on_gpu: bool) -> Costs:
    """The costs of a model, by its size: a guess that is right within a factor of about 2. `srb tune` measures them."""
    if is_on_gpu:
        return _ON_A_GPU
    weights: int = llama_cpp.llama_model_n_params(model)
    cell: int = 4 * llama_cpp.llama_model_n_layer(model) * llama_cpp.llama_model_n_embd(model)
    step, row = llama_cpp.llama_model_size(model) / _BYTES, weights / n_threads / _WEIGHTS_OF_ROWS
    return Costs(
        step=step,
        row=row,
        prompt_token=weights / n_threads / _WEIGHTS_OF_PROMPTS,
        row_cell=cell / n_threads / _CELLS_OF_ROWS,
        prompt_cell=cell / n_threads / _CELLS_OF_PROMPTS,
        apart=_APART,
        lone_step=_LONE * (step + row),
    )
