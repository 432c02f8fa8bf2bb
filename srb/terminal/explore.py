"""`srb explore`: shows the tree of likely continuations of a prompt as it grows."""

import argparse
import asyncio
import dataclasses
import math
import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from srb.engine.request import Explore
from srb.engine.validation.fields import meanings
from srb.options.settings import SERVER_OPTIONS, Settings, add_arguments
from srb.terminal.generate import add_prompt_arguments, check_url_options, read_prompt
from srb.terminal.show import Event, View, one_line, show_all, view_of
from srb.terminal.source import Body, Source, open_source
from srb.wire.limits import Limits
from srb.wire.native.explore import ExploreFields, explore_reply
from srb.wire.request.read import validate


def add_explore_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srb explore`."""
    add_prompt_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the events as lines of JSON")
    group = parser.add_argument_group("exploration", "size and limits of the tree; see docs/http/sampling.md")
    for field in dataclasses.fields(Explore):
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            type=type(field.default),
            metavar=type(field.default).__name__.upper(),
            help=f"{meanings(Explore)[field.name]} (default: {field.default})",
        )
    add_arguments(parser, without=SERVER_OPTIONS | {"n", "max_n", "max_tokens"})


def explore(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run `srb explore`. Options are checked before the model is loaded.

    Returns the exit code: 1 if it failed. Raises `SrbError`.
    """
    check_url_options(settings, arguments)
    body: Body = {"prompt": read_prompt(arguments)}
    for field in dataclasses.fields(Explore):
        if (value := getattr(arguments, field.name)) is not None:
            body[field.name] = value
    if settings.url is None:
        explore_reply(validate(body, ExploreFields), Limits("", settings.n, settings.max_n), time.time())
    return asyncio.run(_explore(open_source(settings), body, view_of(GrowingTree, PathLines, as_json=arguments.json)))


async def _explore(source: Source, body: Body, view: View) -> int:
    async with source, source.explore(body) as events:
        return int(await show_all(events, view))


class PathLines(View):
    """Prints a line for each node as it is found: the probability of the text from the prompt to it, and this text."""

    def __init__(self) -> None:
        self._texts = {None: ""}

    def show(self, event: Event) -> None:
        super().show(event)
        if event["event"] == "node":
            text = self._texts[event["id"]] = self._texts[event["parent"]] + event["text"]
            print(f"{math.exp(event['cumulative_logprob']):.4f} {one_line(text)}", flush=True)


class GrowingTree(View):
    """Shows the growing tree with probabilities: as much as fits, and all of it at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tree = Tree("", hide_root=True)
        self._nodes = {None: self._tree}
        self._live = Live(self._tree, console=console, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()
        self._console.print(self._tree)

    def show(self, event: Event) -> None:
        super().show(event)
        if event["event"] == "node":
            ends = " ■" if event["finish_reason"] == "stop" else ""
            label = Text.assemble(one_line(event["text"]) + ends, (f"  {math.exp(event['logprob']):.0%}", "dim"))
            self._nodes[event["id"]] = self._nodes[event["parent"]].add(label)
