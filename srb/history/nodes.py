"""The nodes of stories: texts, each of which continues its parent.

Nodes are only added, so two devices can write at once, and no word is lost. What people say later about a node (that it
is kept or discarded, where it ends, notes) is a remark. The node shows the last one of each kind, and the file keeps
all.
"""

import json
import math
import sqlite3
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError, NotFoundError
from srb.history.database import insert, made_of

# The texts in the file, each with its token ids if they are known.

ANYBODY: Final = "*"
"""Stands in place of the hash of a reader's key, and may see everything: for programs that read the file itself."""


def add_text(db: sqlite3.Connection, text: str, tokens: Iterable[int] | None) -> int:
    """Adds a text, and returns its number. A search finds the text from now on."""
    return insert(db, "texts", {"text": text, "tokens": pack(tokens)})


def pack(tokens: Iterable[int] | None) -> bytes | None:
    """Packs token ids for the file."""
    return None if tokens is None else array("I", tokens).tobytes()


def unpack(packed: bytes | None) -> tuple[int, ...] | None:
    """Unpacks token ids from the file."""
    return None if packed is None else tuple(array("I", packed))


def remove_orphans(db: sqlite3.Connection, texts: Iterable[int]) -> None:
    """Removes those of these texts that no node and no alternative has any more."""
    db.executemany(
        "DELETE FROM texts WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM nodes WHERE text = ?1) "
        "AND NOT EXISTS (SELECT 1 FROM alternatives WHERE text = ?1)",
        ((text,) for text in texts),
    )


def clean(text: str | None) -> str | None:
    """The text with "?" in place of half surrogate pairs: JSON may have them, and SQLite refuses them."""
    return None if text is None else text.encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class Node:
    """A text in a story. parent: the id of the node that it continues; None: the story begins with it.

    text: only the first `ends_at` characters, if `ends_at` isn't None. tokens: the ids of the text's tokens, if they
    are known. author: `model` or `person`. request, index, seed, settings, length (in tokens), finish_reason,
    stop_reason: only nodes of the model have these; one without a finish_reason still grows. suffix_logprob: of a
    bridge, the natural logarithm of the probability of what it leads to. kept: True, or False if it
    is discarded. created: seconds since 1970. change: the number of the story's last change that touched this node.
    """

    id: int
    parent: int | None
    text: str
    tokens: tuple[int, ...] | None
    author: str
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
    """A node to be added. id, parent: in a whole tree that is added, the names that its sender uses for the nodes."""

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
    """A value that somebody gave to a `field` of a node: `kept`, `notes` or `ends_at`."""

    change: int
    field: str
    value: bool | str | int | None
    created: int


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


def nodes_since(db: sqlite3.Connection, story: int, since: int = 0, *, growing: bool = False) -> list[Node]:
    """The nodes that were touched by changes after the number `since`, each behind its parent.

    story: the number of the story. growing: whether nodes that still grow are among them in any case.
    """
    which = "(change > ? OR author = 'model' AND finish_reason IS NULL)" if growing else "change > ?"
    rows = db.execute(f"{_NODES} WHERE story = ? AND {which} ORDER BY nodes.id", (story, since))
    return [_node(row) for row in rows]


def find_node(db: sqlite3.Connection, story: int, node: int, param: str = "node") -> Node:
    """The node with this id. Raises `NotFoundError`."""
    row = db.execute(f"{_NODES} WHERE story = ? AND nodes.id = ?", (story, node)).fetchone()
    if row is None:
        raise NotFoundError(f"there is no node {node} in this story", param=param)
    return _node(row)


def path_to(db: sqlite3.Connection, story: int, node: int | None) -> list[Node]:
    """The nodes from the beginning of a story to this one. Raises `NotFoundError`."""
    if node is None:
        return []
    find_node(db, story, node)
    return [_node(row) for row in db.execute(_PATH, {"story": story, "node": node})]


def prompt_of(path: list[Node]) -> list[str | int]:
    """The prompt of some nodes, one after the other: the token ids of each if they are known, and else its text.

    Raises `InvalidRequestError` if one of the nodes still grows.
    """
    parts: list[str | int] = []
    for node in path:
        if node.author == "model" and node.finish_reason is None:
            raise InvalidRequestError(
                f"node {node.id} still grows; end it first (DELETE /v1/completions/{node.request}/choices/"
                f"{node.index}), or send a prompt",
                param="node",
            )
        if node.tokens:
            parts += node.tokens
        elif parts and isinstance(last := parts[-1], str):
            parts[-1] = last + node.text
        elif node.text:
            parts.append(node.text)
    return parts


def remarks_on(db: sqlite3.Connection, story: int, node: int) -> list[Remark]:
    """All remarks on a node, the oldest first."""
    rows = db.execute("SELECT * FROM remarks WHERE story = ? AND node = ? ORDER BY change", (story, node))
    return [made_of(Remark, row, value=_bool(row["value"]) if row["field"] == "kept" else row["value"]) for row in rows]


def insert_node(db: sqlite3.Connection, story: int, node: NewNode, parent: int | None, change: int) -> int:
    """Inserts a node with its whole text, and returns its id."""
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
        "change": change,
    }
    insert(db, "nodes", values)
    return int(node_id)


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
    """Inserts a node for each alternative of a request, in the order of their indices, and returns the ids.

    Their texts come later. branches: one for each alternative. settings: the JSON of the settings of each alternative;
    if there are fewer, they are used again from the first.
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


def remark_on(
    db: sqlite3.Connection, story: int, node: int, change: int, field: str, value: bool | str | int | None
) -> None:
    """Sets whether a node is `kept`, where it `ends_at`, or its `notes`, and adds a remark that says so."""
    assert field in ("kept", "notes", "ends_at")
    db.execute(f"UPDATE nodes SET {field} = ?, change = ? WHERE story = ? AND id = ?", (value, change, story, node))
    remark = {"story": story, "change": change, "node": node, "field": field, "value": value}
    insert(db, "remarks", remark | {"created": int(time.time())})


def _node(row: sqlite3.Row) -> Node:
    tokens, by_itself = unpack(row["tokens"]), row["finish_reason"] == "stop"
    settings = None if row["settings"] is None else json.loads(row["settings"])
    if by_itself and row["stop_reason"] is not None:
        tokens = None  # the last token may be half text and half stop string
    elif (settings and settings.get("heal")) or row["ends_at"] is not None:
        # A healed node's first token also has the end of the parent's text; a shortened node has tokens behind its end.
        tokens = None
    elif by_itself and tokens and len(tokens) == row["length"]:
        tokens = tokens[:-1]  # without the end token
    text, kept = (row["words"] or "")[: row["ends_at"]], _bool(row["kept"])
    score = None if row["suffix_logprob"] == -math.inf else row["suffix_logprob"]  # JSON has no such number
    others = {"index": row["number"], "settings": settings, "suffix_logprob": score, "kept": kept}
    return made_of(Node, row, text=text, tokens=tokens, **others)


def _bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)
