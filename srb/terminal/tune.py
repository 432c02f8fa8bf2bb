"""`srb tune`: measures which settings are fastest for a model on this machine, and saves the result."""

import argparse
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from srb.errors import SettingsError, SrbError
from srb.files.download import error_console, fetch_model, show_download
from srb.llama.model.model_file import find_model
from srb.llama.model.weights import converted_path
from srb.llama.tune.comparison import MAX_DIVERGENCE, Candidate, shown
from srb.llama.tune.result import processor, read_tuned, save_result, stored_files
from srb.llama.tune.search import Search
from srb.options.settings import CLIENT_OPTIONS, SERVER_OPTIONS, Settings, add_arguments

_FIXED = frozenset({"weights", "tune", "flash_attn", "cache_type_k", "cache_type_v"})
"""Options that `srb tune` chooses."""


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srb tune`."""
    parser.add_argument(
        "--budget", type=float, default=60, metavar="SECONDS", help="approximate time limit (default: 60)"
    )
    parser.add_argument(
        "--forget", action="store_true", help="delete the saved results for this model, and measure nothing"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="do nothing if this model was already tuned on this machine while it was idle",
    )
    add_arguments(parser, without=SERVER_OPTIONS | CLIENT_OPTIONS | _FIXED)


def tune(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run `srb tune`. If it is stopped, the result so far is saved.

    Returns:
        The exit code: 0, or 130 if it was stopped.

    Raises:
        SrbError: An option is wrong, the model can't be loaded, or the result can't be saved.
    """
    if not arguments.budget > 0:
        raise SettingsError(f"--budget must be more than 0 seconds, got {arguments.budget:g}")
    settings = fetch_model(settings, show_download)
    path = find_model(settings.model)
    if arguments.forget:
        for file in stored_files(path):
            print(f"removed {file} ({file.stat().st_size >> 20:,} MiB)")
            file.unlink()
        return 0
    if arguments.once and (known := read_tuned(path, settings)) and not known.is_uncertain:
        return 0
    stopped = False
    with _progress() as progress:
        task = progress.add_task("loading the model", total=1)
        search = Search(
            path,
            settings,
            arguments.budget,
            lambda what, share: progress.update(task, description=what, completed=min(1.0, share)),
        )
        try:
            search.run()
        except KeyboardInterrupt:
            stopped = True
    _print_table(search)
    try:
        _save(search, settings, stopped)
    except OSError as error:
        raise SrbError(f"the result can't be saved: {error}") from None
    return 130 if stopped else 0


def _progress() -> Progress:
    console = error_console()
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def _print_table(search: Search) -> None:
    """Print a table of the candidates."""
    if not search.comparison.jobs:
        return
    (short, n, length), (long, *_), _ = search.comparison.jobs
    table = Table(
        *("weights", "cache", "flash\nattention"),
        *(f"{short:,} tokens,\n{n} x {length}", f"{long:,} tokens,\n{n} x {length}"),
        *(f"{short:,} tokens,\n1 x {length}", "memory,\nMiB", "KL", ""),
        title=f"{search.path.name} on {processor()}: seconds, memory and accuracy",
    )
    for each in search.comparison.candidates:
        table.add_row(each.weights, each.attention.cache_type, shown(each.attention), *_numbers(search, each))
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def _numbers(search: Search, candidate: Candidate) -> list[str]:
    seconds = [f"{each:.2f}" for each in search.comparison.seconds(candidate)] or ["", "", ""]
    memory = f"{candidate.memory >> 20:,}" if candidate.memory else ""
    kl = "" if candidate.kl is None else f"{candidate.kl:.4f}"
    return [*seconds, memory, kl, "chosen" if candidate is search.comparison.chosen else candidate.note]


def _save(search: Search, settings: Settings, stopped: bool) -> None:
    """Save the result, and print it."""
    result = search.comparison.result
    if result and stopped and search.comparison.chosen is search.comparison.candidates[0]:
        result = None
    saved = save_result(result, search.made, search.path, settings)
    if result is None:
        print("Stopped before anything better than the original file was found; nothing is saved.")
        return
    if saved is None:
        print(f"{_why_provisional(search)} The earlier result stays; `srb tune --forget` deletes it.")
        return
    wanted = converted_path(search.path, result.weights)
    if result.is_uncertain and not stopped:
        print(f"This result is provisional: {_why_provisional(search)}")
    print(f"{'Stopped early. ' if stopped else ''}Chosen: {result.describe()}.")
    print(f"Saved in {saved}{f' and {wanted}' if search.made and wanted in search.made else ''}.")
    print(
        "`srb serve`, `generate` and `compare` use it from now on; --no-tune uses the original file, and "
        "`srb tune --forget` deletes the result."
    )
    print(
        f"KL is the mean divergence of the probabilities from those of the original file; at most {MAX_DIVERGENCE} "
        "is accepted."
    )


def _why_provisional(search: Search) -> str:
    """Return why the result may be wrong, and what helps."""
    if search.comparison.busy:
        return (
            f"Other programs use {search.comparison.busy:.1f} CPUs, so fewer threads were used, thread counts weren't "
            "compared, and the times aren't used to plan batches. Run the same command on an idle machine."
        )
    return f"{search.comparison.doubt} Try a larger --budget, or again later."
