"""Parses the bodies of llama-server's routes."""

from dataclasses import dataclass

from pydantic import Field

from srb.engine.media import Media
from srb.engine.model import Tokenizer
from srb.engine.request import DEFAULT_CANDIDATES, SUFFIX_TOKENS, CompletionRequest
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.request import body
from srb.wire.request.body import tokenize_for, with_shift
from srb.wire.request.body_fields import BodyFields, Int
from srb.wire.request.completion import (
    CompletionFields,
    count_alternatives,
    make_branches,
    take_all_room,
    takes_any_seed,
    with_ahead,
)
from srb.wire.request.fields import BRIDGE_FIELDS
from srb.wire.request.media import Take, not_here
from srb.wire.request.prompts import infill, make_prompts
from srb.wire.request.read import depth_refused, read_fields, show
from srb.wire.tokens import Parts, Tokenize, check_text, tokens_of

_INFILL_TOKENS = 256
"""How many tokens to reserve for each alternative of an infill without `n_predict`."""


class LlamaFields(CompletionFields):
    """The body of `POST /completion`."""

    response_fields: list[str] | None = Field(
        None, description="the fields to return; a slash names a field of an object: timings/prompt_n."
    )
    t_max_predict_ms: Int | None = Field(
        None,
        description="milliseconds after its first token when an alternative ends at its next line break; 0: never.",
    )


class ExtraFields(BodyFields):
    """One file of `input_extra`."""

    text: str = Field(description="the text of the file.")
    filename: str = Field("file", description="the name of the file.")


class InfillFields(LlamaFields):
    """The body of `POST /infill`."""

    input_prefix: Parts = Field(description="the text before the gap.")
    input_suffix: Parts = Field(description="the text after the gap.")
    input_extra: list[ExtraFields] | None = Field(None, description="other files that may help.")


@dataclass(frozen=True)
class LlamaParsed:
    """A parsed body.

    Attributes:
        completion: The request.
        ignored: The names of the body's fields that have no effect.
        stream: Whether the response is streamed.
        detach: Whether the request goes on without readers.
        return_tokens: Whether results have their token ids.
        timings_per_token: Whether chunks have `timings`.
        t_max_predict_ms: After how many milliseconds an alternative ends at its next line break; 0: never.
        response_fields: The fields of a result to return; empty: all. `a/b` is the field b of the object a.
    """

    completion: CompletionRequest
    ignored: list[str]
    stream: bool
    detach: bool
    return_tokens: bool
    timings_per_token: bool
    t_max_predict_ms: int
    response_fields: tuple[str, ...]


def parse_completion(data: bytes, limits: Limits, tokenize: Tokenize, take: Take = not_here) -> LlamaParsed:
    """Reads the body of `POST /completion`. Raises `InvalidRequestError`."""
    with depth_refused():
        fields = read_fields(data, LlamaFields)
        n = _count(fields, limits)
        prompts, media = make_prompts(fields.prompt, limits, n, tokenize_for(fields, limits, tokenize), take)
        return _parsed(fields, prompts, n, limits, tokenize, media)


def parse_infill(data: bytes, limits: Limits, tokenize: Tokenize, tokenizer: Tokenizer, n_cells: int) -> LlamaParsed:
    """Reads the body of `POST /infill`, for a context of `n_cells`.

    `input_extra` is truncated at its beginning if it doesn't fit, and `ignored` says so. Without fill-in-the-middle
    tokens, candidates are sampled and scored.

    Raises:
        InvalidRequestError: A field is wrong.
    """
    with depth_refused():
        fields = read_fields(data, InfillFields)
        n = _count(fields, limits)
        if not isinstance(fields.prompt, str | None):
            raise InvalidRequestError(f"prompt must be a string, got {show(fields.prompt)}", param="prompt")

        def plain(text: str) -> tuple[int, ...]:
            return tokenizer.tokenize(check_text(text, "input_extra"), is_prompt=False, parse_special=False)

        prompt = tokens_of(fields.input_prefix, "input_prefix", tokenizer, parse_special=False)
        prompt += tokens_of([fields.prompt or ""], "prompt", tokenizer)
        suffix = tokens_of(fields.input_suffix, "input_suffix", tokenizer, parse_special=False)
        files = [(each.filename, each.text) for each in fields.input_extra or ()]
        body.take_candidates(fields)
        is_bridge = bool(fields.searches or {*BRIDGE_FIELDS} & fields.model_fields_set)
        made = infill(prompt, suffix, files, tokenizer.special, plain, is_bridge=is_bridge)
        head = tokenizer.tokenize("")
        most = _INFILL_TOKENS if fields.max_tokens in (None, -1) else fields.max_tokens or 0
        n_texts = 1
        if made.suffix:
            fields.suffix = [*made.suffix]
            fields.max_tokens = None if fields.max_tokens == -1 else fields.max_tokens
            most += min(len(made.suffix), SUFFIX_TOKENS)
            n_texts = max(n, fields.candidates or DEFAULT_CANDIDATES)
        room = max(0, n_cells - len(head) - len(made.gap) - n_texts * most)
        extra = made.extra[max(0, len(made.extra) - room) :]
        parsed = _parsed(fields, ((*head, *extra, *made.gap),), n, limits, tokenize)
        unknown = [name for each in fields.input_extra or () for name in each.model_extra or ()]
        parsed.ignored.extend(f"input_extra.{name}" for name in dict.fromkeys(unknown))
        if len(extra) < len(made.extra):
            parsed.ignored.append(f"input_extra (its first {len(made.extra) - len(extra)} tokens)")
        return parsed


def _count(fields: LlamaFields, limits: Limits) -> int:
    return count_alternatives(fields, 1, limits)


def _parsed(
    fields: LlamaFields,
    prompts: tuple[tuple[int, ...], ...],
    n: int,
    limits: Limits,
    tokenize: Tokenize,
    media: tuple[Media, ...] = (),
) -> LlamaParsed:
    stream = fields.stream or False
    if isinstance(stream, str):
        raise InvalidRequestError(f"stream must be true or false, got {show(stream)}", param="stream")
    body.take_candidates(fields)
    take_all_room(fields, limits)
    n_probs = fields.logprobs if fields.n_probs is None else fields.n_probs
    without_effect = {
        "best_of": fields.best_of is not None,
        "stream_options": fields.stream_options is not None,
        "post_sampling_probs": bool(fields.post_sampling_probs and not n_probs),
        "return_progress": bool(fields.return_progress and not stream),
        "timings_per_token": bool(fields.timings_per_token and not stream),
        "logprobs": fields.logprobs is not None and fields.n_probs is not None,
    }
    limit = fields.t_max_predict_ms or 0
    if limit < -1:
        raise InvalidRequestError(f"t_max_predict_ms must be at least -1, got {limit!s:.60}", param="t_max_predict_ms")
    completion = CompletionRequest(
        prompts,
        make_branches(fields, n, limits, tokenize),
        media=media,
        distinct=bool(fields.distinct),
        heal=bool(fields.heal),
        suffix=fields.suffix_ids(tokenize),
        **fields.search_settings,
        logprobs=n_probs or None,
        post_sampling_probs=bool(fields.post_sampling_probs),
        echo=bool(fields.echo),
        return_tokens=stream or bool(fields.return_tokens),
        return_progress=stream and bool(fields.return_progress),
        any_seed=takes_any_seed(fields),
        cache_prompt=fields.cache_prompt is not False,
        slot=body.take_slot(fields, limits),
    )
    return LlamaParsed(
        with_ahead(with_shift(completion, fields, limits), fields, limits),
        [*body.ignored_fields(fields, limits), *(name for name, sent in without_effect.items() if sent)],
        stream,
        detach=bool(fields.detach),
        return_tokens=bool(fields.return_tokens),
        timings_per_token=bool(fields.timings_per_token),
        t_max_predict_ms=max(0, limit),
        response_fields=tuple(fields.response_fields or ()),
    )
