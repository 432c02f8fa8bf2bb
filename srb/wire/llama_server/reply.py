"""Builds llama-server's responses: chunks and results of `/completion`, and `/props`."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from srb.engine.events import ErrorEvent, Event, ProgressEvent, StopEvent, StreamEvent, Token
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.wire.answer import Answer, Change, Response
from srb.wire.context import Abort, RequestContext
from srb.wire.llama_server.body import InfillFields, LlamaFields, parse_completion, parse_infill
from srb.wire.native import reply as native
from srb.wire.reply import Reply, Watch, prompt_progress, timings
from srb.wire.request.body import Parsed
from srb.wire.request.media import MARKER
from srb.wire.slots import generation_settings
from srb.wire.tokens import name_of

Detokenize = Callable[[Iterable[int]], bytes]
"""`Tokenizer.detokenize`."""


class TimeLimit:
    """Finds alternatives with a line break that have run for more than `limit` milliseconds since their first token."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._started_at: dict[int, float] = {}
        self._with_line_break: set[int] = set()

    def exceeded(self, events: Iterable[Event]) -> list[int]:
        """Takes the next events. Returns the indexes of the alternatives whose time is up."""
        now = 1000 * self._clock()
        for event in events:
            if isinstance(event, StreamEvent):
                self._started_at.setdefault(event.index, now)
                if "\n" in event.text:
                    self._with_line_break.add(event.index)
            elif isinstance(event, StopEvent):
                self._with_line_break.discard(event.index)
        return [index for index in sorted(self._with_line_break) if now - self._started_at[index] > self._limit]


@dataclass(frozen=True)
class Results:
    """llama-server's results of a request.

    Attributes:
        model: The name of the model.
        stream: Whether they are streamed.
        has_times: Whether each chunk has `timings`.
        only: The only fields of a result to return; `a/b` is the field b of the object a. Empty: all.
        prompts: The texts of the prompts.
    """

    request: CompletionRequest
    model: str
    stream: bool
    has_times: bool
    only: tuple[str, ...]
    prompts: list[str] = field(default_factory=list)

    def chunk(self, answer: Answer, event: Event, _changes: list[Change]) -> Iterator[dict[str, Any]]:
        """The chunks for an event. The last chunk of each index has `stop` true, and all fields."""
        match event:
            case ProgressEvent():
                progress = prompt_progress(event, answer.now - answer.started)
                yield _partial(0, "", ()) | {"prompt_progress": progress}
            case StreamEvent():
                chunk = _partial(event.index, event.text, event.tokens)
                if event.token:
                    chunk["completion_probabilities"] = [self._probability(event.token)]
                if self.has_times:
                    chunk["timings"] = timings(answer.running_timings(event.index), answer.prompt_tokens)
                answer[event.index].drain()
                yield chunk
            case StopEvent():
                yield self._final(answer, event, "")
            case ErrorEvent():
                yield {"error": event.error.body()}

    def body(self, answer: Answer) -> dict[str, Any] | list[dict[str, Any]]:
        """The result of a finished request, or a list of results if it has several alternatives.

        The result of a failed alternative has an `error`.
        """
        stops = sorted((each.stop for each in answer.ordered if each.stop), key=self._place)
        results = []
        for stop in stops:
            error = answer[stop.index].error
            result = self._final(answer, stop, answer[stop.index].text)
            results.append(result | ({"error": error.body()} if error else {}))
        return results[0] if len(results) == 1 else results

    def _place(self, stop: StopEvent) -> tuple[int, bool, int]:
        """Sorts by prompt. The candidates of a bridge are sorted by their ranks."""
        return stop.index // len(self.request.branches), not stop.rank, stop.rank or 0

    def _final(self, answer: Answer, event: StopEvent, text: str) -> dict[str, Any]:
        request, alternative = self.request, answer[event.index]
        branches = request.branches
        number = event.index // len(branches)
        prompt, params = request.prompts[number], branches[event.index % len(branches)]
        if answer.start:  # prefetched alternatives have other seeds than the request
            params = replace(params, seed=answer.start.seeds[event.index])
        evaluated = event.timings.prompt_n if event.timings else 0
        whole = len(prompt) + len(params.direction_ids)
        n_prompt = whole - (event.timings.n_truncated if event.timings else 0)
        result = {
            "index": event.index,
            "content": text,
            "tokens": alternative.tokens.ids,
            "stop": True,
            "model": self.model,
            "tokens_predicted": event.length,
            "tokens_evaluated": n_prompt,
            "generation_settings": generation_settings(params, request) | {"stream": self.stream},
            "prompt": self.prompts[number],
            "has_new_line": "\n" in alternative.text,
            "truncated": event.truncated or (event.finish_reason == "length" and event.length != params.max_tokens),
            "stop_type": _stop_type(event),
            "stopping_word": _stopping_word(event) or "",
            "tokens_cached": n_prompt - evaluated if event.timings else 0,
            "timings": timings(event.timings, whole) if event.timings else {},
        }
        if alternative.tokens.reported:
            result["completion_probabilities"] = [self._probability(token) for token in alternative.tokens.reported]
        return _only(result, self.only) if self.only else result

    def _probability(self, token: Token) -> dict[str, Any]:
        """The JSON of a token, with the top tokens at its position."""
        if not self.request.post_sampling_probs:
            return native.token_json(token) | {"top_logprobs": [native.token_json(each) for each in token.top_logprobs]}
        top = [_prob(each) for each in token.top_logprobs]
        return _prob(token) | {"top_probs": [each for each in top if each["prob"]]}


def _partial(index: int, text: str, tokens: Iterable[int]) -> dict[str, Any]:
    return {"index": index, "content": text, "tokens": list(tokens), "stop": False}


def completion(fields: LlamaFields, context: RequestContext) -> Reply:
    """Continue a prompt, as in llama-server: chunks, an object, or an array of objects."""
    return _reply(fields, parse_completion(fields, context.limits), context)


def infill(fields: InfillFields, context: RequestContext) -> Reply:
    """Fill in the text between a prefix and a suffix, if the model can."""
    model = context.engine.model
    return _reply(fields, parse_infill(fields, context.limits, model.tokenizer, model.n_cells), context)


def _reply(fields: LlamaFields, parsed: Parsed, context: RequestContext) -> Reply:
    request, has_times = parsed.completion, bool(fields.timings_per_token)
    if request.media:
        request = replace(request, media=())  # the form is stored for a long time, and needs no images
    only = tuple(fields.response_fields or ())
    form = Results(request, context.limits.model, parsed.format == "chunks", has_times, only)
    make = partial(make_response, form, context.engine.model.tokenizer.detokenize)
    watch = _watch(request.id, max(0, fields.t_max_predict_ms or 0))
    return Reply.of(parsed, make, watch=watch, payload=only)


def make_response(form: Results, detokenize: Detokenize) -> Response:
    """Return what builds the results of a request, whose prompts it detokenizes: for long ones that takes a while.

    The engine must have accepted the request: then the vocabulary has all tokens of the prompts.
    """
    prompts = [detokenize(prompt).decode(errors="replace") for prompt in form.request.token_ids]
    return Response(replace(form, prompts=prompts))


def _watch(request_id: str, limit: int) -> Watch | None:
    """Ends the alternatives of a request whose time is up. limit: in milliseconds; 0: no limit."""

    @contextmanager
    def watch(_owner: str | None, abort: Abort) -> Iterator[Callable[[list[Event]], object]]:
        limiter = TimeLimit(limit)
        yield lambda events: [abort(request_id, index, "timeout") for index in limiter.exceeded(events)]

    return watch if limit else None


_KV_CACHE = ("layout", "n_preempted", "layout_changes", "preemptions", "swapped_bytes", "swap_seconds")
"""The fields of `EngineStats` that `/props` shows as `kv_cache`."""


def props(_fields: None, context: RequestContext) -> dict[str, Any]:
    """Show facts about the server and its model."""
    engine, limits, model, stats = context.engine, context.limits, context.engine.model, context.stats
    tokenizer, template = model.tokenizer, model.chat_template
    return {
        "default_generation_settings": {
            "n_ctx": model.n_cells,
            "params": generation_settings(SamplingParams(max_tokens=-1, **limits.sampling), None),
        },
        "total_slots": stats.max_sequences,
        "model_alias": limits.model,
        "model_path": limits.model_path,
        "modalities": {"vision": "image" in model.media_kinds, "audio": "audio" in model.media_kinds},
        "media_marker": MARKER,
        "endpoint_slots": limits.slots,
        "chat_template": template.source if template else "",
        "bos_token": name_of(tokenizer.special.bos, tokenizer),
        "eos_token": name_of(tokenizer.special.eos, tokenizer),
        "build_info": context.fingerprint,
        "cpu_variant": model.cpu_variant,
        "is_sleeping": engine.health.is_sleeping,
        "kv_cache": {name: getattr(stats, name) for name in _KV_CACHE},
    }


def _prob(token: Token) -> dict[str, Any]:
    """The JSON of a token, with its probability instead of the log-probability."""
    result = native.token_json(token)
    logprob = result.pop("logprob")
    return result | {"prob": None if logprob is None else math.exp(logprob)}


def _stopping_word(event: StopEvent) -> str | None:
    """Return the stop string that ended an alternative. None: another token or reason has ended it."""
    reason = event.stop_reason
    return reason if event.finish_reason == "stop" and isinstance(reason, str) else None


def _stop_type(event: StopEvent) -> str:
    if event.finish_reason == "stop":
        return "eos" if _stopping_word(event) is None else "word"
    if event.finish_reason == "length" or event.stop_reason == "timeout":
        return "limit"
    return "none"


def _only(result: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The fields of a result at these paths, if they exist. The path `a/b` is the field b of the object a."""
    chosen = {}
    for path in paths:
        value: Any = result
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            chosen[path] = value
    return chosen
