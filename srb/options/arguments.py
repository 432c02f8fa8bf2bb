"""Reads the command line. For a misspelt name the error suggests the nearest one, and a shell can complete names.

`--help` shows the options to know first, if a parser has such, and `--help all` shows all of them.
"""

import argparse
import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

# Tells how to install the packages that only some commands and options need.


def pip_install(what: str) -> str:
    """The command that installs a package for the Python that runs srb: `pip` alone may belong to another Python.

    what: the package as pip takes it, in quotation marks if a shell needs them.
    """
    return f"{shlex.quote(sys.executable)} -m pip install {what}"


# Options and request fields that srb no longer has, with what to do instead. docs/http/api.md has the same names
# under *Removed fields*. A removed field in a request body is ignored and reported, as every unknown field is; only
# the command line, variables and TOML files need this table.

_REUSES = "leave it out; a prompt begins with all that is cached of its beginning, and the rest is evaluated"
_NARROWS = "leave it out; min_p and top_n_sigma also leave few tokens where the model is sure"

REMOVED = {
    "cache_reuse": _REUSES,
    "ignore_model_sampling": "leave it out; a field of a request counts before what the model's file names",
    "keep_bytes": "leave it out; finished requests take at most 256 MiB",
    "max_rewinds": "leave it out; an alternative may go back 1,000 times",
    "n_cache_reuse": _REUSES,
    "p_less": _NARROWS,
    "particles": "use --candidates, which a bridge scores",
    "prefill_chunk": "leave it out; prompts get what fits into a pause of 0.3 s between two tokens",
    "power": "leave it out; a lower --temperature or --search beam comes closest",
    "suffix_tokens": "leave it out; the first 64 tokens of the suffix are scored",
    "top_h": _NARROWS,
}
"""What to do instead, by name: an option's as an attribute of `Settings` has it, or a request field's."""


def removal(given: str) -> str | None:
    """Return the message for a removed name, or None for any other name.

    Args:
        given: the name as the user wrote it: `--flag`, `--no-flag`, `SRB_VARIABLE`, a TOML key or a field.
    """
    name = given.removeprefix("SRB_").lstrip("-").replace("-", "_").lower().removeprefix("no_")
    return f"{given} was removed: {REMOVED[name]}" if name in REMOVED else None


class Parser(argparse.ArgumentParser):
    """argparse's parser. Its errors suggest what a misspelt name may have been meant to be.

    first: the names of the options that `--help` shows; none: it shows all.
    """

    def __init__(self, *, first: frozenset[str] = frozenset(), **kwargs: Any) -> None:
        super().__init__(add_help=not first, **kwargs)
        self._first = first
        if first:
            self.add_argument("-h", "--help", action=_Help)

    def show_first(self) -> None:
        """Leaves out of the help what isn't to know first."""
        for action in self._actions:
            if action.option_strings and action.dest not in self._first:
                action.help = argparse.SUPPRESS
        for group in self._action_groups:
            if all(action.help == argparse.SUPPRESS for action in group._group_actions):
                group.description = argparse.SUPPRESS
        self.epilog = f"{self.prog} --help all shows all options."

    def error(self, message: str) -> NoReturn:
        """Ends the process with one line that says what is wrong, and the code 2."""
        self.exit(2, f"{self.prog}: error: {self._in_plain_words(message)}\n")

    def _in_plain_words(self, message: str) -> str:
        """What argparse says, with the way out."""
        flags = re.findall(r"(?<=[ /])--[\w-]+", message.partition(":")[0])
        what = flags[0] if flags else ""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            choices = re.findall(r"[\w-]+", found[2])
            if close := difflib.get_close_matches(found[1], choices, 1):
                return f"there is no {found[1]!r}; did you mean {close[0]}?"
            if what:
                return f"{what} takes {_either(choices)}, got {found[1]!r:.60}"
            file = (
                f"; a file is named by --history {found[1]:.60}" if "--history" in self._option_string_actions else ""
            )
            return f"there is no command {found[1]!r:.60}; take {_either(choices)}{file}"
        if found := re.search(r"arguments are required: (.*)", message):
            commands = [name for each in self._subparsers_actions() for name in each.choices]
            if commands:
                return f"the command is missing; take {_either(commands)}"
            return f"{found[1]} is missing; see {self.prog} --help"
        if what and (found := re.search(r"invalid int value: (.*)", message)):
            return f"{what} takes a whole number, got {found[1]:.60}"
        if what and "expected" in message:
            return f"{what} takes a value; see {self.prog} --help"
        return message

    def parse(self, argv: list[str] | None = None) -> argparse.Namespace:
        """The arguments, those of the command included. Ends the process if one is wrong."""
        if "_ARGCOMPLETE" in os.environ:  # a shell asks what can follow
            import argcomplete

            argcomplete.autocomplete(self)
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            command = next((each for each in self._commands() if each.prog.split()[1:] == [arguments.command]), self)
            command.error(command.refusal(unknown))
        return arguments

    def refusal(self, unknown: list[str]) -> str:
        """The message for arguments that this parser doesn't know."""
        wrong = next((each.partition("=")[0] for each in unknown if each.startswith("-")), None)
        if wrong is None:
            return f"there is no place for {' '.join(unknown)!r}; put quotes around a text with spaces"
        if removed := removal(wrong):
            return removed
        close = difflib.get_close_matches(wrong, self.flags(), 1)
        return f"there is no option {wrong}; " + (f"did you mean {close[0]}?" if close else f"see {self.prog} --help")

    def flags(self) -> list[str]:
        """The flags of all options, those of the commands below this parser included."""
        return [*self._option_string_actions, *(flag for each in self._commands() for flag in each.flags())]

    def _commands(self) -> Iterator["Parser"]:
        for action in self._subparsers_actions():
            yield from action.choices.values()

    def _subparsers_actions(self) -> "Iterator[argparse._SubParsersAction[Parser]]":
        return (each for each in self._actions if isinstance(each, argparse._SubParsersAction))


class _Help(argparse.Action):
    """Shows the help: with the options to know first, or with all."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        text = "show this help and exit; --help all shows all options"
        super().__init__(option_strings, argparse.SUPPRESS, nargs="?", choices=("all",), metavar="all", help=text)

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, _flag: Any = None) -> None:
        assert isinstance(parser, Parser)
        if values is None:
            parser.show_first()
        parser.print_help()
        parser.exit()


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def offer(action: argparse.Action, choices: tuple[str, ...]) -> None:
    """Lets a shell complete the values of an option. argcomplete looks for them in the attribute `completer`."""
    action.completer = lambda **_: choices  # type: ignore[attr-defined]
