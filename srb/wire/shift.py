"""Whether the context of a request is shifted: as its body says, or else the server. Pure functions."""

import dataclasses
from functools import partial

from srb.engine.combinations import hinders_shift
from srb.engine.request import CompletionRequest
from srb.wire.completion_fields import CompletionFields
from srb.wire.limits import Limits
from srb.wire.named_tokens import Tokenize


def _is_wanted(fields: CompletionFields, limits: Limits) -> bool:
    return limits.context_shift if fields.context_shift is None else fields.context_shift


def tokenize_for(fields: CompletionFields, limits: Limits, tokenize: Tokenize) -> Tokenize:
    """What makes tokens of a prompt, which may be longer than the context if that is shifted."""
    return partial(tokenize, any_length=True) if _is_wanted(fields, limits) else tokenize


def with_shift(request: CompletionRequest, fields: CompletionFields, limits: Limits) -> CompletionRequest:
    """The request, and what may be moved for it: what is longer than the context, and what is known at other places.

    The server's wish is for those that it can be done for. Raises `InvalidRequestError`.
    """
    reuse = limits.cache_reuse if fields.n_cache_reuse is None else fields.n_cache_reuse
    if reuse:
        request = dataclasses.replace(request, n_cache_reuse=reuse)
    if not _is_wanted(fields, limits) or (fields.context_shift is None and hinders_shift(request)):
        return request
    n_keep = limits.n_keep if fields.n_keep is None else fields.n_keep
    return dataclasses.replace(request, context_shift=True, n_keep=n_keep, n_discard=fields.n_discard or 0)


def ignored_of_shift(fields: CompletionFields, limits: Limits) -> list[str]:
    """The names of the fields that have no effect, as the context isn't shifted."""
    return [] if _is_wanted(fields, limits) else sorted({"n_keep", "n_discard"} & fields.model_fields_set)
