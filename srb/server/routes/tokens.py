"""The routes that turn texts into tokens and back, under the paths of several servers."""

from collections.abc import Callable

from aiohttp import web

from srb.server.http.exchange import ENGINE, LIMITS
from srb.server.http.refusals import SHAPES
from srb.server.routes.formats import telling
from srb.wire.anthropic import messages as anthropic
from srb.wire.openai import responses
from srb.wire.serving import Serving, Told
from srb.wire.tokens import texts as tokens
from srb.wire.tokens.vocabulary import Vocabulary

POSTS: dict[str, Callable[[bytes, Serving], Told]] = {
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
        app.router.add_post(path, telling(answer))
    app[SHAPES]["POST", "/v1/messages/count_tokens"] = anthropic.error
    app.router.add_get("/tokenizer_info", telling(tokens.tokenizer_info))


def vocabulary_of(app: web.Application) -> Vocabulary:
    """The vocabulary of the loaded model. Raises `UnavailableError` before the model is loaded."""
    engine = app[ENGINE]
    return Vocabulary(app[LIMITS].model, engine.tokenizer, engine.chat_template, engine.n_cells)
