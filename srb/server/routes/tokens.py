"""The routes that turn texts into tokens and back, under the paths of several servers."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from srb.server.http.exchange import ENGINE, LIMITS, ignored_header, json_response, read_body
from srb.server.http.refusals import SHAPES
from srb.wire.anthropic import messages as anthropic
from srb.wire.openai import responses
from srb.wire.request.read import depth_refused
from srb.wire.tokens import texts as tokens
from srb.wire.tokens.texts import Answer, Vocabulary

POSTS: dict[str, Callable[[bytes, Vocabulary], Answer]] = {
    "/tokenize": tokens.tokenize,
    "/v1/tokenize": tokens.tokenize,
    "/detokenize": tokens.detokenize,
    "/apply-template": tokens.apply_template,
    "/v1/token/encode": tokens.encode,
    "/v1/token/decode": tokens.decode,
    "/v1/internal/encode": tokens.encode,
    "/v1/internal/decode": tokens.decode,
    "/v1/internal/token-count": tokens.token_count,
    "/v1/chat/completions/input_tokens": tokens.input_tokens,
    "/chat/completions/input_tokens": tokens.input_tokens,
    "/v1/responses/input_tokens": responses.input_tokens,
    "/openai/v1/responses/input_tokens": responses.input_tokens,
    "/responses/input_tokens": responses.input_tokens,
    "/v1/messages/count_tokens": anthropic.count_tokens,
}
"""For each path, the function that makes the answer to a body."""


def add_routes(app: web.Application) -> None:
    """Adds the routes to the application."""
    for path, answer in POSTS.items():
        app.router.add_post(path, answering(answer))
    app[SHAPES]["POST", "/v1/messages/count_tokens"] = anthropic.error
    app.router.add_get("/tokenizer_info", tokenizer_info)


def answering(answer: Callable[[bytes, Vocabulary], Answer]) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler of a path. It makes the answer in a worker thread, because long texts take seconds."""

    def respond(data: bytes, vocabulary: Vocabulary) -> web.Response:
        with depth_refused():
            value, ignored = answer(data, vocabulary)
        return json_response(value, ignored_header(ignored))

    async def handle(request: web.Request) -> web.Response:
        vocabulary = vocabulary_of(request.app)
        return await asyncio.to_thread(respond, await read_body(request), vocabulary)

    return handle


async def tokenizer_info(request: web.Request) -> web.Response:
    """GET /tokenizer_info: the special tokens and the chat template."""
    return web.json_response(tokens.tokenizer_info(vocabulary_of(request.app)))


def vocabulary_of(app: web.Application) -> Vocabulary:
    """The vocabulary of the loaded model. Raises `UnavailableError` before the model is loaded."""
    engine = app[ENGINE]
    return Vocabulary(app[LIMITS].model, engine.tokenizer, engine.chat_template, engine.n_cells)
