"""Refuses requests whose fields exclude each other, such as a beam search with `diversity`."""

import dataclasses
from typing import Any

from srb.engine.sampling_params import CONSTRAINTS, SamplingParams
from srb.engine.validation.fields import check_text
from srb.errors import InvalidRequestError

SEARCHES = ("sample", "beam")
"""How the texts of a request are found; see `CompletionRequest.search`."""

MAX_LENGTH_PENALTY = 10.0

_DRAWING = ("distinct", "heal", "post_sampling_probs", "context_shift", "explore")
"""The fields of a request that change what is drawn, and so exclude `candidates`."""


def check_combination(request: Any) -> None:
    """Raises `InvalidRequestError` for fields that exclude each other, and for values that are out of range.

    request: a `CompletionRequest`, which calls this when it is made.
    """
    _check_search(request)
    if request.heal:
        _check_heal(request)
    if request.context_shift:
        _check_shift(request)
    if request.explore and (
        request.count > 1 or request.echo or request.logprobs is not None or request.search != "sample"
    ):
        raise InvalidRequestError(
            "explore takes one prompt and one branch, without echo, logprobs and search", param="explore"
        )
    if request.explore:
        (params,) = request.branches
        own = dataclasses.replace(
            SamplingParams(max_tokens=request.explore.max_path), seed=params.seed, label=params.label, lora=params.lora
        )
        if params != own:
            raise InvalidRequestError(
                f"the branch of a request with explore has a max_tokens of {own.max_tokens} and nothing else; "
                "CompletionRequest.exploring makes such a request",
                param="branches",
            )
    if request.candidates:
        _check_candidates(request)
    if request.media and request.echo:
        raise InvalidRequestError("echo can't show images and sounds; leave it out", param="echo")


def _check_candidates(request: Any) -> None:
    """Refuses candidates that don't fit the alternatives, and fields that change what is drawn: nothing is drawn."""
    candidates, branches = request.candidates, request.branches * len(request.prompts)
    if len(candidates) != len(branches):
        raise InvalidRequestError(
            f"candidates must have one for each of the {len(branches)} alternatives, got {len(candidates)}",
            param="candidates",
        )
    for each, params in zip(candidates, branches, strict=True):
        if not isinstance(each, tuple):
            raise InvalidRequestError(f"candidates takes tuples of token ids, got {each!r:.60}", param="candidates")
        check_text("candidates", each)
        own = SamplingParams(max_tokens=params.max_tokens, seed=params.seed, label=params.label, lora=params.lora)
        if params != own or len(each) > (params.max_tokens or 0):
            raise InvalidRequestError(
                f"the branch of a candidate of {len(each)} tokens has a max_tokens of at least {len(each)}, and "
                "nothing else; CompletionRequest.scoring makes such a request",
                param="branches",
            )
    without = {name: getattr(request, name) for name in _DRAWING} | {"search": request.n_rows > 0}
    for name in filter(without.get, without):
        raise InvalidRequestError(f"candidates and {name} exclude each other; leave one out", param="candidates")


def _check_heal(request: Any) -> None:
    """Refuses fields that don't work with `heal`, where the prompt's last token is taken back."""
    without: dict[str, bool] = {
        name: any(getattr(params, name) is not None for params in request.branches) for name in CONSTRAINTS
    }
    without |= {"search": request.search == "beam", "explore": request.explore is not None}
    without["echo with logprobs"] = request.echo and request.logprobs is not None
    for name in filter(without.get, without):
        raise InvalidRequestError(f"heal and {name} exclude each other; leave one out", param="heal")


def _check_search(request: Any) -> None:
    """Refuses fields that don't work with a search, and fields of a search in a request without one."""
    search, n = request.search, len(request.branches)
    if search not in SEARCHES:
        raise InvalidRequestError(f"search is one of {', '.join(SEARCHES)}, got {search!s:.60}", param="search")
    for name, default in (("beams", None), ("length_penalty", 1.0), ("early_stopping", False)):
        if search != "beam" and getattr(request, name) != default:
            raise InvalidRequestError(f'{name} goes with "search": "beam"; leave it out', param=name)
    _check_bridge(request)
    if search != "beam":
        return
    if request.beams is not None and request.beams < n:
        raise InvalidRequestError(f"beams must be at least n ({n}), got {request.beams!s:.60}", param="beams")
    if not -MAX_LENGTH_PENALTY <= request.length_penalty <= MAX_LENGTH_PENALTY:
        raise InvalidRequestError(
            f"length_penalty must be from {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}, "
            f"got {request.length_penalty!s:.60}",
            param="length_penalty",
        )
    if request.early_stopping not in (True, False, "never"):
        raise InvalidRequestError(
            f'early_stopping must be true, false or "never", got {request.early_stopping!s:.60}', param="early_stopping"
        )
    _check_rows(request, "a beam search", "beams", (*CONSTRAINTS, "logits_processor"))


def _check_bridge(request: Any) -> None:
    """Refuses fields that don't work with a bridge, and fields of a bridge in a request without a suffix."""
    n = len(request.branches)
    if request.suffix is None:
        own = {"candidates": request.n_candidates is not None, "stop_at_suffix": request.stop_at_suffix}
        for name in filter(own.get, own):
            raise InvalidRequestError(f"{name} goes with suffix; leave it out", param=name)
        return
    check_text("suffix", request.suffix)
    if request.search != "sample":
        raise InvalidRequestError("suffix and a beam search exclude each other; leave one out", param="suffix")
    if request.n_candidates is not None and request.n_candidates < n:
        raise InvalidRequestError(
            f"candidates must be at least n ({n}), got {request.n_candidates!s:.60}", param="candidates"
        )
    what = "a bridge to the suffix"
    for name in ("explore", "candidates"):
        if getattr(request, name):
            raise InvalidRequestError(f"{name} and {what} exclude each other; leave one out", param=name)
    _check_rows(request, what, "candidates", ())


def _check_rows(request: Any, what: str, rows: str, also: tuple[str, ...]) -> None:
    """Refuses what doesn't work where `rows`, such as beams, have the rows of a step in place of the alternatives.

    also: further fields of an alternative that don't work.
    """
    params = request.branches[0]
    for name in ("distinct", "post_sampling_probs"):
        if getattr(request, name):
            raise InvalidRequestError(f"{name} and {what} exclude each other; leave one out", param=name)
    defaults = {each.name: each.default for each in dataclasses.fields(params)}
    for name in ("banned_strings", "avoid", "diversity", "guidance_scale", *also):
        if any(getattr(each, name) != defaults[name] for each in request.branches):
            raise InvalidRequestError(f"{name} and {what} exclude each other; leave one out", param=name)
    if params.max_tokens == -1:
        raise InvalidRequestError(
            f"max_tokens can't be -1 in {what}, which needs room for all of its {rows}; give a number, or leave it out",
            param="max_tokens",
        )
    if any(dataclasses.replace(each, seed=params.seed, label=params.label) != params for each in request.branches):
        raise InvalidRequestError(
            f"in {what} all branches are alike, but for their labels; leave out what is of one alone",
            param="branches",
        )


def _check_shift(request: Any) -> None:
    """Refuses fields that don't work with `context_shift`, and values of its own fields that are out of range."""
    for name, least in (("n_keep", -1), ("n_discard", 0)):
        if (value := getattr(request, name)) < least:
            raise InvalidRequestError(f"{name} must be {least} or more, got {value!s:.60}", param=name)
    if reason := hinders_shift(request):
        raise InvalidRequestError(
            f"context_shift and {reason} exclude each other; leave one out, or start with a larger --ctx-size",
            param="context_shift",
        )


def hinders_shift(request: Any) -> str | None:
    """The name of what makes a context shift impossible in this request; None: it is possible."""
    hindrances = {
        "several prompts": len(request.prompts) > 1,
        "a beam search": request.search == "beam",
        "suffix": request.suffix is not None,
        "explore": request.explore is not None,
        "images and sounds": bool(request.media),
        "echo with logprobs": request.echo and request.logprobs is not None,
        "guidance_scale": bool(request.guided),
        "banned_strings": any(params.banned_strings for params in request.branches),
        "avoid": any(params.avoid is not None for params in request.branches),
    }
    return next(filter(hindrances.get, hindrances), None)


def check_ahead(request: Any) -> None:
    """Refuses a request of which no further alternatives can be drawn ahead, and a number that is out of range.

    The seeds of its branches are drawn already.
    """
    if request.ahead < 0:
        raise InvalidRequestError(f"ahead must be 0 or more, got {request.ahead!s:.60}", param="ahead")
    if reason := hinders_ahead(request):
        raise InvalidRequestError(f"ahead and {reason} exclude each other; leave one out", param="ahead")


def hinders_ahead(request: Any) -> str | None:
    """The name of what keeps further alternatives of this request from being drawn ahead; None: they can be.

    Each must be the same whoever its siblings are, and it must be known what the next seed is.
    """
    first, branches = request.branches[0], request.branches
    hindrances = {
        "several prompts": len(request.prompts) > 1,
        "a beam search": request.search == "beam",
        "suffix": request.suffix is not None,
        "explore": request.explore is not None,
        "candidates": bool(request.candidates),
        "images and sounds": bool(request.media),
        "echo with logprobs": request.echo and request.logprobs is not None,
        "max_tokens 0": first.max_tokens == 0,
        "distinct": request.distinct,
        "diversity": any(params.diversity for params in branches),
        "avoid": any(params.avoid is not None for params in branches),
        "branches that differ in more than seeds that follow each other": branches != first.alternatives(len(branches)),
        "context_shift without max_tokens": request.context_shift and first.max_tokens in (None, -1),
    }
    return next(filter(hindrances.get, hindrances), None)
