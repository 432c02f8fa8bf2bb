"""`srb generate`: generates alternatives of one prompt, and shows them as they grow."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from srb.engine.sampling_params import GRAMMAR_FIELDS
from srb.errors import InvalidRequestError, SettingsError
from srb.options.settings import CHAT_OPTIONS, CLIENT_OPTIONS, SERVER_OPTIONS, Settings, add_arguments, is_given
from srb.terminal.options import add_field_arguments, given_fields
from srb.terminal.show import Alternative, Growing, PlainLines, harmless, show_all, view_of
from srb.terminal.source import Body, Source, open_source
from srb.wire.limits import Limits
from srb.wire.request.body import parse
from srb.wire.request.fields import CompletionFields
from srb.wire.request.read import ALIASES, validate

SHARED = CLIENT_OPTIONS | {"n", "max_n", "max_tokens", "api_key", "api_key_file", "log_level"}
"""Options that have an effect with `--url`."""

NOT_HEALED = {"heal", *GRAMMAR_FIELDS, "response_format", "structured_outputs", "search", "echo", "messages"}
"""Token healing is on unless a request has one of these fields, because prompts often end with a space."""


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srb generate`."""
    add_prompt_arguments(parser)
    group = parser.add_argument_group("chat", "for instruction-tuned models")
    group.add_argument(
        "--chat",
        action="store_true",
        help="send the prompt as a chat message, with the model's chat template; each alternative is a reply",
    )
    group.add_argument("--system", metavar="TEXT", help="a system prompt; implies --chat")
    group = parser.add_argument_group("output", "how texts are shown")
    group.add_argument("--json", action="store_true", help="print the events as lines of JSON")
    group.add_argument(
        "-i",
        "--interactive",
        action="store_true",
        help="ask which alternative to continue, and generate again from its end",
    )
    add_field_arguments(parser)
    add_arguments(parser, without=SERVER_OPTIONS - CHAT_OPTIONS)


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the prompt and `--file`."""
    parser.add_argument("prompt", nargs="?", help="the text to continue; read from stdin if it is left out, or -")
    parser.add_argument("-f", "--file", type=Path, help="read the prompt from this file")


def generate(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run `srb generate`. Options are checked before the model is loaded.

    Returns the exit code: 1 if an alternative failed. Raises `SrbError`.
    """
    check_url_options(settings, arguments)
    body = _body(settings, arguments)
    if settings.url is None and "ahead" in body:
        raise SettingsError("--ahead needs --url: only a server can prefetch alternatives after the command has ended")
    if settings.url is None:  # a server checks the body
        checked = {name: value for name, value in body.items() if name != "messages"} | {"prompt": "x"}
        parse(validate(checked, CompletionFields), Limits("", settings.n, settings.max_n))
    if arguments.interactive and (arguments.json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise SettingsError("--interactive needs a terminal, and excludes --json: leave one out")
    source = open_source(settings)
    return asyncio.run(_generate(source, body, as_json=arguments.json, is_interactive=arguments.interactive))


def check_url_options(settings: Settings, arguments: argparse.Namespace) -> None:
    """Raise `SettingsError` for a flag that has no effect with `--url`, because the server has its own settings."""
    if settings.url is None:
        return
    names = set(Settings.__dataclass_fields__) - SHARED
    if unused := sorted(names & set(vars(arguments))):
        flag = unused[0].replace("_", "-")
        raise SettingsError(
            f"--{flag} has no effect with --url: the server at {settings.url} has its own setting; leave it out"
        )


async def _generate(source: Source, body: Body, *, as_json: bool, is_interactive: bool) -> int:
    async with source:
        while True:
            view = view_of(Growing, PlainLines, as_json=as_json)
            async with source.submit(body) as events:
                failed = await show_all(events, view)
            next_body = (
                continued(body, view.alternatives, ask) if is_interactive and isinstance(view, Growing) else None
            )
            if next_body is None:
                return int(failed)
            body = next_body


def continued(body: Body, alternatives: Sequence[Alternative], ask: Callable[[str], str]) -> Body | None:
    """Ask which alternative to continue, by name or number; in a chat, ask for the next message, too.

    `ask` gets a question and returns the answer, which is empty to end. Returns the next request, or None to end.
    """
    by_name = {each.name: each for each in alternatives} | {str(k): each for k, each in enumerate(alternatives)}
    names = ", ".join(each.name for each in alternatives)
    question = f"continue which of {names}? (Enter ends) "
    while (answer := ask(question).strip()) and answer not in by_name:
        question = f"there is no {harmless(answer)}; continue which of {names}? "
    if not answer:
        return None
    text = by_name[answer].text
    if "messages" not in body:
        # The model's own text ends as it intended, so it needs no healing.
        return body | {"prompt": body["prompt"] + text} | ({"heal": False} if text and "heal" in body else {})
    message = ask("you: ").strip()
    turns = [{"role": "assistant", "content": text}, {"role": "user", "content": message}]
    return body | {"messages": [*body["messages"], *turns]} if message else None


def ask(question: str) -> str:
    """Return the line that a person types, or an empty text at the end of the input."""
    # asyncio's handler of Ctrl-C would only cancel this task, which is blocked in input().
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(question)
    except EOFError:
        return ""
    finally:
        signal.signal(signal.SIGINT, previous)


def _body(settings: Settings, arguments: argparse.Namespace) -> Body:
    prompt = read_prompt(arguments)
    body: Body = {"prompt": prompt, **given_fields(arguments)}
    if arguments.chat or arguments.system is not None:
        system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
        body = {"messages": [*system, {"role": "user", "content": prompt}]} | body
        del body["prompt"]
    if is_given(arguments, settings, "n") and (not {"branches", "directions"} & {*body} or hasattr(arguments, "n")):
        body["n"] = settings.n
    if settings.max_tokens is not None:
        body["max_tokens"] = settings.max_tokens
    named = {ALIASES.get(name, name) for each in (body, *body.get("branches", ())) for name in each}
    if not named & NOT_HEALED:
        body["heal"] = True
    if sys.stdout.isatty() and not arguments.json and "prompt" in body:
        body["return_progress"] = True
    return body


def read_prompt(arguments: argparse.Namespace) -> str:
    """Return the prompt, without a line break at its end. Raises `InvalidRequestError`."""
    if arguments.file and arguments.prompt is not None:
        raise InvalidRequestError("the prompt and --file exclude each other: leave one out", param="prompt")
    if arguments.prompt not in (None, "-"):
        return str(arguments.prompt)
    if arguments.file is None and arguments.prompt is None and sys.stdin.isatty():
        raise InvalidRequestError("the prompt is missing; add one, or --file FILE, or - to type it", param="prompt")
    name = f"--file {arguments.file}" if arguments.file else "the prompt"
    return read_text(arguments.file, name).removesuffix("\n")


def read_text(path: Path | None, name: str) -> str:
    """Read a file, or stdin without a path. `name` is its name in errors. Raises `InvalidRequestError`."""
    try:
        return path.read_text("utf-8-sig") if path else sys.stdin.buffer.read().decode("utf-8-sig")
    except OSError as error:
        raise InvalidRequestError(f"{name} can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{name} is not UTF-8: byte {error.start}") from None
