"""How the events of a request look: lines of JSON, plain lines, or texts that grow side by side on a terminal."""

import json
import sys
import unicodedata
from dataclasses import dataclass
from typing import Any, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

Event = dict[str, Any]


class View(Protocol):
    """Shows events as they come. Use it as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...

    def show(self, event: Event) -> None:
        """Takes the next event."""


@dataclass
class Alternative:
    """What is known of an alternative by now. name: its label, or its index."""

    name: str
    seed: int
    text: str = ""
    end: Event | None = None


class JsonLines:
    """Each event as it is, on a line of its own."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def show(self, event: Event) -> None:
        """Prints an event."""
        print(json.dumps(event), file=self._out, flush=True)


class _Texts:
    """Collects the texts."""

    def __init__(self) -> None:
        self.alternatives: list[Alternative] = []
        self.reading = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def show(self, event: Event) -> None:
        """Takes the next event."""
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
    """One line per alternative, `name: text`, in the order of their indexes; line breaks are written as \\n."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self._printed = 0

    def __exit__(self, *_error: object) -> None:
        self._print(self.alternatives)

    def show(self, event: Event) -> None:
        """Takes the next event, and prints the alternatives that have ended, if those before them have."""
        super().show(event)
        ended = [alternative.end is not None for alternative in self.alternatives]
        self._print(self.alternatives[: [*ended, False].index(False)])

    def _print(self, alternatives: list[Alternative]) -> None:
        for alternative in alternatives[self._printed :]:
            print(f"{alternative.name}: {one_line(alternative.text)}", file=self._out, flush=True)
        self._printed = max(self._printed, len(alternatives))


class Growing(_Texts):
    """The ends of the texts while they grow, as many lines of each as fit; then all of them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._live = Live(get_renderable=self._render, console=console, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()
        for alternative in self.alternatives:
            self._console.print(_title(alternative))
            self._console.print(Text(harmless(alternative.text)))
            self._console.print()

    def _render(self) -> RenderableType:
        if not any(alternative.text or alternative.end for alternative in self.alternatives):
            return Text(self.reading and f"reading {self.reading}", style="dim")
        height = (self._console.height - 1) // len(self.alternatives) - 1
        rows: list[RenderableType] = []
        for alternative in self.alternatives:
            name = _name(alternative) if height < 1 else Text()  # on one line with the text where there's no room
            lines = Text(harmless(alternative.text)).wrap(self._console, self._console.width - len(name))
            if height < 1:
                rows.append(Text.assemble(name, *lines[-1:]))
            else:
                rows += [_title(alternative), *lines[-height:]]
        return Group(*rows)


def _name(alternative: Alternative) -> Text:
    return Text(harmless(alternative.name) + " ", style="bold cyan")


def _title(alternative: Alternative) -> Text:
    """The name in colour, and what is known of the end."""
    details = f"seed {alternative.seed}"
    if end := alternative.end:
        reason = end["finish_reason"] + (f" {end['stop_reason']!r}" if end["stop_reason"] else "")
        details += f" · {end['length']} tokens · {reason}"
    return Text.assemble(_name(alternative), (details, "dim"))


def harmless(text: str) -> str:
    """Without the control characters that would steer a terminal; only line breaks and tabs are left."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs") else _visible(char)
        for char in text
    )


def one_line(text: str) -> str:
    """The same with line breaks as \\n."""
    return harmless(text.replace("\\", "\\\\").replace("\n", "\\n"))


def _visible(char: str) -> str:
    # Joiners and direction marks belong to scripts and emoji; overrides could make a line lie.
    return char if char in "\u200c\u200d\u200e\u200f\u00ad" else char.encode("unicode_escape").decode()
