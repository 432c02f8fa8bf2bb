"""Turns the bodies of KoboldAI's routes into requests for the engine. Pure functions."""

from typing import Any

from pydantic import Field

from srb.engine.model_facts import ModelFacts
from srb.engine.samplers import KOBOLD_IDS, kobold_order
from srb.engine.sampling_params import ANY_CASE
from srb.engine.validation.patterns import is_pattern
from srb.errors import InvalidRequestError
from srb.wire.context import RequestContext
from srb.wire.request.body import Parsed, parse_fields
from srb.wire.request.fields import CompletionFields
from srb.wire.request.read import BodyFields, Int, show
from srb.wire.tokens import is_text, tokens_of

MAX_LENGTH = 896
"""KoboldCpp's `max_length` for bodies that send none, in tokens."""

TOP_LOGPROBS = 5
"""The number of `top_logprobs` for `"logprobs": true`, as in KoboldCpp."""


_WITHOUT_EFFECT = (
    *("bypass_eos", "render_special", "images", "messages", "chat_template_kwargs", "tools", "suffix"),
    *("echo", "best_of", "stream_options", "top_logprobs", "post_sampling_probs", "return_tokens", "return_progress"),
    "timings_per_token",
)
"""The fields that have no effect in this format, and are reported."""


class KoboldFields(CompletionFields):
    """The body of `POST /api/v1/generate` and `POST /api/extra/generate/stream`."""

    own_names = frozenset(
        {"max_length", "rep_pen", "rep_pen_range", "sampler_seed", "stop_sequence", "typical", "nsigma"}
    )

    memory: str = Field("", description="a text before the prompt, which stays if the prompt is cut.")
    max_context_length: Int | None = Field(
        None,
        description="the most tokens of prompt and text; a longer prompt is cut at its beginning.",
    )
    genkey: str = Field("", description="a name for the request, to look at it or to end it.")
    sampler_order: list[Int] | None = Field(
        None, description="ids: 0 top_k, 1 top_a, 2 top_p and min_p, 3 tfs, 4 typical_p, 5 temperature, 6 penalties."
    )
    quiet: bool = Field(False, description="ignored: texts are never logged here.")
    trim_stop: bool = Field(True, description="false is `include_stop_str_in_output`.")
    bypass_eos: bool = Field(False, description="ignored.")
    render_special: bool = Field(False, description="ignored.")
    images: list[Any] = Field([], description="ignored.")

    def cut_to_one(self) -> None:
        """Leave out all alternatives but the first."""
        if self.n is not None and self.n > 1:
            self.n = 1
            self._left_out.append("n")
        for name in ("branches", "directions"):
            if len(several := getattr(self, name) or ()) > 1:
                setattr(self, name, several[:1])
                self._left_out.append(f"{name} (all but the first)")


class KeyFields(BodyFields):
    """The body of `POST /api/extra/generate/check`, `abort` and `last_logprobs`. Some clients send none."""

    genkey: str = Field("", description="the `genkey` that the request was sent with.")


class CountFields(BodyFields):
    """The body of `POST /api/extra/tokencount`."""

    prompt: str = Field("", description="a text.")
    special: bool = Field(True, description="begin with the BOS token if the model wants it.")


class IdsFields(BodyFields):
    """The body of `POST /api/extra/detokenize`."""

    ids: list[Int] | None = Field(None, description="the ids of tokens.")


def parse(fields: KoboldFields, context: RequestContext, *, stream: bool) -> Parsed:
    """Make a request of a body. A stream has one alternative, since its events have no index."""
    model = context.engine.model
    fields.leave_out(*_WITHOUT_EFFECT)
    if not fields.trim_stop and fields.include_stop_str_in_output is None:
        fields.include_stop_str_in_output = True
    if stream:
        fields.cut_to_one()
    _take_phrases(fields)
    if fields.max_tokens in (None, -1):
        fields.max_tokens = default_length(model.n_cells)
    if fields.samplers is not None:
        fields.leave_out("sampler_order")
    elif fields.sampler_order:
        fields.samplers = _ordered(fields.sampler_order)
    lengths = (each.max_tokens for each in fields.branches or (fields,))
    most = max(fields.max_tokens if length is None else length for length in lengths)
    fields.prompt, n_truncated = _prompt(fields, model, most)
    fields.n_probs = TOP_LOGPROBS if fields.logprobs is True else fields.logprobs or fields.n_probs
    fields.logprobs = None
    parsed = parse_fields(fields, context.limits, chat=False, form="chunks" if stream else "object")
    if n_truncated:
        parsed.ignored.append(f"prompt (its first {n_truncated} tokens)")
    return parsed


def default_length(n_cells: int) -> int:
    """Return how many tokens to generate for a body that doesn't say, in a context of `n_cells`."""
    return min(MAX_LENGTH, max(1, n_cells // 2))


def _take_phrases(fields: KoboldFields) -> None:
    """Move the phrases in `banned_tokens` to `banned_strings`, which ignore case. Ids stay where they are.

    KoboldCpp takes phrases in both fields.
    """
    banned = fields.banned_tokens or []
    phrases = [*(fields.banned_strings or ()), *filter(is_text, banned)]
    fields.banned_tokens = [each for each in banned if not is_text(each)]
    fields.banned_strings = [
        text if is_pattern(text) else ANY_CASE + text.removeprefix(ANY_CASE) for text in phrases if text
    ]


def _ordered(ids: list[int]) -> list[str]:
    for each in ids:
        if each not in KOBOLD_IDS:
            raise InvalidRequestError(
                f"sampler_order takes ids from 0 to {KOBOLD_IDS[-1]}, got {show(each)}", param="sampler_order"
            )
    return list(kobold_order(ids))


def _prompt(fields: KoboldFields, model: ModelFacts, max_length: int) -> tuple[tuple[int, ...], int]:
    """Return the tokens of memory and prompt, and how many the prompt loses at its beginning so that both fit."""
    prompt, limit = fields.prompt, fields.max_context_length
    if not isinstance(prompt, str):
        raise InvalidRequestError(f"prompt must be a string, got {show(prompt)}", param="prompt")
    if limit is not None and limit < 1:
        raise InvalidRequestError(f"max_context_length must be at least 1, got {limit}", param="max_context_length")
    memory = tokens_of([fields.memory], "memory", model.tokenizer, add_special=True)
    rest = tokens_of([prompt], "prompt", model.tokenizer, add_special=not fields.memory)
    rest = rest[0 if fields.memory else len(memory) :]
    room = min(limit or model.n_cells, model.n_cells) - max_length - len(memory)
    n_truncated = max(0, len(rest) - room) if room > 0 else 0  # without room, the engine says what is too long
    return (*memory, *rest[n_truncated:]), n_truncated
