"""`srb score`: prints log-probabilities of continuations given a context, for each line of a file."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from srb.errors import InvalidRequestError
from srb.files.download import show_count
from srb.options.settings import SERVER_OPTIONS, Settings, add_arguments
from srb.terminal.generate import check_url_options, read_text
from srb.terminal.show import Event, JsonLines, one_line
from srb.terminal.source import Body, Source, open_source
from srb.wire.native.score import parse_score, text_of, texts_of

MAX_BODY_CHARS = 1 << 20
"""A longer file is sent in several requests, because a server accepts bodies of up to 4 MiB."""

CONTEXT_CHARS = 70
"""The number of characters shown of a context: its last ones."""


def add_score_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srb score`."""
    parser.add_argument(
        "file",
        help='a JSONL file of objects such as {"context": "The capital of France is", "continuations": [" Paris", '
        '" Rome"]}, with texts or lists of token ids; - reads stdin',
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each continuation")
    parser.add_argument(
        "--logprobs",
        type=int,
        metavar="INT",
        help="with --json: also print the tokens, each with this number of top tokens, 0 to 100",
    )
    add_arguments(parser, without=SERVER_OPTIONS | {"n", "max_n", "max_tokens"})


def score(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run `srb score`. The file is checked before the model is loaded.

    Returns the exit code: 1 if a row couldn't be scored. Raises `SrbError`.
    """
    check_url_options(settings, arguments)
    common: Body = {} if arguments.logprobs is None else {"logprobs": arguments.logprobs}
    parse_score(json.dumps(common | {"contexts": ["."], "continuations": ["."]}).encode(), "")
    lines = list(_lines(arguments.file))
    bodies = [common | body for body in _bodies(lines)]
    count = sum(len(line["continuations"]) for line in lines)
    if others := {name: None for line in lines for name in line if name not in ("context", "continuations")}:
        print(f"srb: no effect: {', '.join(others)}", file=sys.stderr)
    source = open_source(settings)
    show = JsonLines().show if arguments.json else _table(lines)
    return asyncio.run(_score(source, bodies, count, show))


async def _score(source: Source, bodies: list[Body], count: int, show: Callable[[Event], None]) -> int:
    failed, first = False, 0
    async with source:
        with show_count("scoring", count) as counted:
            for body in bodies:
                async with source.score(body) as events:
                    async for event in events:
                        failed |= event["event"] == "error" or event.get("finish_reason") == "abort"
                        if "context" in event:
                            counted()
                            show(event | {"context": first + event["context"]})
                        elif event["event"] == "error":
                            print(f"srb: {event['error']['message']}", file=sys.stderr)
                first += len(body["contexts"])
    return int(failed)


def _lines(name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file."""
    n_lines = 0
    for number, line in enumerate(read_text(None if name == "-" else Path(name), name).split("\n"), 1):
        if not line.strip():
            continue
        n_lines += 1
        try:
            found = json.loads(line)
        except ValueError as error:
            raise InvalidRequestError(f"line {number} of {name} is not JSON: {error}", param="file") from None
        ends = found.get("continuations") if isinstance(found, dict) and "context" in found else None
        if not isinstance(ends, list) or not all(isinstance(each, str | list) for each in ends):
            raise InvalidRequestError(
                f'line {number} of {name} must be an object with "context" and a list of "continuations"', param="file"
            )
        try:
            text_of(found["context"], "context", "file")
            texts_of(ends, "continuations")
        except InvalidRequestError as error:
            raise InvalidRequestError(f"line {number} of {name}: {error.message}", param="file") from None
        yield found
    if not n_lines:
        raise InvalidRequestError(f"{name} has no lines", param="file")


def _bodies(lines: list[dict[str, Any]]) -> Iterator[Body]:
    """Yield request bodies for the lines, each of at most `MAX_BODY_CHARS`, or with a single line."""
    contexts: list[Any] = []
    continuations: list[Any] = []
    n_chars = 0
    for line in lines:
        n_chars += len(json.dumps([line["context"], line["continuations"]]))
        if contexts and n_chars > MAX_BODY_CHARS:
            yield {"contexts": contexts, "continuations": continuations}
            contexts, continuations, n_chars = [], [], 0
        contexts.append(line["context"])
        continuations.append(line["continuations"])
    yield {"contexts": contexts, "continuations": continuations}


def _table(lines: list[dict[str, Any]]) -> Callable[[Event], None]:
    """Print each context, and below it its continuations, the most likely first."""
    rows: list[list[Event]] = [[] for _ in lines]
    n_shown = 0

    def show(event: Event) -> None:
        nonlocal n_shown
        rows[event["context"]].append(event)
        while n_shown < len(lines) and len(rows[n_shown]) == len(lines[n_shown]["continuations"]):
            line, found = lines[n_shown], rows[n_shown]
            print(f"{n_shown}: {_shown(line['context'], CONTEXT_CHARS)}")
            for each in sorted(found, key=lambda each: each.get("rank", len(found) + 1)):
                print(_line(each, _shown(line["continuations"][each["continuation"]])), flush=True)
            n_shown += 1

    return show


def _line(event: Event, text: str) -> str:
    if event["event"] == "error":
        return f"   -  {event['error']['message']}: {text}"
    each = event["logprob"] / event["n_tokens"]
    mark = "~" if event.get("retokenized") else "*" if event["greedy"] else ""
    return f"{event['rank']:4}  {event['logprob']:9.3f}  {each:8.3f} a token{mark:>2} {text}"


def _shown(text: Any, n_chars: int | None = None) -> str:
    shown = one_line(text) if isinstance(text, str) else json.dumps(text)
    return shown if n_chars is None or len(shown) <= n_chars else "…" + shown[1 - n_chars :]
