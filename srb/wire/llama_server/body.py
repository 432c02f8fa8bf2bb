"""Turns the bodies of llama-server's routes into requests for the engine. Pure functions."""

from collections.abc import Callable, Iterable

from pydantic import Field

from srb.engine.model import SpecialTokens, Tokenizer
from srb.engine.request import DEFAULT_CANDIDATES, SUFFIX_TOKENS
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.request.body import Parsed, parse_fields, take_all_room, take_candidates
from srb.wire.request.fields import BRIDGE_FIELDS, CompletionFields
from srb.wire.request.read import BodyFields, Int, show
from srb.wire.tokens import Parts, check_text, tokens_of

_INFILL_TOKENS = 256
"""The tokens to reserve for each alternative of an infill without `max_tokens`."""


class LlamaFields(CompletionFields):
    """The body of `POST /completion`."""

    own_names = frozenset({"n_predict", "n_cmpl"})

    response_fields: list[str] | None = Field(
        None, description="the only fields to return; a slash names a field of an object: timings/prompt_n."
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


def parse_infill(fields: InfillFields, limits: Limits, tokenizer: Tokenizer, n_cells: int) -> Parsed:
    """Make a request of the body of `POST /infill`, for a context of `n_cells`.

    If `input_extra` doesn't fit, it is cut at its beginning, and `ignored` says so. If the model has no
    fill-in-the-middle tokens, the request is a bridge: candidates are sampled and scored.
    """
    if not isinstance(fields.prompt, str | None):
        raise InvalidRequestError(f"prompt must be a string, got {show(fields.prompt)}", param="prompt")

    def plain(text: str) -> tuple[int, ...]:
        return tokenizer.tokenize(check_text(text, "input_extra"), is_prompt=False, parse_special=False)

    prompt = tokens_of(fields.input_prefix, "input_prefix", tokenizer, parse_special=False)
    prompt += tokens_of([fields.prompt or ""], "prompt", tokenizer)
    suffix = tokens_of(fields.input_suffix, "input_suffix", tokenizer, parse_special=False)
    files = [(each.filename, each.text) for each in fields.input_extra or ()]
    take_candidates(fields)
    is_bridge = bool(fields.searches or {*BRIDGE_FIELDS} & fields.model_fields_set)
    known, gap, scored = _infill(prompt, suffix, files, tokenizer.special, plain, is_bridge=is_bridge)
    head = tokenizer.tokenize("")
    most = _INFILL_TOKENS if fields.max_tokens in (None, -1) else fields.max_tokens or 0
    n_texts = 1
    if scored:
        fields.suffix = [*scored]
        fields.max_tokens = None if fields.max_tokens == -1 else fields.max_tokens
        most += min(len(scored), SUFFIX_TOKENS)
        n = fields.n or len(fields.branches or fields.directions or ())
        n_texts = max(n, fields.candidates or DEFAULT_CANDIDATES)
    room = max(0, n_cells - len(head) - len(gap) - n_texts * most)
    extra = known[max(0, len(known) - room) :]
    fields.prompt = (*head, *extra, *gap)
    parsed = parse_completion(fields, limits)
    unknown = [name for each in fields.input_extra or () for name in each.model_extra or ()]
    parsed.ignored.extend(f"input_extra.{name}" for name in dict.fromkeys(unknown))
    if len(extra) < len(known):
        parsed.ignored.append(f"input_extra (its first {len(known) - len(extra)} tokens)")
    return parsed


def parse_completion(fields: LlamaFields, limits: Limits) -> Parsed:
    """Make a request of the body of `POST /completion`. Raises what `parse_fields` does."""
    if isinstance(fields.stream, str):
        raise InvalidRequestError(f"stream must be true or false, got {show(fields.stream)}", param="stream")
    if (limit := fields.t_max_predict_ms or 0) < -1:
        raise InvalidRequestError(f"t_max_predict_ms must be at least -1, got {limit!s:.60}", param="t_max_predict_ms")
    take_candidates(fields)
    if fields.n_probs is None:  # by either name, 0 is off
        fields.n_probs, fields.logprobs = fields.logprobs, None
    fields.leave_out("messages", "tools", "logprobs", "top_logprobs", "best_of", "stream_options")
    fields.return_tokens = fields.return_tokens or fields.stream
    take_all_room(fields, limits)
    return parse_fields(fields, limits, chat=False, form="chunks" if fields.stream else "object", has_times=True)


def _infill(
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    files: Iterable[tuple[str, str]],
    special: SpecialTokens,
    tokens_of: Callable[[str], tuple[int, ...]],
    *,
    is_bridge: bool,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the tokens of a fill-in-the-middle prompt: those of other files, and of the gap, which end it.

    The gap is the prefix, the suffix, and the token after which the model fills the gap. Without such a token it is the
    prefix alone, and the third result is the suffix, by which candidates are scored. The layout is that of
    Qwen2.5-Coder (Hui et al., arXiv 2409.12186): files of the repository, prefix, suffix, middle. A bridge wants
    candidates even if the model has fill-in-the-middle tokens.
    """
    made = None if is_bridge else special.gap(prefix, suffix)
    if made is None:
        texts = (each for _, text in files for each in (tokens_of(text), tokens_of("\n\n")))
        return tuple(token for tokens in texts for token in tokens), prefix, suffix
    extra: list[int] = []
    if special.fim_rep is not None:
        extra += [special.fim_rep, *tokens_of("repository\n")]
    for name, text in files:
        extra += _file_head(name, special, tokens_of) + list(tokens_of(text))
    if special.fim_sep is not None:
        extra += _file_head("file", special, tokens_of)
    return tuple(extra), made, ()


def _file_head(name: str, special: SpecialTokens, tokens_of: Callable[[str], tuple[int, ...]]) -> list[int]:
    """Return the tokens before the text of a file."""
    if special.fim_sep is None:
        return list(tokens_of("\n\n"))
    return [special.fim_sep, *tokens_of(f"{name}\n")]
