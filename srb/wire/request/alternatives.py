"""Reads from a body how many alternatives it asks for, now and ahead, with which parameters, and how long."""

import dataclasses

from srb.engine.asking.combinations import hinders_ahead
from srb.engine.asking.request import CompletionRequest
from srb.engine.asking.sampling_params import SamplingParams
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.request.completion_fields import BranchFields, CompletionFields
from srb.wire.tokens.named_tokens import MAX_BIASED_TEXTS, Tokenize


def count_alternatives(fields: CompletionFields, default: int, limits: Limits) -> int:
    """The number of alternatives of each prompt. default: if the body doesn't say. Raises `InvalidRequestError`."""
    if fields.branches is not None and fields.n is not None and fields.n != len(fields.branches):
        raise InvalidRequestError(
            f"n is {fields.n!s:.60}, but branches has {len(fields.branches)}; leave n out or make them agree",
            param="n",
        )
    n = default if fields.n is None else fields.n
    name = "n"
    if fields.branches is not None:
        n, name = len(fields.branches), "the number of branches"
    if not 1 <= n <= limits.max_n:
        raise InvalidRequestError(
            f"{name} must be from 1 to {limits.max_n}, got {n!s:.60}", param="n" if name == "n" else "branches"
        )
    return n


def make_branches(fields: CompletionFields, n: int, limits: Limits, tokenize: Tokenize) -> tuple[SamplingParams, ...]:
    """The parameters of each of n alternatives. Raises `InvalidRequestError`."""
    texts = sum(each.biased_texts for each in (fields, *(fields.branches or ())))
    if texts > MAX_BIASED_TEXTS:
        raise InvalidRequestError(
            f"logit_bias and banned_tokens have {texts} texts, those of all branches together; the limit is "
            f"{MAX_BIASED_TEXTS}; send token ids instead, which /tokenize tells",
            param="logit_bias",
        )
    common = SamplingParams(**{**limits.sampling, **fields.given(tokenize)}).alternatives(n)
    if fields.branches is None:
        return common
    return tuple(
        _override(params, branch, k, tokenize)
        for k, (params, branch) in enumerate(zip(common, fields.branches, strict=True))
    )


def _override(params: SamplingParams, branch: BranchFields, k: int, tokenize: Tokenize) -> SamplingParams:
    try:
        return dataclasses.replace(params, **branch.given(tokenize))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"branches[{k}]: {error.message}", param=f"branches[{k}].{error.param}") from None


def take_all_room(fields: CompletionFields, limits: Limits) -> bool:
    """Lets answers go on until the context is full, if nothing limits their length, as llama-server does.

    Returns whether it did so unasked: a chat then has at most `DEFAULT_MOST_TOKENS`. A search keeps the usual
    `max_tokens`, because it holds cells for all tokens of each beam from the start.
    """
    if fields.max_tokens is not None or limits.max_tokens is not None or fields.searches:
        return False
    fields.max_tokens = -1
    return all(branch.max_tokens != -1 for branch in fields.branches or ())


def takes_any_seed(fields: CompletionFields) -> bool:
    """Whether a body leaves the seeds of all alternatives to the server."""
    return all(seed in (None, -1) for seed in (fields.seed, *(branch.seed for branch in fields.branches or ())))


def with_ahead(request: CompletionRequest, fields: CompletionFields, limits: Limits) -> CompletionRequest:
    """The request with the number of alternatives that are drawn ahead.

    What only the server's settings ask for is left out if it can't be done for this request. Raises
    `InvalidRequestError` if the body asks for what can't be done.
    """
    ahead = limits.ahead if fields.ahead is None else fields.ahead
    if not ahead or (fields.ahead is None and hinders_ahead(request)):
        return request
    if not 0 <= ahead <= limits.max_n:
        raise InvalidRequestError(f"ahead must be from 0 to {limits.max_n} (--max-n), got {ahead!s:.60}", param="ahead")
    return dataclasses.replace(request, ahead=ahead)
