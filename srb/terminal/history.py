"""`srb history`: reads the file of `--history`, also while a server writes it."""

import argparse
import json
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from srb.errors import NotFoundError, SettingsError
from srb.history import queries as find
from srb.history import stories
from srb.history.database import ANYBODY, connect, explained, prepare
from srb.history.history import prune, read, request_as_markdown, request_json, size_of, story_as_markdown, story_json
from srb.history.queries import Recorded
from srb.options.settings import Settings, add_arguments

_SECONDS = {"h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_history_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `srb history` and its commands."""
    add_arguments(parser, without=frozenset(Settings.__dataclass_fields__) - {"history", "log_level"})
    commands = parser.add_subparsers(dest="what", required=True, metavar="command", prog=parser.prog)

    def add(name: str, text: str, run: Callable[[Path, argparse.Namespace], None]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_argument(
            "--history",
            default=argparse.SUPPRESS,
            metavar="FILE",
            help="the history file; may also be given before the command",
        )
        command.set_defaults(show=run)
        return command

    command = add("list", "list the last requests", _list)
    command.add_argument("--limit", type=int, default=50, metavar="N", help="number of requests (default: 50)")
    command.add_argument("--story", metavar="ID", help="only requests of this story")
    add("stories", "list the stories", _stories)
    command = add("show", "show a request or a story", _show)
    command.add_argument("id")
    command.add_argument(
        "--node", type=int, help="for a story: the node where the text ends (default: the last one kept)"
    )
    command = add("search", "find texts by their words", _search)
    command.add_argument(
        "words",
        nargs="+",
        help='words to find; "quoted words" match as a phrase, and prefix* matches the start of a word',
    )
    command.add_argument("--limit", type=int, default=20, metavar="N", help="number of texts (default: 20)")
    command = add("export", "export requests and stories", _export)
    command.add_argument("id", nargs="*", help="ids of requests and stories (default: all)")
    command.add_argument(
        "--format", choices=("jsonl", "json", "markdown"), default="jsonl", help="output format (default: jsonl)"
    )
    command = add("prune", "delete finished requests, the oldest first; stories stay", _prune)
    command.add_argument("--older-than", metavar="AGE", help="delete requests that ended longer ago: 12h, 30d, 8w, 1y")
    command.add_argument("--to-size", metavar="SIZE", help="delete requests until the file has this size: 500M, 2G")


def history(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run a command of `srb history`, and return the exit code 0.

    Raises `SettingsError`, `HistoryError` and `NotFoundError`.
    """
    path = settings.history
    if path is None:
        raise SettingsError("srb history needs a file: srb history --history FILE list, or SRB_HISTORY=FILE")
    if not path.is_file():
        raise SettingsError(f"--history {path}: there is no such file")
    prepare(path)
    arguments.show(path, arguments)
    return 0


def _list(path: Path, arguments: argparse.Namespace) -> None:
    for each in read(path, find.list_requests, ANYBODY, limit=arguments.limit, story=arguments.story):
        print(f"{_when(each.created)}  {each.id}  {each.count:3} {each.status:11} {_line(each.title, 60)}")


def _stories(path: Path, _arguments: argparse.Namespace) -> None:
    for each in read(path, stories.list_stories, ANYBODY):
        print(f"{_when(each.changed)}  {each.id}  {each.node_count:5} nodes  {_line(each.title, 60)}")


def _show(path: Path, arguments: argparse.Namespace) -> None:
    print(_markdown(path, _find(path, arguments.id), arguments.node), end="")


def _markdown(path: Path, found: Recorded | dict[str, Any], node: int | None = None) -> str:
    if isinstance(found, Recorded):
        return request_as_markdown(found)
    return read(path, story_as_markdown, ANYBODY, found["id"], node)


def _search(path: Path, arguments: argparse.Namespace) -> None:
    for each in read(path, find.search, ANYBODY, " ".join(arguments.words), limit=arguments.limit):
        places = [f"{each.request} {each.index}"] if each.request else []
        places += [f"{each.story} node {each.node}"] if each.story else []
        print(f"{_when(each.created)}  {', '.join(places)}\n    {_line(each.snippet, 200)}")


def _export(path: Path, arguments: argparse.Namespace) -> None:
    found = (_find(path, each) for each in arguments.id) if arguments.id else _everything(path)
    if arguments.format == "markdown":
        for each in found:
            print(_markdown(path, each))
        return
    separator, end = ("\n", "\n") if arguments.format == "jsonl" else (",\n", "\n]\n")
    sys.stdout.write("[\n" if arguments.format == "json" else "")
    for number, each in enumerate(found):
        data = request_json(each) if isinstance(each, Recorded) else each
        sys.stdout.write((separator if number else "") + json.dumps(data, ensure_ascii=False))
    sys.stdout.write(end)


def _find(path: Path, name: str) -> Recorded | dict[str, Any]:
    try:
        return read(path, find.get_request, ANYBODY, name)
    except NotFoundError:
        pass
    try:
        return read(path, _story, name)
    except NotFoundError:
        raise NotFoundError(f"the history {path} has no request and no story {name}", param="id") from None


def _story(db: sqlite3.Connection, name: str) -> dict[str, Any]:
    story, nodes = stories.read_nodes(db, ANYBODY, name)
    return story_json(story, nodes, stories.read_drafts(db, ANYBODY, name))


def _everything(path: Path) -> Iterator[Recorded | dict[str, Any]]:
    for story in read(path, stories.list_stories, ANYBODY):
        yield read(path, _story, story.id)
    before = None
    while listed := read(path, find.list_requests, ANYBODY, before=before):
        for each in listed:
            yield read(path, find.get_request, ANYBODY, each.id)
        before = listed[-1].id


def _prune(path: Path, arguments: argparse.Namespace) -> None:
    if arguments.older_than is None and arguments.to_size is None:
        raise SettingsError("choose what to delete: srb history prune --older-than 30d, or --to-size 500M")
    before, to_bytes = None, None
    if arguments.older_than is not None:
        before = int(time.time()) - _amount("--older-than", arguments.older_than, _SECONDS, "12h, 30d, 8w or 1y")
    if arguments.to_size is not None:
        to_bytes = _amount("--to-size", arguments.to_size.upper(), _BYTES, "500M or 2G")
    with explained(path), closing(connect(path)) as db:
        removed = prune(db, before=before, to_bytes=to_bytes)
        print(f"deleted {removed} requests; the file has {size_of(db) / 2**20:.1f} MiB")


def _amount(option: str, text: str, units: dict[str, int], example: str) -> int:
    match = re.fullmatch(r"(\d{1,9})(\w)", text)
    if not match or match[2] not in units:
        raise SettingsError(f"{option} takes a number and a unit, such as {example}; got {text!r:.60}")
    return int(match[1]) * units[match[2]]


def _when(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _line(text: str, length: int) -> str:
    return " ".join(text.split())[:length]
