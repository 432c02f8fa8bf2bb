"""What routes tell OpenTelemetry about their requests.

With `--otlp-endpoint` the listener is `srb.server.run.otlp`, which needs an extra, so that only `srb serve` imports it.
"""

from collections.abc import Awaitable, Callable
from functools import wraps

from aiohttp import web
from aiohttp.typedefs import Handler

from srb.engine.events import Usage
from srb.errors import SrbError
from srb.serving.event_log import EventLog

Observe = Callable[[str, Handler, web.Request], Awaitable[web.StreamResponse]]
"""Answers a request with a handler, and observes it. The text is the operation."""

OBSERVE: web.AppKey[Observe | None] = web.AppKey("observe")
"""None: requests aren't observed."""

ON_END: web.RequestKey[Callable[[EventLog], None]] = web.RequestKey("on_end")
"""Ends the observation. A handler that gives it to an event log (`EventLog.on_end`) takes it out of the request."""

USAGE = web.RequestKey("usage", Usage)
"""The tokens of a request without an event log."""

FAILED: web.RequestKey[SrbError | str] = web.RequestKey("failed")
"""Why a request without an event log failed while its response was sent: an error, or the reason of an abort."""


def observed(operation: str, handler: Handler) -> Handler:
    """Returns a handler that observes the requests of another one.

    Args:
        operation: What the handler does, in the words of OpenTelemetry's `gen_ai.operation.name`.
        handler: Answers the requests.
    """

    @wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        observe = request.app[OBSERVE]
        return await (observe(operation, handler, request) if observe else handler(request))

    return answer
