"""Reads the prompts of a spec: texts or chats, with placeholders for variables, and forks."""

import csv
import difflib
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from srb.errors import InvalidRequestError
from srb.terminal.generate import read_text
from srb.terminal.options import check_names

MAX_FORKS = 32

KEYS = {"file", "text", "system", "user", "messages", "forks", "group"}

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")


@dataclass(frozen=True)
class Prompt:
    """A prompt of a spec.

    Attributes:
        body: `prompt` or `messages`, as in a request.
        variables: The values of its placeholders.
        forks: Replaces the prompt by several: with each of this number of top next tokens, or with each of these texts,
            added to its end.
        group: Prompts of the same group depend on each other. By default these are the forks of a text, and a text with
            each row of variables.
    """

    body: dict[str, Any]
    variables: dict[str, Any] = field(default_factory=dict)
    forks: int | tuple[str, ...] = 0
    group: str = ""

    @property
    def text(self) -> str:
        """The prompt for display. A chat is its messages, each with its role."""
        if "prompt" in self.body:
            return str(self.body["prompt"])
        return "\n".join(f"{each['role']}: {each['content']}" for each in self.body["messages"])

    def forked(self, texts: tuple[str, ...]) -> dict[str, "Prompt"]:
        """Return this prompt with each of the texts added to its end, by text."""
        before = self.body["prompt"]
        return {text: replace(self, body={"prompt": before + text}, forks=0) for text in texts}


def read_prompt(name: str, value: Any, rows: list[dict[str, Any]] | None, folder: Path) -> dict[str, Prompt]:
    """Read a prompt of a spec, and fill its placeholders with each row of the variables.

    With several rows, the row's number is added to the name. Raises `InvalidRequestError`.
    """
    prompt = _prompt(f"prompts.{name}", value, folder)
    if rows is None:
        return {name: replace(prompt, group=prompt.group or name)}
    found = {}
    for number, row in enumerate(rows, 1):
        where = f"prompts.{name} {number}"
        body, group = filled_body(prompt.body, row, where), fill(prompt.group, row, where) or name
        if body == prompt.body:  # without placeholders all rows would give the same prompt
            return {name: replace(prompt, group=group)}
        found[f"{name} {number}"] = replace(prompt, body=body, variables=row, group=group)
    return found


def fill(text: str, values: Mapping[str, Any], where: str) -> str:
    """Replace the placeholders `{name}` of a text; `{{` and `}}` become braces. A list is written with commas.

    Raises `InvalidRequestError`.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return found[0][0]
        if name not in values:
            close = difflib.get_close_matches(name, values, 1)
            hint = f"did you mean {{{close[0]}}}?" if close else f"known names: {', '.join(values)}."
            raise InvalidRequestError(
                f"{where}: unknown placeholder {{{name}}}; {hint} Write {{{{{name}}}}} for braces in the text"
            )
        given = values[name]
        return ", ".join(map(str, given)) if isinstance(given, list) else str(given)

    return _PLACEHOLDER.sub(value, text)


def body_of(value: Any, where: str) -> dict[str, Any]:
    """Return the request body for a text, or for a table with `text`, `messages`, or `user` and perhaps `system`."""
    if isinstance(value, str) and value:
        return {"prompt": value}
    if isinstance(value, dict):
        if isinstance(text := value.get("text"), str) and text and not value.keys() & {"system", "user", "messages"}:
            return {"prompt": text}
        if isinstance(value.get("user"), str) and isinstance(value.get("system", ""), str) and "messages" not in value:
            parts = [(role, value[role]) for role in ("system", "user") if role in value]
            return {"messages": [{"role": role, "content": content} for role, content in parts]}
        messages = value.get("messages")
        if messages and isinstance(messages, list) and all(map(_is_message, messages)) and "user" not in value:
            return {"messages": messages}
    raise InvalidRequestError(
        f'{where} must be a text that isn\'t empty, {{file = "NAME"}}, or a chat such as {{system = "...", user = '
        f'"..."}} or {{messages = [{{role = "user", content = "..."}}]}}; got {value!r:.60}'
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _prompt(where: str, value: Any, folder: Path) -> Prompt:
    forks: Any = 0
    group: Any = ""
    if isinstance(value, dict):
        check_names(value, KEYS, where)
        forks, group = value.get("forks", 0), value.get("group", "")
        if "file" in value:
            value = {"text": read_file(folder, value["file"], where).removesuffix("\n")}
    body = body_of(value, where)
    if forks and "messages" in body:
        raise InvalidRequestError(f"{where}: a chat can't have forks; leave them out, or use a text")
    if isinstance(forks, list) and forks and all(isinstance(each, str) and each for each in forks):
        forks = tuple(forks)
    elif not isinstance(forks, int) or isinstance(forks, bool) or not 0 <= forks <= MAX_FORKS:
        raise InvalidRequestError(
            f"{where}: forks must be a number of tokens from 0 to {MAX_FORKS}, or a list of texts; got {forks!r:.60}"
        )
    if not isinstance(group, str):
        raise InvalidRequestError(f'{where}: group must be a text, such as "{{topic}}", got {group!r:.60}')
    return Prompt(body, forks=forks, group=group)


def read_file(folder: Path, name: Any, where: str) -> str:
    """Read a file in the folder of the spec. Raises `InvalidRequestError`."""
    if not isinstance(name, str):
        raise InvalidRequestError(f"{where}: file must be a file name, got {name!r:.60}")
    path = folder / name
    return read_text(path, f"{where}: the file {path}")


def read_rows(variables: Any, folder: Path) -> list[dict[str, Any]] | None:
    """Read the variables of a spec: a CSV file with a header, a JSONL file of objects, a list of tables, or None.

    Raises `InvalidRequestError`.
    """
    if variables is None:
        return None
    if isinstance(variables, str):
        text = read_file(folder, variables, "variables")
        is_csv = variables.endswith(".csv")
        try:
            rows = list(_csv_rows(text) if is_csv else map(json.loads, filter(None, map(str.strip, text.split("\n")))))
        except (ValueError, csv.Error) as error:
            kind = "CSV" if is_csv else "JSONL, the format of files not named *.csv"
            raise InvalidRequestError(f"variables: {variables} is not {kind}: {error}") from None
    else:
        rows = variables if isinstance(variables, list) else []
    if not rows or not all(isinstance(row, dict) and row for row in rows):
        raise InvalidRequestError(
            "variables must be a CSV file with a header and at least one row, a JSONL file of objects, or a list of "
            f"tables; got {variables!r:.60}"
        )
    return rows


def _csv_rows(text: str) -> Iterator[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    names = reader.fieldnames or []
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"the header repeats {twice[0]!r}")
    for number, row in enumerate(reader, 1):
        if None in row or None in row.values():
            raise ValueError(f"row {number} and the header have different lengths")
        yield row


def filled_body(body: dict[str, Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Replace the placeholders of a body. Raises `InvalidRequestError`."""
    if "prompt" in body:
        return {"prompt": fill(body["prompt"], values, where)}
    return {"messages": [each | {"content": fill(each["content"], values, where)} for each in body["messages"]]}
