"""The body of `POST /v1/responses`: its fields, and functions that turn its items into messages."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from srb.errors import InvalidRequestError
from srb.wire.request.body_fields import Int
from srb.wire.request.completion_fields import Parallel, ToolChoice
from srb.wire.request.fields import SamplingFields
from srb.wire.request.messages import Content, Message, Text, system_message
from srb.wire.request.read import show
from srb.wire.tools.offered import FunctionFields

LOGPROBS = "message.output_text.logprobs"
"""The only entry of `include` that has an effect."""


class InputItem(BaseModel):
    """One item of `input`: a message, a call, or the result of a call."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: str | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Text | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "InputItem":
        for name in _NEEDED[self.type]:
            if getattr(self, name) is None:
                raise ValueError(f"a {self.type} should have {' and '.join(_NEEDED[self.type])}; {name} is missing")
        return self


_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
"""The fields that items of each type must have."""


def conversation_of(items: list[InputItem]) -> list[Message]:
    """Items as messages. A call joins the message of the assistant that comes before it."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match item.type:
            case "message":
                messages.append((item.model_extra or {}) | {"role": item.role, "content": item.content})
                messages[-1].pop("tool_calls", None)
            case "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                call = {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
    return [Message.model_validate(message) for message in messages]


class _OfFunction(BaseModel):
    type: Literal["function"] = Field("function", description="no other type is accepted.")


class ResponseTool(
    FunctionFields, _OfFunction
):  # pydantic puts the fields of the last base first, so that an error for another type names `type`
    """One of `tools`."""


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponseFields(SamplingFields):
    """The body of `POST /v1/responses` and `POST /v1/responses/input_tokens`."""

    model: str | None = Field(None, description="the server has one model; another name is ignored, and reported.")
    input: Annotated[list[InputItem], BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem])] = Field(
        description="a user's text, or a list of messages, calls and what came of these, with texts or parts of the "
        "types input_text and output_text."
    )
    instructions: Text | None = Field(None, description="a system message before the input.")
    text: dict[str, Any] | None = Field(
        None, description='its `format`: {"type": "text"}, json_object, or json_schema with a `schema`.'
    )
    include: list[str] | None = Field(None, description=f"{LOGPROBS} shows the tokens with their log-probabilities.")
    top_logprobs: Int | None = Field(
        None, description="the same, with this many of the likeliest tokens at each place."
    )
    stream: bool = Field(False, description="answer with a stream of events.")
    metadata: dict[str, Any] | None = Field(None, description="an object that comes back in the response.")
    store: bool | None = Field(None, description="has no effect: a response is kept for a while, as every request.")
    tools: list[ResponseTool] | None = Field(None, description="functions that the model may call.")
    tool_choice: ToolChoice = Field(
        None, description='"auto", "none", "required", or the one function that must be called.'
    )
    parallel_tool_calls: Parallel = Field(None, description="whether one answer may have several calls, as in chats.")
    previous_response_id: str | None = Field(
        None, description="the response that the input goes on from; it must still be kept."
    )
    conversation: Any = Field(None, description="refused: conversations are not kept.")
    background: bool = Field(
        False, description="the response goes on without readers. Without `stream` the answer comes at once."
    )
    detach: bool | None = Field(None, description="the request goes on when its connection is closed.")

    def chat(self, messages: list[Message]) -> dict[str, Any]:
        """The conversation, which begins with the instructions, and the tools, in OpenAI's notation for chats."""
        return {
            "messages": [*system_message(self.instructions), *messages],
            "tools": [{"function": tool.model_dump(exclude={"type"})} for tool in self.tools or ()],
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }


def refuse(fields: ResponseFields, *names: str) -> None:
    """Raises `InvalidRequestError` if one of these fields was sent."""
    for name in names:
        if getattr(fields, name):
            raise InvalidRequestError(
                f"{name} is not supported here; leave it out, and send the whole conversation as input",
                param=name,
                code="unsupported_parameter",
            )


def response_format(text: dict[str, Any] | None) -> dict[str, Any]:
    """`text.format` as the `response_format` of chats. Raises `InvalidRequestError`."""
    form = (text or {}).get("format")
    if form is None:
        return {}
    if not isinstance(form, dict) or form.get("type") not in ("text", "json_object", "json_schema"):
        raise InvalidRequestError(
            f"text.format has the type text, json_object or json_schema; got {show(form)}", param="text.format"
        )
    if form["type"] != "json_schema":
        return {"response_format": form}
    if "schema" not in form:
        raise InvalidRequestError("text.format.schema is missing", param="text.format.schema")
    return {"response_format": {"type": "json_schema", "json_schema": form}}
