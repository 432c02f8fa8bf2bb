"""llama-server's wire format: chunks and results of `/completion`, and the settings that they show."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from srb.engine.events import ErrorEvent, Event, ProgressEvent, StartEvent, StopEvent, StreamEvent, Token
from srb.engine.sampling_params import SamplingParams
from srb.errors import SrbError
from srb.wire.llama_server.body import LlamaParsed, parse_completion, parse_infill
from srb.wire.native import reply as native
from srb.wire.native.settings import generation_settings
from srb.wire.reply import Reply, RunningTimings, Watch, prompt_progress, timings
from srb.wire.request.media import MARKER
from srb.wire.serving import End, Serving, Told

Detokenize = Callable[[Iterable[int]], bytes]
"""`Tokenizer.detokenize`."""


@dataclass
class _Alternative:
    """One alternative, as far as its events have come."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    probabilities: list[Token] = field(default_factory=list)
    has_new_line: bool = False
    error: SrbError | None = None
    stop: StopEvent | None = None


class Overdue:
    """Finds alternatives that have run for longer than `limit` seconds since their first token, and have a new line."""

    def __init__(self, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._begun: dict[int, float] = {}
        self._lined: set[int] = set()

    def after(self, events: Iterable[Event]) -> list[int]:
        """The indexes of those that are overdue after the next events."""
        now = self._clock()
        for event in events:
            if isinstance(event, StreamEvent):
                self._begun.setdefault(event.index, now)
                if "\n" in event.text:
                    self._lined.add(event.index)
            elif isinstance(event, StopEvent):
                self._lined.discard(event.index)
        return [index for index in sorted(self._lined) if now - self._begun[index] > self._limit]


class Completion:
    """Makes the results of one request, from its events.

    Creating the object detokenizes each prompt, which takes a while for long ones. So create it in a worker thread, and
    only when it's known that the vocabulary has all of the prompts' tokens.

    clock: seconds from any beginning, for the time in `prompt_progress`.
    """

    def __init__(
        self, parsed: LlamaParsed, *, model: str, detokenize: Detokenize, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._parsed = parsed
        self._request = parsed.completion
        self._model = model
        self._prompts = [detokenize(prompt).decode(errors="replace") for prompt in self._request.token_ids]
        self._clock = clock
        self._alternatives = [_Alternative() for _ in range(self._request.count)]
        self._seeds: tuple[int, ...] = ()
        self._started = 0.0
        self._times = RunningTimings(clock) if parsed.timings_per_token else None

    def chunks(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """The chunks for the next events of a stream. The last chunk of each index has `stop` true, and all fields."""
        for event in events:
            match event:
                case StartEvent():
                    self._started, self._seeds = self._clock(), event.seeds
                    if self._times:
                        self._times.begin(event)
                case ProgressEvent():
                    progress = prompt_progress(event, self._clock() - self._started)
                    yield self._partial(0, "", ()) | {"prompt_progress": progress}
                case StreamEvent():
                    self._add(event)
                    chunk = self._partial(event.index, event.text, event.tokens)
                    if event.token:
                        chunk["completion_probabilities"] = [self._probability(event.token)]
                    yield chunk | ({"timings": self._times.after(event)} if self._times else {})
                case StopEvent():
                    self._alternatives[event.index].stop = event
                    yield self._final(event, "", [])
                case ErrorEvent():
                    yield {"error": event.error.body()}

    def object(self, events: Iterable[Event]) -> dict[str, Any] | list[dict[str, Any]]:
        """The result of a finished request, or a list of results if it has several alternatives.

        events: all of its events. The result of a failed alternative has an `error`. Raises `SrbError` if all failed.
        """
        for event in events:
            match event:
                case StartEvent():
                    self._seeds = event.seeds
                case StreamEvent():
                    alternative = self._add(event)
                    alternative.text += event.text
                    alternative.tokens += event.tokens
                    if event.token:
                        alternative.probabilities.append(event.token)
                case StopEvent():
                    self._alternatives[event.index].stop = event
                case ErrorEvent():
                    if event.index is None:
                        raise event.error
                    self._alternatives[event.index].error = event.error

        alternatives = self._alternatives
        if alternatives[0].error and all(each.error for each in alternatives):
            raise alternatives[0].error
        results = [
            self._final(each.stop, each.text, each.tokens) | ({"error": each.error.body()} if each.error else {})
            for each in sorted(alternatives, key=self._place)
            if each.stop
        ]
        return results[0] if len(results) == 1 else results

    def _place(self, each: _Alternative) -> tuple[int, bool, int]:
        """Where an alternative stands in a list of results: the candidates of a bridge stand by their ranks."""
        assert each.stop
        rank = each.stop.rank or 0
        return each.stop.index // len(self._request.branches), not rank, rank

    def _add(self, event: StreamEvent) -> _Alternative:
        alternative = self._alternatives[event.index]
        alternative.has_new_line = alternative.has_new_line or "\n" in event.text
        return alternative

    def _partial(self, index: int, text: str, tokens: Iterable[int]) -> dict[str, Any]:
        return {"index": index, "content": text, "tokens": list(tokens), "stop": False}

    def _final(self, event: StopEvent, text: str, tokens: list[int]) -> dict[str, Any]:
        request = self._request
        branches = request.branches
        number = event.index // len(branches)
        prompt, params = request.prompts[number], branches[event.index % len(branches)]
        if self._seeds:  # of what was drawn ahead, they aren't those of the request
            params = replace(params, seed=self._seeds[event.index])
        alternative = self._alternatives[event.index]
        evaluated = event.timings.prompt_n if event.timings else 0
        n_prompt = len(prompt) - (event.timings.n_cut if event.timings else 0)
        result = {
            "index": event.index,
            "content": text,
            "tokens": tokens,
            "stop": True,
            "model": self._model,
            "tokens_predicted": event.length,
            "tokens_evaluated": n_prompt,
            "generation_settings": generation_settings(params, request) | {"stream": self._parsed.stream},
            "prompt": self._prompts[number],
            "has_new_line": alternative.has_new_line,
            "truncated": event.truncated or (event.finish_reason == "length" and event.length != params.max_tokens),
            "stop_type": _stop_type(event),
            "stopping_word": event.stop_reason if event.finish_reason == "stop" and event.stop_reason else "",
            "tokens_cached": n_prompt - evaluated if event.timings else 0,
            "timings": timings(event.timings, len(prompt)) if event.timings else {},
        }
        if alternative.probabilities:
            result["completion_probabilities"] = [self._probability(token) for token in alternative.probabilities]
        return _only(result, self._parsed.response_fields) if self._parsed.response_fields else result

    def _probability(self, token: Token) -> dict[str, Any]:
        """The JSON of a token, with the likeliest tokens at its place."""
        if not self._request.post_sampling_probs:
            return native.token_json(token) | {"top_logprobs": [native.token_json(each) for each in token.top_logprobs]}
        top = [_prob(each) for each in token.top_logprobs]
        return _prob(token) | {"top_probs": [each for each in top if each["prob"]]}


def completion(body: bytes, serving: Serving) -> Reply:
    """Continue a prompt, as llama-server does: chunks, an object, or an array of objects."""
    return _reply(parse_completion(body, serving.limits, serving.engine.tokenize, serving.take), serving)


def infill(body: bytes, serving: Serving) -> Reply:
    """Fill in the text between a prefix and a suffix, if the model can."""
    engine = serving.engine
    return _reply(parse_infill(body, serving.limits, engine.tokenize, engine.tokenizer, engine.n_cells), serving)


def _reply(parsed: LlamaParsed, serving: Serving) -> Reply:
    # What makes answers is kept for long, and needs no images.
    kept = replace(parsed, completion=replace(parsed.completion, media=())) if parsed.completion.media else parsed
    # It detokenizes. This is safe then: the engine has taken the request, so the vocabulary has all its token ids.
    make = partial(Completion, kept, model=serving.limits.model, detokenize=serving.engine.tokenizer.detokenize)

    return Reply(
        parsed.completion,
        parsed.ignored,
        parsed.stream,
        make,
        detach=parsed.detach,
        watch=_watch(parsed.completion.id, parsed.t_max_predict_ms / 1000),
        keeps=parsed.response_fields,
    )


def _watch(request_id: str, limit: float) -> Watch | None:
    """Ends the alternatives of a request that are overdue. limit: in seconds; 0: there is none."""

    @contextmanager
    def watch(_owner: str | None, end: End) -> Iterator[Callable[[list[Event]], object]]:
        overdue = Overdue(limit)
        yield lambda events: [end(request_id, index, "timeout") for index in overdue.after(events)]

    return watch if limit else None


_KV_CACHE = ("layout", "n_preempted", "layout_changes", "preemptions", "swapped_bytes", "swap_seconds")
"""The fields of `EngineStats` that `/props` shows as `kv_cache`."""


def props(_body: bytes, serving: Serving) -> Told:
    """Facts about the server and its model."""
    engine, limits, vocabulary = serving.engine, serving.limits, serving.vocabulary
    special, stats = vocabulary.tokenizer.special, serving.stats
    return {
        "default_generation_settings": {
            "n_ctx": engine.n_cells,
            "params": generation_settings(SamplingParams(max_tokens=-1, **limits.sampling), None),
        },
        "total_slots": stats.max_sequences,
        "model_alias": limits.model,
        "model_path": limits.model_path,
        "modalities": {"vision": "image" in engine.media_kinds, "audio": "audio" in engine.media_kinds},
        "media_marker": MARKER,
        "endpoint_slots": limits.slots,
        "chat_template": vocabulary.template.source if vocabulary.template else "",
        "bos_token": vocabulary.name_of(special.bos),
        "eos_token": vocabulary.name_of(special.eos),
        "build_info": serving.fingerprint,
        "is_sleeping": engine.health.is_sleeping,
        "kv_cache": {name: getattr(stats, name) for name in _KV_CACHE},
    }, []


def _prob(token: Token) -> dict[str, Any]:
    """The JSON of a token, with its probability in place of the logarithm."""
    result = native.token_json(token)
    logprob = result.pop("logprob")
    return result | {"prob": None if logprob is None else math.exp(logprob)}


def _stop_type(event: StopEvent) -> str:
    if event.finish_reason == "stop":
        return "word" if event.stop_reason else "eos"
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
