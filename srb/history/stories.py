"""Stories are trees of nodes. All functions here first take a connection and the hash of the reader's key.

The changes of a story are numbered, so that a reader can ask for what is new since a change. A story that was made with
an API key can only be seen with this key. One that was made without a key can be seen by everybody.
"""

import json
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from srb.errors import InvalidRequestError, NotFoundError
from srb.history import nodes
from srb.history.database import insert, made_of
from srb.history.nodes import ANYBODY, NewNode, Node, Remark, remove_orphans


@dataclass(frozen=True, slots=True)
class Story:
    """A story without its nodes.

    change: the number of its last change.
    context: what stands beside the story; None if nothing does.
    """

    id: str
    title: str
    created: int
    changed: int
    change: int
    node_count: int
    context: dict[str, Any] | None


_COUNT = "(SELECT count(*) FROM nodes WHERE story = stories.number) AS node_count"
_SUMMARY = f"number, id, title, created, changed, change, {_COUNT}"
_OWN = f"FROM stories WHERE (owner IS NULL OR owner = :owner OR :owner = '{ANYBODY}')"
_STORY = f"SELECT {_SUMMARY}, context {_OWN} AND id = :id"


def make_story(
    db: sqlite3.Connection, owner: str | None, title: str, tree: Sequence[NewNode] = (), context: str | None = None
) -> Story:
    """Makes a story, empty or with the nodes of another one. Raises `InvalidRequestError` if these are no tree.

    context: a JSON object.
    """
    story, now = f"story-{secrets.token_hex(12)}", int(time.time())
    values = {"id": story, "owner": owner, "title": title, "created": now, "changed": now, "change": 0}
    number = insert(db, "stories", values | {"context": context})
    ids: dict[int | str, int] = {}
    for node in _parents_first(tree):
        parent = None if node.parent is None else ids[node.parent]
        added = nodes.insert_node(db, number, node, parent, count_change(db, number))
        if node.id is not None:
            ids[node.id] = added
    return get_story(db, owner, story)


def _parents_first(tree: Sequence[NewNode]) -> list[NewNode]:
    """The nodes, ordered so that each comes behind its parent.

    Raises `InvalidRequestError` if they are no tree.
    """
    known = Counter(node.id for node in tree if node.id is not None)
    if twice := [each for each, number in known.items() if number > 1]:
        raise InvalidRequestError(f"nodes: there are several with the id {twice[0]!r:.60}", param="nodes")
    children: dict[int | str | None, list[NewNode]] = {}
    for node in tree:
        if node.parent is not None and node.parent not in known:
            raise InvalidRequestError(f"nodes: one hangs on {node.parent!r:.60}, which isn't there", param="nodes")
        children.setdefault(node.parent, []).append(node)
    ordered = list(children.get(None, ()))
    for node in ordered:  # the list grows during the loop
        if node.id is not None:
            ordered += children.get(node.id, ())
    if len(ordered) < len(tree):
        raise InvalidRequestError("nodes: some of them come before themselves", param="nodes")
    return ordered


def list_stories(db: sqlite3.Connection, owner: str | None) -> list[Story]:
    """The stories without their contexts, which may be large. The one that was changed last comes first."""
    rows = db.execute(f"SELECT {_SUMMARY}, NULL AS context {_OWN} ORDER BY changed DESC, number DESC", {"owner": owner})
    return [_story(row) for row in rows]


def get_story(db: sqlite3.Connection, owner: str | None, story: str) -> Story:
    """The story with this id. Raises `NotFoundError`."""
    return _story(_find(db, owner, story))


def _find(db: sqlite3.Connection, owner: str | None, story: str) -> sqlite3.Row:
    row: sqlite3.Row | None = db.execute(_STORY, {"owner": owner, "id": story}).fetchone()
    if row is None:
        raise NotFoundError(f"there is no story {story:.60}", param="story")
    return row


def find_number(db: sqlite3.Connection, owner: str | None, story: str) -> int | None:
    """The number of the story with this id, or None if there is no such story."""
    row = db.execute(_STORY, {"owner": owner, "id": story}).fetchone()
    return None if row is None else int(row["number"])


def _story(row: sqlite3.Row) -> Story:
    return made_of(Story, row, context=None if row["context"] is None else json.loads(row["context"]))


def change_story(db: sqlite3.Connection, owner: str | None, story: str, values: Mapping[str, str | None]) -> Story:
    """Gives a story another `title`, or another `context`, which is a JSON object. Raises `NotFoundError`."""
    number = _find(db, owner, story)["number"]
    if values:
        count_change(db, number)
        for field, value in values.items():
            db.execute(f"UPDATE stories SET {field} = ? WHERE number = ?", (value, number))
    return get_story(db, owner, story)


def remove_story(db: sqlite3.Connection, owner: str | None, story: str) -> None:
    """Removes a story, its nodes, and the requests that were made in it. Raises `NotFoundError`."""
    number = _find(db, owner, story)["number"]
    texts = db.execute(
        "SELECT text FROM nodes WHERE story = ? UNION SELECT text FROM alternatives WHERE request IN "
        "(SELECT number FROM requests WHERE story = ?)",
        (number, story),
    ).fetchall()
    db.execute("DELETE FROM requests WHERE story = ?", (story,))
    db.execute("DELETE FROM stories WHERE number = ?", (number,))
    remove_orphans(db, (text for (text,) in texts))


def count_change(db: sqlite3.Connection, story: int) -> int:
    """Counts a change of the story with this number, and returns the number of the change."""
    row = db.execute(
        "UPDATE stories SET change = change + 1, changed = ? WHERE number = ? RETURNING change",
        (int(time.time()), story),
    ).fetchone()
    return int(row[0])


def read_nodes(
    db: sqlite3.Connection, owner: str | None, story: str, since: int = 0, *, growing: bool = False
) -> tuple[Story, list[Node]]:
    """A story, and its nodes that were touched by changes after the number `since`. Raises `NotFoundError`.

    The nodes are in the order of their ids, so each comes behind its parent.

    growing: whether nodes that still grow are among them in any case.
    """
    row = _find(db, owner, story)
    return _story(row), nodes.nodes_since(db, row["number"], since, growing=growing)


def read_node(db: sqlite3.Connection, owner: str | None, story: str, node: int) -> tuple[Node, list[Remark]]:
    """A node and all remarks on it. Raises `NotFoundError`."""
    number = _find(db, owner, story)["number"]
    return nodes.find_node(db, number, node), nodes.remarks_on(db, number, node)


def add_node(db: sqlite3.Connection, owner: str | None, story: str, parent: int | None, node: NewNode) -> Node:
    """Adds a node below its parent, or at the beginning. Raises `NotFoundError` if story or parent aren't there."""
    number = _find(db, owner, story)["number"]
    if parent is not None:
        nodes.find_node(db, number, parent, param="parent")
    added = nodes.insert_node(db, number, node, parent, count_change(db, number))
    return nodes.find_node(db, number, added)


def remark(
    db: sqlite3.Connection, owner: str | None, story: str, node: int, values: Mapping[str, bool | str | int | None]
) -> Node:
    """Sets whether a node is `kept`, where it `ends_at`, or its `notes`. Raises `NotFoundError`."""
    number = _find(db, owner, story)["number"]
    nodes.find_node(db, number, node)
    if values:
        change = count_change(db, number)
        for field, value in values.items():
            nodes.remark_on(db, number, node, change, field, value)
    return nodes.find_node(db, number, node)


def prompt_at(
    db: sqlite3.Connection, owner: str | None, story: str, node: int | None, is_needed: bool = True
) -> list[str | int]:
    """The prompt that goes on from a node: see `nodes.prompt_of`. Raises `NotFoundError` and `InvalidRequestError`.

    is_needed: if False, this only checks that the node is there.
    """
    number = _find(db, owner, story)["number"]
    path = nodes.path_to(db, number, node)
    return nodes.prompt_of(path) if is_needed else []
