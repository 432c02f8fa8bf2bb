"""The routes that generate. `FORMATS` says for each path how its bodies are read, and how streams and errors look."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import web

import srb
from srb.engine.asking.request import CompletionRequest
from srb.errors import GoneError, InvalidRequestError, NotFoundError, SrbError
from srb.history.stories import prompt_at
from srb.history.unfinished import find_body
from srb.server.guards.auth import owner_of
from srb.server.http import sse
from srb.server.http.exchange import (
    ANSWERS,
    ANSWERS_OF_OLD,
    ENGINE,
    LIMITS,
    Answers,
    ignored_header,
    json_response,
    read_body,
    submit,
)
from srb.server.http.lookups import known, read
from srb.server.http.media import body_limit, media_taker
from srb.server.http.refusals import SHAPES, Shape
from srb.server.http.sse import Batches
from srb.server.routes.requests import find_kept
from srb.server.routes.responses import events_so_far, find_response
from srb.server.routes.tokens import vocabulary_of
from srb.server.run.keeping import KEEPER, read_file
from srb.serving.journal import Journal
from srb.serving.request_stream import RequestStream
from srb.wire.anthropic import messages as anthropic
from srb.wire.native import explore
from srb.wire.ollama import chat as ollama
from srb.wire.openai import completions, responses
from srb.wire.reply.reply import Read, Reply, Serving
from srb.wire.request.messages import Message
from srb.wire.tgi import generate as tgi

OPENAI = "/openai/v1"
"""Below this path answers are in OpenAI's format, also where a request leaves fields out."""


@dataclass(frozen=True)
class Format:
    """A wire format of requests that generate.

    read: reads a body. frame: how an object of a stream is sent.
    error: makes the body of an error, if that isn't `{"error": SrbError.body()}`.
    lasts: whether an answer can be made again from the history, with `Serving.made`.
    """

    read: Read
    frame: sse.Frame = sse.DATA
    error: Shape | None = None
    lasts: bool = False


_COMPLETIONS = Format(completions.read, lasts=True)
_COMPLETIONS_AS_OPENAI = Format(partial(completions.read, openai=True), lasts=True)
_CHAT = Format(partial(completions.read, chat=True), lasts=True)
FORMATS = {
    "/v1/completions": _COMPLETIONS,
    "/v1/completions/": _COMPLETIONS,  # some clients write it so
    f"{OPENAI}/completions": _COMPLETIONS_AS_OPENAI,
    f"{OPENAI}/completions/": _COMPLETIONS_AS_OPENAI,
    "/v1/explore": Format(explore.read),
    "/v1/messages": Format(anthropic.messages, sse.TYPED, anthropic.error),
    **{f"{base}/responses": Format(responses.create, sse.TYPED) for base in ("/v1", OPENAI, "")},
    "/api/generate": Format(ollama.generate, sse.LINES, ollama.error),
    "/api/chat": Format(ollama.chat, sse.LINES, ollama.error),
    "/generate": Format(tgi.generate, error=tgi.error),
    "/generate_stream": Format(partial(tgi.generate, stream=True), error=tgi.error),
    "/": Format(partial(tgi.generate, listed=True), error=tgi.error),
    **{f"{base}/chat/completions{slash}": _CHAT for base in ("/v1", OPENAI, "") for slash in ("", "/")},
}
"""The format of each path."""


def add_routes(app: web.Application) -> None:
    """Adds the routes to the application."""
    app[ANSWERS_OF_OLD] = _answers_of_old
    for path, form in FORMATS.items():
        app.router.add_post(path, _answering(form))
        if form.error:
            app[SHAPES]["POST", path] = form.error


def _answering(form: Format) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler of a path. It queues a request, and answers with its events in this format."""

    async def handle(request: web.Request) -> web.StreamResponse:
        now = time.time()
        serving = _serving(request, now)
        request.app[ENGINE].check_queue()
        body = await read_body(request, body_limit(request.app))
        reply = await read(partial(form.read, body, serving))
        if reply.completion is None:
            assert reply.begin is not None
            return json_response(reply.begin()([]), ignored_header(reply.ignored))
        first = partial(_answer_at_once, reply) if reply.at_once else None
        answers = _answers(reply, form.frame)
        try:
            return await submit(
                request,
                reply.completion,
                answers,
                detach=reply.detach,
                created=now,  # the answer has this time; an answer that is made again later must have it, too
                first=first,
                story=reply.story,
                node=reply.node,
            )
        except InvalidRequestError as error:
            raise reply.blame(error) if reply.blame else error from None

    return handle


def _serving(request: web.Request, now: float, made: CompletionRequest | None = None) -> Serving:
    return Serving(
        request.app[LIMITS],
        request.app[ENGINE].tokenize,
        vocabulary_of(request.app),
        now=now,
        fingerprint=f"srb-{srb.__version__}",
        path_to=partial(_path_to, request),
        texts_of=known(partial(_texts_of, request)),
        take=media_taker(request.app) if made is None else lambda _parts: (made.token_ids[0], ()),
        before=known(partial(_before, request)),
        made=made,
    )


async def _answers_of_old(request: web.Request, journal: Journal) -> Answers:
    """How the readers of a request in the history are answered: natively, unless its format can be made again."""
    answers, made = Answers([]), journal.request
    if request.app[KEEPER].is_on and (sent := await read_file(request, find_body, made.id)):
        path, body = sent
        form = FORMATS.get(path)
        if form and form.lasts:
            with suppress(SrbError):  # for example, the story that the request went on from is gone
                reply = await read(partial(form.read, body, _serving(request, journal.created, made)))
                answers = _answers(reply, form.frame)
    request.app[ANSWERS][journal] = answers
    return answers


def _answers(reply: Reply, frame: sse.Frame) -> Answers:
    """How the readers of a request are answered. This is kept for long, and holds neither the body nor its images."""
    kept = replace(reply, completion=None, blame=None)
    own = partial(_answer, kept, frame) if reply.begin else None
    return Answers(reply.ignored, own, again=reply.again, keeps=reply.keeps)


def _path_to(request: web.Request, story: str, node: int | None, is_needed: bool) -> list[int | str]:
    """The prompt that goes on from a node of a story. Call this in a thread, because it reads the file."""
    history = request.app[KEEPER].history
    return history.read(prompt_at, owner_of(request), story, node, is_needed)


async def _texts_of(request: web.Request, request_ids: tuple[str, ...]) -> dict[str, list[str]]:
    """The texts of the alternatives of each of these requests."""
    texts = {}
    for request_id in request_ids:
        try:
            journal, _ = await find_kept(request, request_id)
        except (NotFoundError, GoneError):
            raise InvalidRequestError(
                f"avoid: request {request_id:.100} is not kept, or no longer: --keep-finished and --keep-bytes say for "
                "how long; send its texts",
                param="avoid",
            ) from None
        if journal.request.echo:
            raise InvalidRequestError(
                f"avoid: the texts of request {request_id:.100} begin with its prompt (echo); send them without it",
                param="avoid",
            )
        texts[request_id] = journal.texts
    return texts


async def _before(request: web.Request, response_id: str) -> list[Message]:
    """The conversation that ends with a response."""
    try:
        journal, again = find_response(request, response_id)
    except (NotFoundError, GoneError):
        raise InvalidRequestError(
            f"response {response_id:.100} is not kept, or no longer: --keep-finished and --keep-bytes say for how "
            "long; leave previous_response_id out, and send the whole conversation as input",
            param="previous_response_id",
            code="previous_response_not_found",
        ) from None
    return await asyncio.to_thread(again.conversation, events_so_far(journal))


async def _answer_at_once(reply: Reply, _request: web.Request, stream: RequestStream) -> web.StreamResponse:
    """Answers with the state of a request that has just been queued, and doesn't wait for its events."""
    assert reply.again is not None
    headers = {"X-Request-Id": stream.request.id} | ignored_header(reply.ignored)
    return json_response(reply.again().state([]), headers)


async def _answer(reply: Reply, frame: sse.Frame, request: web.Request, stream: RequestStream) -> web.StreamResponse:
    """Answers a client that reads a request from its beginning."""
    assert reply.begin is not None
    answer = reply.begin()
    headers = {"X-Request-Id": stream.request.id} | ignored_header(reply.ignored)
    if reply.stream:
        return await sse.respond(request, Batches(stream.__anext__, answer), headers=headers, frame=frame)
    events = await stream.collect()
    return await asyncio.to_thread(lambda: json_response(answer(events), headers))
