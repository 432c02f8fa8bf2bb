"""`srb compare --rate FOLDER`: serves a page where a person rates two texts without knowing which kinds they are."""

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

from aiohttp import web

from srb.terminal.comparison.rating import Ratings

PAGE = Path(__file__).with_name("rate.html")

RATINGS = web.AppKey("ratings", Ratings)


def create_app(ratings: Ratings, secret: str) -> web.Application:
    """The application: the page and its requests, at `/SECRET/`. Pages of other sites don't know this path."""
    app = web.Application()
    app[RATINGS] = ratings
    app.router.add_get(f"/{secret}/", _page)
    app.router.add_get(f"/{secret}/pair", _pair)
    app.router.add_post(f"/{secret}/pair", _rate)
    return app


async def rate(ratings: Ratings) -> None:
    """Serves the page on this machine until the task is cancelled, or Ctrl-C comes."""
    secret = secrets.token_urlsafe(16)
    runner = web.AppRunner(create_app(ratings, secret), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        print(f"rate {ratings.left} pairs at http://{host}:{port}/{secret}/ and then press Ctrl-C", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def _page(_request: web.Request) -> web.Response:
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:"
    )
    headers = {
        "Content-Security-Policy": f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    text = PAGE.read_text("utf-8").replace("NONCE", nonce)
    return web.Response(text=text, content_type="text/html", headers=headers)


async def _pair(request: web.Request) -> web.Response:
    return web.json_response(_state(request.app[RATINGS]))


async def _rate(request: web.Request) -> web.Response:
    """Takes a rating of the pair that it names: another tab may have rated what this one still shows."""
    ratings = request.app[RATINGS]
    try:
        said = json.loads(await request.read())
        number, winner = said["number"], said["winner"]
    except (ValueError, TypeError, KeyError):
        number = winner = None
    if winner not in (0, 0.5, 1, "undo"):
        raise web.HTTPBadRequest(text='a rating has the number of its pair, and a winner of 0, 0.5, 1 or "undo"')
    if number != (ratings.next and ratings.next.number):
        return web.json_response(_state(ratings), status=409)
    if winner == "undo":
        ratings.undo()
    elif ratings.next:
        ratings.rate(winner)
    return web.json_response(_state(ratings))


def _state(ratings: Ratings) -> dict[str, Any]:
    """What the page shows. It doesn't get the kinds of the texts, so nobody can look them up."""
    pair = ratings.next
    texts = pair and [pair.left.text, pair.right.text]
    shown = pair and {"number": pair.number, "prompt": pair.left.prompt_text, "texts": texts}
    return {"pair": shown, "left": ratings.left, "rated": len(ratings.given)}
