"""The command line. Each command is a `Command` in `COMMANDS`, and its module is imported when it is called."""

import argparse
import errno
import faulthandler
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
    """Run a command.

    Args:
        argv: The arguments; None for those of the process.

    Returns:
        The exit code: 0; 1 if the command failed; 2 for a usage error; 130 if it was stopped. A server that is stopped
        by SIGTERM returns 0.
    """
    words = sys.argv[1:] if argv is None else argv
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        words = os.environ["COMP_LINE"].split()
    arguments = _parser(words).parse(argv)
    try:
        settings = load_settings(arguments)
        _set_up_logging(settings, arguments)
        signal.signal(signal.SIGTERM, _terminate)
        if sys.__stderr__:
            faulthandler.enable(sys.__stderr__, all_threads=False)
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
    """SIGTERM was received. It saves the same as Ctrl-C."""


def _terminate(*_signal: object) -> None:
    raise TerminatedError


# Each command imports its modules when it is called: all of them together take half a second.


def _serve(settings: Settings, _arguments: argparse.Namespace) -> int:
    from srb.server.run.bind import bound

    with bound(settings) as sockets:
        settings = fetch_model(settings)
        # Importing the HTTP server takes longer than loading a small model, so do both at the same time.
        with _begin_loading(settings) as load:
            with _without_collecting():
                if load:
                    # Importing aiohttp reads the system's certificates, in C and without the GIL.
                    threading.Thread(target=importlib.import_module, args=("aiohttp",)).start()
                import asyncio

                from srb.server.run.serve import serve
            asyncio.run(serve(settings, load, sockets))
    return 0


def _begin_loading(settings: Settings) -> "AbstractContextManager[EarlyLoading | None]":
    """Return a context that loads the model in a thread; with replicas, which load it themselves, it yields None."""
    if settings.is_cluster:
        return nullcontext()
    with _without_collecting():
        from srb.llama.backend import LlamaBackend
        from srb.serving.early_loading import EarlyLoading
    return EarlyLoading(partial(LlamaBackend, settings))


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Pause the garbage collector, and exclude the objects of this block from later collections.

    Imports create little garbage, and collecting takes a tenth of their time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Command(NamedTuple):
    """A command of the command line.

    Attributes:
        usage: Its usage, after its name. Its help lists the options in groups.
        text: A line about it, for `srb --help`.
        description: The start of its own help.
        first: Names of the basic options, which `--help` shows without `all`.
        module: Its module in `srb.terminal`; "": the one with its name.
    """

    usage: str
    text: str
    description: str
    first: frozenset[str] = frozenset()
    module: str = ""


_CLIENT_FIRST = frozenset({"model", "url", "api_key"})
"""Basic options of the commands that send requests."""

COMMANDS = {
    "serve": Command("[OPTION...]", "start the HTTP server", "Starts the HTTP server.", FIRST_OPTIONS),
    "generate": Command(
        "[PROMPT] [OPTION...]",
        "write alternatives of a prompt to the terminal",
        "Writes n alternatives of a prompt, and shows them as they grow.",
        _CLIENT_FIRST
        | {"interactive", "json", "file", "chat", "system", "n", "max_tokens"}
        | {f"field_{name}" for name in ("temperature", "top_p", "min_p", "seed", "stop", "banned_strings")},
    ),
    "explore": Command(
        "[PROMPT] [OPTION...]",
        "show the most likely continuations of a prompt, as a tree",
        "Shows the most likely continuations of a prompt, as a growing tree.",
        _CLIENT_FIRST | {"depth", "max_nodes", "min_probability", "min_entropy"},
    ),
    "score": Command(
        "FILE [OPTION...]",
        "print log-probabilities of continuations given a context",
        "Prints log-probabilities of continuations given a context, for each line of a file.",
    ),
    "compare": Command(
        "SPEC [OPTION...]",
        "compare prompts and sampler settings in a report",
        "Generates texts for each prompt with each sampler setting, and writes a report that compares them.",
        _CLIENT_FIRST | {"out", "report", "rate", "verify"},
        "comparison.compare",
    ),
    "history": Command(
        "[--history FILE] COMMAND [OPTION...]",
        "list, show, search, export or prune requests and stories",
        "Shows the requests, texts and stories in the file of a server with --history FILE.",
    ),
    "tune": Command(
        "[OPTION...]",
        "find the fastest settings for a model on this machine",
        "Measures which settings are fastest for a model on this machine, and saves them for the other commands.",
        frozenset({"model", "hf_repo", "hf_file", "config", "once"}),
    ),
}


def _load(name: str) -> tuple[AddOptions, Run]:
    """Import the functions that add the options of a command and run it."""
    if name == "serve":
        return partial(add_arguments, without=CLIENT_OPTIONS), _serve
    module = importlib.import_module(f"srb.terminal.{COMMANDS[name].module or name}")
    return getattr(module, f"add_{name}_arguments"), getattr(module, name)


def _parser(words: list[str]) -> Parser:
    """Return the parser. It has the options of the command among these words, or of all commands if there is none."""
    parser = Parser(prog="srb", description="Generates n alternatives of one prompt, and streams them.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the versions of srb and llama-cpp-python")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    sources = (
        "Every option can also be set by an environment variable (SRB_CTX_SIZE=4096) or in a TOML file "
        "(ctx-size = 4096, read with --config FILE)."
    )
    named = next((word for word in words if word in COMMANDS), None)
    for name, command in COMMANDS.items():
        description, usage = f"{command.description} {sources}", f"srb {name} {command.usage}"
        subparser = commands.add_parser(
            name, help=command.text, description=description, usage=usage, first=command.first
        )
        if named in (name, None):
            add_options, run = _load(name)
            add_options(subparser)
            subparser.set_defaults(run=run)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_arguments: object) -> None:
        print(f"srb {__version__} (llama-cpp-python {importlib.metadata.version('llama-cpp-python')})")
        parser.exit()


def _set_up_logging(settings: Settings, arguments: argparse.Namespace) -> None:
    quiet = arguments.run is not _serve and not is_given(arguments, settings, "log_level")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter())
    logging.basicConfig(handlers=[handler], level="WARNING" if quiet else settings.log_level.upper())
    if quiet:  # the result of `srb tune` changes texts, so its use is always logged
        logging.getLogger("srb.tuned").setLevel("INFO")


def _fail(message: str, code: int) -> int:
    print(f"srb: {message}", file=sys.stderr)
    return code
