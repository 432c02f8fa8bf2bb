"""Turns the body of `POST /v1/completions` and `POST /v1/chat/completions` into a request for the engine.

Pure functions.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Literal

from srb.engine.model import ChatTemplate
from srb.engine.request import CompletionRequest, new_request_id
from srb.engine.sampling_params import DEFAULT_MOST_TOKENS
from srb.engine.validation.exclusions import SEARCHES, hinders_shift
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.request.completion import (
    CompletionFields,
    check_stream,
    count_alternatives,
    make_branches,
    take_all_room,
    takes_any_seed,
    with_ahead,
)
from srb.wire.request.fields import BEAM_FIELDS, BRIDGE_FIELDS
from srb.wire.request.media import Take, not_here
from srb.wire.request.messages import prompt_of
from srb.wire.request.prompts import make_prompts, sent_prompt
from srb.wire.request.read import depth_refused, read_fields
from srb.wire.request.stored_texts import PathTo, TextsOf, no_stories, nothing_kept, take_path, take_texts
from srb.wire.tokens import Tokenize
from srb.wire.tools.calls import CallFormat, call_format
from srb.wire.tools.offered import Tools, tools_of

# Decides whether the context of a request is shifted, by its body or else by the server's settings. Pure functions.


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


Format = Literal["events", "chunks", "object"]
"""The format of an answer: native events, OpenAI's chunks, or OpenAI's object."""


@dataclasses.dataclass(frozen=True)
class Parsed:
    """The request that a body makes, and how to answer it.

    ignored: the names of the body's fields that have no effect.
    n: how many alternatives of each prompt to return; `best_of` runs more.
    logprobs, usage, times: whether to show them, in OpenAI's formats.
    tools, calls: the functions that may be called, and how the model writes calls; None without tools.
    detach: whether the request goes on without readers.
    story, node: the story that the alternatives belong to, and the node there that they continue.
    """

    completion: CompletionRequest
    ignored: list[str]
    format: Format
    n: int
    logprobs: bool
    usage: bool
    detach: bool
    times: bool
    tools: Tools | None = None
    calls: CallFormat | None = None
    story: str | None = None
    node: int | None = None

    @property
    def blame(self) -> Callable[[InvalidRequestError], InvalidRequestError] | None:
        """Translates the engine's refusal into the terms of the body. None without tools."""
        return self.tools.blame if self.tools else None


def parse(
    body: bytes,
    limits: Limits,
    tokenize: Tokenize,
    template: ChatTemplate | None = None,
    *,
    chat: bool = False,
    path_to: PathTo = no_stories,
    texts_of: TextsOf = nothing_kept,
    take: Take = not_here,
) -> Parsed:
    """Reads a body. chat: whether it came to /v1/chat/completions.

    Raises `InvalidRequestError`, and what `path_to` and `texts_of` raise.
    """
    with depth_refused():
        fields = read_fields(body, CompletionFields)
        take_path(fields, chat, path_to)
        take_texts(fields, texts_of)
        return parse_fields(fields, limits, tokenize, template, chat=chat, take=take)


def parse_fields(
    fields: CompletionFields,
    limits: Limits,
    tokenize: Tokenize,
    template: ChatTemplate | None,
    *,
    chat: bool,
    take: Take = not_here,
) -> Parsed:
    """Makes a request of the fields of such a body. Raises `InvalidRequestError`."""
    _refuse_unsupported(fields)
    take_candidates(fields)
    form = _format(fields, chat or limits.openai)
    n = count_alternatives(fields, limits.n if form == "events" else 1, limits)
    is_open = fields.messages is not None and take_all_room(fields, limits)
    branches = make_branches(fields, max(n, _best_of(fields, n, form, limits)), limits, tokenize)
    tools = _tools(fields)
    if tools and fields.searches:
        raise InvalidRequestError("tools and a beam search exclude each other; leave one out", param="tools")
    of_any_length = tokenize_for(fields, limits, tokenize)
    sent = sent_prompt(fields, template, chat, tools)
    prompts, media = make_prompts(sent, limits, len(branches), of_any_length, take)
    if media and fields.story is not None:
        raise InvalidRequestError("a story's texts have no images and sounds; leave story out", param="story")
    calls = call_format(template) if tools and template else None
    if tools and calls:
        branches = tuple(tools.constrain(each, calls) for each in branches)
    if fields.messages is not None and template and template.stop:
        branches = tuple(dataclasses.replace(each, stop=(*each.stop, *template.stop)) for each in branches)
    ignored = ignored_fields(fields, limits)
    if fields.messages is None and fields.chat_template_kwargs is not None:
        ignored.append("chat_template_kwargs")
    if not fields.tools:
        ignored += sorted({"tool_choice", "parallel_tool_calls"} & fields.model_fields_set)
    if tools:
        ignored += tools.unenforced
    logprobs = _logprobs(fields)
    if fields.post_sampling_probs and logprobs is None:
        ignored.append("post_sampling_probs")
    if form == "events" and fields.best_of is not None:
        ignored.append("best_of")
    if form != "events":
        shown = ("return_tokens",) if form == "chunks" else ("return_tokens", "return_progress")
        ignored += [name for name in shown if getattr(fields, name)]
    times = bool(fields.timings_per_token) and chat and form == "chunks"
    if fields.timings_per_token and not times:
        ignored.append("timings_per_token")
    completion = CompletionRequest(
        prompts,
        branches,
        media=media,
        distinct=bool(fields.distinct),
        heal=bool(fields.heal),
        suffix=fields.suffix_ids(tokenize),
        **fields.search_settings,
        most_tokens=DEFAULT_MOST_TOKENS if is_open else None,
        logprobs=0 if logprobs is None and len(branches) > n else logprobs,  # needed to find the best
        post_sampling_probs=bool(fields.post_sampling_probs),
        echo=bool(fields.echo),
        return_tokens=times or (bool(fields.return_tokens) and form == "events"),
        return_progress=bool(fields.return_progress) and form != "object",
        any_seed=takes_any_seed(fields),
        cache_prompt=fields.cache_prompt is not False,
        special_tokens=bool(calls and calls.is_native),
        slot=take_slot(fields, limits),
        id=f"chat{new_request_id()}" if chat else new_request_id(),
    )
    usage = form == "object" or bool((fields.stream_options or {}).get("include_usage"))
    return Parsed(
        with_ahead(with_shift(completion, fields, limits), fields, limits),
        ignored,
        form,
        n,
        logprobs is not None,
        usage,
        bool(fields.detach),
        times,
        tools,
        calls,
        fields.story,
        fields.node,
    )


def chat_prompt(fields: CompletionFields, template: ChatTemplate | None) -> str:
    """The text of a chat's prompt, as it would be evaluated. Raises `InvalidRequestError`."""
    _refuse_unsupported(fields)
    if fields.messages is None:
        raise InvalidRequestError("messages is missing", param="messages")
    return prompt_of(fields.messages, fields.chat_template_kwargs or {}, template, _tools(fields))


def _tools(fields: CompletionFields) -> Tools | None:
    """The tools that the answer may call. Raises `InvalidRequestError` if there are any and it isn't a chat."""
    tools = tools_of(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
    problem = None
    if tools and fields.messages is None:
        problem = "tools go with messages; a prompt has none"
    if tools and fields.echo:
        problem = "tools and echo exclude each other; /apply-template shows the prompt of a chat"
    if problem:
        raise InvalidRequestError(problem, param="tools")
    return tools


def take_slot(fields: CompletionFields, limits: Limits) -> int:
    """The slot of a request's first alternative: 0 if the body names none, or if slots can't be saved here."""
    slot = -1 if fields.id_slot is None or not limits.saved_slots else fields.id_slot
    if not -1 <= slot < limits.saved_slots and limits.saved_slots:
        raise InvalidRequestError(
            f"id_slot must be from 0 to {limits.saved_slots - 1} (--parallel), or -1 for any, got {slot!s:.60}",
            param="id_slot",
        )
    return max(0, slot)


def ignored_fields(fields: CompletionFields, limits: Limits) -> list[str]:
    """The names of the fields that were sent and have no effect in any format."""
    mirostat = limits.sampling.get("mirostat") if fields.mirostat is None else fields.mirostat
    ignored = fields.ignored(mirostat, fields.search) + ignored_of_shift(fields, limits)
    ignored += sorted(({*BEAM_FIELDS, *BRIDGE_FIELDS} - {*fields.search_fields}) & fields.model_fields_set)
    if fields.search not in (None, *SEARCHES):
        ignored.append("search")
    if fields.id_slot is not None and not limits.saved_slots:
        ignored.append("id_slot")
    if fields.model not in (None, limits.model):
        ignored.append("model")
    own = [each.guidance_scale for each in fields.branches or ()] or [None]
    scales = [fields.guidance_scale if scale is None else scale for scale in own]
    if fields.negative_prompt and all(scale in (None, 1) for scale in scales):
        ignored.append("negative_prompt")
    for k, branch in enumerate(fields.branches or ()):
        its = mirostat if branch.mirostat is None else branch.mirostat
        ignored += [f"branches[{k}].{name}" for name in branch.ignored(its, fields.search)]
    return ignored


def take_candidates(fields: CompletionFields) -> None:
    """With a suffix, `best_of` says how many candidates there are."""
    if fields.suffix and fields.best_of is not None and fields.candidates is None:
        fields.candidates, fields.best_of = fields.best_of, None
        fields.model_fields_set.discard("best_of")


def _refuse_unsupported(fields: CompletionFields) -> None:
    """Refuses fields that can't be ignored, because the answer would not be the one that was asked for."""
    if fields.functions:
        raise InvalidRequestError(
            "functions are not supported: they have become tools; send these",
            param="functions",
            code="unsupported_parameter",
        )
    if fields.suffix and fields.messages is not None:
        raise InvalidRequestError(
            "suffix is not supported in chats: it goes with a prompt; leave it out",
            param="suffix",
            code="unsupported_parameter",
        )


def _logprobs(fields: CompletionFields) -> int | None:
    """How many of the likeliest tokens to report beside each one, or None for no report at all."""
    if fields.logprobs is True:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise InvalidRequestError('top_logprobs goes with "logprobs": true', param="top_logprobs")
    if fields.logprobs is None or fields.logprobs is False:
        return fields.n_probs or None  # 0 turns it off, as in llama-server
    return fields.logprobs


def _format(fields: CompletionFields, openai: bool) -> Format:
    check_stream(fields.stream)
    if fields.stream is True:
        return "chunks"
    if fields.stream is None:
        return "object" if openai or fields.model is not None else "events"
    return "events" if fields.stream else "object"


def _best_of(fields: CompletionFields, n: int, form: Format, limits: Limits) -> int:
    """How many alternatives to choose n from."""
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
        message = "best_of and branches exclude each other"
    elif best_of > n and fields.searches:
        message = "best_of goes with neither a beam search nor a suffix; leave it out"
    elif best_of > limits.max_n:
        message = f"best_of must be at most {limits.max_n} (--max-n), got {best_of!s:.60}"
    if message:
        raise InvalidRequestError(message, param="best_of")
    return best_of
