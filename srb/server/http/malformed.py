"""Answers what isn't HTTP. aiohttp's own answer quotes the line that it can't read, which may have an API key."""

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError


class Runner(web.AppRunner):
    """An `AppRunner` whose server answers requests that aiohttp can't parse without what was sent."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server  # aiohttp has no other place to say which class handles a connection
        return server


class _Connection(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, HttpProcessingError):
            message = f"the request isn't HTTP as it should be ({type(exc).__name__})"
        return super().handle_error(request, status, exc, message)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)
