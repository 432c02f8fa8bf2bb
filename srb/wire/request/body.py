"""Turns the body of `POST /v1/completions` and `POST /v1/chat/completions` into a request for the engine.

Pure functions. The bodies of other vendors become such fields, and then take the same way: `parse_fields`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from srb.engine.media import Media
from srb.engine.model import ChatTemplate
from srb.engine.request import SEARCHES, CompletionRequest, new_request_id
from srb.engine.samplers import SAMPLERS, sampler_named, without_effect
from srb.engine.sampling_params import DEFAULT_MOST_TOKENS, GRAMMAR_FIELDS, SamplingParams
from srb.engine.validation.exclusions import excludes
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.reasoning import AnswerReader, ReasoningFormat, reasoning_format
from srb.wire.request.directions import directed, divided, has_directions, marked, take_directions
from srb.wire.request.fields import BEAM_FIELDS, BRIDGE_FIELDS, BranchFields, CompletionFields, SamplingFields, joined
from srb.wire.request.media import new_marker
from srb.wire.request.messages import prefill_text, prompt_of
from srb.wire.request.prompts import make_prompts, sent_prompt, take_path, take_texts
from srb.wire.request.read import show
from srb.wire.tokens import MAX_BIASED_TEXTS
from srb.wire.tools.calls import call_format
from srb.wire.tools.definitions import Tools, left_out, tools_of

REASONING_FORMATS = ("none", "auto", "deepseek")
"""The values of `reasoning_format` that have an effect."""

Format = Literal["events", "chunks", "object"]
"""The format of an answer: native events, a vendor's chunks, or its object."""


@dataclasses.dataclass(frozen=True)
class Parsed:
    """The request that a body makes, and how to answer it.

    Attributes:
        ignored: the names of the body's fields that have no effect.
        n: how many alternatives of each prompt to return; `best_of` runs more.
        logprobs: whether to show log-probabilities.
        fields: the body's fields, without those that have no effect.
        tools: the functions that may be called; None without tools.
        reader: returns what splits the text of an alternative into thoughts, text and calls.
    """

    completion: CompletionRequest
    ignored: list[str]
    format: Format
    n: int
    logprobs: bool
    fields: CompletionFields
    tools: Tools | None
    reader: Callable[[], AnswerReader]


def parse(fields: CompletionFields, limits: Limits, *, chat: bool = False, openai: bool = False) -> Parsed:
    """Make a request of a body that names the format of its answer. Raises what `parse_fields` does.

    openai: whether a body that names none gets OpenAI's, as chats do.
    """
    form = _format(fields, chat or openai or limits.openai)
    return parse_fields(fields, limits, chat=chat, form=form, has_times=chat)


def parse_fields(
    fields: CompletionFields, limits: Limits, *, chat: bool, form: Format, has_times: bool = False
) -> Parsed:
    """Make a request of the fields of a body, for an answer in this format.

    has_times: whether the chunks of this format have `timings`. Raises `InvalidRequestError`, and what `Limits.path_to`
    and `Limits.texts_of` raise.
    """
    template = limits.template
    take_path(fields, chat, limits.path_to)
    take_texts(fields, limits.texts_of)
    _refuse_unsupported(fields)
    take_candidates(fields)
    n = _count_alternatives(fields, limits.n if form == "events" else 1, limits)
    tools = _tools(fields)
    splits = chat and form != "events"
    _leave_out_unused(fields, limits, form, splits=splits, has_times=has_times)
    is_open = fields.messages is not None and take_all_room(fields, limits)
    branches = _make_branches(fields, max(n, _best_of(fields, n, form, limits)), limits)
    in_text = fields.reasoning_format == "none" or bool(fields.echo)
    is_free = tools is not None or all(getattr(each, name) is None for each in branches for name in GRAMMAR_FIELDS)
    marker = new_marker() if fields.messages and has_directions(fields) else ""
    if marker and fields.messages:
        fields = fields.model_copy(update={"messages": marked(fields.messages, marker)})
    sent = sent_prompt(fields, template, chat, tools, thinks=in_text or is_free)
    tags, opening = _reasoning(fields, template, sent, is_free=is_free)
    prefix = opening if in_text and not fields.echo else ""
    reasoning = None if in_text else tags
    direction_at = None
    tokenize = limits.tokenize
    if _shifts(fields, limits):  # the prompt may be longer than the context
        tokenize = partial(tokenize, any_length=True)
    if marker:
        sent, direction_at = divided(sent, marker, tokenize)
    prompts, media = make_prompts(sent, limits, len(branches), tokenize)
    if media and fields.story is not None:
        raise InvalidRequestError("a story's texts have no images and sounds; leave story out", param="story")
    calls = call_format(template) if tools and template else None
    if tools and calls:
        tools = tools.fitted(calls, [each.json_schema for each in branches], reasoning)
        branches = tuple(tools.constrain(each, calls, reasoning) for each in branches)
    hidden: tuple[str, ...] = ()
    if fields.messages is not None and template and template.stop:
        hidden = tuple(stop for stop in template.stop if not any(stop in each.stop for each in branches))
        branches = tuple(dataclasses.replace(each, stop=(*each.stop, *template.stop)) for each in branches)
    logprobs = _logprobs(fields)
    completion = _make_request(
        fields,
        prompts,
        branches,
        limits,
        media=media,
        most_tokens=DEFAULT_MOST_TOKENS if is_open else None,
        logprobs=0 if logprobs is None and len(branches) > n else logprobs,  # needed to find the best
        return_tokens=bool(fields.timings_per_token or fields.return_tokens),
        special_tokens=bool((calls and calls.is_native) or (splits and tags and tags.is_special)),
        hidden_stop=hidden,
        direction_at=direction_at,
        slot=_slot(fields, limits),
        id=f"chat{new_request_id()}" if chat else new_request_id(),
    )
    return Parsed(
        completion,
        [*left_out(fields.tools), *_ignored_fields(fields, limits), *(tools.ignored if tools else ())],
        form,
        n,
        logprobs is not None,
        fields,
        tools,
        partial(AnswerReader, calls, reasoning, prefix) if chat else AnswerReader,
    )


def _reasoning(
    fields: CompletionFields, template: ChatTemplate | None, sent: Any, *, is_free: bool
) -> tuple[ReasoningFormat | None, str]:
    """Return how the answer's thoughts are written, and the tag for them that the template put at the prompt's end.

    Thoughts may come first if the answer `is_free`. If not, a grammar is for its first character on.
    """
    reasoning = reasoning_format(template) if fields.messages else None
    if not reasoning or not fields.messages:
        return None, ""
    last = fields.messages[-1]
    if last.role == "assistant" and not last.tool_calls:
        content = last.content if isinstance(last.content, str) else last.content.as_text("")
        prefill, opening = prefill_text(last.model_dump() | {"content": content}, reasoning), ""
    else:
        prompt = sent if isinstance(sent, str) else sent.parts[-1]
        prefill = opening = reasoning.opening(prompt) if isinstance(prompt, str) else ""
    return reasoning.of_message(prefill if is_free else ""), opening


def chat_prompt(fields: CompletionFields, template: ChatTemplate | None) -> str:
    """Return the text of a chat's prompt, as it would be evaluated. Raises `InvalidRequestError`."""
    _refuse_unsupported(fields)
    if fields.messages is None:
        raise InvalidRequestError("messages is missing", param="messages")
    return prompt_of(fields.messages, fields.chat_template_kwargs or {}, template, _tools(fields))


_PASSED = {field.name for field in dataclasses.fields(CompletionRequest)} & {*CompletionFields.model_fields}
_PASSED -= {"branches", "suffix", "candidates", "logprobs", "early_stopping"}  # which are something else there
_PASSED -= {"context_shift", "n_keep", "n_discard", "ahead"}  # which have defaults of the server's
"""The fields of a body that `CompletionRequest` takes as they are."""


def _make_request(
    fields: CompletionFields,
    prompts: tuple[tuple[int, ...], ...],
    branches: tuple[SamplingParams, ...],
    limits: Limits,
    *,
    media: tuple[Media, ...] = (),
    **others: Any,
) -> CompletionRequest:
    """Make a request of a body's fields and of others, which depend on the format. Raises `InvalidRequestError`."""
    sent = {name: getattr(fields, name) for name in _PASSED} | {"n_candidates": fields.candidates}
    given = {name: value for name, value in sent.items() if value is not None}
    if fields.early_stopping is not None:
        given["early_stopping"] = {"true": True, "false": False}.get(fields.early_stopping, fields.early_stopping)
    given["suffix"] = joined("suffix", fields.suffix or [], limits.tokenize, is_prompt=False)
    given["any_seed"] = all(each.seed in (None, -1) for each in (fields, *(fields.branches or ())))
    branches = directed(fields, branches, limits.tokenize)
    request = CompletionRequest(prompts, branches, media=media, **given | others)
    return _with_ahead(_with_shift(request, fields, limits), fields, limits)


def _shifts(fields: CompletionFields, limits: Limits) -> bool:
    return limits.context_shift if fields.context_shift is None else fields.context_shift


def _with_shift(request: CompletionRequest, fields: CompletionFields, limits: Limits) -> CompletionRequest:
    """Return the request with context shift, if the body asks for it, or the server does and it is possible."""
    if not _shifts(fields, limits) or (fields.context_shift is None and excludes(request, "context_shift")):
        return request
    n_keep = limits.n_keep if fields.n_keep is None else fields.n_keep
    return dataclasses.replace(request, context_shift=True, n_keep=n_keep, n_discard=fields.n_discard or 0)


def _with_ahead(request: CompletionRequest, fields: CompletionFields, limits: Limits) -> CompletionRequest:
    """Return the request with prefetching, if the body asks for it, or the server does and it is possible."""
    ahead = limits.ahead if fields.ahead is None else fields.ahead
    if not ahead or (fields.ahead is None and excludes(request, "ahead")):
        return request
    if not 0 <= ahead <= limits.max_n:
        raise InvalidRequestError(f"ahead must be from 0 to {limits.max_n} (--max-n), got {ahead!s:.60}", param="ahead")
    return dataclasses.replace(request, ahead=ahead)


def _count_alternatives(fields: CompletionFields, default: int, limits: Limits) -> int:
    """Return the number of alternatives of each prompt; default: of a body without n. Raises `InvalidRequestError`.

    Directions become branches before they are counted.
    """
    take_directions(fields)
    if fields.branches is not None and fields.n is not None and fields.n != len(fields.branches):
        raise InvalidRequestError(
            f"n is {fields.n!s:.60}, but branches has {len(fields.branches)}; leave n out or make them agree",
            param="n",
        )
    n, name, param = default if fields.n is None else fields.n, "n", "n"
    if fields.branches is not None:
        sent = "branches" if fields.directions is None else "directions"
        n, name, param = len(fields.branches), f"the number of {sent}", sent
    if not 1 <= n <= limits.max_n:
        raise InvalidRequestError(f"{name} must be from 1 to {limits.max_n}, got {n!s:.60}", param=param)
    return n


def _make_branches(fields: CompletionFields, n: int, limits: Limits) -> tuple[SamplingParams, ...]:
    """Return the parameters of each of n alternatives. Raises `InvalidRequestError`."""
    for each in (fields, *(fields.branches or ())):
        each.cut()
    texts = sum(each.biased_texts for each in (fields, *(fields.branches or ())))
    if texts > MAX_BIASED_TEXTS:
        raise InvalidRequestError(
            f"logit_bias and banned_tokens of all branches have {texts} texts; the limit is {MAX_BIASED_TEXTS}; send "
            "token ids instead, from /tokenize",
            param="logit_bias",
        )
    common = SamplingParams(**{**limits.sampling, **fields.given(limits)}).alternatives(n)
    if fields.branches is None:
        return common
    both = zip(common, fields.branches, strict=True)
    return tuple(_override(params, branch, k, limits) for k, (params, branch) in enumerate(both))


def _override(params: SamplingParams, branch: BranchFields, k: int, limits: Limits) -> SamplingParams:
    try:
        return dataclasses.replace(params, **branch.given(limits))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"branches[{k}]: {error.message}", param=f"branches[{k}].{error.param}") from None


def take_all_room(fields: CompletionFields, limits: Limits) -> bool:
    """Let answers go on until the context is full, as in llama-server, if nothing limits their length.

    A search keeps the usual `max_tokens`, because it reserves cells for all tokens of each beam from the start. Returns
    whether no alternative asks for it: a chat then has at most `DEFAULT_MOST_TOKENS`.
    """
    if fields.max_tokens is not None or limits.max_tokens is not None or fields.searches:
        return False
    fields.max_tokens = -1
    return all(branch.max_tokens != -1 for branch in fields.branches or ())


def _slot(fields: CompletionFields, limits: Limits) -> int:
    """Return the slot of a request's first alternative: 0 if the body names none, or if slots can't be saved here."""
    slot = -1 if fields.id_slot is None else fields.id_slot
    if not -1 <= slot < max(1, limits.saved_slots):
        raise InvalidRequestError(
            f"id_slot must be from 0 to {limits.saved_slots - 1} (--parallel), or -1 for any, got {slot!s:.60}",
            param="id_slot",
        )
    return max(0, slot)


def take_candidates(fields: CompletionFields) -> None:
    """Take `best_of` as the number of candidates, if there is a suffix."""
    if fields.suffix and fields.best_of is not None and fields.candidates is None:
        fields.candidates, fields.best_of = fields.best_of, None


def _leave_out_unused(fields: CompletionFields, limits: Limits, form: Format, *, splits: bool, has_times: bool) -> None:
    """Leave out the fields that have no effect with the others, on this server, or in this format.

    splits: whether thoughts are split off. has_times: as for `parse_fields`.
    """
    has_tools = any(tool.usable for tool in fields.tools or ())
    both = ((each.guidance_scale, fields.guidance_scale) for each in fields.branches or (fields,))
    scales = [_first(*of_each, limits.sampling.get("guidance_scale"), 1) for of_each in both]
    for is_unused, names in (
        (fields.search not in SEARCHES, ("search",)),
        (fields.search != "beam", sorted(BEAM_FIELDS)),
        (not fields.suffix, sorted(BRIDGE_FIELDS)),
        (not _shifts(fields, limits), ("n_discard", "n_keep")),
        (not limits.saved_slots, ("id_slot",)),
        ({*scales} == {1}, ("negative_prompt",)),
        (fields.messages is None, ("chat_template_kwargs",)),
        (not has_tools, ("parallel_tool_calls", "tool_choice")),
        (not splits or fields.reasoning_format not in REASONING_FORMATS, ("reasoning_format",)),
        (_logprobs(fields) is None, ("post_sampling_probs",)),
        (form == "object", ("return_progress",)),
        (form != "chunks" or not has_times, ("timings_per_token",)),
    ):
        if is_unused:
            fields.leave_out(*names)


def _ignored_fields(fields: CompletionFields, limits: Limits) -> list[str]:
    """Return the names of the fields that were sent and have no effect."""
    unused = [_unused(branch, fields, limits) for branch in fields.branches or (fields,)]
    ignored = fields.ignored(frozenset.intersection(*unused), fields.search)
    ignored += [] if fields.model in (None, limits.model) else ["model"]
    for k, branch in enumerate(fields.branches or ()):
        ignored += [f"branches[{k}].{name}" for name in branch.ignored(unused[k], fields.search)]
    return ignored


def _unused(branch: SamplingFields, fields: SamplingFields, limits: Limits) -> frozenset[str]:
    """Return the fields that none of an alternative's samplers reads."""
    mirostat = _first(branch.mirostat, fields.mirostat, limits.sampling.get("mirostat"), 0)
    temperature = _first(branch.temperature, fields.temperature, limits.sampling.get("temperature"), 1)
    named = _first(branch.samplers, fields.samplers)
    samplers = limits.sampling.get("samplers", SAMPLERS) if named is None else filter(None, map(sampler_named, named))
    return without_effect(frozenset(samplers), mirostat, temperature)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _tools(fields: CompletionFields) -> Tools | None:
    """Return the tools that the answer may call. Raises `InvalidRequestError` if they don't go with other fields."""
    tools = tools_of(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
    problem = None
    if tools and fields.messages is None:
        problem = "tools go with messages; a prompt has none"
    if tools and fields.echo:
        problem = "tools and echo exclude each other; /apply-template shows the prompt of a chat"
    if tools and fields.searches:
        problem = "tools and a beam search exclude each other; leave one out"
    if problem:
        raise InvalidRequestError(problem, param="tools")
    return tools


def _refuse_unsupported(fields: CompletionFields) -> None:
    """Refuse fields that can't be ignored, because the answer would be another one."""
    if isinstance((fields.model_extra or {}).get("function_call"), dict):
        raise InvalidRequestError(
            "function_call is not supported; send tools and tool_choice instead of functions and function_call",
            param="function_call",
            code="unsupported_parameter",
        )
    if fields.suffix and fields.messages is not None:
        raise InvalidRequestError(
            "suffix is not supported in chats; send a prompt, or leave suffix out",
            param="suffix",
            code="unsupported_parameter",
        )


def _logprobs(fields: CompletionFields) -> int | None:
    """Return how many of the most probable tokens to report with each token. None: no report at all."""
    if fields.logprobs is True:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequestError('top_logprobs goes with "logprobs": true', param="top_logprobs")
    if fields.logprobs is None or fields.logprobs is False:
        return fields.n_probs or None  # 0 turns it off, as in llama-server
    return fields.logprobs


def check_stream(stream: bool | str | None) -> None:
    """Raise `InvalidRequestError` for a text that isn't "events"."""
    if isinstance(stream, str) and stream != "events":
        raise InvalidRequestError(f'stream must be true, false or "events", got {show(stream)}', param="stream")


def _format(fields: CompletionFields, openai: bool) -> Format:
    check_stream(fields.stream)
    if fields.stream is True:
        return "chunks"
    if fields.stream is None:
        # Without streaming, SillyTavern sends neither `model` nor `stream`, but with most types `api_server`.
        is_sillytavern = "api_server" in (fields.model_extra or {})
        return "object" if openai or fields.model is not None or is_sillytavern else "events"
    return "events" if fields.stream else "object"


def _best_of(fields: CompletionFields, n: int, form: Format, limits: Limits) -> int:
    """Return how many alternatives to choose n from. Native events show all that run."""
    best_of = n if fields.best_of is None else fields.best_of
    message = None
    if best_of < n and form != "events":
        message = f"best_of must be at least n ({n}), got {best_of}"
    elif best_of > n and form != "object":
        message = (
            f"best_of ({best_of!s:.60}) can't be more than n ({n}) in a stream, which shows alternatives before the "
            'best are known; send "stream": false, or leave best_of out'
        )
    elif best_of > n and fields.branches is not None:
        message = "best_of and branches exclude each other; leave one out"
    elif best_of > n and fields.searches:
        message = "best_of goes with neither a beam search nor a suffix; leave it out"
    elif best_of > limits.max_n:
        message = f"best_of must be at most {limits.max_n} (--max-n), got {best_of!s:.60}"
    if message:
        raise InvalidRequestError(message, param="best_of")
    if form == "events":
        fields.leave_out("best_of")
    return best_of
