"""The routes of KoboldAI's interface, as KoboldCpp has them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from srb.server.guards.auth import API_KEYS, owner_of
from srb.server.http import sse
from srb.server.http.exchange import ENGINE, LIMITS, Answers, ignored_header, json_response, read_body, submit
from srb.server.http.sse import Batches
from srb.server.routes.formats import telling
from srb.server.routes.tokens import vocabulary_of
from srb.serving.request_stream import RequestStream
from srb.wire.kobold import body as kobold_body
from srb.wire.kobold import reply as kobold
from srb.wire.kobold.body import KoboldParsed
from srb.wire.kobold.reply import Generation
from srb.wire.reply.frames import MESSAGE

UNITED_VERSION, CPP_VERSION = "1.2.5", "1.102"
"""The versions of KoboldAI United's and KoboldCpp's interfaces that srb has. Clients decide by them what to send."""

_MISSING = (
    *("txt2img", "vision", "audio", "transcribe", "multiplayer", "websearch", "tts", "embeddings", "savedata"),
    *("guidance", "admin"),
)
"""Features that /api/extra/version reports as missing. If one were true, clients would use routes that srb lacks."""


@dataclass
class Generations:
    """The generations that run, in the order of their arrival, and how fast the last one of each owner was.

    started, rested: when the server began, and when the last generation ended, in seconds of the event loop's clock.
    running: pairs of an owner and a generation. total: how many have ended.
    """

    started: float
    rested: float
    running: list[tuple[str | None, Generation]] = field(default_factory=list)
    last: dict[str | None, dict[str, Any]] = field(default_factory=dict)
    total: int = 0

    @contextmanager
    def keep(self, generation: Generation, owner: str | None) -> Iterator[None]:
        """Counts a generation among those that run, as long as the block takes."""
        self.running.append((owner, generation))
        try:
            yield
        finally:
            self.running.remove((owner, generation))
            self.last[owner], self.total = generation.perf(), self.total + 1
            self.rested = asyncio.get_running_loop().time()

    def named(self, genkey: str, owner: str | None) -> list[Generation]:
        """The running generations of an owner with this genkey.

        An empty genkey finds a generation only if a single one without a genkey runs: of several, it isn't known which
        one the client means.
        """
        found = [each for whose, each in self.running if (whose, each.genkey) == (owner, genkey)]
        return found if genkey or len(found) == 1 else []


GENERATIONS = web.AppKey("generations", Generations)


def add_routes(app: web.Application) -> None:
    """Adds KoboldAI's routes to the application."""
    app.on_startup.append(_begin)
    app.router.add_post("/api/v1/generate", generate)
    app.router.add_post("/api/extra/generate/stream", generate_stream)
    app.router.add_post("/api/extra/generate/check", check)
    app.router.add_get("/api/extra/generate/check", check)
    app.router.add_post("/api/extra/abort", abort)
    app.router.add_post("/api/extra/tokencount", telling(kobold.token_count))
    app.router.add_post("/api/extra/tokenize", telling(kobold.token_count))
    app.router.add_post("/api/extra/detokenize", telling(kobold.detokenize))
    app.router.add_get("/api/extra/perf", perf)
    for path, value in FACTS.items():
        app.router.add_get(path, _telling(value))


async def _begin(app: web.Application) -> None:
    now = asyncio.get_running_loop().time()
    app[GENERATIONS] = Generations(now, now)


def _version(app: web.Application) -> dict[str, Any]:
    missing = dict.fromkeys(_MISSING, False)
    return {"result": "KoboldCpp", "version": CPP_VERSION, "llm": True, "protected": bool(app[API_KEYS])} | missing


FACTS: dict[str, Callable[[web.Application], dict[str, Any]]] = {
    "/api/v1/model": lambda app: {"result": vocabulary_of(app).model},
    "/api/v1/info/version": lambda _app: {"result": UNITED_VERSION},
    "/api/v1/config/max_context_length": lambda app: {"value": vocabulary_of(app).n_cells},
    "/api/v1/config/max_length": lambda app: {"value": kobold_body.default_length(vocabulary_of(app).n_cells)},
    "/api/extra/true_max_context_length": lambda app: {"value": vocabulary_of(app).n_cells},
    "/api/extra/version": _version,
}
"""The paths that only tell facts of the server, and what makes their answers."""


def _telling(value: Callable[[web.Application], dict[str, Any]]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response(value(request.app))

    return handle


async def generate(request: web.Request) -> web.StreamResponse:
    """POST /api/v1/generate: a result for each alternative."""
    return await _submit(request, stream=False)


async def generate_stream(request: web.Request) -> web.StreamResponse:
    """POST /api/extra/generate/stream: the text of one alternative, as it grows."""
    return await _submit(request, stream=True)


async def _submit(request: web.Request, *, stream: bool) -> web.StreamResponse:
    engine, limits = request.app[ENGINE], request.app[LIMITS]
    vocabulary = vocabulary_of(request.app)
    engine.check_queue()
    data = await read_body(request)
    parsed = await asyncio.to_thread(kobold_body.parse, data, limits, engine.tokenize, vocabulary, stream=stream)
    answers = Answers(parsed.ignored, partial(_answer, parsed, is_stream=stream), keeps=parsed.genkey)
    return await submit(request, parsed.completion, answers, detach=parsed.detach)


async def _answer(
    parsed: KoboldParsed, request: web.Request, stream: RequestStream, *, is_stream: bool
) -> web.StreamResponse:
    """Answers a client that reads a request from its beginning."""
    generation = Generation(parsed, model=request.app[LIMITS].model)
    headers = {"X-Request-Id": generation.request_id} | ignored_header(parsed.ignored)
    with request.app[GENERATIONS].keep(generation, stream.journal.owner):
        if is_stream:
            batches = Batches(stream.__anext__, generation.chunks)
            return await sse.respond(request, batches, headers=headers, frame=MESSAGE)
        async for batch in stream:
            generation.take(batch)
        stream.raise_refusal()
    return await asyncio.to_thread(lambda: json_response(generation.results(), headers))


async def check(request: web.Request) -> web.Response:
    """GET and POST /api/extra/generate/check: the text so far of the request with this genkey; empty if none runs."""
    genkey, ignored = await asyncio.to_thread(kobold_body.read_key, await read_body(request))
    found = request.app[GENERATIONS].named(genkey, owner_of(request))
    return json_response(found[-1].so_far() if found else {"results": [{"text": ""}]}, ignored_header(ignored))


async def abort(request: web.Request) -> web.Response:
    """POST /api/extra/abort: ends the requests with this genkey."""
    genkey, ignored = await asyncio.to_thread(kobold_body.read_key, await read_body(request))
    found = request.app[GENERATIONS].named(genkey, owner_of(request))
    ended = [request.app[ENGINE].abort(each.request_id) for each in found]
    return json_response({"success": any(ended), "done": any(ended)}, ignored_header(ignored))


async def perf(request: web.Request) -> web.Response:
    """GET /api/extra/perf: how fast the asker's last generation was, and how busy the server is."""
    health, generations = request.app[ENGINE].health, request.app[GENERATIONS]
    now = asyncio.get_running_loop().time()
    busy = {
        "total_gens": generations.total,
        "queue": health.waiting,
        "idle": int(not health.running),
        "uptime": round(now - generations.started, 3),
        "idletime": 0 if generations.running else round(now - generations.rested, 3),
        "quiet": True,
    }
    last = generations.last.get(owner_of(request), {})
    return web.json_response(kobold.NO_PERF | last | busy)
