"""Parses the bodies of KoboldAI's routes."""

from typing import Any

from pydantic import Field

from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import ANY_CASE
from srb.engine.validation.patterns import is_pattern
from srb.errors import InvalidRequestError
from srb.wire.context import RequestContext
from srb.wire.request import body
from srb.wire.request.body import with_shift
from srb.wire.request.body_fields import BodyFields, Int
from srb.wire.request.completion import CompletionFields, count_alternatives, make_branches, takes_any_seed, with_ahead
from srb.wire.request.read import depth_refused, read_fields, show
from srb.wire.tokens import Vocabulary, is_text

MAX_LENGTH = 896
"""KoboldCpp's `max_length` for bodies that send none, in tokens."""

TOP_LOGPROBS = 5
"""How many top tokens `"logprobs": true` shows, as in KoboldCpp."""

_BEFORE, _AFTER = ("dry", "top_n_sigma"), ("xtc",)
_SAMPLERS = {0: ("top_k",), 1: (), 2: ("top_p", "min_p"), 3: (), 4: ("typ_p",), 5: ("temperature",), 6: ("penalties",)}
"""The samplers that each id in `sampler_order` stands for. 1 and 3 are top_a and tfs, which llama.cpp doesn't have."""


_WITHOUT_EFFECT = (
    *("bypass_eos", "render_special", "images", "messages", "chat_template_kwargs", "tools", "functions", "suffix"),
    *("echo", "best_of", "stream_options", "top_logprobs", "post_sampling_probs", "return_tokens", "return_progress"),
    "timings_per_token",
)


class KoboldFields(CompletionFields):
    """The body of `POST /api/v1/generate` and `POST /api/extra/generate/stream`."""

    memory: str = Field("", description="a text before the prompt. It stays if the prompt is truncated.")
    max_context_length: Int | None = Field(
        None,
        description="the most tokens of prompt and text. A longer prompt is truncated at its beginning.",
    )
    genkey: str = Field("", description="a name for the request, to look at it or to end it.")
    sampler_order: list[Int] | None = Field(
        None, description="ids: 0 top_k, 1 top_a, 2 top_p and min_p, 3 tfs, 4 typical_p, 5 temperature, 6 penalties."
    )
    quiet: bool = Field(False, description="texts are never logged here.")
    trim_stop: bool = Field(True, description="stop sequences are never a part of the text; false is ignored.")
    bypass_eos: bool = Field(False, description="ignored.")
    render_special: bool = Field(False, description="ignored.")
    images: list[Any] = Field([], description="ignored.")


class KeyFields(BodyFields):
    """The body of `POST /api/extra/generate/check` and `POST /api/extra/abort`. It may be left out."""

    genkey: str = Field("", description="the `genkey` that the request was sent with.")


class CountFields(BodyFields):
    """The body of `POST /api/extra/tokencount`."""

    prompt: str = Field("", description="a text.")
    special: bool = Field(True, description="begin with the BOS token if the model wants it.")


class IdsFields(BodyFields):
    """The body of `POST /api/extra/detokenize`."""

    ids: list[Int] | None = Field(None, description="the ids of tokens.")


def parse(data: bytes, context: RequestContext, *, stream: bool) -> tuple[KoboldFields, CompletionRequest, list[str]]:
    """The fields of a body, their request, and the names of the fields without effect.

    A stream has one alternative, because its events have no index, and clients join all texts into one.

    Raises:
        InvalidRequestError: A field is wrong.
    """
    limits, vocabulary = context.limits, context.vocabulary
    with depth_refused():
        fields = read_fields(data, KoboldFields)
        ignored = body.ignored_fields(fields, limits) + _cut_to_one(fields, stream)
        ignored += _without_effect(fields)
        _take_phrases(fields)
        n = count_alternatives(fields, 1, limits)
        if fields.max_tokens in (None, -1):
            fields.max_tokens = default_length(vocabulary.n_cells)
        if fields.sampler_order and fields.samplers is None:
            fields.samplers = _ordered(fields.sampler_order)
        fields.stop = [text for text in fields.stop or () if text]
        branches = make_branches(fields, n, limits, context.engine.tokenize)
        prompt, n_cut = _prompt(fields, vocabulary, max(params.max_tokens or 0 for params in branches))
        if n_cut:
            ignored.append(f"prompt (its first {n_cut} tokens)")
        logprobs = TOP_LOGPROBS if fields.logprobs is True else fields.logprobs or fields.n_probs
        completion = CompletionRequest(
            (prompt,),
            branches,
            distinct=bool(fields.distinct),
            heal=bool(fields.heal),
            **fields.search_settings,
            logprobs=logprobs or None,
            any_seed=takes_any_seed(fields),
            cache_prompt=fields.cache_prompt is not False,
        )
    return fields, with_ahead(with_shift(completion, fields, limits), fields, limits), ignored


def default_length(n_cells: int) -> int:
    """The default of `max_length`, in a context of `n_cells`."""
    return min(MAX_LENGTH, max(1, n_cells // 2))


def _cut_to_one(fields: KoboldFields, stream: bool) -> list[str]:
    """Reduces a stream to its first alternative, and returns the names of the fields that asked for more."""
    if not stream:
        return []
    ignored = []
    if fields.n is not None and fields.n > 1:
        fields.n = 1
        ignored.append("n")
    if fields.branches is not None and len(fields.branches) > 1:
        fields.branches = fields.branches[:1]
        ignored.append("branches (all but the first)")
    return ignored


def _without_effect(fields: KoboldFields) -> list[str]:
    """The names of the body's fields that are known, but have no effect in this format."""
    ignored = [name for name in _WITHOUT_EFFECT if getattr(fields, name)]
    ignored += [] if fields.trim_stop else ["trim_stop"]
    return ignored + (["sampler_order"] if fields.sampler_order and fields.samplers is not None else [])


def _take_phrases(fields: KoboldFields) -> None:
    """Moves the phrases in `banned_tokens` to `banned_strings`. Ids stay where they are.

    KoboldCpp takes phrases in both fields, and finds them without regard to case.
    """
    banned = fields.banned_tokens or []
    phrases = [*(fields.banned_strings or ()), *filter(is_text, banned)]
    fields.banned_tokens = [each for each in banned if not is_text(each)]
    fields.banned_strings = [
        text if is_pattern(text) else ANY_CASE + text.removeprefix(ANY_CASE) for text in phrases if text
    ]


def _ordered(ids: list[int]) -> list[str]:
    for each in ids:
        if each not in _SAMPLERS:
            raise InvalidRequestError(
                f"sampler_order takes ids from 0 to {max(_SAMPLERS)}, got {show(each)}", param="sampler_order"
            )
    return [*_BEFORE, *(name for each in ids for name in _SAMPLERS[each]), *_AFTER]


def _prompt(fields: KoboldFields, vocabulary: Vocabulary, max_length: int) -> tuple[tuple[int, ...], int]:
    """The tokens of memory and prompt, and how many the prompt loses at its beginning so that both fit."""
    prompt, limit = fields.prompt, fields.max_context_length
    if not isinstance(prompt, str):
        raise InvalidRequestError(f"prompt must be a string, got {show(prompt)}", param="prompt")
    if limit is not None and limit < 1:
        raise InvalidRequestError(f"max_context_length must be at least 1, got {limit}", param="max_context_length")
    memory = vocabulary.encode(fields.memory, "memory")
    rest = vocabulary.encode(prompt, "prompt", add_special=not fields.memory)[0 if fields.memory else len(memory) :]
    room = min(limit or vocabulary.n_cells, vocabulary.n_cells) - max_length - len(memory)
    n_cut = max(0, len(rest) - room) if room > 0 else 0  # without room, the engine says what is too long
    return (*memory, *rest[n_cut:]), n_cut


def read_key(data: bytes) -> tuple[str, list[str]]:
    """The `genkey` of a body, empty if it has none, and the names of the fields that have no effect.

    Some clients send no body. Raises `InvalidRequestError`.
    """
    with depth_refused():
        fields = read_fields(data.strip() or b"{}", KeyFields)
    return fields.genkey, fields.unread()
