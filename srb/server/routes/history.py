"""Routes of the history: stories, which are trees of texts, and earlier requests."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from typing import Any, cast

from aiohttp import hdrs, web

from srb.errors import GoneError, HistoryError, InvalidRequestError, NotFoundError
from srb.history import queries as find
from srb.history import stories
from srb.history.history import as_json, listed_json, request_json, story_as_markdown, story_json
from srb.history.history import remove_request as remove_stored_request
from srb.history.stories import Draft, NewNode, Node, Story
from srb.server.access import owner_of
from srb.server.http import sse
from srb.server.http.bodies import MAX_BODY_BYTES, read_body
from srb.server.http.exchange import ENGINE, ignored_header, json_response
from srb.server.run.history import HISTORY, RunningNodes, read_file, write_file
from srb.wire.reply import Chunk
from srb.wire.request.read import Fields, read_fields
from srb.wire.route import (
    EVENTS,
    INTEGER,
    OBJECT,
    STRING,
    Route,
    data_of,
    get,
    object_of,
    post,
    properties_of,
)
from srb.wire.stories import DraftFields, NodeFields, RemarkFields, StoryChangeFields, StoryFields

MAX_STORY_BYTES = 64 << 20
"""The largest story in one body. A node with its token ids takes about ten bytes per token."""

MAX_LIMIT = 1_000
"""The most requests or texts of a page of the history."""


async def close_feeds(app: web.Application) -> None:
    """Ends the streams of stories' subscribers."""
    app[HISTORY].feeds.close()


async def list_stories(request: web.Request) -> web.Response:
    """List the stories, with --history; or those in the trash."""
    data = await read_file(request, stories.list_stories, deleted=_flag(request, "deleted"))
    return web.json_response({"object": "list", "data": [listed_json(each) for each in data]})


async def make_story(request: web.Request) -> web.Response:
    """Create a story, or import one."""
    fields = await _fields(request, StoryFields, MAX_STORY_BYTES)
    tree = await asyncio.to_thread(lambda: [_new_node(node) for node in fields.nodes])
    drafts = {each.node: (each.text, _json(each.metadata)) for each in fields.drafts}
    story = await write_file(request, stories.make_story, fields.title, tree, _json(fields.context), drafts)
    return json_response(story_json(story), ignored_header(fields.ignored))


async def get_story(request: web.Request) -> web.Response:
    """Show a story with all its nodes, or the text up to one of them."""
    name, form = request.match_info["story"], request.query.get("format", "json")
    if form == "markdown":
        text = await read_file(request, story_as_markdown, name, query_number(request, "node"))
        return web.Response(text=text, content_type="text/markdown")
    if form != "json":
        raise InvalidRequestError(f"format is json or markdown, got {form:.60}", param="format")
    story, nodes = await read_file(request, stories.read_nodes, name)
    drafts = await read_file(request, stories.read_drafts, name)
    nodes = _with_texts(request, nodes, {})
    return await asyncio.to_thread(lambda: json_response(story_json(story, nodes, drafts)))


async def change_story(request: web.Request) -> web.Response:
    """Change the title, context or place of a story, or restore it from the trash."""
    fields, story = await _fields(request, StoryChangeFields), request.match_info["story"]
    values = {"title": fields.title, "context": _json(fields.context), "place": _json(fields.place)}
    given = {name: value for name, value in values.items() if name in fields.model_fields_set}
    restores = "deleted" in fields.model_fields_set
    changed = await write_file(request, stories.change_story, story, given, fields.since, restores=restores)
    return json_response(story_json(changed), ignored_header(fields.ignored))


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "false")
    if value not in ("true", "false"):
        raise InvalidRequestError(f"{name} is true or false, got {value:.60}", param=name)
    return value == "true"


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


async def remove_story(request: web.Request) -> web.Response:
    """Put a story into the trash for 30 days; or delete it and its requests at once."""
    story = request.match_info["story"]
    await write_file(request, stories.remove_story, story, permanent=_flag(request, "permanent"))
    for request_id in request.app[HISTORY].feeds.writers(story):
        request.app[ENGINE].abort(request_id)
    return web.Response(status=204)


async def get_nodes(request: web.Request) -> web.StreamResponse:
    """Show the changes of a story, and as a stream of events its later changes, too."""
    name, since = request.match_info["story"], query_number(request, "since")
    if sse.is_websocket(request) or "text/event-stream" in request.headers.get(hdrs.ACCEPT, ""):
        last = _number(request.headers.get("Last-Event-ID", ""))
        since = since if last is None else last
        await read_file(request, stories.get_story, name)  # raises an error before the stream begins
        async with sse.reading(_follow(request, name, since)) as read:
            return await sse.respond(request, read, headers={})
    story, nodes = await read_file(request, stories.read_nodes, name, since or 0)
    nodes = _with_texts(request, nodes, {})
    return await asyncio.to_thread(
        lambda: json_response({"object": "list", "data": [as_json(node) for node in nodes], "change": story.change})
    )


async def _follow(request: web.Request, name: str, known: int | None) -> AsyncGenerator[Iterable[sse.Item], None]:
    """Yields events for a subscriber: nodes that are new or have changed, and texts as they grow.

    known: the last change that the subscriber has; None if it has none.
    """
    feeds = request.app[HISTORY].feeds
    since = known or 0
    last_head: tuple[object, ...] | None = None
    is_first = True  # a client that reconnects may have the growing nodes already, but not all of their texts
    running: dict[str, RunningNodes] = {}
    with feeds.subscribe(name) as subscriber:
        while not feeds.closed:
            subscriber.updated.clear()
            changed, subscriber.changed = subscriber.changed, False
            try:
                found = await read_file(request, stories.read_nodes, name, since, growing=is_first) if changed else None
                drafts = await read_file(request, stories.read_drafts, name, since) if changed else []
                is_first = False
            except NotFoundError:
                yield [{"event": "deleted"}]
                return
            except HistoryError as error:
                yield [{"event": "error", "error": error.body()}]
                return
            pending = list(_new_texts(running))
            if found:
                story, nodes = found
                head = (story.title, story.context, story.place)
                is_missed = known is not None and since < story.change  # perhaps
                if head != last_head and (last_head or is_missed):
                    pending.append({"event": "story", "story": story_json(story)})
                last_head, since = head, story.change
                pending += ({"event": "node", "node": as_json(node)} for node in _with_texts(request, nodes, running))
                # A draft that was written between the two reads is in the next ones.
                pending += ({"event": "draft", "draft": as_json(each)} for each in drafts if each.change <= since)
                # The last event has the number of the change as its id: a client that has it needs no earlier ones.
                if pending:
                    pending[-1] = (story.change, cast(Chunk, pending[-1]))
            if pending:
                yield pending
            await subscriber.updated.wait()


def _new_texts(running: dict[str, RunningNodes]) -> Iterator[sse.Item]:
    for request_id, each in list(running.items()):
        for node, text in each.read().items():
            yield {"event": "text", "node": node, "text": text}
        if each.at_end:
            del running[request_id]


def _with_texts(request: web.Request, nodes: list[Node], running: dict[str, RunningNodes]) -> list[Node]:
    """The nodes, with the texts so far of those that are still generated, whose requests are added to `running`."""
    by_request: dict[str, dict[int, int]] = {}
    for node in nodes:
        if node.finish_reason is None and node.request is not None and node.index is not None:
            by_request.setdefault(node.request, {})[node.index] = node.id
    texts: dict[int, str] = {}
    for request_id, ids in by_request.items():
        with suppress(NotFoundError, GoneError):
            event_log = request.app[ENGINE].find(request_id, owner_of(request))
            if not event_log.done and request_id not in running:
                running[request_id] = RunningNodes(event_log, ids)
            written = event_log.texts
            texts |= {node: written[index] for index, node in ids.items()}
    return [
        dataclasses.replace(node, text=texts[node.id][: node.ends_at]) if node.id in texts else node for node in nodes
    ]


async def add_node(request: web.Request) -> web.Response:
    """Add a node to a story."""
    fields, story = await _fields(request, NodeFields), request.match_info["story"]
    added = await write_file(request, stories.add_node, story, fields.parent, _new_node(fields))
    return json_response(as_json(added), ignored_header(fields.ignored))


async def get_node(request: web.Request) -> web.Response:
    """Show a node of a story, with all earlier values of `kept`, `ends_at` and `notes`."""
    story, node = request.match_info["story"], int(request.match_info["node"])
    found, remarks = await read_file(request, stories.read_node, story, node)
    return json_response(as_json(found) | {"remarks": [as_json(each) for each in remarks]})


async def remark(request: web.Request) -> web.Response:
    """Mark a node as kept or discarded, shorten it, or give it notes."""
    fields, story = await _fields(request, RemarkFields), request.match_info["story"]
    values: dict[str, bool | str | int | None] = {
        name: getattr(fields, name) for name in ("kept", "notes", "ends_at") if name in fields.model_fields_set
    }
    changed = await write_file(request, stories.remark, story, int(request.match_info["node"]), values)
    return json_response(as_json(changed), ignored_header(fields.ignored))


async def get_draft(request: web.Request) -> web.Response:
    """Show the draft at a place of a story."""
    story, node = request.match_info["story"], int(request.match_info["node"])
    return json_response(as_json(await read_file(request, stories.read_draft, story, node)))


async def write_draft(request: web.Request) -> web.Response:
    """Write the draft at a place of a story, unless somebody else has changed it."""
    fields, story = await _fields(request, DraftFields, MAX_STORY_BYTES), request.match_info["story"]
    node, metadata = int(request.match_info["node"]), _json(fields.metadata)
    written = await write_file(request, stories.write_draft, story, node, fields.text, metadata, fields.since)
    return json_response(as_json(written), ignored_header(fields.ignored))


def _new_node(fields: NodeFields) -> NewNode:
    values = {
        each.name: getattr(fields, each.name) for each in dataclasses.fields(NewNode) if hasattr(fields, each.name)
    }
    return NewNode(**values | {"tokens": None if fields.tokens is None else tuple(fields.tokens)})


def query_number(request: web.Request, name: str) -> int | None:
    """A number in the query, or None. Raises `InvalidRequestError`."""
    text = request.query.get(name)
    if text is None:
        return None
    if (number := _number(text)) is None:
        raise InvalidRequestError(f"{name} takes a whole number, got {text:.60}", param=name)
    return number


def _number(text: str) -> int | None:
    """A text as a whole number of at most 15 digits; None if it isn't one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


async def _fields(request: web.Request, kind: type[Fields], limit: int = MAX_BODY_BYTES) -> Fields:
    """The fields in the body of a request. Raises `NotSupportedError` without a history, before the body is read."""
    _ = request.app[HISTORY].store
    return await asyncio.to_thread(read_fields, await read_body(request, limit), kind)


async def list_or_search(request: web.Request) -> web.Response:
    """List the last requests, or search their texts."""
    words, before, limit = request.query.get("q"), request.query.get("before"), query_number(request, "limit")
    limit = 50 if limit is None else limit
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequestError(f"limit must be from 1 to {MAX_LIMIT}, got {limit}", param="limit")
    data: list[dict[str, Any]]
    last: str | int | None
    if words is None:
        story = request.query.get("story")
        listed = await read_file(request, find.list_requests, limit=limit, before=before, story=story)
        data, last = [as_json(each) for each in listed], listed[-1].id if listed else None
    else:
        place = query_number(request, "before")
        found = await read_file(request, find.search, words, limit=limit, before=place)
        data, last = [as_json(each) for each in found], found[-1].place if found else None
    return web.json_response({"object": "list", "data": data, "before": last if len(data) == limit else None})


async def get_request(request: web.Request) -> web.Response:
    """Show an earlier request, with its body and its alternatives."""
    found = await read_file(request, find.get_request, request.match_info["id"])
    return await asyncio.to_thread(lambda: json_response(request_json(found)))


async def remove_request(request: web.Request) -> web.Response:
    """Delete a finished request; stories keep its texts."""
    await write_file(request, remove_stored_request, request.match_info["id"])
    return web.Response(status=204)


_NODE, _DRAFT = object_of(**properties_of(Node)), object_of(**properties_of(Draft))
_STORY = object_of(object={"const": "story"}, **properties_of(Story))
_LISTED = object_of(**{name: each for name, each in _STORY["properties"].items() if name != "context"})
_ONE, _NODES = "/v1/stories/{story}", "/v1/stories/{story}/nodes"
_ONE_NODE = _NODES + r"/{node:\d{1,15}}"
_EVENTS = {EVENTS: {"description": "lines `data: {...}` with the events node, text, draft, story, deleted and error"}}
_OFF = (404, 501, 503)
_ONE_DRAFT = r"/v1/stories/{story}/drafts/{node:\d{1,15}}"

ROUTES = (
    get(
        "/v1/stories",
        list_stories,
        data_of(_LISTED),
        errors=(400, 501, 503),
        query={"deleted": "true: the stories in the trash, the last deleted first"},
    ),
    post("/v1/stories", make_story, _STORY, body=StoryFields, errors=(501, 503)),
    get(
        _ONE,
        get_story,
        _STORY,
        other_schemas={"text/markdown": STRING},
        errors=(400, *_OFF),
        query={"format": "json or markdown", "node": "with markdown, the id of the node that the text goes to"},
    ),
    Route("PATCH", _ONE, change_story, _STORY, body=StoryChangeFields, errors=(409, *_OFF)),
    Route(
        "DELETE",
        _ONE,
        remove_story,
        errors=(400, *_OFF),
        query={"permanent": "true: delete it at once, also from the trash"},
    ),
    get(
        _NODES,
        get_nodes,
        data_of(_NODE, change=INTEGER),
        other_schemas=_EVENTS,
        errors=(400, *_OFF),
        query={"since": "the number of the last change that the client has"},
    ),
    post(_NODES, add_node, _NODE, body=NodeFields, errors=_OFF),
    get(_ONE_NODE, get_node, _NODE, errors=_OFF),
    Route("PATCH", _ONE_NODE, remark, _NODE, body=RemarkFields, errors=_OFF),
    get(_ONE_DRAFT, get_draft, _DRAFT, errors=_OFF),
    Route("PUT", _ONE_DRAFT, write_draft, _DRAFT, body=DraftFields, errors=(409, *_OFF)),
    get(
        "/v1/history",
        list_or_search,
        data_of(OBJECT),
        errors=(400, *_OFF),
        query={
            "q": "words that a text must have",
            "limit": "the length of the page, 50 if left out",
            "before": "the `before` of the previous page",
            "story": "without `q`: only the requests of this story",
        },
    ),
    get("/v1/history/{id}", get_request, OBJECT, errors=_OFF),
    Route("DELETE", "/v1/history/{id}", remove_request, errors=_OFF),
)
