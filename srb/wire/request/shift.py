"""Decides whether the context of a request is shifted, by its body or else by the server's settings. Pure functions."""

import dataclasses
from functools import partial

from srb.engine.asking.combinations import hinders_shift
from srb.engine.asking.request import CompletionRequest
from srb.wire.limits import Limits
from srb.wire.request.completion_fields import CompletionFields
from srb.wire.tokens.named_tokens import Tokenize


def _is_wanted(fields: CompletionFields, limits: Limits) -> bool:
    return limits.context_shift if fields.context_shift is None else fields.context_shift


def tokenize_for(fields: CompletionFields, limits: Limits, tokenize: Tokenize) -> Tokenize:
    """The `Tokenize` for a prompt. If the context is shifted, the prompt may be longer than the context."""
    return partial(tokenize, any_length=True) if _is_wanted(fields, limits) else tokenize


def with_shift(request: CompletionRequest, fields: CompletionFields, limits: Limits) -> CompletionRequest:
    """The request with the fields of context shift.

    A shift that only the server's settings ask for is left out if it can't be done for this request. Raises
    `InvalidRequestError`, also if the body asks for a shift that can't be done.
    """
    if not _is_wanted(fields, limits) or (fields.context_shift is None and hinders_shift(request)):
        return request
    n_keep = limits.n_keep if fields.n_keep is None else fields.n_keep
    return dataclasses.replace(request, context_shift=True, n_keep=n_keep, n_discard=fields.n_discard or 0)


def ignored_of_shift(fields: CompletionFields, limits: Limits) -> list[str]:
    """The names of the fields that have no effect because the context isn't shifted."""
    return [] if _is_wanted(fields, limits) else sorted({"n_keep", "n_discard"} & fields.model_fields_set)
