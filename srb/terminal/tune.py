"""`srb tune`: measures which settings are fastest for a model on this machine, and saves the result."""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from srb.errors import SrbError
from srb.files.download import error_console, fetch_model
from srb.llama.model.model_file import find_model
from srb.llama.model.weights import converted_path
from srb.llama.tune.result import processor, read_tuned, save_result, stored_files
from srb.llama.tune.search import MAX_DIVERGENCE, Candidate, Search
from srb.options.settings import CLIENT_OPTIONS, SERVER_OPTIONS, Settings, add_arguments

_FIXED = frozenset({"weights", "tune", "flash_attn", "cache_type_k", "cache_type_v"})
"""Options that `srb tune` chooses."""


def add_tune_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srb tune`."""
    parser.add_argument(
        "--forget", action="store_true", help="delete the saved results for this model, and measure nothing"
    )
    parser.add_argument("--once", action="store_true", help="do nothing if this model was already tuned here")
    add_arguments(parser, without=SERVER_OPTIONS | CLIENT_OPTIONS | _FIXED)


def tune(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run `srb tune`. Returns the exit code: 0, or 130 if it was stopped, which saves nothing. Raises `SrbError`."""
    settings = fetch_model(settings)
    path = find_model(settings.model)
    if arguments.forget:
        for file in stored_files(path):
            print(f"removed {file} ({file.stat().st_size >> 20:,} MiB)")
            file.unlink()
        return 0
    if arguments.once and read_tuned(path, settings):
        return 0
    result = None
    try:
        with error_console().status("loading the model") as status:
            search = Search(path, settings, status.update)
            try:
                result = search.run()
            except KeyboardInterrupt:
                print("Stopped; nothing is saved.")
            finally:
                saved = save_result(result, search.made, path, settings)
    except OSError as error:
        raise SrbError(f"the result can't be saved: {error}") from None
    if result is None:
        return 130
    _print_table(search)
    wanted = converted_path(path, result.weights)
    print(f"Chosen: {result.describe()}.")
    print(f"Saved in {saved}{f' and {wanted}' if wanted in search.made else ''}.")
    print(
        "`srb serve`, `generate` and `compare` use it from now on; --no-tune uses the original file, and "
        "`srb tune --forget` deletes the result."
    )
    print(
        f"KL is the mean divergence of the probabilities from those of the original file; at most {MAX_DIVERGENCE} "
        "is accepted."
    )
    return 0


def _print_table(search: Search) -> None:
    """Print a table of the candidates."""
    (short, n, length), _, (long, *_) = search.jobs
    table = Table(
        *("weights", "cache", "flash\nattention", f"{short:,} tokens,\n{n} x {length}"),
        *(f"{short:,} tokens,\n1 x {length}", f"{long:,} tokens,\n{n} x {length}"),
        *("memory,\nMiB", "KL", ""),
        title=f"{search.path.name} on {processor()}: seconds, memory and accuracy",
    )
    for each in search.candidates:
        table.add_row(each.weights, each.attention.cache_type, each.attention.shown, *_numbers(search, each))
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def _numbers(search: Search, candidate: Candidate) -> list[str]:
    seconds = [f"{each:.2f}" for each in search.seconds(candidate)]
    memory = f"{candidate.memory >> 20:,}" if candidate.memory else ""
    kl = "" if candidate.kl is None else f"{candidate.kl:.4f}"
    note = "chosen" if candidate is search.chosen else candidate.note
    return [*seconds, *[""] * (len(search.jobs) - len(seconds)), memory, kl, note]
