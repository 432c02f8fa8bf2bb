"""`POST /v1/responses`: parses bodies, and builds OpenAI's responses and their typed events."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent
from srb.errors import InvalidRequestError, SrbError
from srb.wire.context import JsonAnswer, RequestContext
from srb.wire.openai.completions import content_of
from srb.wire.reasoning import AnswerReader
from srb.wire.reply import ItemChange, OutputItem, OutputItems, Reply, parse_one
from srb.wire.request.fields import CompletionFields, Parallel, SamplingFields, ToolChoice
from srb.wire.request.messages import Content, Message, Text, system_message
from srb.wire.request.prompts import MAX_REQUESTS
from srb.wire.request.read import Int, PartFields, depth_refused, read_fields, show, validate
from srb.wire.tokenize import count_prompt
from srb.wire.tools.definitions import ToolList

LOGPROBS = "message.output_text.logprobs"
"""The only entry of `include` that has an effect."""


_ITEMS = {
    "message": ("role",),
    "function_call": ("call_id", "name"),
    "function_call_output": ("call_id",),
    "reasoning": (),
    "item_reference": ("id",),
}
"""The types of items, and the fields that each must have."""

_FOREIGN = re.compile(r"\w+_call(_output)?|\w+_search_output|mcp_\w+|compaction\w*")
"""The types of the items of OpenAI's own tools, which are left out, as these tools are."""


def _own_kind(kind: str) -> str:
    if kind in _ITEMS or _FOREIGN.fullmatch(kind):
        return kind
    raise ValueError(f"should be one of {', '.join(_ITEMS)}, or an item of one of OpenAI's own tools")


class InputItem(PartFields):
    """One item of `input`: a message, a call, the result of a call, or thoughts."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    type: Annotated[str, AfterValidator(_own_kind)] = "message"
    id: str | None = None
    role: str | None = None
    content: Content = ""
    call_id: str | None = None
    name: str | None = None
    arguments: str = "{}"
    output: Content = ""
    summary: Content = ""

    @model_validator(mode="before")
    @classmethod
    def _of_other_tools(cls, data: Any) -> Any:
        """Read calls of tools that take a text as calls of functions with an argument `input`; of others, the type."""
        match data:
            case {"type": "custom_tool_call"}:
                arguments = json.dumps({"input": data.get("input")}, ensure_ascii=False)
                return data | {"type": "function_call", "arguments": arguments}
            case {"type": "custom_tool_call_output"}:
                return data | {"type": "function_call_output"}
            case {"id": str()} if data.get("type") is None and "role" not in data:
                return data | {"type": "item_reference"}
            case {"type": str(kind)} if kind not in _ITEMS:
                return {"type": kind}
        return data

    @model_validator(mode="after")
    def _is_whole(self) -> "InputItem":
        needed = _ITEMS.get(self.type, ())
        for name in needed:
            if getattr(self, name) is None:
                raise ValueError(f"a {self.type} should have {' and '.join(needed)}; {name} is missing")
        return self


def conversation_of(items: list[InputItem]) -> list[Message]:
    """Items as messages. A call joins the message of the assistant that comes before it, and so do thoughts.

    References and the items of OpenAI's own tools are left out.
    """
    messages: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for item in items:
        match item.type:
            case "reasoning":
                thoughts += [each for each in (item.content, item.summary) if isinstance(each, str) and each][:1]
                continue
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
            case _:
                continue
        if thoughts and messages[-1]["role"] == "assistant":
            before = messages[-1].get("reasoning_content")
            messages[-1]["reasoning_content"] = "\n".join([*([before] if before else []), *thoughts])
        thoughts = []
    return [Message.model_validate(message) for message in messages]


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponseFields(SamplingFields):
    """The body of `POST /v1/responses` and `POST /v1/responses/input_tokens`."""

    own_names = frozenset({"max_output_tokens"})

    model: str | None = Field(None, description="the server has one model; another name is ignored, and reported.")
    input: Annotated[list[InputItem], BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem])] = Field(
        description="a user's text, or a list of messages, calls and results of calls, with texts or parts of the "
        "types input_text and output_text."
    )
    instructions: Text | None = Field(None, description="a system message before the input.")
    text: dict[str, Any] | None = Field(
        None, description='its `format`: {"type": "text"}, json_object, or json_schema with a `schema`.'
    )
    include: list[str] | None = Field(None, description=f"{LOGPROBS} shows the tokens with their log-probabilities.")
    top_logprobs: Int | None = Field(None, description="the same, with this many top tokens at each position.")
    stream: bool = Field(False, description="answer with a stream of events.")
    metadata: dict[str, Any] | None = Field(None, description="an object that comes back in the response.")
    store: bool | None = Field(None, description="has no effect: a response is stored for a while, as every request.")
    tools: ToolList | None = Field(None, description="functions that the model may call.")
    tool_choice: ToolChoice = Field(
        None, description='"auto", "none", "required", or the one function that must be called.'
    )
    parallel_tool_calls: Parallel = Field(None, description="whether one answer may have several calls, as in chats.")
    previous_response_id: str | None = Field(
        None, description="the response that the input continues; it must still be stored."
    )
    conversation: Any = Field(None, description="refused: conversations are not stored.")
    background: bool = Field(
        False, description="the response goes on without readers. Without `stream` it is answered at once."
    )
    detach: bool | None = Field(None, description="the request goes on when its connection is closed.")

    def chat(self, messages: list[Message]) -> dict[str, Any]:
        """The conversation, which begins with the instructions, and the tools, in OpenAI's notation for chats."""
        if not messages and not self.instructions:
            raise InvalidRequestError("input must not be empty", param="input")
        return {
            "messages": [*system_message(self.instructions), *messages],
            "tools": self.tools or [],
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


def resolved(items: list[InputItem], context: RequestContext) -> tuple[list[InputItem], list[str]]:
    """Replace the references to messages of stored responses, as `ai` sends them, by these messages.

    Other references and items of OpenAI's own tools are left out; the second result names them.
    """
    named = {item.id: _response_of(item.id) for item in items if item.type == "item_reference" and item.id}
    ids = tuple(dict.fromkeys(filter(None, named.values())))[:MAX_REQUESTS]
    answers = context.stored_answers(ids) if ids else {}
    found, unknown = [], []
    for k, item in enumerate(items):
        if item.type != "item_reference" and item.type in _ITEMS:
            found.append(item)
        elif answer := answers.get(named.get(item.id or "", "")):
            found.append(InputItem.model_validate({"role": "assistant", "content": answer.content}))
        else:
            unknown.append(f"input[{k}] ({item.type:.60})")
    return found, unknown


def _response_of(message_id: str) -> str:
    """The id of the response that has a message; empty if it isn't the id of a message."""
    return f"resp_{message_id.removeprefix('msg_')}" if message_id.startswith("msg_") else ""


def response_format(text: dict[str, Any] | None) -> dict[str, Any]:
    """`text.format` as the `response_format` of chats. Raises `InvalidRequestError`."""
    form = (text or {}).get("format")
    if form is None or form == {}:
        return {}
    if not isinstance(form, dict) or form.get("type") not in ("text", "json_object", "json_schema"):
        raise InvalidRequestError(
            f"text.format has the type text, json_object or json_schema; got {show(form)}", param="text.format"
        )
    if form["type"] == "json_schema" and form.get("schema") is None and form.get("json_schema") is None:
        raise InvalidRequestError("text.format.schema is missing", param="text.format.schema")
    return {"response_format": form}


def parse_response(body: bytes, context: RequestContext) -> Reply:
    """Continue a conversation, as OpenAI's responses: an object, or events."""
    with depth_refused():
        fields = read_fields(body, ResponseFields)
        refuse(fields, "conversation")
        before = context.previous_messages(fields.previous_response_id) if fields.previous_response_id else []
        items, unknown = resolved(fields.input, context)
        conversation = [*before, *conversation_of(items)]
        logprobs = LOGPROBS in (fields.include or ()) or fields.top_logprobs is not None
        parsed = parse_one(
            fields,
            fields,
            context,
            prefix="resp_",
            model=fields.model,
            stream=fields.stream,
            logprobs=logprobs,
            top_logprobs=fields.top_logprobs,
            detach=fields.background or fields.detach,
            **fields.chat(conversation),
            **response_format(fields.text),
        )
    if not parsed.reader().has_answer:  # the tokens of its thoughts are counted
        parsed = replace(parsed, completion=replace(parsed.completion, return_tokens=True))
    parsed.ignored.extend(unknown)
    parsed.ignored.extend(f"include.{name}" for name in fields.include or () if name != LOGPROBS)
    parsed.ignored.extend(f"text.{name}" for name in fields.text or () if name != "format")
    parsed.ignored.extend(["store"] if fields.store is False else [])
    head = _head(parsed.completion.id, context, fields)
    make = partial(_ResponseBuilder, head, conversation, parsed.logprobs, parsed.reader)
    return Reply.of(
        parsed,
        fields.stream,
        make,
        stored=make,
        in_background=fields.background and not fields.stream,
        payload=(head, conversation),
    )


def input_tokens(data: bytes, context: RequestContext) -> JsonAnswer:
    """Count the tokens of the prompt of such a conversation."""
    fields = read_fields(data, ResponseFields)
    refuse(fields, "conversation", "previous_response_id")
    asked = validate(fields.chat(conversation_of(fields.input)), CompletionFields)
    return count_prompt(asked, context, "input", object="response.input_tokens")


def _head(response_id: str, context: RequestContext, fields: ResponseFields) -> dict[str, Any]:
    """The item of a response that doesn't change."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(context.now),
        "model": context.limits.model,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_tokens,
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "top_logprobs": fields.top_logprobs,
        "text": {"format": {"type": "text"}} | (fields.text or {}),
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "tool_choice": fields.tool_choice or "auto",
        "tools": [tool.flat for tool in fields.tools or ()],
        "truncation": "disabled",
        "background": fields.background,
        "store": True,
        "previous_response_id": fields.previous_response_id,
    }


_CONTENTS = {"text": "output_text", "reasoning": "reasoning_text"}
"""The types of an item's content, by its kind."""


class _ResponseBuilder:
    """Builds a response from the events of its request. conversation: the messages that it answers."""

    def __init__(
        self, head: dict[str, Any], conversation: list[Message], logprobs: bool, reader: Callable[[], AnswerReader]
    ) -> None:
        self._conversation = conversation
        self._id: str = head["id"]
        self._logprobs = logprobs
        self._head = head
        self._items = OutputItems(self._id, reader())
        self._error: SrbError | None = None
        self._n_sent = 0

    def object(self, events: list[Event]) -> dict[str, Any]:
        """The response of a finished request. Raises `SrbError` if the request failed."""
        self._items.take_all(events)
        return self._final()

    def state(self, events: list[Event]) -> dict[str, Any]:
        """The response so far."""
        for event in events:
            for _ in self._events(event):
                pass
        answer = self._items.outcome
        if answer.done:
            return self._final()
        items = [self._item(item, "in_progress" if item is self._items.all[-1] else None) for item in self._items.all]
        return self._response("in_progress" if answer.start else "queued", items)

    def conversation(self, events: list[Event]) -> list[Message]:
        """The conversation that was sent, and the answer. Raises `InvalidRequestError` if the answer isn't finished."""
        state = self.state(events)
        if not self._items.outcome.done:
            raise InvalidRequestError(
                f"response {self._id} is {state['status']}; ask for it until it is completed, or cancel it",
                param="previous_response_id",
            )
        items = [
            item | {"content": item["content"][0]["text"]} if "content" in item else item for item in state["output"]
        ]
        return [*self._conversation, *conversation_of([InputItem.model_validate(item) for item in items])]

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """OpenAI's events for the next events of the engine, in a stream. Each has its number."""
        for event in events:
            for each in self._events(event):
                yield each | {"sequence_number": self._n_sent}
                self._n_sent += 1

    def _events(self, event: Event) -> Iterator[dict[str, Any]]:
        """OpenAI's events for one event of the engine."""
        if isinstance(event, ErrorEvent):
            self._error = event.error
            return
        changes = self._items.take(event)
        if isinstance(event, StartEvent):
            started = self._response("in_progress", [])
            yield {"type": "response.created", "response": started}
            yield {"type": "response.in_progress", "response": started}
        for change in changes:
            yield from self._call(change) if change.item.kind == "call" else self._text(change)
        if isinstance(event, DoneEvent):
            response = self._final()
            status = response["status"]
            ended = "incomplete" if status == "cancelled" else status  # OpenAI has no event for cancelled responses
            yield {"type": f"response.{ended}", "response": response}

    def _text(self, change: ItemChange) -> Iterator[dict[str, Any]]:
        """OpenAI's events for a change of a message, or of thoughts."""
        item = change.item
        kind, is_text = _CONTENTS[item.kind], item.kind == "text"
        position = {"item_id": self._item_id(item), "output_index": item.index, "content_index": 0}
        if change.kind == "begin":
            yield self._item_event("added", item)
            yield {"type": "response.content_part.added", **position, "part": self._content(OutputItem(0, item.kind))}
        elif change.kind == "end":
            content = self._content(item)
            shown = {"logprobs": content["logprobs"]} if is_text else {}
            yield {"type": f"response.{kind}.done", **position, "text": item.text} | shown
            yield {"type": "response.content_part.done", **position, "part": content}
            yield self._item_event("done", item)
        elif change.text or (change.tokens and is_text):
            shown = {"logprobs": content_of(list(change.tokens))} if is_text else {}
            yield {"type": f"response.{kind}.delta", **position, "delta": change.text} | shown

    def _call(self, change: ItemChange) -> Iterator[dict[str, Any]]:
        """OpenAI's events for a change of a call."""
        item = change.item
        position = {"item_id": self._item_id(item), "output_index": item.index}
        if change.kind == "begin":
            yield self._item_event("added", item)
        elif change.kind == "end":
            done = {"name": item.name, "arguments": item.text}
            yield {"type": "response.function_call_arguments.done", **position, **done}
            yield self._item_event("done", item)
        else:
            yield {"type": "response.function_call_arguments.delta", **position, "delta": change.text}

    def _final(self) -> dict[str, Any]:
        """The response of a finished request."""
        answer = self._items.outcome
        stop, done = answer.stop, answer.done
        assert stop
        assert done
        status = {"stop": "completed", "length": "incomplete", "abort": "cancelled"}.get(stop.finish_reason, "failed")
        response = self._response(status, [self._item(item) for item in self._items.all])
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._error:
            response["error"] = {"code": "server_error", "message": self._error.message}
        usage = done.usage
        response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._items.n_thought_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return response

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        nothing = {"error": None, "incomplete_details": None, "usage": None}
        return self._head | nothing | {"status": status, "output": output}

    def _item_event(self, kind: str, item: OutputItem) -> dict[str, Any]:
        value = self._item(item, "in_progress" if kind == "added" else None)
        return {"type": f"response.output_item.{kind}", "output_index": item.index, "item": value}

    def _item_id(self, item: OutputItem) -> str:
        if item.kind == "call":
            return f"fc_{item.id}"
        return f"{'msg' if item.kind == 'text' else 'rs'}_{self._id.removeprefix('resp_')}"

    def _item(self, item: OutputItem, status: str | None = None) -> dict[str, Any]:
        """The JSON of an item. status: left out, it follows from how the answer ended."""
        stop = self._items.outcome.stop
        is_last = item is self._items.all[-1]
        is_cut = is_last and stop is not None and stop.finish_reason != "stop"
        status = status or ("incomplete" if is_cut else "completed")
        if item.kind != "call":
            content = [self._content(item)] if item.text or status != "in_progress" else []
            if item.kind == "reasoning":
                thoughts = {"type": "reasoning", "status": status, "summary": [], "content": content}
                return {"id": self._item_id(item)} | thoughts
            message = {"type": "message", "role": "assistant", "status": status, "content": content}
            return {"id": self._item_id(item)} | message
        call = {"type": "function_call", "call_id": item.id, "name": item.name, "arguments": item.text}
        return {"id": self._item_id(item), "status": status} | call

    def _content(self, item: OutputItem) -> dict[str, Any]:
        if item.kind == "reasoning":
            return {"type": _CONTENTS[item.kind], "text": item.text}
        shown = content_of(item.tokens) if self._logprobs else []
        return {"type": _CONTENTS[item.kind], "text": item.text, "annotations": [], "logprobs": shown}
