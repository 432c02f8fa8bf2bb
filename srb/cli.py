"""The command line: `srb serve`, `generate`, `explore`, `score`, `compare`, `history`, `tune`, and `srb --version`."""

import argparse
import errno
import gc
import importlib.metadata
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from srb import __version__
from srb.errors import InvalidRequestError, SettingsError, SrbError
from srb.files.download import fetch_model
from srb.options.arguments import Parser
from srb.options.settings import CLIENT_OPTIONS, FIRST_OPTIONS, Settings, add_arguments, is_given, load_settings
from srb.serving.logs import LogFormatter

if TYPE_CHECKING:
    from srb.serving.early_loading import EarlyLoading

AddOptions = Callable[[argparse.ArgumentParser], object]
Run = Callable[[Settings, argparse.Namespace], int]


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Returns:
        0; 1 if it failed; 2 for a wrong call; 130 if it was stopped. To stop a server by SIGTERM is no failure: 0.
    """
    words = sys.argv[1:] if argv is None else argv
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what can follow
        words = os.environ["COMP_LINE"].split()
    arguments = _parser(words).parse(argv)
    try:
        settings = load_settings(arguments)
        _set_up_logging(settings, arguments)
        signal.signal(signal.SIGTERM, _terminate)
        run: Run = arguments.run
        return run(settings, arguments)
    except (SettingsError, InvalidRequestError) as error:
        return _fail(error.message, 2)
    except SrbError as error:
        return _fail(error.message, 1)
    except BrokenPipeError:  # as in: srb generate ... | head -1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at its exit
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return _fail(f"{error.filename or 'the output'} can't be written: {error.strerror}", 1)
    except TerminatedError:
        return 0 if arguments.run is _serve else 130
    except KeyboardInterrupt:
        return 130


class TerminatedError(KeyboardInterrupt):
    """SIGTERM has come. It keeps what Ctrl-C keeps."""


def _terminate(*_signal: object) -> None:
    raise TerminatedError


# Each command imports its own modules only when it is called: the modules of all commands together take half a second.


def _serve(settings: Settings, _arguments: argparse.Namespace) -> int:
    from srb.files.download import show_download

    settings = fetch_model(settings, show_download)
    # To import the HTTP server takes longer than to load a small model. So both are done at once.
    with _begin_loading(settings) as load:
        with _without_collecting():
            if load:
                # It reads all of the system's certificates, in C, where other threads can go on.
                threading.Thread(target=importlib.import_module, args=("aiohttp",)).start()
            import asyncio

            from srb.server.run.serve import serve
        asyncio.run(serve(settings, load))
    return 0


def _begin_loading(settings: Settings) -> "AbstractContextManager[EarlyLoading | None]":
    """A block that loads the model in a thread. Replicas load it themselves, so with them it is None."""
    if settings.is_cluster:
        return nullcontext()
    with _without_collecting():
        from srb.llama.backend import LlamaBackend
        from srb.serving.early_loading import EarlyLoading
    return EarlyLoading(partial(LlamaBackend, settings))


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Python doesn't look for garbage in this block, nor ever among what is there at its end.

    Imports make hardly any, and to look for it takes a tenth of their time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _serving() -> tuple[AddOptions, Run]:
    return partial(add_arguments, without=CLIENT_OPTIONS), _serve


def _generating() -> tuple[AddOptions, Run]:
    from srb.terminal.generate import add_generate_arguments, generate

    return add_generate_arguments, generate


def _exploring() -> tuple[AddOptions, Run]:
    from srb.terminal.explore import add_explore_arguments, explore

    return add_explore_arguments, explore


def _scoring() -> tuple[AddOptions, Run]:
    from srb.terminal.score import add_score_arguments, score

    return add_score_arguments, score


def _comparing() -> tuple[AddOptions, Run]:
    from srb.terminal.comparison.compare import add_compare_arguments, compare

    return add_compare_arguments, compare


def _looking_back() -> tuple[AddOptions, Run]:
    from srb.terminal.history import add_history_arguments, history

    return add_history_arguments, history


def _tuning() -> tuple[AddOptions, Run]:
    from srb.terminal.tune import add_tune_arguments, tune

    return add_tune_arguments, tune


class Command(NamedTuple):
    """A command of the command line.

    takes: its usage line, without a list of all its options: its help shows these in groups.
    text: a line about it, for `srb --help`. description: for its own help. load: imports the functions that add its
    options and run it.
    """

    takes: str
    text: str
    description: str
    load: Callable[[], tuple[AddOptions, Run]]
    first: frozenset[str] = frozenset()


_ASKING = frozenset({"model", "url", "api_key"})
"""The options to know first of the commands that ask for texts."""

COMMANDS = {
    "serve": Command("[OPTION...]", "start the HTTP server", "Starts the HTTP server.", _serving, FIRST_OPTIONS),
    "generate": Command(
        "[PROMPT] [OPTION...]",
        "write alternatives of a prompt to the terminal",
        "Writes n alternatives of a prompt, and shows them while they grow.",
        _generating,
        _ASKING
        | {"interactive", "json", "file", "chat", "system", "n", "max_tokens"}
        | {f"field_{name}" for name in ("temperature", "top_p", "min_p", "seed", "stop", "banned_strings")},
    ),
    "explore": Command(
        "[PROMPT] [OPTION...]",
        "show what the model is likely to write next, as a tree",
        "Shows what the model is likely to write next, as a tree that grows.",
        _exploring,
        _ASKING | {"depth", "max_nodes", "min_probability", "min_entropy"},
    ),
    "score": Command(
        "FILE [OPTION...]",
        "tell how likely continuations are behind contexts",
        "Tells how likely continuations are behind contexts: those in the lines of a file.",
        _scoring,
    ),
    "compare": Command(
        "SPEC [OPTION...]",
        "compare prompts and sampler settings in a report",
        "Generates texts for each prompt with each sampler setting, and writes a report that compares them.",
        _comparing,
        _ASKING | {"out", "report", "rate", "verify"},
    ),
    "history": Command(
        "COMMAND [OPTION...]",
        "list, show, search, export or prune what a server has kept",
        "Shows what a server with --history FILE has kept: requests, their texts, and stories.",
        _looking_back,
    ),
    "tune": Command(
        "[OPTION...]",
        "measure which settings are fastest for a model on this machine",
        "Measures which settings are fastest for a model on this machine, and keeps them. The other commands use them.",
        _tuning,
        frozenset({"model", "hf_repo", "hf_file", "config", "budget", "once"}),
    ),
}


def _parser(words: list[str]) -> Parser:
    """The parser, with the options of the command that is among these words; of all commands if none is."""
    parser = Parser(prog="srb", description="Generates n alternatives of one prompt, and streams them.")
    llama = importlib.metadata.version("llama-cpp-python")
    parser.add_argument("--version", action="version", version=f"srb {__version__} (llama-cpp-python {llama})")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    ways = (
        "Every option can also be given as a variable (SRB_CTX_SIZE=4096) or in a TOML file (ctx-size = 4096, "
        "read with --config FILE)."
    )
    asked = next((word for word in words if word in COMMANDS), None)
    for name, command in COMMANDS.items():
        description, usage = f"{command.description} {ways}", f"srb {name} {command.takes}"
        of_command = commands.add_parser(
            name, help=command.text, description=description, usage=usage, first=command.first
        )
        if asked in (name, None):
            add_options, run = command.load()
            add_options(of_command)
            of_command.set_defaults(run=run)
    return parser


def _set_up_logging(settings: Settings, arguments: argparse.Namespace) -> None:
    quiet = arguments.run is not _serve and not is_given(arguments, settings, "log_level")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(handlers=[handler], level="WARNING" if quiet else settings.log_level.upper())
    if quiet:  # the kept result of `srb tune` changes texts, so its use is logged all the same
        logging.getLogger("srb.tuned").setLevel("INFO")


def _fail(message: str, code: int) -> int:
    print(f"srb: {message}", file=sys.stderr)
    return code
