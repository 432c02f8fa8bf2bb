"""llama-server's wire format: chunks and results of `/completion`, and the settings that they show."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from srb.engine.asking.request import CompletionRequest
from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.telling.events import (
    ErrorEvent,
    Event,
    ProgressEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Token,
)
from srb.errors import SrbError
from srb.wire.llama_server.body import LlamaParsed
from srb.wire.native import reply as native
from srb.wire.reply.timings import RunningTimings, prompt_progress, timings

Detokenize = Callable[[Iterable[int]], bytes]
"""`Tokenizer.detokenize`."""


@dataclass
class _Alternative:
    """One alternative, as far as its events have come. begun: when its first token came, in seconds of the clock."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    probabilities: list[Token] = field(default_factory=list)
    has_new_line: bool = False
    begun: float | None = None
    error: SrbError | None = None
    stop: StopEvent | None = None


class Completion:
    """Makes the results of one request, from its events.

    Creating the object detokenizes each prompt, which takes a while for long ones. So create it in a worker thread, and
    only when it's known that the vocabulary has all of the prompts' tokens.

    clock: seconds from any beginning, for `t_max_predict_ms` and the time in `prompt_progress`.
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
        self._started = 0.0
        self._times = RunningTimings(clock) if parsed.timings_per_token else None

    def chunks(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """The chunks for the next events of a stream. The last chunk of each index has `stop` true, and all fields."""
        for event in events:
            match event:
                case StartEvent():
                    self._started = self._clock()
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

    def take(self, events: Iterable[Event]) -> None:
        """Takes the next events of a request that isn't a stream. Raises `SrbError` if the whole request failed."""
        for event in events:
            match event:
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

    def result(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The result of a finished request, or a list of results if it has several alternatives.

        The result of a failed alternative has an `error`. Raises `SrbError` if all failed.
        """
        alternatives = self._alternatives
        if alternatives[0].error and all(each.error for each in alternatives):
            raise alternatives[0].error
        results = [
            self._final(each.stop, each.text, each.tokens) | ({"error": each.error.body()} if each.error else {})
            for each in alternatives
            if each.stop
        ]
        return results[0] if len(results) == 1 else results

    def overdue(self) -> list[int]:
        """The indexes of the alternatives that have a new line, and have run for longer than `t_max_predict_ms`."""
        limit = self._parsed.t_max_predict_ms / 1000
        if not limit:
            return []
        now = self._clock()
        return [
            index
            for index, each in enumerate(self._alternatives)
            if each.stop is None and each.has_new_line and each.begun is not None and now - each.begun > limit
        ]

    def _add(self, event: StreamEvent) -> _Alternative:
        alternative = self._alternatives[event.index]
        alternative.has_new_line = alternative.has_new_line or "\n" in event.text
        if alternative.begun is None:
            alternative.begun = self._clock()
        return alternative

    def _partial(self, index: int, text: str, tokens: Iterable[int]) -> dict[str, Any]:
        return {"index": index, "content": text, "tokens": list(tokens), "stop": False}

    def _final(self, event: StopEvent, text: str, tokens: list[int]) -> dict[str, Any]:
        request = self._request
        branches = request.branches
        number = event.index // len(branches)
        prompt, params = request.prompts[number], branches[event.index % len(branches)]
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


_PRIVATE = (
    "stop",
    "banned_strings",
    "avoid",
    "negative_prompt",
    "logit_bias",
    "grammar",
    "json_schema",
    "dry_sequence_breakers",
    "label",
)


def generation_settings(params: SamplingParams, request: CompletionRequest | None) -> dict[str, Any]:
    """`generation_settings`: how an alternative is drawn, with the defaults and its own seed."""
    result = dataclasses.asdict(params)
    del result["logits_processor"]  # a Python function, which only callers of the library can pass
    biases = [{"token": token, "bias": None if bias == -math.inf else bias} for token, bias in params.logit_bias]
    return result | {
        "logit_bias": biases,
        "grammar": params.grammar or "",
        "json_schema": params.json_schema and json.loads(params.json_schema),
        "n_predict": params.max_tokens,
        "n_keep": request.n_keep if request else 0,
        "n_discard": request.n_discard if request else 0,
        "n_probs": (request and request.logprobs) or 0,
        "post_sampling_probs": bool(request and request.post_sampling_probs),
    }


def public_settings(params: SamplingParams, request: CompletionRequest) -> dict[str, Any]:
    """The `generation_settings` without the fields that may quote somebody's text."""
    return {name: value for name, value in generation_settings(params, request).items() if name not in _PRIVATE}
