"""Serves the page at `/`: the files of srb/web, unchanged."""

import asyncio
import hashlib
import mimetypes
from pathlib import Path

from aiohttp import web

from srb.wire.route import get
from srb.wire.schemas import STRING

FOLDER = Path(__file__).parents[2] / "web"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "Cache-Control": "no-cache",  # browsers ask each time, and get a short 304 unless srb was updated
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


FILES = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
"""The files by what stands behind `/web/` in their paths. No other path comes to the file system."""

_TYPES = mimetypes.MimeTypes()  # Python's own, since those of the system may be others


async def _index(request: web.Request) -> web.Response:
    """The page: alternatives side by side."""
    return await _send(request, FOLDER / "index.html")


async def _file(request: web.Request) -> web.Response:
    if (path := FILES.get(request.match_info["file"])) is None:
        raise web.HTTPNotFound
    return await _send(request, path)


async def _send(request: web.Request, path: Path) -> web.Response:
    """Answers with a file, or with a 304. `web.FileResponse` would keep the file open while a slow reader takes it."""
    body = await asyncio.to_thread(path.read_bytes)
    tag = hashlib.sha256(body).hexdigest()
    is_known = tag in {each.value for each in request.if_none_match or ()}
    response = web.Response(status=304) if is_known else web.Response(body=body)
    response.headers.update(HEADERS)
    response.content_type = _TYPES.guess_type(path)[0] or "application/octet-stream"
    response.etag = tag
    return response


ROUTES = (get("/", _index, others={"text/html": STRING}), get("/web/{file:.*}", _file))
