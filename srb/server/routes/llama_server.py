"""The routes of llama-server's interface."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

import srb
from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.telling.events import Event
from srb.errors import NotSupportedError, UnavailableError
from srb.server.guards.auth import owner_of
from srb.server.http import sse
from srb.server.http.exchange import ENGINE, LIMITS, Answers, ignored_header, json_response, read_body, stats_of, submit
from srb.server.http.lookups import read
from srb.server.http.media import body_limit, media_taker
from srb.server.http.peers import lists_of_others
from srb.server.http.sse import Batches
from srb.server.routes.tokens import vocabulary_of
from srb.serving.journal import Journal
from srb.serving.request_stream import RequestStream
from srb.wire.llama_server import body as llama_body
from srb.wire.llama_server.body import LlamaParsed
from srb.wire.llama_server.reply import Completion, generation_settings, public_settings
from srb.wire.request.media import MARKER


def add_routes(app: web.Application) -> None:
    """Adds llama-server's routes to the application."""
    app.router.add_post("/completion", completion)
    app.router.add_post("/completions", completion)
    app.router.add_post("/infill", infill)
    app.router.add_get("/props", props)
    app.router.add_get("/slots", slots)


async def completion(request: web.Request) -> web.StreamResponse:
    """POST /completion and /completions."""
    engine, limits = request.app[ENGINE], request.app[LIMITS]
    engine.check_ready()
    engine.check_queue()
    data, take = await read_body(request, body_limit(request.app)), media_taker(request.app)
    parsed = await read(partial(llama_body.parse_completion, data, limits, engine.tokenize, take))
    return await _submit(request, parsed)


async def infill(request: web.Request) -> web.StreamResponse:
    """POST /infill: generates the text between a prefix and a suffix."""
    engine, limits = request.app[ENGINE], request.app[LIMITS]
    tokenizer = engine.tokenizer
    engine.check_queue()
    data = await read_body(request)
    parsed = await asyncio.to_thread(llama_body.parse_infill, data, limits, engine.tokenize, tokenizer, engine.n_cells)
    return await _submit(request, parsed)


async def _submit(request: web.Request, parsed: LlamaParsed) -> web.StreamResponse:
    # Answers are kept for long, and need no images.
    kept = replace(parsed, completion=replace(parsed.completion, media=())) if parsed.completion.media else parsed
    answers = Answers(parsed.ignored, partial(_answer, kept), keeps=parsed.response_fields)
    return await submit(request, parsed.completion, answers, detach=parsed.detach)


async def _answer(parsed: LlamaParsed, request: web.Request, stream: RequestStream) -> web.StreamResponse:
    """Answers a client that reads a request from its beginning."""
    engine, model = request.app[ENGINE], request.app[LIMITS].model
    request_id = parsed.completion.id
    headers = {"X-Request-Id": request_id} | ignored_header(parsed.ignored)
    # Detokenizing is safe here: the engine has taken the request, so the vocabulary has all its token ids.
    reply = await asyncio.to_thread(Completion, parsed, model=model, detokenize=engine.tokenizer.detokenize)

    def end_overdue() -> None:
        for index in reply.overdue():
            engine.abort(request_id, index, "timeout")

    def chunks(events: list[Event]) -> Iterator[dict[str, Any]]:
        yield from reply.chunks(events)
        end_overdue()

    if parsed.stream:
        return await sse.respond(request, Batches(stream.__anext__, chunks), headers=headers)
    async for events in stream:
        reply.take(events)
        end_overdue()
    stream.raise_refusal()
    return await asyncio.to_thread(lambda: json_response(reply.result(), headers))


async def props(request: web.Request) -> web.Response:
    """GET /props: facts about the server and its model."""
    engine, limits = request.app[ENGINE], request.app[LIMITS]
    vocabulary, stats = vocabulary_of(request.app), stats_of(engine)
    special = vocabulary.tokenizer.special
    defaults = SamplingParams(max_tokens=-1)
    return web.json_response(
        {
            "default_generation_settings": {
                "n_ctx": engine.n_cells,
                "params": generation_settings(defaults, None),
            },
            "total_slots": stats.max_sequences,
            "model_alias": limits.model,
            "model_path": limits.model_path,
            "modalities": {"vision": "image" in engine.media_kinds, "audio": "audio" in engine.media_kinds},
            "media_marker": MARKER,
            "endpoint_slots": limits.slots,
            "chat_template": engine.chat_template.source if engine.chat_template else "",
            "bos_token": vocabulary.name_of(special.bos),
            "eos_token": vocabulary.name_of(special.eos),
            "build_info": f"srb-{srb.__version__}",
            "is_sleeping": engine.health.is_sleeping,
        }
    )


async def slots(request: web.Request) -> web.Response:
    """GET /slots: a slot for each alternative that can run at once.

    The busy slots come first. Only those of the asker's own requests have their settings.
    """
    engine = request.app[ENGINE]
    if not request.app[LIMITS].slots:
        raise NotSupportedError("the server was started with --no-slots")
    engine.check_ready()
    stats = stats_of(engine)
    busy = [
        _slot(journal, index) if journal.owner == owner_of(request) else {"is_processing": True}
        for journal in engine.requests
        if journal.started
        for index in sorted(journal.living)
    ]
    busy += [slot for slot in await lists_of_others(request) if slot["is_processing"]]
    if len(busy) >= stats.max_sequences and request.query.get("fail_on_no_slot"):
        raise UnavailableError(f"all {stats.max_sequences} slots are in use; try again soon")
    idle: list[dict[str, Any]] = [{"is_processing": False}] * (stats.max_sequences - len(busy))
    common: dict[str, Any] = {"n_ctx": engine.n_cells, "speculative": False}
    return web.json_response([common | slot | {"id": number} for number, slot in enumerate([*busy, *idle])])


def _slot(journal: Journal, index: int) -> dict[str, Any]:
    """A running alternative as a slot."""
    request = journal.request
    return {
        "is_processing": True,
        "request_id": request.id,
        "index": index,
        "n_prompt_tokens": len(request.prompts[index // len(request.branches)]),
        "params": public_settings(request.branches[index % len(request.branches)], request),
    }
