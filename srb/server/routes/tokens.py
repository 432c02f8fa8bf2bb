"""The routes that turn texts into tokens and back, under the paths of several servers."""

from aiohttp import web

from srb.server.http.exchange import ENGINE, LIMITS
from srb.wire.tokens.vocabulary import Vocabulary


def vocabulary_of(app: web.Application) -> Vocabulary:
    """The vocabulary of the loaded model. Raises `UnavailableError` before the model is loaded."""
    engine = app[ENGINE]
    return Vocabulary(app[LIMITS].model, engine.tokenizer, engine.chat_template, engine.n_cells)
