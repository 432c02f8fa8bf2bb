"""Shows the events of a request: as lines of JSON, as plain lines, or as growing texts on a terminal."""

import json
import sys
import unicodedata
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

Event = dict[str, Any]

COLUMN_CHARS = 60
"""The minimum width of a column of text."""


class View:
    """Shows events as they arrive. Use it as a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def show(self, event: Event) -> None:
        """Show the next event."""
        if event["event"] == "error":
            print(f"srb: {event['error']['message']}", file=sys.stderr)


async def show_all(events: AsyncIterator[Event], view: View) -> bool:
    """Show the events of a request, and return whether something failed."""
    failed = False
    with view:
        async for event in events:
            if event["event"] == "start" and event["ignored"]:
                print(f"srb: no effect: {', '.join(event['ignored'])}", file=sys.stderr)
            if event["event"] == "stop" and event["finish_reason"] == "abort":
                print(f"srb: alternative {event['index']} was aborted: {event['stop_reason']}", file=sys.stderr)
            failed |= event["event"] == "error" or event.get("finish_reason") == "abort"
            view.show(event)
    return failed


def view_of(growing: Callable[[Console], View], lines: Callable[[], View], *, as_json: bool) -> View:
    """Return lines of JSON, or what grows on a terminal, or lines where there is none."""
    if as_json:
        return JsonLines()
    console = Console(highlight=False)
    return growing(console) if console.is_terminal else lines()


@dataclass
class Alternative:
    """The state of an alternative, from its events. Its name is its label or its index."""

    name: str
    seed: int
    text: str = ""
    end: Event | None = None


class JsonLines(View):
    """Prints each event unchanged, on a line of its own."""

    def show(self, event: Event) -> None:
        print(json.dumps(event), flush=True)


class _Texts(View):
    """Collects the texts of the alternatives."""

    def __init__(self) -> None:
        self.alternatives: list[Alternative] = []
        self.reading = ""

    def show(self, event: Event) -> None:
        match event["event"]:
            case "start":
                labels = event.get("labels") or [None] * event["count"]
                self.alternatives = [
                    Alternative(str(index) if label is None else label, seed)
                    for index, (label, seed) in enumerate(zip(labels, event["seeds"], strict=True))
                ]
            case "progress":
                self.reading = f"{event['evaluated'] + event['cached']} of {event['total']} prompt tokens"
            case "stream":
                self.alternatives[event["index"]].text += event["text"]
            case "stop" if self.alternatives:
                self.alternatives[event["index"]].end = event
            case "error":
                index = event.get("index")
                name = self.alternatives[index].name if index is not None and self.alternatives else "the request"
                print(f"srb: {name}: {event['error']['message']}", file=sys.stderr)


class PlainLines(_Texts):
    """Prints one line per alternative, `name: text`, by index or by rank; line breaks are written as \\n."""

    def __init__(self) -> None:
        super().__init__()
        self._printed = 0

    def __exit__(self, *_error: object) -> None:
        self._print(sorted(self.alternatives, key=_rank))

    def show(self, event: Event) -> None:
        super().show(event)
        # An alternative is printed when it and all before it have ended. Ranks are known only at the end.
        if any(map(_rank, self.alternatives)):
            return
        ended = [alternative.end is not None for alternative in self.alternatives]
        self._print(self.alternatives[: [*ended, False].index(False)])

    def _print(self, alternatives: list[Alternative]) -> None:
        for alternative in alternatives[self._printed :]:
            print(f"{alternative.name}: {one_line(alternative.text)}", flush=True)
        self._printed = max(self._printed, len(alternatives))


class Growing(_Texts):
    """Shows the last lines of each growing text, as many as fit, and all of the texts at the end."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live = Live(get_renderable=self.render, console=console, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()
        if self._columns == 1:
            for alternative in self.alternatives:
                self._console.print(_title(alternative))
                self._console.print(Text(harmless(alternative.text)))
                self._console.print()
        elif self.alternatives:
            cells = [Group(_title(each), Text(harmless(each.text)), Text()) for each in self.alternatives]
            self._console.print(self._grid(cells))

    @property
    def _columns(self) -> int:
        """The number of columns. Each is at least `COLUMN_CHARS` wide, unless the console is narrower."""
        return max(1, min(len(self.alternatives), self._console.width // COLUMN_CHARS))

    def _grid(self, cells: list[Group]) -> Table:
        grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
        for _ in range(self._columns):
            grid.add_column(ratio=1)
        for k in range(0, len(cells), self._columns):
            grid.add_row(*cells[k : k + self._columns])
        return grid

    def render(self) -> RenderableType:
        if not any(alternative.text or alternative.end for alternative in self.alternatives):
            return Text(self.reading and f"reading {self.reading}", style="dim")
        n_rows = -(-len(self.alternatives) // self._columns)
        height = (self._console.height - 1) // n_rows
        width = self._console.width
        if height < 2:  # a line for each
            names = [(each, _name(each)) for each in self.alternatives]
            return Group(*(Text.assemble(name, *self._end(each, 1, width - len(name))) for each, name in names))
        width = width // self._columns - 2
        return self._grid([Group(_title(each), *self._end(each, height - 1, width)) for each in self.alternatives])

    def _end(self, alternative: Alternative, count: int, width: int) -> list[Text]:
        """Return the last lines of a text, in lines of this width."""
        return list(Text(harmless(alternative.text)).wrap(self._console, width)[-count:])


def _rank(alternative: Alternative) -> int:
    """Return its rank among the alternatives of a bridge, or 0."""
    return int((alternative.end or {}).get("rank") or 0)


def _name(alternative: Alternative) -> Text:
    return Text(harmless(alternative.name) + " ", style="bold cyan")


def _title(alternative: Alternative) -> Text:
    """Return the name in colour, the seed, and how the alternative ended."""
    details = f"seed {alternative.seed}"
    if end := alternative.end:
        reason = end["finish_reason"] + (f" {end['stop_reason']!r}" if end["stop_reason"] is not None else "")
        details += f" · {end['length']} tokens · {reason}"
        if rank := _rank(alternative):
            details += f" · rank {rank}, {end['suffix_logprob']:.1f}"
    return Text.assemble(_name(alternative), (details, "dim"))


def harmless(text: str) -> str:
    """Make control characters visible, because they could control the terminal. Line breaks and tabs stay."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs") else _visible(char)
        for char in text
    )


def one_line(text: str) -> str:
    """Make control characters visible, and line breaks `\\n`."""
    return harmless(text.replace("\\", "\\\\").replace("\n", "\\n"))


def _visible(char: str) -> str:
    # Scripts and emoji need joiners and direction marks. Direction overrides could disguise a line.
    return char if char in "\u200c\u200d\u200e\u200f\u00ad" else char.encode("unicode_escape").decode()
