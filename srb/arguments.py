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
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            close = difflib.get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), 1)
            if close:
                message = f"there is no {found[1]!r}; did you mean {close[0]}?"
        super().error(message)

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
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from action.choices.values()


def offer(action: argparse.Action, choices: tuple[str, ...]) -> None:
    """Lets a shell complete the values of an option. argcomplete looks for them in the attribute `completer`."""
    action.completer = lambda **_: choices  # type: ignore[attr-defined]
