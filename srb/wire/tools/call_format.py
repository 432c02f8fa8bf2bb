"""Finds out from a model's chat template how the model writes calls of tools. Pure functions.

The template is asked to write a call with a known name and known arguments. The text around these is the format. So no
list of models is needed, and the format is the one that the model sees in its prompts.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from srb.engine.asking.model import ChatTemplate
from srb.errors import InvalidRequestError

_CONTENT = "\N{SECTION SIGN}"  # no template has this character
_NAMES = ("srb_probe_a", "srb_probe_b")
_ARGUMENTS = {"srb_key": "srb_value"}
_ID = "000000000"  # Mistral's templates take nine letters and digits, and nothing else


@dataclass(frozen=True)
class CallFormat:
    """Calls are written as `begin`, a name, `middle`, arguments in JSON, and `end`.

    again: written in place of `end` if another call follows, up to the name of that call; None: there can't be another.
    as_text: whether the template takes the arguments of earlier calls as JSON text, not as an object.
    is_native: whether the template itself writes calls in this format.
    """

    begin: str
    middle: str
    end: str
    again: str | None
    as_text: bool = False
    is_native: bool = True

    @property
    def trigger(self) -> str:
        """The first characters of `begin`, up to a space or a brace. After these, a text must go on as a call.

        Empty if `begin` starts with a space or a brace. A text is then a call only if it starts with `begin`.
        """
        found = re.match(r"[^\s{]+", self.begin)
        return found[0] if found else ""

    def write(self, calls: list[dict[str, Any]]) -> str:
        """The text of calls in this format. calls: in OpenAI's notation."""
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
"""The most common format. It is for templates that don't know tools, or whose format `CallFormat` can't describe."""


def arguments_text(arguments: Any) -> str:
    """The arguments of a call as JSON text."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def call_format(template: ChatTemplate) -> CallFormat:
    """The format in which a template writes calls, or `PLAIN`."""
    if "tools" not in template.source or _NAMES[0] not in (_written(template) or ""):
        return PLAIN
    one = _written(template, _calling(1, _ARGUMENTS))
    # A template that wants text either fails for an object, or writes it in Python's notation.
    as_text = one is None or str(_ARGUMENTS) in one
    arguments: Any = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
    answered, one = _written(template, {"content": _CONTENT}), _written(template, _calling(1, arguments))
    if answered is None or one is None:
        return PLAIN
    start = _before_tag(one[: _alike(answered, one)])  # the two texts may differ from the middle of a tag on
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
    """If the text ends in the middle of a tag, where that tag begins; else the text's end."""
    return text.rfind("<") if text.rfind("<") > text.rfind(">") else len(text)


def _calling(n: int, arguments: Any) -> dict[str, Any]:
    calls = [{"id": _ID, "type": "function", "function": {"name": name, "arguments": arguments}} for name in _NAMES[:n]]
    return {"content": "", "tool_calls": calls}


def _written(template: ChatTemplate, answer: dict[str, Any] | None = None) -> str | None:
    """What the template makes of a conversation with tools and this answer of the assistant. None if it fails."""
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
