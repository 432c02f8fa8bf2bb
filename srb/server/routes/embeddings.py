"""The routes for embeddings and for ranking, and the thread that they run in."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from srb.engine.model import Embedder
from srb.errors import NotSupportedError
from srb.server.http.bodies import read_body
from srb.server.http.exchange import ENGINE, LIMITS, ignored_header, json_response
from srb.serving.engine_client import EngineClient
from srb.wire.embeddings import Parsed, Style, normalize, parse, to_json
from srb.wire.rerank import Ranking, RerankFields
from srb.wire.rerank import parse as parse_ranking
from srb.wire.rerank import to_json as ranking_json
from srb.wire.route import post
from srb.wire.schemas import ONE_OR_MORE

Result = TypeVar("Result")


class Turns:
    """The one thread for embeddings and ranking. With a thread of their own they take none away from completions.

    The thread embeds one text at a time, in turn for all requests. count: how many requests there are.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "srb-embeddings")
        self.count = 0

    def check(self, engine: EngineClient) -> None:
        """Raises `QueueFullError` if no more requests may wait. One of them has its turn, and the others wait."""
        engine.check_queue(max(0, self.count - 1))

    @contextmanager
    def taken(self, engine: EngineClient) -> Iterator[None]:
        """Counts a request while the block runs. Raises what `check` raises."""
        self.check(engine)
        self.count += 1
        try:
            with engine.ahead.paused():
                yield
        finally:
            self.count -= 1

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function in the thread, and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, partial(function, *arguments))


TURNS = web.AppKey("embeddings", Turns)


async def end_turns(app: web.Application) -> None:
    """Ends the thread. It finishes the text at hand, and drops what waits."""
    await asyncio.to_thread(app[TURNS].thread.shutdown, cancel_futures=True)


async def embeddings(style: Style, request: web.Request) -> web.Response:
    """POST: the vectors of texts. When the client leaves, its request ends after the text at hand."""
    engine, model = request.app[ENGINE], request.app[LIMITS].model
    embedder = engine.embedder
    if embedder is None or embedder.rank_template is not None:
        raise NotSupportedError("the server makes no embeddings; start it with --embeddings")
    turns = request.app[TURNS]
    turns.check(engine)
    data = await read_body(request)
    with turns.taken(engine):
        parsed = await turns.run(parse, data, embedder, engine.tokenizer, model, style)
        vectors = [await turns.run(_embed, embedder, tokens, parsed.normalize) for tokens in parsed.texts]
        return await turns.run(_answer, parsed, vectors, model)


async def rerank(request: web.Request) -> web.Response:
    """Rank documents by how well they answer a query, the best first, with --reranking."""
    engine, model = request.app[ENGINE], request.app[LIMITS].model
    embedder = engine.embedder
    if embedder is None or embedder.rank_template is None:
        raise NotSupportedError(
            "the server doesn't rank; start it with --reranking and a model that does, such as Qwen3-Reranker"
        )
    turns = request.app[TURNS]
    turns.check(engine)
    data = await read_body(request)
    with turns.taken(engine):
        ranking = await turns.run(parse_ranking, data, embedder, embedder.rank_template, engine.tokenizer, model)
        scores = [(await turns.run(embedder.embed, tokens))[0][0] for tokens in ranking.prompts]
        return await turns.run(_ranked, ranking, scores, model)


def _embed(embedder: Embedder, tokens: tuple[int, ...], p: int) -> list[list[float]]:
    """The vectors of a text. If the embedder pools, it is one vector, normalized by the p-norm; else one per token."""
    vectors = embedder.embed(tokens)
    return [normalize(vector, p) for vector in vectors] if embedder.pools else vectors


def _ranked(ranking: Ranking, scores: list[float], model: str) -> web.Response:
    return json_response(ranking_json(ranking, scores, model), ignored_header(ranking.ignored))


def _answer(parsed: Parsed, vectors: list[list[list[float]]], model: str) -> web.Response:
    return json_response(to_json(parsed, vectors, model), ignored_header(parsed.ignored))


_ALSO = ("/reranking", "/v1/rerank", "/v1/reranking")

ROUTES = (post("/rerank", rerank, ONE_OR_MORE, body=RerankFields, errors=(429, 501, 503), also=_ALSO),)
