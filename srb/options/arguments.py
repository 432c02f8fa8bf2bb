"""Reads the command line, suggests the nearest name for a misspelt one, and lets a shell complete names.

`--help` shows a command's basic options if it has any marked as such, and `--help all` shows all of them.
"""

import argparse
import difflib
import os
import shlex
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse's parser, with shorter errors that suggest the nearest name. `--help` shows the options `first`."""

    def __init__(self, *, first: frozenset[str] = frozenset(), **kwargs: Any) -> None:
        super().__init__(add_help=not first, **kwargs)
        self._first = first
        if first:
            self.add_argument("-h", "--help", action=_Help)

    def parse(self, argv: list[str] | None = None) -> argparse.Namespace:
        """Parse the arguments, including those of the command. Ends the process if one is wrong."""
        if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
            import argcomplete

            argcomplete.autocomplete(self)
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            self.commands().get(arguments.command, self)._refuse_unknown(unknown)
        return arguments

    def commands(self) -> dict[str, "Parser"]:
        """Return the parsers of the commands below this one, by name."""
        found = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(found[0]) if found else {}

    def flags(self) -> list[str]:
        """Return the flags of all options, including those of the commands below this parser."""
        return [*self._option_string_actions, *(flag for each in self.commands().values() for flag in each.flags())]

    def hide_all_but_first(self) -> None:
        """Hide all options from the help except the basic ones."""
        for action in self._actions:
            if action.option_strings and action.dest not in self._first:
                action.help = argparse.SUPPRESS
        for group in self._action_groups:
            if all(action.help == argparse.SUPPRESS for action in group._group_actions):
                group.description = argparse.SUPPRESS
        self.epilog = f"{self.prog} --help all shows all options."

    def error(self, message: str) -> NoReturn:
        """End the process with exit code 2 and one line: argparse's message, and where to find help."""
        self._refuse(f"{message}; see {self.prog} --help")

    def _refuse(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [*(action.choices or ())]
        if choices and value not in choices and (close := difflib.get_close_matches(str(value), choices, 1)):
            self._refuse(f"there is no {value!r}; did you mean {close[0]}?")
        super()._check_value(action, value)

    def _refuse_unknown(self, unknown: list[str]) -> NoReturn:
        wrong = next((each.partition("=")[0] for each in unknown if each.startswith("-")), None)
        if wrong is None:
            self._refuse(f"unexpected argument {' '.join(unknown)!r}; put quotes around a text with spaces")
        if close := difflib.get_close_matches(wrong, self.flags(), 1):
            self._refuse(f"there is no option {wrong}; did you mean {close[0]}?")
        self.error(f"there is no option {wrong}")


class _Help(argparse.Action):
    """Shows the help, with the basic options or with all."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        text = "show this help and exit; --help all shows all options"
        super().__init__(option_strings, argparse.SUPPRESS, nargs="?", choices=("all",), metavar="all", help=text)

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, _flag: Any = None) -> None:
        assert isinstance(parser, Parser)
        if values is None:
            parser.hide_all_but_first()
        parser.print_help()
        parser.exit()


def pip_install(what: str) -> str:
    """Return the command that installs a package for the Python that runs srb; `pip` alone may belong to another."""
    return f"{shlex.quote(sys.executable)} -m pip install {what}"
