"""Stories: trees of nodes, which are texts. Each node continues its parent.

Nodes are only added, so two devices can write at once, and no word is lost. A remark changes what people say about a
node: whether it is kept or discarded, where it ends, notes. The node has the last one of each kind, and the file has
all. The changes of a story are numbered, so that a reader can ask for what is new since a change.

Most functions take a connection and the hash of the reader's API key. A story that was made with a key can only be seen
with this key. A story that was made without a key can be seen by everybody.
"""

import json
import math
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from srb.engine.sampling_params import SamplingParams
from srb.errors import ConflictError, InvalidRequestError, NotFoundError
from srb.history.database import ANYBODY, add_text, clean, from_row, insert, remove_orphans, unpack_tokens


@dataclass(frozen=True, slots=True)
class Story:
    """A story without its nodes.

    Attributes:
        created: in seconds since 1970.
        changed: the time of its last change, in seconds since 1970.
        change: the number of its last change.
        node_count: the number of its nodes.
        context: a JSON object that belongs to the story; None if it has none.
        place: a JSON object that says where the writer is; None if it is unknown.
        deleted: when it was put into the trash, in seconds since 1970; None if it isn't there.
    """

    id: str
    title: str
    created: int
    changed: int
    change: int
    node_count: int
    context: dict[str, Any] | None
    place: dict[str, Any] | None
    deleted: int | None


@dataclass(frozen=True, slots=True)
class Node:
    """A text in a story.

    Attributes:
        parent: the id of the node that it continues. None: it is the beginning of the story.
        text: only the first `ends_at` characters, if `ends_at` isn't None.
        tokens: the ids of the text's tokens; None if they are unknown.
        author: `model` or `person`. Only nodes of the model have the attributes from `request` to `suffix_logprob`.
        request: the id of the request that has written it.
        index: of the alternative.
        settings: those that aren't the defaults.
        length: in tokens.
        finish_reason: None while the node grows.
        suffix_logprob: of a bridge, the log-probability of the text that it leads up to.
        kept: True if it is kept, False if it is discarded.
        created: in seconds since 1970.
        change: the number of the story's last change that touched this node.
    """

    id: int
    parent: int | None
    text: str
    tokens: tuple[int, ...] | None
    author: Literal["model", "person"]
    request: str | None
    index: int | None
    seed: int | None
    settings: dict[str, Any] | None
    label: str | None
    length: int | None
    finish_reason: str | None
    stop_reason: str | None
    suffix_logprob: float | None
    kept: bool | None
    notes: str | None
    ends_at: int | None
    created: int
    change: int


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to add. In a whole tree, `id` and `parent` are the names that its sender gives to the nodes."""

    text: str
    parent: int | str | None = None
    id: int | str | None = None
    tokens: tuple[int, ...] | None = None
    author: str = "person"
    request: str | None = None
    index: int | None = None
    seed: int | None = None
    settings: dict[str, Any] | None = None
    label: str | None = None
    length: int | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    suffix_logprob: float | None = None
    kept: bool | None = None
    notes: str | None = None
    created: int | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """A change of a `field` of a node: `kept`, `notes` or `ends_at`."""

    change: int
    field: str
    value: bool | str | int | None
    created: int


@dataclass(frozen=True, slots=True)
class Draft:
    """Typed text at a place of a story that isn't in its tree yet.

    Attributes:
        node: the id of the place; 0: the beginning of the story.
        text: None if the draft was removed.
        metadata: a JSON object of the client; None if it has none.
        changed: in seconds since 1970.
        change: the number of the story's change that wrote it.
    """

    node: int
    text: str | None
    metadata: dict[str, Any] | None
    changed: int
    change: int


TRASH_SECONDS = 30 * 24 * 3600
"""How long a story stays in the trash."""

_NODES = "SELECT nodes.*, texts.text AS words, texts.tokens FROM nodes LEFT JOIN texts ON texts.id = nodes.text"

_PATH = f"""
    WITH RECURSIVE above(id, parent, depth) AS (
        SELECT id, parent, 0 FROM nodes WHERE story = :story AND id = :node
        UNION ALL
        SELECT nodes.id, nodes.parent, depth + 1 FROM above
        JOIN nodes ON nodes.story = :story AND nodes.id = above.parent AND nodes.id < above.id  -- no endless circle
    )
    {_NODES} JOIN above ON above.id = nodes.id WHERE nodes.story = :story ORDER BY above.depth DESC
"""
_COUNT = "(SELECT count(*) FROM nodes WHERE story = stories.number) AS node_count"
_SUMMARY = f"number, id, title, created, changed, change, deleted, place, {_COUNT}"
_OWN = f"FROM stories WHERE (owner IS NULL OR owner = :owner OR :owner = '{ANYBODY}')"
_STORY = f"SELECT {_SUMMARY}, context, title_change, context_change {_OWN} AND id = :id AND deleted IS NULL"
_TRASHED = f"SELECT number, deleted {_OWN} AND id = :id AND deleted IS NOT NULL"


def make_story(
    db: sqlite3.Connection,
    owner: str | None,
    title: str,
    tree: Sequence[NewNode] = (),
    context: str | None = None,
    drafts: Mapping[int | str, tuple[str | None, str | None]] | None = None,
) -> Story:
    """Makes a story with these nodes. Raises `InvalidRequestError`.

    `context` is a JSON object. `drafts` has texts and metadata by the id of their node; 0: the beginning.
    """
    story, now = f"story-{secrets.token_hex(12)}", int(time.time())
    values = {"id": story, "owner": owner, "title": title, "created": now, "changed": now, "change": 0}
    number = insert(db, "stories", values | {"context": context})
    ids: dict[int | str, int] = {}
    for node in _parents_first(tree):
        parent = None if node.parent is None else ids[node.parent]
        added = _insert_node(db, number, node, parent)
        if node.id is not None:
            ids[node.id] = added
    for place, draft in (drafts or {}).items():
        if place and place not in ids:
            raise InvalidRequestError(f"drafts: there is no node {place!r:.60}", param="drafts")
        write_draft(db, owner, story, ids[place] if place else 0, *draft, since=0)
    return get_story(db, owner, story)


def _parents_first(tree: Sequence[NewNode]) -> list[NewNode]:
    """Sorts nodes so that each comes after its parent. Raises `InvalidRequestError` if they aren't a tree."""
    known = Counter(node.id for node in tree if node.id is not None)
    if twice := [each for each, number in known.items() if number > 1]:
        raise InvalidRequestError(f"nodes: several have the id {twice[0]!r:.60}", param="nodes")
    children: dict[int | str | None, list[NewNode]] = {}
    for node in tree:
        if node.parent is not None and node.parent not in known:
            raise InvalidRequestError(f"nodes: there is no parent {node.parent!r:.60}", param="nodes")
        children.setdefault(node.parent, []).append(node)
    ordered = list(children.get(None, ()))
    for node in ordered:  # the list grows during the loop
        if node.id is not None:
            ordered += children.get(node.id, ())
    if len(ordered) < len(tree):
        raise InvalidRequestError("nodes: some are their own ancestors", param="nodes")
    return ordered


def list_stories(db: sqlite3.Connection, owner: str | None, *, deleted: bool = False) -> list[Story]:
    """Lists the stories, the last changed first, or those in the trash, the last deleted first.

    They have no contexts, which may be large.
    """
    which = "deleted > :oldest ORDER BY deleted" if deleted else "deleted IS NULL ORDER BY changed"
    values = {"owner": owner, "oldest": int(time.time()) - TRASH_SECONDS}
    rows = db.execute(f"SELECT {_SUMMARY}, NULL AS context {_OWN} AND {which} DESC, number DESC", values)
    return [_story(row) for row in rows]


def get_story(db: sqlite3.Connection, owner: str | None, story: str) -> Story:
    """Returns the story with this id. Raises `NotFoundError`."""
    return _story(_find(db, owner, story))


def _find(db: sqlite3.Connection, owner: str | None, story: str) -> sqlite3.Row:
    row: sqlite3.Row | None = db.execute(_STORY, {"owner": owner, "id": story}).fetchone()
    if row is None:
        raise NotFoundError(f"there is no story {story:.60}", param="story")
    return row


def find_number(db: sqlite3.Connection, owner: str | None, story: str) -> int | None:
    """Returns the number of the story with this id, or None if there is no such story."""
    row = db.execute(_STORY, {"owner": owner, "id": story}).fetchone()
    return None if row is None else int(row["number"])


def _story(row: sqlite3.Row) -> Story:
    return from_row(Story, row, context=_json(row["context"]), place=_json(row["place"]))


def change_story(
    db: sqlite3.Connection,
    owner: str | None,
    story: str,
    values: Mapping[str, str | None],
    since: int | None = None,
    *,
    restores: bool = False,
) -> Story:
    """Changes the `title`, `context` and `place` of a story, the latter two JSON objects.

    `since` is the number of the change that title and context are based on. None: they replace any. With `restores`,
    the story is taken out of the trash before. Raises `NotFoundError` and `ConflictError`.
    """
    if restores:
        _restore(db, owner, story)
    row = _find(db, owner, story)
    if values:
        versioned = [field for field in ("title", "context") if field in values]
        for field in versioned:
            if since is not None and (last := row[f"{field}_change"]) > since:
                raise ConflictError(
                    f"the {field} of this story was changed by change {last}, after change {since}; get the story, "
                    f"merge both, and send since {row['change']}",
                    param="since",
                )
        change = count_change(db, row["number"])
        versions = {f"{field}_change": change for field in versioned}
        for field, new in (*values.items(), *versions.items()):
            db.execute(f"UPDATE stories SET {field} = ? WHERE number = ?", (new, row["number"]))
    return get_story(db, owner, story)


def remove_story(db: sqlite3.Connection, owner: str | None, story: str, *, permanent: bool = False) -> None:
    """Puts a story into the trash, or removes it at once, also from the trash. Raises `NotFoundError`.

    Also removes those that have been in the trash for `TRASH_SECONDS`.
    """
    trashed = _trashed(db, owner, story) if permanent else None
    number = (trashed or _find(db, owner, story))["number"]
    if permanent:
        _remove_story(db, number, story)
    else:
        count_change(db, number)
        db.execute("UPDATE stories SET deleted = ? WHERE number = ?", (int(time.time()), number))
    empty_trash(db)


def _restore(db: sqlite3.Connection, owner: str | None, story: str) -> None:
    if row := _trashed(db, owner, story):
        count_change(db, row["number"])
        db.execute("UPDATE stories SET deleted = NULL WHERE number = ?", (row["number"],))


def empty_trash(db: sqlite3.Connection) -> None:
    """Removes the stories that have been in the trash for `TRASH_SECONDS`."""
    rows = db.execute("SELECT number, id FROM stories WHERE deleted <= ?", (int(time.time()) - TRASH_SECONDS,))
    for number, story in rows.fetchall():
        _remove_story(db, number, story)


def _trashed(db: sqlite3.Connection, owner: str | None, story: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(_TRASHED, {"owner": owner, "id": story}).fetchone()
    return row


def _remove_story(db: sqlite3.Connection, number: int, story: str) -> None:
    """Removes a story, its nodes, and the requests that were made in it."""
    texts = db.execute(
        "SELECT text FROM nodes WHERE story = ? UNION SELECT text FROM alternatives WHERE request IN "
        "(SELECT number FROM requests WHERE story = ?)",
        (number, story),
    ).fetchall()
    db.execute("DELETE FROM requests WHERE story = ?", (story,))
    db.execute("DELETE FROM stories WHERE number = ?", (number,))
    remove_orphans(db, (text for (text,) in texts))


def count_change(db: sqlite3.Connection, story: int) -> int:
    """Counts a change of the story with this number. Returns the number of the change."""
    row = db.execute(
        "UPDATE stories SET change = change + 1, changed = ? WHERE number = ? RETURNING change",
        (int(time.time()), story),
    ).fetchone()
    return int(row[0])


def read_nodes(
    db: sqlite3.Connection, owner: str | None, story: str, since: int = 0, *, growing: bool = False
) -> tuple[Story, list[Node]]:
    """Reads a story, and its nodes that later changes than `since` have touched, by id: each comes after its parent.

    With `growing`, nodes that still grow are included in any case. Raises `NotFoundError`.
    """
    row = _find(db, owner, story)
    which = "(change > ? OR author = 'model' AND finish_reason IS NULL)" if growing else "change > ?"
    rows = db.execute(f"{_NODES} WHERE story = ? AND {which} ORDER BY nodes.id", (row["number"], since))
    return _story(row), [_node(each) for each in rows]


def read_node(db: sqlite3.Connection, owner: str | None, story: str, node: int) -> tuple[Node, list[Remark]]:
    """Reads a node and all remarks on it, the oldest first. Raises `NotFoundError`."""
    number = _find(db, owner, story)["number"]
    found = _find_node(db, number, node)
    rows = db.execute("SELECT * FROM remarks WHERE story = ? AND node = ? ORDER BY change", (number, node))
    values = ((row, _bool(row["value"]) if row["field"] == "kept" else row["value"]) for row in rows)
    return found, [from_row(Remark, row, value=value) for row, value in values]


def add_node(db: sqlite3.Connection, owner: str | None, story: str, parent: int | None, node: NewNode) -> Node:
    """Adds a node after its parent, or at the beginning. Raises `NotFoundError` if there is no such story or parent."""
    number = _find(db, owner, story)["number"]
    if parent is not None:
        _find_node(db, number, parent, param="parent")
    added = _insert_node(db, number, node, parent)
    return _find_node(db, number, added)


def remark(
    db: sqlite3.Connection, owner: str | None, story: str, node: int, values: Mapping[str, bool | str | int | None]
) -> Node:
    """Sets whether a node is `kept`, where it `ends_at`, or its `notes`. Raises `NotFoundError`."""
    number = _find(db, owner, story)["number"]
    _find_node(db, number, node)
    if values:
        change, now = count_change(db, number), int(time.time())
        for field, value in values.items():
            assert field in ("kept", "notes", "ends_at")
            db.execute(
                f"UPDATE nodes SET {field} = ?, change = ? WHERE story = ? AND id = ?", (value, change, number, node)
            )
            new = {"story": number, "change": change, "node": node, "field": field, "value": value, "created": now}
            insert(db, "remarks", new)
    return _find_node(db, number, node)


def read_drafts(db: sqlite3.Connection, owner: str | None, story: str, since: int = 0) -> list[Draft]:
    """Reads the drafts that were changed after the change `since`. Raises `NotFoundError`."""
    number = _find(db, owner, story)["number"]
    rows = db.execute("SELECT * FROM drafts WHERE story = ? AND change > ? ORDER BY node", (number, since))
    return [_draft(row) for row in rows]


def read_draft(db: sqlite3.Connection, owner: str | None, story: str, node: int) -> Draft:
    """Reads the draft at a place. Raises `NotFoundError` if there is none."""
    row = _draft_row(db, _find(db, owner, story)["number"], node)
    if row is None:
        raise NotFoundError(f"there is no draft at node {node} of this story", param="node")
    return _draft(row)


def write_draft(
    db: sqlite3.Connection,
    owner: str | None,
    story: str,
    node: int,
    text: str | None,
    metadata: str | None,
    since: int,
) -> Draft:
    """Replaces the draft at a place, 0 for the beginning; None removes it. Raises `NotFoundError` and `ConflictError`.

    `since` is the `change` of the draft that this one is based on; 0 if there was none.
    """
    number = _find(db, owner, story)["number"]
    if node:
        _find_node(db, number, node)
    known = _draft_row(db, number, node)
    if known is not None and known["change"] > since:
        raise ConflictError(
            f"the draft at node {node} was changed by change {known['change']}, after change {since}; get it, keep "
            f"both texts, and send since {known['change']}",
            param="since",
        )
    db.execute(
        "INSERT OR REPLACE INTO drafts(story, node, text, metadata, changed, change) VALUES (?, ?, ?, ?, ?, ?)",
        (number, node, text, metadata, int(time.time()), count_change(db, number)),
    )
    return read_draft(db, owner, story, node)


def _draft_row(db: sqlite3.Connection, number: int, node: int) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute("SELECT * FROM drafts WHERE story = ? AND node = ?", (number, node)).fetchone()
    return row


def _draft(row: sqlite3.Row) -> Draft:
    return from_row(Draft, row, metadata=_json(row["metadata"]))


def _json(value: str | None) -> Any:
    return None if value is None else json.loads(value)


def prompt_at(
    db: sqlite3.Connection, owner: str | None, story: str, node: int | None, is_needed: bool = True
) -> list[str | int]:
    """Makes the prompt that continues a node: the token ids of each node of its path if they are known, or its text.

    Without a node it is empty. Unless `is_needed`, this only checks that the node is there. Raises `NotFoundError` and
    `InvalidRequestError`.
    """
    number = _find(db, owner, story)["number"]
    if node is None:
        return []
    _find_node(db, number, node)
    path = [_node(row) for row in db.execute(_PATH, {"story": number, "node": node})] if is_needed else []
    parts: list[str | int] = []
    for each in path:
        if each.author == "model" and each.finish_reason is None:
            raise InvalidRequestError(
                f"node {each.id} still grows; end it first (DELETE /v1/completions/{each.request}/choices/"
                f"{each.index}), or send a prompt",
                param="node",
            )
        if each.tokens:
            parts += each.tokens
        elif parts and isinstance(last := parts[-1], str):
            parts[-1] = last + each.text
        elif each.text:
            parts.append(each.text)
    return parts


def insert_growing(
    db: sqlite3.Connection,
    story: int,
    parent: int | None,
    request: str,
    change: int,
    branches: Sequence[SamplingParams],
    settings: Sequence[str],
    created: int,
) -> list[int]:
    """Inserts a node for each alternative of a request, and returns their ids. Their texts come later.

    `story` and `change` are numbers in the file. Settings are JSON; fewer than alternatives are used again from the
    first.
    """
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM nodes WHERE story = ?", (story,)).fetchone()
    when = (created, change)
    ids = range(last + 1, last + 1 + len(branches))
    db.executemany(
        "INSERT INTO nodes(story, id, parent, author, request, number, seed, settings, label, created, change) "
        "VALUES (?, ?, ?, 'model', ?, ?, ?, ?, ?, ?, ?)",
        [
            (story, node, parent, request, index, each.seed, settings[index % len(settings)], clean(each.label), *when)
            for index, (node, each) in enumerate(zip(ids, branches, strict=True))
        ],
    )
    return list(ids)


def _insert_node(db: sqlite3.Connection, story: int, node: NewNode, parent: int | None) -> int:
    """Inserts a node with its whole text. Returns its id."""
    (node_id,) = db.execute("SELECT coalesce(max(id), 0) + 1 FROM nodes WHERE story = ?", (story,)).fetchone()
    values = {name: getattr(node, name) for name in NewNode.__slots__ if name not in ("tokens", "index")} | {
        "story": story,
        "id": node_id,
        "parent": parent,
        "number": node.index,
        "settings": None if node.settings is None else json.dumps(node.settings),
        "text": add_text(db, node.text, node.tokens),
        "finish_reason": node.finish_reason
        or ("abort" if node.author == "model" else None),  # without one, it would seem to grow
        "created": int(time.time()) if node.created is None else node.created,
        "change": count_change(db, story),
    }
    insert(db, "nodes", values)
    return int(node_id)


def _find_node(db: sqlite3.Connection, story: int, node: int, param: str = "node") -> Node:
    """Returns the node with this id. Raises `NotFoundError`."""
    row = db.execute(f"{_NODES} WHERE story = ? AND nodes.id = ?", (story, node)).fetchone()
    if row is None:
        raise NotFoundError(f"there is no node {node} in this story", param=param)
    return _node(row)


def _node(row: sqlite3.Row) -> Node:
    tokens, by_itself = unpack_tokens(row["tokens"]), row["finish_reason"] == "stop"
    settings = None if row["settings"] is None else json.loads(row["settings"])
    if by_itself and row["stop_reason"] is not None:
        tokens = None  # the last token may be half text and half stop string
    elif (settings and settings.get("heal")) or row["ends_at"] is not None:
        # A healed node's first token also has the end of the parent's text; a shortened node has tokens after its end.
        tokens = None
    elif by_itself and tokens and len(tokens) == row["length"]:
        tokens = tokens[:-1]  # without the end token
    text, kept = (row["words"] or "")[: row["ends_at"]], _bool(row["kept"])
    score = None if row["suffix_logprob"] == -math.inf else row["suffix_logprob"]  # JSON has no such number
    others = {"index": row["number"], "settings": settings, "suffix_logprob": score, "kept": kept}
    return from_row(Node, row, text=text, tokens=tokens, **others)


def _bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)
