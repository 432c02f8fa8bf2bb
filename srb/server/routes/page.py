"""Serves the page at `/`: the files of srb/web, unchanged."""

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


async def _index(request: web.Request) -> web.FileResponse:
    """The page: alternatives side by side."""
    return web.FileResponse(FOLDER / "index.html", headers=HEADERS)


async def _file(request: web.Request) -> web.FileResponse:
    if (path := FILES.get(request.match_info["file"])) is None:
        raise web.HTTPNotFound
    return web.FileResponse(path, headers=HEADERS)


ROUTES = (get("/", _index, others={"text/html": STRING}), get("/web/{file:.*}", _file))
