"""Reads the prompts of a spec: texts or chats. Their places are filled with variables, and they may fork."""

import csv
import difflib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from srb.errors import InvalidRequestError
from srb.terminal.options import check_names

MAX_PROMPTS = 1_000
MAX_FORKS = 32

KEYS = {"file", "text", "system", "user", "messages", "forks"}

_PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}")


@dataclass(frozen=True)
class Prompt:
    """A prompt of a spec.

    body: `prompt` or `messages`, as a request has it. variables: the values that its places were filled with.
    forks: replace the prompt by one for each of so many likeliest next tokens, or one for each of these texts. The
        token, or the text, is added to its end.
    """

    body: dict[str, Any]
    variables: dict[str, Any] = field(default_factory=dict)
    forks: int | tuple[str, ...] = 0

    @property
    def text(self) -> str:
        """The prompt as a person reads it. A chat becomes its messages, each with its role."""
        if "prompt" in self.body:
            return str(self.body["prompt"])
        return "\n".join(f"{each['role']}: {each['content']}" for each in self.body["messages"])

    def forked(self, texts: tuple[str, ...]) -> dict[str, "Prompt"]:
        """For each text, this prompt with the text added to its end."""
        before = self.body["prompt"]
        return {text: Prompt({"prompt": before + text}, self.variables) for text in texts}


def read_prompts(named: Mapping[str, Any], variables: Any, folder: Path) -> dict[str, Prompt]:
    """The prompts of a spec by their names, one for each row of the variables. Raises `InvalidRequestError`."""
    rows = _rows(variables, folder)
    found = {}
    for name, value in named.items():
        prompt = _prompt(f"prompts.{name}", value, folder)
        if rows is None:
            found[name] = prompt
            continue
        for number, row in enumerate(rows, 1):
            filled = replace(prompt, body=filled_body(prompt.body, row, f"prompts.{name} {number}"), variables=row)
            if filled.body == prompt.body:  # it has no places, so all rows would give the same prompt
                found[name] = prompt
                break
            found[f"{name} {number}"] = filled
    if len(found) > MAX_PROMPTS:
        raise InvalidRequestError(f"there are {len(found)} prompts; the limit is {MAX_PROMPTS}")
    return found


def fill(text: str, values: Mapping[str, Any], where: str) -> str:
    """The text with values in its places, `{name}`. `{{` and `}}` become braces. Raises `InvalidRequestError`."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return found[0][0]
        if name not in values:
            close = difflib.get_close_matches(name, values, 1)
            hint = f"did you mean {{{close[0]}}}?" if close else f"there are {', '.join(values)}."
            raise InvalidRequestError(
                f"{where}: nothing is called {{{name}}}; {hint} For braces in the text write {{{{{name}}}}}"
            )
        return str(values[name])

    return _PLACE.sub(value, text)


def body_of(value: Any, where: str) -> dict[str, Any]:
    """A request's body for a text, or for a table with `text`, with `user` and maybe `system`, or with `messages`."""
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
        f'{where} must be a text, or {{file = "NAME"}}, or a chat such as {{system = "...", user = "..."}} or '
        f'{{messages = [{{role = "user", content = "..."}}]}}, and not empty; got {value!r:.60}'
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _prompt(where: str, value: Any, folder: Path) -> Prompt:
    forks: Any = 0
    if isinstance(value, dict):
        check_names(value, KEYS, where)
        forks = value.get("forks", 0)
        if "file" in value:
            value = {"text": read_text(folder, value["file"], where).removesuffix("\n")}
    body = body_of(value, where)
    if forks and "messages" in body:
        raise InvalidRequestError(f"{where}: forks are of a text; a chat has none")
    if isinstance(forks, list) and forks and all(isinstance(each, str) and each for each in forks):
        forks = tuple(forks)
    elif not isinstance(forks, int) or isinstance(forks, bool) or not 0 <= forks <= MAX_FORKS:
        raise InvalidRequestError(
            f"{where}: forks takes a number of tokens up to {MAX_FORKS}, or a list of texts; got {forks!r:.60}"
        )
    return Prompt(body, forks=forks)


def read_text(folder: Path, name: Any, where: str) -> str:
    """The text of a file; `name` is relative to the spec's folder. Raises `InvalidRequestError`."""
    if not isinstance(name, str):
        raise InvalidRequestError(f"{where}: file takes a name, got {name!r:.60}")
    path = folder / name
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise InvalidRequestError(f"{where}: the file {path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{where}: the file {path} is not UTF-8: byte {error.start}") from None


def _rows(variables: Any, folder: Path) -> list[dict[str, Any]] | None:
    """The rows of a CSV file with a header, of a JSONL file of objects, or of a list of tables."""
    if variables is None:
        return None
    if isinstance(variables, str):
        text = read_text(folder, variables, "variables")
        is_csv = variables.endswith(".csv")
        try:
            rows = list(_csv_rows(text) if is_csv else map(json.loads, filter(None, _lines(text))))
        except (ValueError, csv.Error) as error:
            kind = "CSV" if is_csv else "JSONL, as which files are read that aren't called *.csv"
            raise InvalidRequestError(f"variables: {variables} is not {kind}: {error}") from None
    else:
        rows = variables if isinstance(variables, list) else []
    if not rows or not all(isinstance(row, dict) and row for row in rows):
        raise InvalidRequestError(
            "variables takes a CSV file with a header and a row at least, a JSONL file of objects, or a list of "
            f"tables; got {variables!r:.60}"
        )
    return rows


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n")]


def _csv_rows(text: str) -> Iterator[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    names = reader.fieldnames or []
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"the header has {twice[0]!r} twice")
    for number, row in enumerate(reader, 1):
        if None in row or None in row.values():
            raise ValueError(f"row {number} hasn't as many cells as the header")
        yield row


def _mapped(body: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """The body with its texts changed."""
    if "prompt" in body:
        return {"prompt": change(body["prompt"])}
    return {"messages": [each | {"content": change(each["content"])} for each in body["messages"]]}


def filled_body(body: dict[str, Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The body with values in its places. Raises `InvalidRequestError`."""
    return _mapped(body, lambda text: fill(text, values, where))
