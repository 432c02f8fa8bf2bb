"""What all routes share: the keys of the app, queueing a request, and answering with its events."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from srb.engine.asking.request import CompletionRequest
from srb.engine.telling.events import Event
from srb.engine.telling.stats import EngineStats
from srb.history.recorder import Submitted
from srb.server.guards.auth import owner_of, shared_within
from srb.server.http import sse
from srb.server.http.bodies import BODY
from srb.server.http.sse import Batches
from srb.server.run.keeping import KEEPER
from srb.serving.engine_client import EngineClient
from srb.serving.journal import Journal, memory_of
from srb.serving.request_stream import RequestStream
from srb.wire.limits import Limits
from srb.wire.native import reply as native
from srb.wire.reply.encode import encode
from srb.wire.reply.reply import Answering

MAX_HEADER_CHARS = 1_000

TITLE_TOKENS = 40
"""How many tokens at the end of a prompt become the title of its request in the history."""

ENGINE = web.AppKey("engine", EngineClient)
LIMITS = web.AppKey("limits", Limits)


Answer = Callable[[web.Request, RequestStream], Awaitable[web.StreamResponse]]
"""Answers a client that reads a request's events."""


@dataclass(frozen=True)
class Answers:
    """How the readers of a request are answered.

    ignored: the names of the fields in its body that have no effect.
    own: answers in the format of the request, from its beginning; None if this format is native events.
    model: the name of the model that answered it; None: that of today.
    nodes: the ids of its alternatives' nodes, if the request writes a story.
    again: makes what answers later GETs of the format's own routes, such as /v1/responses/{id}, if it has such routes.
    keeps: what of the body `own` and `again` hold. They hold nothing else of it, since that counts (`Roster`).
    """

    ignored: list[str]
    own: Answer | None = None
    model: str | None = None
    nodes: list[int] | None = None
    again: Callable[[], Answering] | None = None
    keeps: Any = ()


ANSWERS = web.AppKey("answers", WeakKeyDictionary[Journal, Answers])

ANSWERS_OF_OLD: web.AppKey[Callable[[web.Request, Journal], Awaitable[Answers]]] = web.AppKey("answers_of_old")
"""Finds how the readers of a request are answered, if the request was made before the server's last start."""


async def submit(
    request: web.Request,
    completion: CompletionRequest,
    answers: Answers,
    *,
    detach: bool,
    created: float | None = None,
    first: Answer | None = None,
    story: str | None = None,
    node: int | None = None,
) -> web.StreamResponse:
    """Queues a request, and answers with its events.

    created: when the request was made, in seconds since 1970, if its answer has this time already; left out: now.
    first: answers the client that made the request, if it isn't answered like all other readers.
    story, node: the story that the alternatives belong to, and the node in it that they go on from.
    """
    engine, keeper = request.app[ENGINE], request.app[KEEPER]
    completion = _shared(completion, await shared_within(request))
    with engine.ahead.paused():
        completion, said, take_back = engine.ahead.give(completion, owner_of(request))
        created, exact = int(time.time() if created is None else created), answers.again is not None
        # In a thread, because looking at many settings takes a while.
        held = await asyncio.to_thread(memory_of, (answers.ignored, answers.keeps, completion.branches))
        is_kept = keeper.is_on and completion.explore is None
        journal = Journal(
            completion,
            owner=owner_of(request),
            detach=detach,
            lasts=is_kept,
            exact=exact,
            created=created,
            held=held,
        )
        # Clients of other formats don't know how to come back, and they stop a request by closing the connection.
        linger = 0 if answers.own else request.app[LIMITS].linger
        try:
            if is_kept:
                engine.check(completion)  # first: `_title` needs token ids that the vocabulary has
                nodes = await keeper.begin(
                    Submitted(
                        completion,
                        journal.owner,
                        detach,
                        journal.created,
                        path=request.path,
                        model=request.app[LIMITS].model,
                        body=request[BODY],
                        title=_title(engine, completion),
                        story=story,
                        node=node,
                    )
                )
                answers = replace(answers, nodes=nodes or None)
            # Set before the engine has the request: a detached one lives on even if its client leaves right now.
            request.app[ANSWERS][journal] = answers
            if story is not None:
                keeper.feeds.add_writer(completion.id, story)
            stream = await engine.submit(completion, journal=journal, linger=linger, said=said)
        except BaseException:  # the request was refused, or its client has left
            if journal not in engine.requests:
                keeper.forget(completion.id)
                take_back()
            raise
    async with stream:
        return await (first or answers.own or answer_natively)(request, stream)


def _shared(completion: CompletionRequest, within: str) -> CompletionRequest:
    """The request, of which only those evaluate less later that have the same name `within`; empty: all."""
    if not within:
        return completion
    # A media's name says under which name the vectors are kept that it is encoded as.
    media = tuple(replace(each, name=f"{within}/{each.name}") for each in completion.media)
    return replace(completion, shared_within=within, media=media)


def _title(engine: EngineClient, completion: CompletionRequest) -> str:
    """The end of the last prompt, without control tokens."""
    tokens = completion.token_ids[-1][-TITLE_TOKENS:]
    return b"".join(map(engine.tokenizer.piece, tokens)).decode(errors="ignore").strip()


def answers_of(app: web.Application, journal: Journal) -> Answers:
    """How the readers of a request are answered: natively, unless it was made in another format."""
    return app[ANSWERS].get(journal) or Answers([])


async def answer_natively(request: web.Request, stream: RequestStream) -> web.StreamResponse:
    """Answers with a request's native events."""
    journal = stream.journal
    answers = answers_of(request.app, journal)
    model = answers.model or request.app[LIMITS].model

    def to_json(events: list[tuple[int, Event]]) -> Iterator[sse.Item]:
        for number, event in events:
            yield (
                number,
                native.to_json(
                    event, model=model, created=journal.created, ignored=answers.ignored, nodes=answers.nodes
                ),
            )

    headers = {"X-Request-Id": journal.request.id} | ignored_header(answers.ignored)
    return await sse.respond(request, Batches(stream.numbered, to_json), headers=headers)


def stats_of(engine: EngineClient) -> EngineStats:
    """The state of a loaded engine."""
    stats = engine.health.stats
    assert stats is not None, "there are some as soon as the model is loaded"
    return stats


def json_response(value: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer in JSON. Encoding a large value takes seconds: then make it and call this in a worker thread."""
    return web.Response(body=encode(value), content_type="application/json", charset="utf-8", headers=headers)


def ignored_header(names: list[str]) -> dict[str, str]:
    """The header that names the fields without effect, if there are any."""
    return {"x-srb-ignored": ", ".join(names)[:MAX_HEADER_CHARS].encode("unicode_escape").decode()} if names else {}
