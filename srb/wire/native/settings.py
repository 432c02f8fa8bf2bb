"""The settings that an alternative is drawn with, as JSON."""

import dataclasses
import json
import math
from typing import Any

from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams

_PRIVATE = (
    *("stop", "banned_strings", "avoid", "negative_prompt", "logit_bias", "grammar", "json_schema"),
    *("dry_sequence_breakers", "label"),
)


def generation_settings(params: SamplingParams, request: CompletionRequest | None) -> dict[str, Any]:
    """`generation_settings`: how an alternative is drawn, with the defaults and its own seed."""
    result = dataclasses.asdict(params)
    del result["logits_processor"]  # a Python function, which only callers of the library can pass
    biases = [{"token": token, "bias": None if bias == -math.inf else bias} for token, bias in params.logit_bias]
    return result | {
        "logit_bias": biases,
        "grammar": params.grammar or "",
        "json_schema": params.json_schema and json.loads(params.json_schema),
        "n_predict": params.max_tokens,
        "n_keep": request.n_keep if request else 0,
        "n_discard": request.n_discard if request else 0,
        "n_probs": (request and request.logprobs) or 0,
        "post_sampling_probs": bool(request and request.post_sampling_probs),
    }


def public_settings(params: SamplingParams, request: CompletionRequest) -> dict[str, Any]:
    """The `generation_settings` without the fields that may quote somebody's text."""
    return {name: value for name, value in generation_settings(params, request).items() if name not in _PRIVATE}
