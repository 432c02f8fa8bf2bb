"""The command line: `srb serve`, `srb --version`."""

import argparse
import asyncio
import importlib.metadata
import logging
import sys

from srb import __version__
from srb.errors import EngineDeadError, ModelLoadError, SettingsError
from srb.server.serve import serve
from srb.settings import Settings, add_arguments, load_settings


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, 1 if it failed, 2 if it was called wrongly."""
    arguments = _parser().parse_args(argv)
    try:
        settings = load_settings(arguments)
        _set_up_logging(settings)
        asyncio.run(serve(settings))
    except SettingsError as error:
        return _fail(error.message, 2)
    except (ModelLoadError, EngineDeadError) as error:
        return _fail(error.message, 1)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="srb", description="n alternatives of one prompt, streamed")
    llama = importlib.metadata.version("llama-cpp-python")
    parser.add_argument("--version", action="version", version=f"srb {__version__} (llama-cpp-python {llama})")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    serve_parser = commands.add_parser(
        "serve",
        help="start the HTTP server",
        description="Starts the HTTP server. Every option is also an SRB_... variable (SRB_CTX_SIZE=4096) "
        "and a key in a TOML file (ctx-size = 4096).",
    )
    add_arguments(serve_parser)
    return parser


def _set_up_logging(settings: Settings) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def _fail(message: str, code: int) -> int:
    print(f"srb: {message}", file=sys.stderr)
    return code
