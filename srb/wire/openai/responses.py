"""OpenAI's wire format for responses: `/v1/responses`. Pure functions."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent
from srb.errors import InvalidRequestError, SrbError
from srb.wire.openai.chat import content_of
from srb.wire.reply import Change, Part, Parts, Reply, parse_one
from srb.wire.request.body_fields import Int
from srb.wire.request.completion import CompletionFields, Parallel, ToolChoice
from srb.wire.request.fields import SamplingFields
from srb.wire.request.messages import Content, Message, Text, system_message
from srb.wire.request.read import depth_refused, read_fields, show, validate
from srb.wire.serving import Serving, Told
from srb.wire.tokenize import count_prompt
from srb.wire.tools.calls import CallFormat
from srb.wire.tools.offered import FunctionFields

# The body of `POST /v1/responses`: its fields, and functions that turn its items into messages.

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


def create(body: bytes, serving: Serving) -> Reply:
    """Go on with a conversation, as OpenAI's responses do: an object, or events."""
    with depth_refused():
        fields = read_fields(body, ResponseFields)
        refuse(fields, "conversation")
        before = serving.before(fields.previous_response_id) if fields.previous_response_id else []
        conversation = [*before, *conversation_of(fields.input)]
        logprobs = LOGPROBS in (fields.include or ()) or fields.top_logprobs is not None
        parsed = parse_one(
            fields,
            fields,
            serving,
            prefix="resp_",
            model=fields.model,
            stream=fields.stream,
            logprobs=logprobs,
            top_logprobs=fields.top_logprobs,
            detach=fields.background or fields.detach,
            **fields.chat(conversation),
            **response_format(fields.text),
        )
    parsed.ignored.extend(f"include.{name}" for name in fields.include or () if name != LOGPROBS)
    parsed.ignored.extend(f"text.{name}" for name in fields.text or () if name != "format")
    parsed.ignored.extend(["store"] if fields.store is False else [])

    head = _head(parsed.completion.id, serving, fields)
    make = partial(_Out, head, conversation, parsed.logprobs, parsed.calls)

    return Reply(
        parsed.completion,
        parsed.ignored,
        fields.stream,
        make,
        parsed.blame,
        parsed.detach,
        again=make,
        at_once=fields.background and not fields.stream,
        keeps=(head, conversation),
    )


def input_tokens(data: bytes, serving: Serving) -> Told:
    """How many tokens the prompt of such a conversation has."""
    fields = read_fields(data, ResponseFields)
    refuse(fields, "conversation", "previous_response_id")
    asked = validate(fields.chat(conversation_of(fields.input)), CompletionFields)
    return count_prompt(asked, serving, "input", object="response.input_tokens")


def _head(response_id: str, serving: Serving, fields: ResponseFields) -> dict[str, Any]:
    """The part of a response that doesn't change."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(serving.now),
        "model": serving.limits.model,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_tokens,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "top_logprobs": fields.top_logprobs,
        "text": {"format": {"type": "text"}} | (fields.text or {}),
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "tool_choice": fields.tool_choice or "auto",
        "tools": [tool.model_dump() for tool in fields.tools or ()],
        "truncation": "disabled",
        "background": fields.background,
        "store": True,
        "previous_response_id": fields.previous_response_id,
    }


class _Out:
    """Makes one response, from the events of its request. conversation: the messages that it answers."""

    def __init__(
        self, head: dict[str, Any], conversation: list[Message], logprobs: bool, calls: CallFormat | None
    ) -> None:
        self._asked = conversation
        self._id: str = head["id"]
        self._logprobs = logprobs
        self._head = head
        self._parts = Parts(self._id, calls)
        self._error: SrbError | None = None
        self._n_sent = 0

    def object(self, events: list[Event]) -> dict[str, Any]:
        """The response of a finished request. Raises `SrbError` if the request failed."""
        for event in events:
            for _ in self._parts.take(event):
                pass
        return self._over()

    def state(self, events: list[Event]) -> dict[str, Any]:
        """The response so far."""
        for event in events:
            for _ in self._said(event):
                pass
        answer = self._parts.answer
        if answer.done:
            return self._over()
        items = [self._item(part, "in_progress" if part is self._parts.all[-1] else None) for part in self._parts.all]
        return self._response("in_progress" if answer.start else "queued", items)

    def conversation(self, events: list[Event]) -> list[Message]:
        """The conversation that was sent, and the answer. Raises `InvalidRequestError` if the answer isn't finished."""
        state = self.state(events)
        if not self._parts.answer.done:
            raise InvalidRequestError(
                f"response {self._id} is {state['status']}; ask for it until it is completed, or cancel it",
                param="previous_response_id",
            )
        items = [
            item | {"content": item["content"][0]["text"]} if "content" in item else item for item in state["output"]
        ]
        return [*self._asked, *conversation_of([InputItem.model_validate(item) for item in items])]

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """OpenAI's events for the next events of the engine, in a stream. Each has its number."""
        for event in events:
            for each in self._said(event):
                yield each | {"sequence_number": self._n_sent}
                self._n_sent += 1

    def _said(self, event: Event) -> Iterator[dict[str, Any]]:
        """OpenAI's events for one event of the engine."""
        if isinstance(event, ErrorEvent):
            self._error = event.error
            return
        changes = self._parts.take(event)
        if isinstance(event, StartEvent):
            begun = self._response("in_progress", [])
            yield {"type": "response.created", "response": begun}
            yield {"type": "response.in_progress", "response": begun}
        for change in changes:
            yield from self._text(change) if change.part.name is None else self._call(change)
        if isinstance(event, DoneEvent):
            response = self._over()
            status = response["status"]
            ended = "incomplete" if status == "cancelled" else status  # OpenAI has no event for cancelled responses
            yield {"type": f"response.{ended}", "response": response}

    def _text(self, change: Change) -> Iterator[dict[str, Any]]:
        """OpenAI's events for a change of a message."""
        part = change.part
        place = {"item_id": self._item_id(part), "output_index": part.index, "content_index": 0}
        if change.kind == "begin":
            yield self._item_event("added", part)
            yield {"type": "response.content_part.added", **place, "part": self._content(Part(0))}
        elif change.kind == "end":
            content = self._content(part)
            yield {"type": "response.output_text.done", **place, "text": part.text, "logprobs": content["logprobs"]}
            yield {"type": "response.content_part.done", **place, "part": content}
            yield self._item_event("done", part)
        elif change.text or change.tokens:
            shown = content_of(list(change.tokens))
            yield {"type": "response.output_text.delta", **place, "delta": change.text, "logprobs": shown}

    def _call(self, change: Change) -> Iterator[dict[str, Any]]:
        """OpenAI's events for a change of a call."""
        part = change.part
        place = {"item_id": self._item_id(part), "output_index": part.index}
        if change.kind == "begin":
            yield self._item_event("added", part)
        elif change.kind == "end":
            done = {"name": part.name, "arguments": part.text}
            yield {"type": "response.function_call_arguments.done", **place, **done}
            yield self._item_event("done", part)
        else:
            yield {"type": "response.function_call_arguments.delta", **place, "delta": change.text}

    def _over(self) -> dict[str, Any]:
        """The response of a request whose events have all come."""
        answer = self._parts.answer
        stop, done = answer.stop, answer.done
        assert stop
        assert done
        status = {"stop": "completed", "length": "incomplete", "abort": "cancelled"}.get(stop.finish_reason, "failed")
        response = self._response(status, [self._item(part) for part in self._parts.all])
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._error:
            response["error"] = {"code": "server_error", "message": self._error.message}
        usage = done.usage
        response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return response

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        nothing = {"error": None, "incomplete_details": None, "usage": None}
        return self._head | nothing | {"status": status, "output": output}

    def _item_event(self, kind: str, part: Part) -> dict[str, Any]:
        item = self._item(part, "in_progress" if kind == "added" else None)
        return {"type": f"response.output_item.{kind}", "output_index": part.index, "item": item}

    def _item_id(self, part: Part) -> str:
        return f"fc_{part.id}" if part.name is not None else f"msg_{self._id.removeprefix('resp_')}"

    def _item(self, part: Part, status: str | None = None) -> dict[str, Any]:
        """A part as an item of the output. status: if left out, it follows from how the answer ended."""
        stop = self._parts.answer.stop
        is_last = part is self._parts.all[-1]
        is_cut = is_last and stop is not None and stop.finish_reason != "stop"
        status = status or ("incomplete" if is_cut else "completed")
        if part.name is None:
            content = [self._content(part)] if part.text or status != "in_progress" else []
            message = {"type": "message", "role": "assistant", "status": status, "content": content}
            return {"id": self._item_id(part)} | message
        call = {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.text}
        return {"id": self._item_id(part), "status": status} | call

    def _content(self, part: Part) -> dict[str, Any]:
        shown = content_of(part.tokens) if self._logprobs else []
        return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": shown}
