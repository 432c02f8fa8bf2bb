"""`srb generate`: generates alternatives of one prompt, and shows them while they grow."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from srb.engine.sampling_params import CONSTRAINTS
from srb.errors import InvalidRequestError, SettingsError
from srb.options.settings import CHAT_OPTIONS, CLIENT_OPTIONS, SERVER_OPTIONS, Settings, add_arguments, is_given
from srb.terminal.options import add_field_arguments, given_fields
from srb.terminal.show import Alternative, Growing, JsonLines, PlainLines, View, harmless
from srb.terminal.source import Body, Source, open_source
from srb.wire.limits import Limits
from srb.wire.request.body import parse
from srb.wire.request.body_fields import ALIASES

SHARED = CLIENT_OPTIONS | {"n", "max_n", "max_tokens", "api_key", "api_key_file", "log_level"}
"""The options that have an effect if a server runs the model."""

NOT_HEALED = {"heal", *CONSTRAINTS, "response_format", "structured_outputs", "search", "echo", "messages"}
"""If a request has none of these fields, its prompt is healed, because people often end a text with a space."""


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `srb generate`."""
    add_prompt_arguments(parser)
    group = parser.add_argument_group("asking", "for models that follow instructions")
    group.add_argument(
        "--chat",
        action="store_true",
        help="send the prompt as a chat message, by the model's chat template; each alternative is an answer",
    )
    group.add_argument("--system", metavar="TEXT", help="a system prompt for the chat; it implies --chat")
    group = parser.add_argument_group("showing", "how the texts are shown")
    group.add_argument("--json", action="store_true", help="print the events, one line of JSON for each")
    group.add_argument(
        "-i",
        "--interactive",
        action="store_true",
        help="ask which alternative to keep, and generate again from its end",
    )
    add_field_arguments(parser)
    add_arguments(parser, without=SERVER_OPTIONS - CHAT_OPTIONS)


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the prompt, and `--file`, which may have it."""
    parser.add_argument(
        "prompt", nargs="?", help="the text to go on from; without it, or with -, it is read from stdin"
    )
    parser.add_argument("-f", "--file", type=Path, help="read the prompt from this file")


def generate(settings: Settings, arguments: argparse.Namespace) -> int:
    """Runs `srb generate` and returns its exit code: 1 if an alternative has failed.

    Raises `SrbError`. A wrong option is found before the model is loaded.
    """
    check_url_options(settings, arguments)
    body = _body(settings, arguments)
    if settings.url is None and "ahead" in body:
        raise SettingsError("--ahead goes with --url: without a server nothing is drawn when the command has ended")
    if settings.url is None:  # a server checks the body itself
        checked = {name: value for name, value in body.items() if name != "messages"} | {"prompt": "x"}
        parse(json.dumps(checked).encode(), Limits("", settings.n, settings.max_n), tokenize_nothing)
    if arguments.interactive and (arguments.json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise SettingsError("--interactive needs a terminal to ask at, and goes with no --json; leave it out")
    source = open_source(settings)
    return asyncio.run(_generate(source, body, as_json=arguments.json, is_interactive=arguments.interactive))


def check_url_options(settings: Settings, arguments: argparse.Namespace) -> None:
    """Refuses flags that have no effect with `--url`, because the server has its own. Raises `SettingsError`."""
    if settings.url is None:
        return
    names = set(Settings.__dataclass_fields__) - SHARED
    if vain := sorted(names & set(vars(arguments))):
        flag = vain[0].replace("_", "-")
        raise SettingsError(f"--{flag} has no effect with --url: the server at {settings.url} has its own")


def tokenize_nothing(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
    """Stands in for a tokenizer, to check a body before the model is loaded."""
    return (0,)


async def _generate(source: Source, body: Body, *, as_json: bool, is_interactive: bool) -> int:
    async with source:
        while True:
            view = _view(as_json=as_json)
            failed = await _show(source, body, view)
            following = go_on(body, view.alternatives, ask) if is_interactive and isinstance(view, Growing) else None
            if following is None:
                return int(failed)
            body = following


async def _show(source: Source, body: Body, view: View) -> bool:
    """Runs a request. Returns whether something failed."""
    failed = False
    async with source.submit(body) as events:
        with view:
            async for event in events:
                if event["event"] == "start" and event["ignored"]:
                    print(f"srb: without effect: {', '.join(event['ignored'])}", file=sys.stderr)
                if event["event"] == "stop" and event["finish_reason"] == "abort":
                    print(f"srb: alternative {event['index']} was ended: {event['stop_reason']}", file=sys.stderr)
                failed |= event["event"] == "error" or event.get("finish_reason") == "abort"
                view.show(event)
    return failed


def go_on(body: Body, alternatives: Sequence[Alternative], ask: Callable[[str], str]) -> Body | None:
    """Asks which alternative to keep, and returns the request that continues it; None if the person wants to end.

    ask: gets a question, and returns the answer. The answer is the name or the number of an alternative, or empty to
    end. In a chat, the person is then asked for the next message.
    """
    by_name = {each.name: each for each in alternatives} | {str(k): each for k, each in enumerate(alternatives)}
    question = f"keep which of {', '.join(each.name for each in alternatives)}? (Enter ends) "
    while (answer := ask(question).strip()) and answer not in by_name:
        question = f"there is no {harmless(answer)}; keep which of {', '.join(each.name for each in alternatives)}? "
    if not answer:
        return None
    kept = by_name[answer].text
    if "messages" not in body:
        # What the model wrote is as it wanted it.
        return body | {"prompt": body["prompt"] + kept} | ({"heal": False} if kept and "heal" in body else {})
    said = ask("you: ").strip()
    turns = [{"role": "assistant", "content": kept}, {"role": "user", "content": said}]
    return body | {"messages": [*body["messages"], *turns]} if said else None


def ask(question: str) -> str:
    """Returns what a person types; an empty text at the end of the input."""
    # asyncio's handler of Ctrl-C would cancel this task, which is blocked in input() and would not notice.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(question)
    except EOFError:
        return ""
    finally:
        signal.signal(signal.SIGINT, previous)


def _view(*, as_json: bool) -> View:
    if as_json:
        return JsonLines(sys.stdout)
    console = Console(highlight=False)
    return Growing(console) if console.is_terminal else PlainLines(sys.stdout)


def _body(settings: Settings, arguments: argparse.Namespace) -> Body:
    prompt = read_prompt(arguments)
    body: Body = {"prompt": prompt, **given_fields(arguments)}
    if arguments.chat or arguments.system is not None:
        system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
        body = {"messages": [*system, {"role": "user", "content": prompt}]} | body
        del body["prompt"]
    if is_given(arguments, settings, "n") and ("branches" not in body or hasattr(arguments, "n")):
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
    """The prompt, without the line break at its end."""
    if arguments.file and arguments.prompt is not None:
        raise InvalidRequestError("a prompt and --file exclude each other", param="prompt")
    try:
        if arguments.file:
            text = arguments.file.read_text("utf-8-sig")
        elif arguments.prompt is None and sys.stdin.isatty():
            raise InvalidRequestError("there is no prompt; give one, or --file, or - to type it", param="prompt")
        elif arguments.prompt in (None, "-"):
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        else:
            return str(arguments.prompt)
    except OSError as error:
        raise InvalidRequestError(f"--file {arguments.file} can't be read: {error.strerror}", param="prompt") from None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the prompt is not UTF-8: byte {error.start}", param="prompt") from None
    return str(text).removesuffix("\n")
