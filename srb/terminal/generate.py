"""`srb generate`: the alternatives of one prompt, as they grow."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from rich.console import Console

from srb.errors import InvalidRequestError, SettingsError
from srb.settings import CLIENT_OPTIONS, SERVER_OPTIONS, Settings, add_arguments, is_given
from srb.terminal.options import add_field_arguments, given_fields
from srb.terminal.show import Growing, JsonLines, PlainLines, View
from srb.terminal.source import Body, Source, open_source
from srb.wire.body import Limits, parse
from srb.wire.fields import ALIASES

SHARED = CLIENT_OPTIONS | {"n", "max_n", "max_tokens", "api_key", "api_key_file", "log_level"}
"""The options that have an effect where a server runs the model."""

NOT_HEALED = {"heal", "grammar", "json_schema", "response_format", "search", "echo"}
"""The fields without which the prompt's last token is taken back, since people end their texts with spaces."""


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `srb generate` takes."""
    parser.add_argument(
        "prompt", nargs="?", help="the text to go on from; without it, or with -, it is read from stdin"
    )
    parser.add_argument("-f", "--file", type=Path, help="read the prompt from this file")
    parser.add_argument("--json", action="store_true", help="print the events, one line of JSON for each")
    add_field_arguments(parser)
    add_arguments(parser, without=SERVER_OPTIONS)


def generate(settings: Settings, arguments: argparse.Namespace) -> int:
    """Runs `srb generate` and returns its exit code: 1 if an alternative has failed.

    Raises `SrbError`, for a wrong option before the model is loaded.
    """
    check_url_options(settings, arguments)
    body = _body(settings, arguments)
    if settings.url is None:  # a server says itself what it doesn't take
        parse(json.dumps(body).encode(), Limits("", settings.n, settings.max_n), tokenize_nothing)
    return asyncio.run(_generate(open_source(settings), body, _view(as_json=arguments.json)))


def check_url_options(settings: Settings, arguments: argparse.Namespace) -> None:
    """Refuses flags that would have no effect, because the server has its own. Raises `SettingsError`."""
    if settings.url is None:
        return
    names = set(Settings.__dataclass_fields__) - SHARED
    if vain := sorted(names & set(vars(arguments))):
        flag = vain[0].replace("_", "-")
        raise SettingsError(f"--{flag} has no effect with --url: the server at {settings.url} has its own")


def tokenize_nothing(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
    """Stands in for a tokenizer while there is none."""
    return (0,)


async def _generate(source: Source, body: Body, view: View) -> int:
    failed = False
    async with source, source.submit(body) as events:
        with view:
            async for event in events:
                if event["event"] == "start" and event["ignored"]:
                    print(f"srb: without effect: {', '.join(event['ignored'])}", file=sys.stderr)
                if event["event"] == "stop" and event["finish_reason"] == "abort":
                    print(f"srb: alternative {event['index']} was ended: {event['stop_reason']}", file=sys.stderr)
                failed |= event["event"] == "error" or event.get("finish_reason") == "abort"
                view.show(event)
    return int(failed)


def _view(*, as_json: bool) -> View:
    if as_json:
        return JsonLines(sys.stdout)
    console = Console(highlight=False)
    return Growing(console) if console.is_terminal else PlainLines(sys.stdout)


def _body(settings: Settings, arguments: argparse.Namespace) -> Body:
    body: Body = {"prompt": read_prompt(arguments), **given_fields(arguments)}
    if is_given(arguments, settings, "n") and ("branches" not in body or hasattr(arguments, "n")):
        body["n"] = settings.n
    if settings.max_tokens is not None:
        body["max_tokens"] = settings.max_tokens
    named = {ALIASES.get(name, name) for each in (body, *body.get("branches", ())) for name in each}
    if not named & NOT_HEALED:
        body["heal"] = True
    if sys.stdout.isatty() and not arguments.json:
        body["return_progress"] = True
    return body


def read_prompt(arguments: argparse.Namespace) -> str:
    """The prompt, without the line break at the end of a file."""
    if arguments.file and arguments.prompt is not None:
        raise InvalidRequestError("a prompt and --file exclude each other", param="prompt")
    try:
        if arguments.file:
            text = arguments.file.read_text("utf-8")
        elif arguments.prompt is None and sys.stdin.isatty():
            raise InvalidRequestError("there is no prompt; give one, or --file, or - to type it", param="prompt")
        elif arguments.prompt in (None, "-"):
            text = sys.stdin.buffer.read().decode("utf-8")
        else:
            return str(arguments.prompt)
    except OSError as error:
        raise InvalidRequestError(f"--file {arguments.file} can't be read: {error.strerror}", param="prompt") from None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the prompt is not UTF-8: byte {error.start}", param="prompt") from None
    return str(text).removesuffix("\n")
