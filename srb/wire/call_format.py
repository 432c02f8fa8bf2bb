"""How a model writes calls of tools, as its chat template tells. Pure functions.

A template that knows tools is asked to write a call with a name and arguments that are known, and what stands around
these is the format. So there is no list of models here, and the format is the one that the model sees in its prompts.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from srb.engine.backend import ChatTemplate
from srb.errors import InvalidRequestError

_CONTENT = "\N{SECTION SIGN}"  # in no template
_NAMES = ("srb_probe_a", "srb_probe_b")
_ARGUMENTS = {"srb_key": "srb_value"}
_ID = "000000000"  # Mistral's templates take nine letters and digits, and nothing else


@dataclass(frozen=True)
class CallFormat:
    """Calls are written as `begin`, a name, `middle`, arguments in JSON, and `end`.

    again: what is written in place of `end` if another call follows, up to its name; None if there can't be another.
    as_text: whether the template takes the arguments of former calls as JSON text, and not as an object.
    is_native: whether the template itself writes calls so.
    """

    begin: str
    middle: str
    end: str
    again: str | None
    as_text: bool = False
    is_native: bool = True

    @property
    def trigger(self) -> str:
        """The beginning of `begin` that is no JSON, and from which on a text must be a call.

        If there is none, a text is a call if it begins with `begin`.
        """
        found = re.match(r"[^\s{]+", self.begin)
        return found[0] if found else ""

    def write(self, calls: list[dict[str, Any]]) -> str:
        """The text of calls in OpenAI's notation."""
        written = [
            call["function"]["name"] + self.middle + arguments_text(call["function"]["arguments"]) for call in calls
        ]
        return self.begin + (self.again or self.end + "\n" + self.begin).join(written) + self.end


PLAIN = CallFormat(
    begin='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    end="}\n</tool_call>",
    again='}\n</tool_call>\n<tool_call>\n{"name": "',
    is_native=False,
)
"""The format for templates that don't know tools, or have calls in no format of this kind: the most common one."""


def arguments_text(arguments: Any) -> str:
    """The arguments of a call as JSON text."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def call_format(template: ChatTemplate) -> CallFormat:
    """The format of a template, or `PLAIN`."""
    if "tools" not in template.source or _NAMES[0] not in (_written(template) or ""):
        return PLAIN
    one = _written(template, _calling(1, _ARGUMENTS))
    as_text = one is None or str(_ARGUMENTS) in one  # it wants text: it can't join an object, or shows Python's
    arguments: Any = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
    answered, one = _written(template, {"content": _CONTENT}), _written(template, _calling(1, arguments))
    if answered is None or one is None:
        return PLAIN
    start = _before_tag(one[: _alike(answered, one)])  # the two may part in the middle of one
    end = len(one) - _alike(answered[::-1], one[::-1])
    written = f"(.+?){_NAMES[0]}(.+?){re.escape(json.dumps(_ARGUMENTS))}(.*)"
    found = re.fullmatch(written, one[start:end], re.DOTALL)
    if not found:
        return PLAIN
    begin, middle, rest = found.groups()
    between = re.escape(json.dumps(_ARGUMENTS)) + f"(.+?){_NAMES[1]}"
    again = re.search(between, _written(template, _calling(2, arguments)) or "", re.DOTALL)
    return CallFormat(begin.lstrip(), middle, rest[: _before_tag(rest)].rstrip(), again and again[1], as_text)


def _before_tag(text: str) -> int:
    """Where the tag begins that the text ends in the middle of; else its end."""
    return text.rfind("<") if text.rfind("<") > text.rfind(">") else len(text)


def _calling(n: int, arguments: Any) -> dict[str, Any]:
    calls = [{"id": _ID, "type": "function", "function": {"name": name, "arguments": arguments}} for name in _NAMES[:n]]
    return {"content": "", "tool_calls": calls}


def _written(template: ChatTemplate, answer: dict[str, Any] | None = None) -> str | None:
    """A conversation that has tools, and this answer of the assistant's. None if the template can't write it."""
    answers = [{"role": "assistant"} | answer] if answer else []
    try:
        return template.render([{"role": "user", "content": "."}, *answers], {}, _TOOLS)
    except InvalidRequestError:
        return None


def _alike(one: str, other: str) -> int:
    """The length of the beginning that two texts have in common."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "",
            "parameters": {"type": "object", "properties": {"srb_key": {"type": "string"}}},
        },
    }
    for name in _NAMES
]
