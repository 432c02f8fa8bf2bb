"""Chooses how the text between a prompt and a suffix is written: by the model's infill tokens, or by a bridge.

A model with tokens for infill reads the prefix and the suffix, and then writes the middle. For other models the request
keeps its suffix: `srb.engine.decoding.bridge` samples candidates from the prompt, and scores the suffix after each.
"""

from dataclasses import replace

from srb.engine.backend import Backend
from srb.engine.model import SpecialTokens
from srb.engine.request import CompletionRequest


def resolve(request: CompletionRequest, special: SpecialTokens, backend: Backend | None = None) -> CompletionRequest:
    """Return the request as it runs on a model: with its suffix in the prompts, or with a number of candidates.

    backend: where it runs; None: not known yet.
    """
    asks_for_bridge = request.n_candidates is not None or request.stop_at_suffix
    if request.suffix is not None and not asks_for_bridge:
        request = _placed(request, special)
    if backend and request.suffix is not None and request.n_candidates is None:
        spare = n_rows_here(request, backend) - request.n_rows
        most = max(len(request.branches), min(request.n_rows, most_rows(backend) - spare))
        request = replace(request, n_candidates=most)
    return request


def n_rows_here(request: CompletionRequest, backend: Backend) -> int:
    """Return `CompletionRequest.n_rows`, plus 1 for a suffix on a model with a sliding window or a recurrent state.

    Such a model can't remove tokens from its cells, so it scores the suffix in a fork.
    """
    return request.n_rows + (request.suffix is not None and backend.window is not None)


def most_rows(backend: Backend) -> int:
    """Return how many rows one prompt may have."""
    return min(backend.n_parallel, backend.n_seqs - 1)  # the prompt takes a seq_id, too


def _placed(request: CompletionRequest, special: SpecialTokens) -> CompletionRequest:
    """Return the request with its suffix in the prompts, or unchanged if the model has no tokens for infill."""
    suffix = request.suffix_ids
    prompts = []
    for tokens in request.token_ids:
        head = tokens[:1] if tokens[0] == special.bos else ()
        made = special.gap(tokens[len(head) :], suffix)
        if made is None:
            return request
        prompts.append(head + made)
    return replace(request, prompts=tuple(prompts), suffix=None)
