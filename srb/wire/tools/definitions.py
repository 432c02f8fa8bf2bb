"""OpenAI's tools: parses the functions of a request, and makes a grammar of the calls that it allows."""

import json
import re
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, model_validator

from srb.engine.sampling_params import GRAMMAR_FIELDS, SamplingParams, in_lark
from srb.errors import InvalidRequestError
from srb.llama.grammar.enforceable import enforceable, fits, refusal
from srb.llama.grammar.json_schema import as_lark, corrected
from srb.llama.grammar.limits import MAX_SYMBOLS, is_too_large
from srb.wire.reasoning import ReasoningFormat
from srb.wire.request.read import show, without_nulls
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


_NAME = r"[A-Za-z0-9_.:/-]{1,128}"

_NO_ARGUMENTS = {"type": "object", "properties": {}}
_ANY_OBJECT = {"type": "object"}


class FunctionFields(BaseModel):
    """A function that the model may call.

    Tools come from other people's servers, so no value is refused. What can't be read is left out, and reported.
    """

    name: Annotated[Any, WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})] = Field(
        None, description="its name. A function without a name, or with another one, is left out."
    )
    description: Annotated[Any, WithJsonSchema({"type": "string"})] = Field(
        None, description="what it does, for the model to read."
    )
    parameters: Annotated[Any, WithJsonSchema({"type": "object"})] = Field(
        None, description="the JSON schema of its arguments, which every call matches; left out: it has none."
    )
    strict: Any = Field(None, description="without effect: calls always match the schema.")

    @model_validator(mode="before")
    @classmethod
    def _of_others(cls, data: Any) -> Any:
        """Read Anthropic's and MCP's name of `parameters`; null is absent."""
        data = without_nulls(data)
        for name in ("input_schema", "inputSchema"):
            if name in data:
                data.setdefault("parameters", data[name])
        return data

    @property
    def is_usable(self) -> bool:
        """Whether a call can name the function."""
        return isinstance(self.name, str) and re.fullmatch(_NAME, self.name) is not None

    def read(self) -> tuple[dict[str, Any], list[str]]:
        """Return the function in OpenAI's notation, with an object as its schema, and the fields that aren't used."""
        schema, unread = self.parameters or None, []
        if isinstance(schema, str):
            with suppress(ValueError, RecursionError):
                schema = json.loads(schema)
        if not schema:
            schema = _NO_ARGUMENTS
        elif not isinstance(schema, dict):
            unread += [] if schema is True else ["parameters"]
            schema = _ANY_OBJECT
        description = self.description or ""
        if not isinstance(description, str):
            unread.append("description")
            description = ""
        return {"name": self.name, "description": description, "parameters": schema}, unread


class ToolFields(BaseModel):
    """One of `tools`."""

    type: Annotated[Any, WithJsonSchema({"type": "string"})] = Field(
        "function", description="function; tools of other types are left out, and reported."
    )
    function: FunctionFields | None = Field(
        None, description="what may be called. Its fields may also be next to `type`, as in OpenAI's responses."
    )
    name: Any = Field(None, description="the name of a tool of another type.")

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        data = data if isinstance(data, dict) else {}
        kind, function = data.get("type") or "function", data.get("function")
        if isinstance(function, dict):
            return {"type": "function", "function": function}
        # Anthropic's `custom` tools are functions; OpenAI's take a text.
        if kind == "function" or (kind == "custom" and "input_schema" in data):
            return {"type": "function", "function": data}
        names = [_name(data), _name(data.get(kind) if isinstance(kind, str) else None)]
        return {"type": kind, "name": next((name for name in names if isinstance(name, str)), None)}

    @property
    def flat(self) -> dict[str, Any]:
        """The tool in the notation of OpenAI's responses."""
        return {"type": self.type} | (self.function or self).model_dump(exclude={"type", "function"})

    @property
    def usable(self) -> FunctionFields | None:
        """The function, if it can be called."""
        return self.function if self.function and self.function.is_usable else None


def simplified(described: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools as templates take them, whose schemas have the usual types, for templates that fail for others."""
    found = []
    for tool in described:
        schema = tool["function"]["parameters"]
        properties, required = schema.get("properties"), schema.get("required")
        given = properties if isinstance(properties, dict) else {}
        usual = {
            "type": "object",
            "properties": {name: each if isinstance(each, dict) else {} for name, each in given.items()},
            "required": required if isinstance(required, list) else [],
        }
        found.append(tool | {"function": tool["function"] | {"parameters": schema | usual}})
    return found


def _listed(tools: Any) -> Any:
    """Return a list of tools. A single tool is one; an empty value of another type is none."""
    return tools if isinstance(tools, list) else [tools] if tools else []


ToolList = Annotated[list[ToolFields], BeforeValidator(_listed, json_schema_input_type=list[ToolFields])]


@dataclass(frozen=True)
class Tools:
    """The functions that the model may call.

    Attributes:
        functions: The functions in OpenAI's notation, as templates take them.
        required: Whether there must be a call.
        parallel: Whether there may be several calls. None: if the template can write several.
        unread: The names of what wasn't read of the functions.
        enforced: What is enforced of the schema of each function's arguments, and the names of the rest. None: what can
            be enforced of each alone.
    """

    functions: tuple[dict[str, Any], ...]
    required: bool
    parallel: bool | None
    unread: tuple[str, ...] = ()
    enforced: tuple[tuple[Any, tuple[str, ...]], ...] | None = None

    @property
    def described(self) -> list[dict[str, Any]]:
        """The functions in the form that templates show to the model."""
        return [{"type": "function", "function": function} for function in self.functions]

    def fitted(
        self, form: CallFormat, answers: Iterable[str | None] = (None,), reasoning: ReasoningFormat | None = None
    ) -> "Tools":
        """The tools, enforced as far as one grammar of them all and the JSON schemas of texts next to calls can be.

        If it is too large, as many functions as must be, the largest first, may have any arguments.
        """

        def is_small(tools: Tools) -> bool:
            return all(fits(tools._grammar(form, answer, reasoning)) for answer in set(answers))

        def opened(n: int) -> Tools:
            largest = set(by_size[:n])
            enforced = (
                (_ANY_OBJECT, (*parts, "parameters")) if k in largest else (schema, parts)
                for k, (schema, parts) in enumerate(self._arguments)
            )
            return replace(self, enforced=tuple(enforced))

        if is_small(self):
            return self
        by_size = sorted(range(len(self.functions)), key=lambda k: -len(self._schemas[k]))
        return opened(bisect_left(range(len(by_size)), True, key=lambda n: is_small(opened(n))))

    def constrain(
        self, params: SamplingParams, form: CallFormat, reasoning: ReasoningFormat | None = None
    ) -> SamplingParams:
        """The parameters with a grammar of the calls, before which thoughts may come, which are any text.

        Raises `InvalidRequestError` if there is a grammar already.
        """
        for name in GRAMMAR_FIELDS:
            if name != "json_schema" and getattr(params, name) is not None:
                raise InvalidRequestError(
                    f"{name} and tools exclude each other: the tools' parameters are a grammar already; leave one out, "
                    'or send "tool_choice": "none"',
                    param=name,
                )
        if params.json_schema is not None:
            reason = refusal(corrected(json.loads(params.json_schema)), lenient=False)
            if reason and not is_too_large(reason):
                raise InvalidRequestError(f"json_schema can't be enforced: {reason}", param="json_schema")
        grammar = in_lark(self._grammar(form, params.json_schema, reasoning))
        try:
            return replace(params, json_schema=None, grammar=grammar)
        except InvalidRequestError as error:
            raise self.blame(error) from None

    def blame(self, error: InvalidRequestError) -> InvalidRequestError:
        """Translates the engine's error about the grammar of `constrain`."""
        if error.param != "grammar":
            return error
        return InvalidRequestError(
            f"{len(self.functions)} tools are too many for one grammar of {MAX_SYMBOLS} symbols: {error.message}; "
            "send fewer of them",
            param="tools",
        )

    @property
    def ignored(self) -> list[str]:
        """The names of what isn't used of the functions, or not enforced."""
        names = [function["name"] for function in self.functions]
        return [
            *self.unread,
            *(
                f"tools.{name}.{part}"
                for name, (_, parts) in zip(names, self._arguments, strict=True)
                for part in parts
            ),
        ]

    @cached_property
    def _arguments(self) -> tuple[tuple[Any, tuple[str, ...]], ...]:
        if self.enforced is not None:
            return self.enforced
        return tuple(enforceable(json.dumps(function["parameters"])) for function in self.functions)

    @cached_property
    def _schemas(self) -> list[str]:
        """The rule for the arguments of each function."""
        return [as_lark(schema, lenient=True) for schema, _ in self._arguments]

    def _grammar(self, form: CallFormat, answer: str | None, reasoning: ReasoningFormat | None) -> str:
        """The grammar of an answer: calls, or text if none is required. answer: the text's JSON schema, if any.

        Before that, thoughts may come, which are any text up to their closing tag.
        """
        text = "/(.|\\n)*/"
        thoughts = "" if not reasoning or reasoning.is_open else f"/\\s*/ {_text(reasoning.begin)} "
        unthought = f" & ~({thoughts}{text})" if thoughts else ""  # else a call could begin within thoughts
        several = form.again is not None and (form.is_native if self.parallel is None else self.parallel)
        again = f" ({_text(form.again or '')} call)*" if several else ""
        named: dict[str, list[str]] = {}
        for function, schema in zip(self.functions, self._schemas, strict=True):
            named.setdefault(schema, []).append(_text(function["name"] + form.middle))
        rules = [
            f"NAME{k}: {' | '.join(names)}\nf{k}: NAME{k} {schema}" for k, (schema, names) in enumerate(named.items())
        ]
        rules.append("call: " + " | ".join(f"f{k}" for k in range(len(named))))
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


def left_out(tools: list[ToolFields] | None) -> list[str]:
    """The names by which tools are reported that can't be called: foreign ones, and those without their own name."""
    found, seen = [], set[str]()
    for k, tool in enumerate(tools or ()):
        function = tool.usable
        if not function and (name := tool.name or (tool.type if not tool.function else None)):
            found.append(f"tools.{name!s:.60}")
        elif not function or function.name in seen:
            name = tool.function and tool.function.name
            found.append(f"tools[{k}]" + (f" ({name:.60})" if name and isinstance(name, str) else ""))
        else:
            seen.add(function.name)
    return found


def tools_of(tools: list[ToolFields] | None, choice: Any, parallel: Any) -> Tools | None:
    """The tools that `tools`, `tool_choice` and `parallel_tool_calls` allow. None if the model may call nothing.

    Of two functions with one name, the first counts. Raises `InvalidRequestError`, also if there must be a call and no
    tool can be called.
    """
    functions: dict[str, dict[str, Any]] = {}
    unread: dict[str, list[str]] = {}
    for function in (function for tool in tools or () if (function := tool.usable)):
        if function.name not in functions:
            functions[function.name], unread[function.name] = function.read()
    if not tools:
        return None
    if functions and not isinstance(parallel, bool | None):
        raise InvalidRequestError(
            f"parallel_tool_calls must be true or false, got {show(parallel)}", param="parallel_tool_calls"
        )
    mode, names = _choice(choice)
    usable = f"none of the tools: {', '.join(functions):.300}" if functions else f"no function: {_without(tools)}"
    for name in names or ():
        if not isinstance(name, str) or name not in functions:
            raise InvalidRequestError(f"tool_choice names {show(name)}, which is {usable}", param="tool_choice")
    if mode == "none":
        return None
    if not functions or names == []:  # only tools of other types are allowed
        if mode != "auto":
            raise InvalidRequestError(
                f"tool_choice is {show(choice)}, but no tool that it allows can be called: {_without(tools)}; "
                'send a function, or "tool_choice": "auto"',
                param="tool_choice",
            )
        return None
    chosen = tuple(functions.values()) if names is None else tuple(functions[name] for name in names)
    parts = [f"tools.{each['name']}.{part}" for each in chosen for part in unread[each["name"]]]
    return Tools(chosen, mode != "auto", False if mode == "function" else parallel, tuple(parts))


def _without(tools: list[ToolFields]) -> str:
    return f"srb leaves out {', '.join(left_out(tools)):.300}"


_MODES = {"none": "none", "auto": "auto", "required": "required", "any": "required"}
"""The modes of a `tool_choice`; `any` is Anthropic's and Mistral's."""


def _choice(choice: Any) -> tuple[str, list[Any] | None]:
    """The mode of a `tool_choice`, and the names in it, or None if it has none.

    The mode is none, auto or required, or `function` if it names one function that must be called.
    """
    if choice is None or choice == {}:
        return "auto", None
    kind = choice.get("type") or "function" if isinstance(choice, dict) else choice
    if isinstance(kind, str) and kind in _MODES:
        return _MODES[kind], None
    if isinstance(choice, dict) and kind == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        if isinstance(allowed, dict) and allowed.get("mode") in ("auto", "required") and allowed.get("tools"):
            functions = [tool for tool in _listed(allowed["tools"]) if _kind(tool) == "function"]
            return allowed["mode"], list(map(_name, functions))
    elif isinstance(choice, dict):  # a function, Anthropic's `tool`, or a tool of another type
        return "function", [_name(choice) if kind in ("function", "tool") else _name(choice) or kind]
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
