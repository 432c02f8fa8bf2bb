"""The command line: `srb serve`, `generate`, `explore`, `compare`, `history` and `tune`, and `srb --version`."""

import argparse
import asyncio
import importlib.metadata
import logging
import os
import sys
from collections.abc import Callable

from srb import __version__
from srb.arguments import Parser
from srb.download import fetch_model
from srb.errors import InvalidRequestError, SettingsError, SrbError
from srb.progress import show_download
from srb.server.serve import serve
from srb.settings import CLIENT_OPTIONS, Settings, add_arguments, is_given, load_settings
from srb.terminal.compare import add_compare_arguments, compare
from srb.terminal.explore import add_explore_arguments, explore
from srb.terminal.generate import add_generate_arguments, generate
from srb.terminal.history import add_history_arguments, history
from srb.tune import add_tune_arguments, tune

USAGES = {
    "generate": "[PROMPT] [OPTION...]",
    "explore": "[PROMPT] [OPTION...]",
    "compare": "SPEC [OPTION...]",
    "history": "COMMAND [OPTION...]",
}
"""What a command takes, without the list of all its options; each of these stands in a group below."""

Command = Callable[[Settings, argparse.Namespace], int]


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, 1 if it failed, 2 if it was called wrongly, 130 for Ctrl-C."""
    arguments = _parser().parse(argv)
    try:
        settings = load_settings(arguments)
        _set_up_logging(settings, arguments)
        run: Command = arguments.run
        return run(settings, arguments)
    except (SettingsError, InvalidRequestError) as error:
        return _fail(error.message, 2)
    except SrbError as error:
        return _fail(error.message, 1)
    except BrokenPipeError:  # as in: srb generate ... | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
        return 1
    except KeyboardInterrupt:
        return 130


def _serve(settings: Settings, _arguments: argparse.Namespace) -> int:
    asyncio.run(serve(fetch_model(settings, show_download)))
    return 0


def _add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, without=CLIENT_OPTIONS)


def _parser() -> Parser:
    parser = Parser(prog="srb", description="Generates n alternatives of one prompt, and streams them.")
    llama = importlib.metadata.version("llama-cpp-python")
    parser.add_argument("--version", action="version", version=f"srb {__version__} (llama-cpp-python {llama})")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    ways = (
        "Every option can also be given as a variable (SRB_CTX_SIZE=4096) or in a TOML file (ctx-size = 4096, "
        "read with --config FILE)."
    )

    def add(
        name: str, text: str, more: str, add_options: Callable[[argparse.ArgumentParser], object], run: Command
    ) -> None:
        usage = f"srb {name} {USAGES.get(name, '[OPTION...]')}"
        command = commands.add_parser(name, help=text, description=f"{more} {ways}", usage=usage)
        add_options(command)
        command.set_defaults(run=run)

    add("serve", "start the HTTP server", "Starts the HTTP server.", _add_serve_arguments, _serve)
    add(
        "generate",
        "write alternatives of a prompt to the terminal",
        "Writes n alternatives of a prompt, and shows them while they grow.",
        add_generate_arguments,
        generate,
    )
    add(
        "explore",
        "show what the model is likely to write next, as a tree",
        "Shows what the model is likely to write next, as a tree that grows.",
        add_explore_arguments,
        explore,
    )
    add(
        "compare",
        "compare prompts and sampler settings in a report",
        "Generates texts for each prompt with each sampler setting, and writes a report that compares them.",
        add_compare_arguments,
        compare,
    )
    add(
        "history",
        "list, show, search, export or prune what a server has kept",
        "Shows what a server with --history FILE has kept: requests, their texts, and stories.",
        add_history_arguments,
        history,
    )
    add(
        "tune",
        "measure which settings are fastest for a model on this machine",
        "Measures which settings are fastest for a model on this machine, and keeps them. The other commands use them.",
        add_tune_arguments,
        tune,
    )
    return parser


def _set_up_logging(settings: Settings, arguments: argparse.Namespace) -> None:
    quiet = arguments.run is not _serve and not is_given(arguments, settings, "log_level")
    logging.basicConfig(
        stream=sys.stderr,
        level="WARNING" if quiet else settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if quiet:  # what changes texts is said all the same
        logging.getLogger("srb.tuned").setLevel("INFO")


def _fail(message: str, code: int) -> int:
    print(f"srb: {message}", file=sys.stderr)
    return code
