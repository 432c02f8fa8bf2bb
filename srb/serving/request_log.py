"""The log line of a request, in logfmt: `key=value` with spaces between. Programs can read it. It has no texts."""

import json
from collections import Counter

from srb.serving.journal import Journal
from srb.serving.log_format import loggable


def logfmt(**fields: object) -> str:
    """The fields in their order, without those that are None. A value that isn't one plain word is a JSON string."""
    return " ".join(f"{key}={_value(value)}" for key, value in fields.items() if value is not None)


def _value(value: object) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    plain = text and text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain else json.dumps(text)


def done_line(journal: Journal) -> str:
    """The log line of a request that has ended."""
    assert journal.end is not None
    usage, timings = journal.end.usage, journal.end.timings
    reasons = Counter(stop.finish_reason for stop in journal.stops)
    return logfmt(
        event="done",
        id=journal.request.id,
        count=journal.request.count,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        generated_tokens=usage.completion_tokens,
        queued_ms=timings.queued_ms,
        prompt_ms=timings.prompt_ms,
        predicted_ms=timings.predicted_ms,
        finish=",".join(f"{reason}:{number}" for reason, number in sorted(reasons.items())),
        abort=next((stop.stop_reason for stop in journal.stops if stop.finish_reason == "abort"), None),
        error=(loggable(journal.error) or journal.error.code) if journal.error else None,
    )
