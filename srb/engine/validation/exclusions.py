"""Refuses requests whose fields don't go together, such as a beam search with `diversity`.

`EXCLUSIONS` and `REQUIREMENTS` say which these are. What isn't a field by itself has a name in `_FEATURES`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from srb.engine.sampling_params import GRAMMAR_FIELDS, SamplingParams
from srb.engine.validation.fields import check_text
from srb.errors import InvalidRequestError

if TYPE_CHECKING:
    from srb.engine.request import CompletionRequest

BEAM_SEARCH = "a beam search"
BRIDGE = "a bridge to the suffix"
_ROWS = (BEAM_SEARCH, BRIDGE)
"""The strategies in which beams or candidates have the rows of a step, in place of the alternatives."""


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {each.name: each.default for each in dataclasses.fields(kind)}


_FEATURES: dict[str, Callable[["CompletionRequest"], object]] = {
    BEAM_SEARCH: lambda request: request.search == "beam",
    BRIDGE: lambda request: request.suffix is not None,
    "several prompts": lambda request: len(request.prompts) > 1,
    "several branches": lambda request: len(request.branches) > 1,
    "images and sounds": lambda request: request.media,
    "echo with logprobs": lambda request: request.echo and request.logprobs is not None,
    "max_tokens 0": lambda request: request.branches[0].max_tokens == 0,
    "max_tokens -1": lambda request: any(params.max_tokens == -1 for params in request.branches),
    "context_shift without max_tokens": lambda request: (
        request.context_shift and request.branches[0].max_tokens in (None, -1)
    ),
    "different branches": lambda request: any(
        getattr(params, name) != getattr(request.branches[0], name)
        for params in request.branches[1:]
        for name in _defaults(SamplingParams).keys() - {"seed", "label"}
    ),
    "branches that differ in more than seeds that follow each other": lambda request: (
        request.branches != request.branches[0].alternatives(len(request.branches))
    ),
}
"""What a request may ask for that is no field of its own, by its name in errors."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A feature, and what it can't be combined with.

    Attributes:
        feature: a field of a request or of its branches, or a key of `_FEATURES`.
        others: such names. The first of them that is asked for is in the error.
        param: the `param` of the error. Empty: the feature.
        why: the reason, where it isn't plain.
        remedy: what to do about it.
    """

    feature: str
    others: tuple[str, ...]
    param: str = ""
    why: str = ""
    remedy: str = "leave one out"


EXCLUSIONS = (
    Exclusion(
        "direction",
        (
            *(BEAM_SEARCH, "suffix", "explore", "candidates", "images and sounds", "echo with logprobs"),
            *("prompt_logprobs", "context_shift"),
        ),
    ),
    Exclusion("suffix", (BEAM_SEARCH,)),
    Exclusion(
        "explore", (BRIDGE, BEAM_SEARCH, "several prompts", "several branches", "echo", "logprobs", "prompt_logprobs")
    ),
    Exclusion(
        "candidates", (BRIDGE, BEAM_SEARCH, "distinct", "heal", "post_sampling_probs", "context_shift", "explore")
    ),
    *(Exclusion(name, _ROWS) for name in ("distinct", "post_sampling_probs")),
    *(Exclusion(name, _ROWS) for name in ("banned_strings", "bad_words", "avoid", "diversity", "guidance_scale")),
    *(Exclusion(name, (BEAM_SEARCH,)) for name in (*GRAMMAR_FIELDS, "logits_processor")),
    Exclusion(
        "max_tokens -1",
        _ROWS,
        param="max_tokens",
        why="that reserves cells for all of its texts",
        remedy="give a number, or leave it out",
    ),
    Exclusion("different branches", _ROWS, param="branches", remedy="give branches nothing but labels"),
    Exclusion("heal", (*GRAMMAR_FIELDS, BEAM_SEARCH, "explore", "echo with logprobs", "prompt_logprobs")),
    Exclusion(
        "context_shift",
        (
            *("several prompts", BEAM_SEARCH, "suffix", "explore", "images and sounds", "echo with logprobs"),
            *("prompt_logprobs", "guidance_scale", "banned_strings", "bad_words", "avoid"),
        ),
        remedy="leave one out, or start with a larger --ctx-size",
    ),
    Exclusion("echo", ("images and sounds",), why="it can't show them", remedy="leave echo out"),
    Exclusion("prompt_logprobs", ("images and sounds", BRIDGE)),
    Exclusion(
        "ahead",  # each alternative must be the same whatever its siblings are, and the next seed must be known
        (
            *("several prompts", BEAM_SEARCH, "suffix", "explore", "candidates", "images and sounds"),
            *("echo with logprobs", "prompt_logprobs", "max_tokens 0", "distinct", "diversity", "avoid"),
            *("branches that differ in more than seeds that follow each other", "context_shift without max_tokens"),
        ),
    ),
)

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    BEAM_SEARCH: ("beams", "length_penalty", "early_stopping"),
    BRIDGE: ("n_candidates", "stop_at_suffix"),
}
"""The fields that only have an effect with a feature."""

_REQUESTED_BY = {BEAM_SEARCH: '"search": "beam"', BRIDGE: "suffix"}
"""How to ask for a feature."""

BODY_NAMES = {"n_candidates": "candidates"}
"""The names of fields in bodies, where they differ from those in `CompletionRequest`."""


def check_exclusions(request: "CompletionRequest") -> None:
    """Raise `InvalidRequestError` if fields of a request don't go together. The seeds are already chosen."""
    for feature, names in REQUIREMENTS.items():
        for name in names:
            if _asks_for(request, name) and not _asks_for(request, feature):
                param = BODY_NAMES.get(name, name)
                raise InvalidRequestError(f"{param} goes with {_REQUESTED_BY[feature]}; leave it out", param=param)
    for each in EXCLUSIONS:
        if _asks_for(request, each.feature) and (other := _first_of(request, each)):
            why = f": {each.why}" if each.why else ""
            raise InvalidRequestError(
                f"{each.feature} and {other} exclude each other{why}; {each.remedy}", param=each.param or each.feature
            )
    for name in ("beams", "n_candidates"):
        n, value, param = len(request.branches), getattr(request, name), BODY_NAMES.get(name, name)
        if value is not None and value < n:
            raise InvalidRequestError(f"{param} must be at least n ({n}), got {value!s:.60}", param=param)
    if request.explore:
        most = request.explore.max_path
        _check_plain(request.branches[0], most, f"with explore has a max_tokens of {most}", "exploring")
    if request.candidates:
        _check_candidates(request)


def excludes(request: "CompletionRequest", feature: str) -> str | None:
    """Return the first thing that a request asks for and that a feature excludes. None: the two go together."""
    return next(filter(None, (_first_of(request, each) for each in EXCLUSIONS if each.feature == feature)), None)


def _first_of(request: "CompletionRequest", exclusion: Exclusion) -> str | None:
    return next((name for name in exclusion.others if _asks_for(request, name)), None)


def _asks_for(request: "CompletionRequest", name: str) -> bool:
    """Whether a request asks for a feature, or has a field, its own or a branch's, that isn't at its default."""
    if name in _FEATURES:
        return bool(_FEATURES[name](request))
    kind: Any = type(request)
    defaults = _defaults(kind)
    if name in defaults:
        return bool(getattr(request, name) != defaults[name])
    default = _defaults(SamplingParams)[name]
    return any(getattr(params, name) != default for params in request.branches)


def _check_candidates(request: "CompletionRequest") -> None:
    """Raise `InvalidRequestError` if the tokens in `candidates` don't fit the alternatives."""
    branches = request.branches * len(request.prompts)
    if len(request.candidates) != len(branches):
        raise InvalidRequestError(
            f"candidates must have one for each of the {len(branches)} alternatives, got {len(request.candidates)}",
            param="candidates",
        )
    for each, params in zip(request.candidates, branches, strict=True):
        if not isinstance(each, tuple):
            raise InvalidRequestError(f"candidates takes tuples of token ids, got {each!r:.60}", param="candidates")
        check_text("candidates", each)
        what = f"of a candidate of {len(each)} tokens has a max_tokens of at least {len(each)}"
        _check_plain(params, max(len(each), params.max_tokens or 0), what, "scoring")


def _check_plain(params: SamplingParams, max_tokens: int, what: str, maker: str) -> None:
    """Raise `InvalidRequestError` if a branch has more than a `max_tokens` and what has no effect on tokens."""
    if params != SamplingParams(max_tokens=max_tokens, seed=params.seed, label=params.label, lora=params.lora):
        raise InvalidRequestError(
            f"the branch {what} and nothing else; CompletionRequest.{maker} makes such a request",
            param="branches",
        )
