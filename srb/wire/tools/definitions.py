"""OpenAI's tools: parses the functions of a request, and makes a grammar of the calls that it allows."""

import json
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from srb.engine.sampling_params import GRAMMAR_FIELDS, SamplingParams, in_lark
from srb.errors import InvalidRequestError
from srb.llama.grammar.json_schema import as_lark, closed, corrected, unenforced
from srb.wire.request.read import show
from srb.wire.tools.calls import PLAIN, CallFormat

_DESCRIPTION = """\
You can call tools. Each line describes one:
<tools>
{tools}
</tools>
To call one, write its name and its arguments like this:
{example}"""


def without_tools(conversation: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with calls and results as text, for chat templates without tools.

    The descriptions of the tools go to the end of the first system message, or into a new one.
    """
    result: list[dict[str, Any]] = []
    after_result = False
    for message in conversation:
        if calls := message.get("tool_calls"):
            text = "\n".join(filter(None, (message["content"], PLAIN.write(calls))))
            message = {"role": message["role"], "content": text}
        is_result = message["role"] == "tool"
        if is_result:
            message = {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
            if after_result:  # results are joined into one message, because in most templates roles must alternate
                message["content"] = f"{result.pop()['content']}\n{message['content']}"
        result.append(message)
        after_result = is_result
    if tools:
        description = _DESCRIPTION.format(
            tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools),
            example=PLAIN.write([{"function": {"name": "NAME", "arguments": "{...}"}}]),
        )
        if result[:1] and result[0]["role"] == "system":
            result[0] = result[0] | {"content": f"{result[0]['content']}\n\n{description}"}
        else:
            result.insert(0, {"role": "system", "content": description})
    return result


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class FunctionFields(BaseModel):
    """A function that the model may call."""

    name: Name = Field(description="its name.")
    description: str | None = Field(None, description="what it does, for the model to read.")
    parameters: dict[str, Any] | None = Field(
        None, description="the JSON schema of its arguments, which every call matches; left out: it has none."
    )
    strict: bool | None = Field(None, description="without effect: calls always match the schema.")


class ToolFields(BaseModel):
    """One of `tools`."""

    type: Literal["function"] = Field("function", description="there is no other.")
    function: FunctionFields = Field(description="what may be called.")


@dataclass(frozen=True)
class Tools:
    """The functions that the model may call.

    Attributes:
        functions: The functions in OpenAI's notation, as templates take them.
        required: Whether there must be a call.
        parallel: Whether there may be several calls. None: if the template can write several.
    """

    functions: tuple[dict[str, Any], ...]
    required: bool
    parallel: bool | None

    @property
    def described(self) -> list[dict[str, Any]]:
        """The functions in the form that templates show to the model."""
        return [{"type": "function", "function": function} for function in self.functions]

    def constrain(self, params: SamplingParams, form: CallFormat) -> SamplingParams:
        """The parameters with a grammar of the calls. Raises `InvalidRequestError` if there is a grammar already."""
        for name in GRAMMAR_FIELDS:
            if name != "json_schema" and getattr(params, name) is not None:
                raise InvalidRequestError(
                    f"{name} and tools exclude each other: the tools' parameters are a grammar already; leave one out, "
                    'or send "tool_choice": "none"',
                    param=name,
                )
        return replace(params, json_schema=None, grammar=in_lark(self._grammar(form, params.json_schema)))

    def blame(self, error: InvalidRequestError) -> InvalidRequestError:
        """Translates the engine's error about the grammar of `constrain`: names the tool with wrong parameters."""
        line = re.search(r"at (\d+)\(\d+\): (.*)", error.message) if error.param == "grammar" else None
        if not line:
            return error
        number = int(line[1]) - 2  # lines are counted from 1, and the first one has no rule
        if number >= len(self.functions):
            return InvalidRequestError(f"json_schema can't be enforced: {line[2]}", param="json_schema")
        name = self.functions[number]["name"]
        return InvalidRequestError(f"the parameters of {name} can't be enforced: {line[2]}", param="tools")

    @property
    def unenforced(self) -> list[str]:
        """The keywords in the functions' schemas that aren't enforced, as names for `ignored`."""
        return [
            f"tools.{function['name']}.{name}"
            for function in self.functions
            for name in unenforced(function["parameters"])
        ]

    def _grammar(self, form: CallFormat, answer: str | None) -> str:
        """The grammar of an answer: calls, or text if none is required. answer: the text's JSON schema, if any."""
        several = form.again is not None and (form.is_native if self.parallel is None else self.parallel)
        again = f" ({_text(form.again or '')} call)*" if several else ""
        rules = [  # each function has a line of its own, whose number `blame` finds in an error
            f"f{k}: {_text(function['name'] + form.middle)} {_json(_arguments(function['parameters']), lenient=True)}"
            for k, function in enumerate(self.functions)
        ]
        rules.append("call: " + " | ".join(f"f{k}" for k in range(len(self.functions))))
        calls = f"call{again} {_text(form.end)}"
        if self.required:
            start = f"start: {_text(form.begin)} {calls}"
        elif answer is not None:
            start = f"start: {_json(json.loads(answer))} | {_text(form.begin)} {calls}"
        elif form.trigger:
            rules += ["TEXT: /(.|\\n)*/", f"head[lazy]: TEXT {_text(form.trigger)}"]
            start = f"start: TEXT | head {_text(form.begin.removeprefix(form.trigger))} {calls}"
        else:
            rules.append(f"TEXT: /([^{re.escape(form.begin[0])}](.|\\n)*)?/")
            start = f"start: TEXT | {_text(form.begin)} {calls}"
        return "\n".join([*rules, start])


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _json(schema: Any, **options: bool) -> str:
    return as_lark(corrected(schema), **options)


def _arguments(parameters: dict[str, Any]) -> Any:
    """The schema of a function's arguments: an object. Properties that it doesn't name need its permission."""
    return closed({"type": "object", "properties": {}} | parameters)


def tools_of(tools: list[ToolFields] | None, choice: Any, parallel: Any) -> Tools | None:
    """The tools that `tools`, `tool_choice` and `parallel_tool_calls` allow. None if the model may call nothing.

    Raises `InvalidRequestError`.
    """
    if not tools:
        return None
    functions = {
        tool.function.name: {
            "name": tool.function.name,
            "description": tool.function.description or "",
            "parameters": tool.function.parameters or {"type": "object", "properties": {}},
        }
        for tool in tools
    }
    if len(functions) < len(tools):
        raise InvalidRequestError("tools has a name twice", param="tools")
    if not isinstance(parallel, bool | None):
        raise InvalidRequestError(
            f"parallel_tool_calls must be true or false, got {show(parallel)}", param="parallel_tool_calls"
        )
    mode, names = _choice(choice)
    for name in names or ():
        if name not in functions:
            raise InvalidRequestError(
                f"tool_choice names {show(name)}, which is none of the tools: {', '.join(functions):.300}",
                param="tool_choice",
            )
    if mode == "none":
        return None
    chosen = tuple(functions.values()) if names is None else tuple(functions[name] for name in names)
    return Tools(chosen, mode != "auto", False if mode == "function" else parallel)


def _choice(choice: Any) -> tuple[str, list[Any] | None]:
    """The mode of a `tool_choice`, and the names in it, or None if it has none.

    The mode is none, auto or required, or `function` if it names one function that must be called.
    """
    if choice is None or choice in ("none", "auto", "required"):
        return choice or "auto", None
    if isinstance(choice, dict) and choice.get("type") == "function":
        return "function", [_name(choice)]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        if isinstance(allowed, dict) and allowed.get("mode") in ("auto", "required") and allowed.get("tools"):
            return allowed["mode"], [_name(tool) for tool in allowed["tools"]]
    raise InvalidRequestError(
        'tool_choice must be "none", "auto", "required", {"type": "function", "function": {"name": NAME}}, or '
        f"OpenAI's allowed_tools; got {show(choice)}",
        param="tool_choice",
    )


def _name(tool: Any) -> Any:
    """The name in a tool, which may have it in an object `function` or not."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
