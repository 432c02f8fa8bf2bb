"""Progress bars, on stderr, and only if stderr is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# rich is imported only when something is shown: the import takes as long as a tenth of a small model's loading.


def error_console() -> "Console":
    """A console on stderr. It looks anew whether stderr is a terminal, and how wide."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def show_loading(fraction: Callable[[], float]) -> Iterator[None]:
    """Shows how far a model is loaded, as long as the block runs. `fraction` returns a number from 0 to 1."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    def bar() -> Table:
        row = Table.grid(padding=(0, 1))
        row.add_row("loading the model", ProgressBar(total=1, completed=fraction(), width=40), f"{fraction():.0%}")
        return row

    with Live(get_renderable=bar, console=error_console(), transient=True):
        yield


@contextmanager
def show_count(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows how many of `total` things are done. The block gets a function to call for each of them."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal, transient=True)
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def show_download(name: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how far a download is. The block gets a function for the number of bytes so far, and of all bytes."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
