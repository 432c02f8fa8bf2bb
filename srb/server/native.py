"""The native wire format: `start / stream / stop / done` events. Pure functions."""

import dataclasses
from typing import Any

from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent, StopEvent, StreamEvent


def to_json(event: Event, *, model: str, created: int, ignored: list[str]) -> dict[str, Any]:
    """The JSON object of an event. `created` is in seconds since 1970."""
    match event:
        case StreamEvent():
            return {"event": "stream", "index": event.index, "text": event.text}
        case StopEvent():
            return {
                "event": "stop",
                "index": event.index,
                "length": event.length,
                "stop": int(event.finish_reason == "stop"),
                "finish_reason": event.finish_reason,
                "stop_reason": event.stop_reason,
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
            return start | ({"labels": event.labels} if any(event.labels) else {})
        case ErrorEvent():
            index = {} if event.index is None else {"index": event.index}
            return {"event": "error", **index, "error": event.error.body()}
        case DoneEvent():
            usage, timings = event.usage, event.timings
            return {
                "event": "done",
                "count": event.count,
                "id": event.request_id,
                "usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                },
                "timings": {name: round(value, 3) for name, value in dataclasses.asdict(timings).items()},
            }
