"""Reads the command line. For a misspelt name the error suggests the nearest one, and a shell can complete names."""

import argparse
import difflib
import os
import re
from collections.abc import Iterator
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse's parser. Its errors suggest what a misspelt name may have been meant to be."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with a message that says what is wrong."""
        super().error(self._in_plain_words(message))

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


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def offer(action: argparse.Action, choices: tuple[str, ...]) -> None:
    """Lets a shell complete the values of an option. argcomplete looks for them in the attribute `completer`."""
    action.completer = lambda **_: choices  # type: ignore[attr-defined]
