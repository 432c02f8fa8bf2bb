"""Turns requests and stories of the history into JSON and Markdown."""

import dataclasses
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from srb.errors import NotFoundError
from srb.history.find import Recorded
from srb.history.stories import Node, Story, read_nodes


def as_json(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, whose names are those in the JSON of the HTTP API."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def listed_json(story: Story) -> dict[str, Any]:
    """Returns a story as it is in a list: without its context, which may be large."""
    data = {"id": story.id, "object": "story"} | as_json(story)
    del data["context"]
    return data


def story_json(story: Story, nodes: list[Node] | None = None) -> dict[str, Any]:
    """Returns a story, with these nodes or without."""
    data = listed_json(story) | {"context": story.context}
    return data if nodes is None else data | {"nodes": [as_json(node) for node in nodes]}


def request_json(request: Recorded) -> dict[str, Any]:
    """Returns everything that the file has of a request."""
    return as_json(request.summary) | {
        "detached": request.detached,
        "finished": request.finished,
        "usage": request.usage,
        "body": request.body,
        "choices": [as_json(each) for each in request.alternatives],
    }


def request_as_markdown(request: Recorded) -> str:
    """Formats a request for people: its time, its prompt, and each alternative."""
    summary, body = request.summary, request.body
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.created))
    parts = [f"## {when}, {summary.id}", "", f"{summary.model}, {summary.count} alternatives, {summary.status}", ""]
    prompt = body.get("prompt") if isinstance(body, dict) else None
    parts += [_quote(prompt if isinstance(prompt, str) else summary.title), ""]
    for each in request.alternatives:
        settings = "".join(f", {name} {value}" for name, value in each.settings.items())
        parts += [f"### {each.label or f'Alternative {each.index + 1}'}", "", f"Seed {each.seed}{settings}", ""]
        parts += [each.text if each.text is not None else "(it hasn't ended)", ""]
    return "\n".join(parts)


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def story_as_markdown(db: sqlite3.Connection, owner: str | None, story: str, node: int | None = None) -> str:
    """Formats the text of a story from its beginning to a node.

    Args:
        db: a connection.
        owner: the hash of the reader's key.
        story: the id of the story.
        node: the id of the node. None: the last one that a person wrote or that is kept.

    Raises:
        NotFoundError: There is no such story or node.
    """
    found, nodes = read_nodes(db, owner, story)
    if node is None:
        node = max((each.id for each in nodes if each.author == "person" or each.kept), default=None)
    elif not any(each.id == node for each in nodes):
        raise NotFoundError(f"there is no node {node} in this story", param="node")
    text = "".join(reversed(list(_upwards({each.id: each for each in nodes}, node))))
    return f"# {found.title}\n\n{text}\n"


def _upwards(nodes: dict[int, Node], at: int | None) -> Iterator[str]:
    while at in nodes:
        yield nodes[at].text
        parent = nodes[at].parent
        at = parent if parent is not None and parent < at else None  # in a damaged file there may be a circle
