"""Routes whose responses are numbers: embeddings, reranking, and tables of scores."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from srb.engine.model import Embedder
from srb.errors import NotFoundError, NotSupportedError
from srb.server.access import owner_of, shared_within
from srb.server.http import sse
from srb.server.http.bodies import read_body
from srb.server.http.exchange import ENGINE, LIMITS, ignored_header, json_response, respond_whole
from srb.serving.engine_client import EngineClient
from srb.serving.score_tables import TableRun
from srb.wire.embeddings import EmbeddingFormat, EmbeddingRequest, parse_embeddings
from srb.wire.native.score import OBJECT_SCHEMA, STREAM_SCHEMA, ScoreBuilder, ScoreFields, parse_score
from srb.wire.rerank import RerankFields, RerankRequest, parse_rerank
from srb.wire.route import EVENTS, ONE_OR_MORE, Route, post

Result = TypeVar("Result")


class EmbeddingQueue:
    """The one thread for embeddings and reranking, so that they take no threads from completions.

    It embeds one text at a time, round robin over the requests. count: the number of requests.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "srb-embeddings")
        self.count = 0

    def check(self, engine: EngineClient) -> None:
        """Raises `QueueFullError` if no more requests may wait. One of them runs, and the others wait."""
        engine.check_queue(max(0, self.count - 1))

    @contextmanager
    def entered(self, engine: EngineClient) -> Iterator[None]:
        """Counts a request while the block runs. Raises `QueueFullError`."""
        self.check(engine)
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function in the thread, and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, partial(function, *arguments))


EMBEDDING_QUEUE = web.AppKey("embeddings", EmbeddingQueue)


async def close_embedding_queue(app: web.Application) -> None:
    """Ends the thread. It finishes the current text, and drops the rest."""
    await asyncio.to_thread(app[EMBEDDING_QUEUE].thread.shutdown, cancel_futures=True)


async def embeddings(form: EmbeddingFormat, request: web.Request) -> web.StreamResponse:
    """Answers with the vectors of texts. If the client disconnects, its request ends after the current text."""
    model = request.app[ENGINE].model
    if (embedder := model.embedder) is None or embedder.rank_template is not None:
        raise NotSupportedError("the server makes no embeddings; start it with --embeddings")
    name = request.app[LIMITS].model
    return await _pool(request, embedder, lambda data: parse_embeddings(data, embedder, model.tokenizer, name, form))


async def rerank(request: web.Request) -> web.StreamResponse:
    """Rank documents by their relevance to a query, the best first, with --reranking."""
    model = request.app[ENGINE].model
    if (embedder := model.embedder) is None or (template := embedder.rank_template) is None:
        raise NotSupportedError(
            "the server doesn't rerank; start it with --reranking and a model for it, such as Qwen3-Reranker"
        )
    name = request.app[LIMITS].model
    return await _pool(request, embedder, lambda data: parse_rerank(data, embedder, template, model.tokenizer, name))


async def _pool(
    request: web.Request, embedder: Embedder, parse: Callable[[bytes], EmbeddingRequest | RerankRequest]
) -> web.StreamResponse:
    engine, queue = request.app[ENGINE], request.app[EMBEDDING_QUEUE]
    queue.check(engine)
    data = await read_body(request)
    with queue.entered(engine):
        parsed = await queue.run(parse, data)
        headers = ignored_header(parsed.ignored)

        async def whole() -> web.Response:
            vectors = [await queue.run(embedder.embed, tokens) for tokens in parsed.texts]
            return await queue.run(lambda: json_response(parsed.to_json(vectors, request.app[LIMITS].model), headers))

        return await respond_whole(request, whole(), headers)


TABLES: web.AppKey[dict[str, TableRun]] = web.AppKey("tables")
"""The running tables, by id."""


async def score(request: web.Request) -> web.StreamResponse:
    """Score continuations given contexts: a table of log-probabilities, of any size."""
    engine, model, created = request.app[ENGINE], request.app[LIMITS].model, int(time.time())
    engine.check_ready()
    engine.check_queue()
    parsed = await asyncio.to_thread(parse_score, await read_body(request), model)
    within = await shared_within(request)
    async with TableRun(engine, parsed.table, owner=owner_of(request), within=within) as tabulation:
        builder = ScoreBuilder(parsed, tabulation.id, model=model, created=created, fingerprint=engine.fingerprint)
        await tabulation.start()  # an error gets its own status until something is sent
        headers = {"X-Request-Id": tabulation.id} | ignored_header(parsed.ignored)
        request.app[TABLES][tabulation.id] = tabulation
        try:
            if parsed.stream:
                async with sse.reading(builder.events(tabulation)) as read:
                    return await sse.respond(request, read, headers=headers)

            async def whole() -> web.Response:
                rows = [row async for some in tabulation.rows() for row in some]
                return await asyncio.to_thread(lambda: json_response(builder.object(rows, tabulation), headers))

            return await respond_whole(request, whole(), headers)
        finally:
            del request.app[TABLES][tabulation.id]


async def cancel_table(request: web.Request) -> web.Response:
    """End a table; rows that were sent stay valid."""
    tabulation = request.app[TABLES].get(request.match_info["id"])
    if tabulation is None or tabulation.owner != owner_of(request):
        raise NotFoundError(f"no table {request.match_info['id']:.100} is running", param="id")
    tabulation.end()
    return web.Response(status=204)


_ALSO = ("/reranking", "/v1/rerank", "/v1/reranking")

ROUTES = (
    post("/rerank", rerank, ONE_OR_MORE, body=RerankFields, errors=(429, 501, 503), aliases=_ALSO),
    post(
        "/v1/score",
        score,
        OBJECT_SCHEMA,
        other_schemas={EVENTS: STREAM_SCHEMA},
        body=ScoreFields,
        errors=(429, 503),
    ),
    Route("DELETE", "/v1/score/{id}", cancel_table, errors=(404,)),
)
