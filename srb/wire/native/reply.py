"""The native wire format: events `start`, `stream`, `stop` and `done` as JSON."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    NodeEvent,
    ProgressEvent,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Token,
    Usage,
)
from srb.engine.request import CompletionRequest
from srb.wire.reply import LEAST_LOGPROB, logprob_of, wire_names


def to_json(
    event: Event, *, model: str, created: int, ignored: list[str], nodes: list[int] | None = None
) -> dict[str, Any]:
    """The JSON object of an event of a request that arrived at `created`, in seconds since 1970.

    If the request belongs to a story, `nodes` are the ids of the nodes that its alternatives become.
    """
    match event:
        case StreamEvent():
            stream: dict[str, Any] = {"event": "stream", "index": event.index, "text": event.text}
            if event.tokens:
                stream["tokens"] = event.tokens
            if event.token:
                stream |= token_json(event.token)
                stream["top_logprobs"] = [token_json(each) for each in event.token.top_logprobs]
            return stream
        case NodeEvent():
            return {
                "event": "node",
                "id": event.id,
                "parent": event.parent,
                "text": event.text,
                "tokens": event.tokens,
                "logprob": round(event.logprob, 6),
                "cumulative_logprob": round(event.cumulative_logprob, 6),
                "entropy": None if event.entropy is None else round(event.entropy, 6),
                "finish_reason": event.finish_reason,
            }
        case StopEvent():
            return {
                "event": "stop",
                "index": event.index,
                "length": event.length,
                "stop": int(event.finish_reason == "stop"),
                "finish_reason": event.finish_reason,
                "stop_reason": event.stop_reason,
                **({} if event.mean_logprob is None else {"mean_logprob": round(event.mean_logprob, 6)}),
                **_special(event),
            }
        case StartEvent():
            start = {
                "event": "start",
                "count": event.count,
                "id": event.request_id,
                "created": created,
                "model": model,
                "prompt_tokens": event.prompt_tokens,
                "cached_tokens": event.cached_tokens,
                "max_tokens": event.max_tokens,
                "seeds": event.seeds,
                "ignored": ignored,
            }
            if any(event.labels):
                start["labels"] = event.labels
            if event.n_truncated:
                start["n_cut"] = event.n_truncated
            if event.guided:
                start["guided"] = event.guided
            if event.infill:
                start["infill"] = event.infill
            if event.fingerprint:
                start["fingerprint"] = event.fingerprint
            return start | ({} if nodes is None else {"nodes": nodes})
        case ProgressEvent():
            return {
                "event": "progress",
                "evaluated": event.evaluated,
                "cached": event.cached,
                "total": event.total,
            }
        case PromptLogprobsEvent():
            tokens = [token_json(each) for each in event.tokens]
            for value, token in zip(tokens, event.tokens, strict=True):
                value["rank"] = token.rank
                value["top_logprobs"] = [token_json(each) for each in token.top_logprobs]
            return {"event": "prompt_logprobs", "indices": event.indices, "tokens": tokens}
        case ErrorEvent():
            index = {} if event.index is None else {"index": event.index}
            return {"event": "error", **index, "error": event.error.body()}
        case DoneEvent():
            usage, timings = event.usage, wire_names(dataclasses.asdict(event.timings))
            if not timings["n_cut"]:
                del timings["n_cut"]
            return {
                "event": "done",
                "count": event.count,
                "id": event.request_id,
                "usage": usage_json(usage),
                "timings": {name: round(value, 3) for name, value in timings.items()},
            }


def _special(event: StopEvent) -> dict[str, Any]:
    """The fields that only some alternatives have, such as those of a beam search."""
    fields: dict[str, Any] = {}
    if event.rewinds is not None:
        fields = {"rewinds": event.rewinds, "rewound_tokens": event.rewound_tokens}
        fields |= {"rewinds_exhausted": True} if event.rewinds_exhausted else {}
    if event.logprob is not None:
        fields["logprob"] = round(event.logprob, 6)
    if event.suffix_logprob is not None:
        fields |= {"suffix_logprob": round(max(event.suffix_logprob, LEAST_LOGPROB), 6), "rank": event.rank}
    if event.truncated:
        fields["truncated"] = True
    return fields


def usage_json(usage: Usage) -> dict[str, int]:
    """The token counts of a request."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
    }


def state(
    request: CompletionRequest,
    *,
    created: int,
    started: bool,
    texts: list[str],
    lengths: list[int],
    stops: Iterable[StopEvent],
    done: DoneEvent | None,
    last_event_id: int,
) -> dict[str, Any]:
    """The state of a request. Fields that are known only at its end are null until then."""
    ends = {stop.index: stop for stop in stops}
    branches = request.branches
    choices = []
    for index, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        params, end = branches[index % len(branches)], ends.get(index)
        choices.append(
            {
                "index": index,
                "label": params.label,
                "seed": params.seed,
                "text": text,
                "length": length,
                "finish_reason": end.finish_reason if end else None,
                "stop_reason": end.stop_reason if end else None,
                **(_special(end) if end else {}),
            }
        )
    return {
        "id": request.id,
        "object": "srb.request",
        "status": "finished" if done else "running" if started else "waiting",
        "created": created,
        "choices": choices,
        "usage": usage_json(done.usage) if done else None,
        "last_event_id": last_event_id,
    }


def token_json(token: Token) -> dict[str, Any]:
    """A token in the form of llama-server's `completion_probabilities`."""
    return {
        "id": token.id,
        "token": token.piece.decode(errors="replace"),
        "bytes": list(token.piece),
        "logprob": logprob_of(token),
    }
