"""`Telemetry` observes the requests that generate texts. The base class records nothing.

With `--otlp-endpoint` it is `srb.server.run.otlp`, which needs an extra, so that only `srb serve` imports it.
"""

from aiohttp import web

from srb.serving.event_log import EventLog


class RequestSpan:
    """A request from its arrival to its last token."""

    def refused(self, error: Exception) -> None:
        """Ends the span of a request that the engine didn't take."""

    def ended(self, event_log: EventLog) -> None:
        """Ends the span of a request that the engine took. It never raises an exception."""


class Telemetry:
    """Records nothing."""

    def begin(self, request: web.Request, operation: str) -> RequestSpan:
        """Begins a span.

        Args:
            request: The HTTP request.
            operation: `GenerateHandler.operation`.
        """
        return RequestSpan()

    async def close(self) -> None:
        """Sends what was recorded."""


TELEMETRY = web.AppKey("telemetry", Telemetry)
