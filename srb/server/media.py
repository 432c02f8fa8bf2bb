"""The images and sounds of requests: from their bodies into prompts."""

from collections.abc import Sequence

from aiohttp import web

from srb.engine.media import Media
from srb.errors import InvalidRequestError
from srb.server.exchange import ENGINE, MAX_BODY_BYTES
from srb.wire.media import File, Part, Take

_MAX_BODY_BYTES = 32 << 20
"""Of a request to a model that takes images: two photographs, say, in base64."""


def body_limit(app: web.Application) -> int:
    """How many bytes a body may have that asks for a text. Raises `UnavailableError`."""
    return _MAX_BODY_BYTES if app[ENGINE].media_kinds else MAX_BODY_BYTES


def media_taker(app: web.Application) -> Take:
    """What makes prompts of texts and files. To be called in a worker thread."""
    engine = app[ENGINE]

    def take(parts: Sequence[Part]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        return engine.tokenize_parts([part if isinstance(part, str) else _contents(part) for part in parts])

    return take


def _contents(file: File) -> bytes:
    if file.url is not None:
        raise InvalidRequestError(
            "this server fetches no images and sounds from elsewhere; send a URL that begins with data:",
            code="unsupported_media",
        )
    return file.data
