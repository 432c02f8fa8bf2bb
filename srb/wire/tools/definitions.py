"""OpenAI's tools: parses the functions of a request, and makes a grammar of the calls that it allows."""

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from srb.engine.sampling_params import GRAMMAR_FIELDS, SamplingParams, in_lark
from srb.errors import InvalidRequestError
from srb.llama.grammar.enforceable import MAX_BOUNDED_INTEGERS, enforceable
from srb.llama.grammar.json_schema import as_lark, corrected
from srb.llama.grammar.limits import LARGE
from srb.wire.reasoning import ReasoningFormat
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

    type: str = Field("function", description="function; tools of other types are left out, and reported.")
    function: FunctionFields | None = Field(
        None, description="what may be called. Its fields may also be next to `type`, as in OpenAI's responses."
    )
    name: str | None = Field(None, description="the name of a tool of another type.")

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kind = data.get("type") or "function"
        if kind != "function":
            names = [_name(data), _name(data.get(kind) if isinstance(kind, str) else None)]
            return {"type": kind, "name": next((name for name in names if isinstance(name, str)), None)}
        function = data.get("function")
        return {"type": kind, "function": {**data, "type": None} if function is None else function}

    @property
    def flat(self) -> dict[str, Any]:
        """The tool in the notation of OpenAI's responses."""
        return {"type": self.type} | (self.function or self).model_dump(exclude={"type", "function"})

    @property
    def left_out(self) -> str | None:
        """The name by which a tool is reported that isn't a function; None for a function."""
        return None if self.function else f"tools.{self.name or self.type:.60}"


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

    def constrain(
        self, params: SamplingParams, form: CallFormat, reasoning: ReasoningFormat | None = None
    ) -> SamplingParams:
        """The parameters with a grammar of the calls. Raises `InvalidRequestError` if there is a grammar already.

        Args:
            params: The parameters.
            form: How the model writes calls.
            reasoning: How the model writes thoughts, which may be any text. None: it has none.
        """
        for name in GRAMMAR_FIELDS:
            if name != "json_schema" and getattr(params, name) is not None:
                raise InvalidRequestError(
                    f"{name} and tools exclude each other: the tools' parameters are a grammar already; leave one out, "
                    'or send "tool_choice": "none"',
                    param=name,
                )
        return replace(params, json_schema=None, grammar=in_lark(self._grammar(form, params.json_schema, reasoning)))

    def blame(self, error: InvalidRequestError) -> InvalidRequestError:
        """Translates the engine's error about the grammar of `constrain`."""
        if error.param != "grammar":
            return error
        line = re.search(r"at (\d+)\(\d+\): (.*)", error.message)
        if line and int(line[1]) - 2 >= len(self.functions):  # lines are counted from 1, and the first one has no rule
            return InvalidRequestError(f"json_schema can't be enforced: {line[2]}", param="json_schema")
        return InvalidRequestError(
            f"{len(self.functions)} tools are too many for one grammar of {LARGE.symbols} symbols: "
            f"{line[2] if line else error.message}; send fewer of them, or tools with fewer parameters",
            param="tools",
        )

    @property
    def unenforced(self) -> list[str]:
        """The names of what isn't enforced of the functions' schemas, for `ignored`."""
        names = [function["name"] for function in self.functions]
        return [
            f"tools.{name}.{part}" for name, (_, parts) in zip(names, self._arguments, strict=True) for part in parts
        ]

    @cached_property
    def _arguments(self) -> list[tuple[Any, tuple[str, ...]]]:
        """What can be enforced of the schema of each function's arguments, and the names of the rest."""
        texts = [json.dumps(function["parameters"]) for function in self.functions]
        bounds_integers = sum(text.count('"integer"') for text in texts) <= MAX_BOUNDED_INTEGERS
        return [enforceable(text, bounds_integers=bounds_integers) for text in texts]

    def _grammar(self, form: CallFormat, answer: str | None, reasoning: ReasoningFormat | None) -> str:
        """The grammar of an answer: calls, or text if none is required. answer: the text's JSON schema, if any.

        Before that, thoughts may come, which are any text up to their closing tag.
        """
        text = "/(.|\\n)*/"
        thoughts = "" if not reasoning or reasoning.is_open else f"/\\s*/ {_text(reasoning.begin)} "
        unthought = f" & ~({thoughts}{text})" if thoughts else ""  # else a call could begin within thoughts
        several = form.again is not None and (form.is_native if self.parallel is None else self.parallel)
        again = f" ({_text(form.again or '')} call)*" if several else ""
        rules = [  # a line for each function: `blame` finds an error's line
            f"f{k}: {_text(function['name'] + form.middle)} " + as_lark(self._arguments[k][0], lenient=True)
            for k, function in enumerate(self.functions)
        ]
        rules.append("call: " + " | ".join(f"f{k}" for k in range(len(self.functions))))
        calls, direct = f"call{again} {_text(form.end)}", "answer"
        if self.required:
            start = f"{_text(form.begin)} {calls}"
        elif answer is not None:
            start = f"{as_lark(corrected(json.loads(answer)))} | {_text(form.begin)} {calls}"
        elif form.trigger:
            rules += [f"TEXT: {text}{unthought}", f"head[lazy]: TEXT {_text(form.trigger)}"]
            start = f"TEXT | head {_text(form.begin.removeprefix(form.trigger))} {calls}"
        else:
            space = "\\s" if reasoning else ""  # after thoughts, a call may have space before it, which isn't text
            rules.append(f"TEXT: /([^{re.escape(form.begin[0])}{space}](.|\\n)*)?/{unthought}")
            if reasoning:
                rules.append(f"BLANK: /\\s(.|\\n)*/{unthought}")
                direct = "answer | BLANK"
            start = f"TEXT | {_text(form.begin)} {calls}"
        if not reasoning:
            return "\n".join([*rules, f"start: {start}"])
        rules += [f"thoughts[lazy]: {thoughts}{text} {_text(reasoning.end)}", "SPACE: /\\s{1,9}/", f"answer: {start}"]
        without = "" if reasoning.is_open else f"{direct} | "
        return "\n".join([*rules, f"start: {without}thoughts SPACE? answer"])


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def tools_of(tools: list[ToolFields] | None, choice: Any, parallel: Any) -> Tools | None:
    """The tools that `tools`, `tool_choice` and `parallel_tool_calls` allow. None if the model may call nothing.

    Raises `InvalidRequestError`.
    """
    defined = [tool.function for tool in tools or () if tool.function]
    if not defined:
        return None
    functions = {
        function.name: {
            "name": function.name,
            "description": function.description or "",
            "parameters": function.parameters or {"type": "object", "properties": {}},
        }
        for function in defined
    }
    if len(functions) < len(defined):
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
    if names == []:  # only tools of other types are allowed
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
            functions = [tool for tool in allowed["tools"] if _kind(tool) == "function"]
            return allowed["mode"], list(map(_name, functions))
    raise InvalidRequestError(
        'tool_choice must be "none", "auto", "required", {"type": "function", "function": {"name": NAME}}, or '
        f"OpenAI's allowed_tools; got {show(choice)}",
        param="tool_choice",
    )


def _kind(tool: Any) -> Any:
    return (tool.get("type") if isinstance(tool, dict) else None) or "function"


def _name(tool: Any) -> Any:
    """The name in a tool, which may have it in an object `function` or not."""
    function = (tool.get("function") or tool) if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
