"""`POST /v1/responses`: parses bodies, and builds OpenAI's responses and their typed events."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from srb.engine.events import DoneEvent, Event, StartEvent
from srb.errors import InvalidRequestError
from srb.wire.answer import Answer, Change, Item, Response
from srb.wire.context import RequestContext
from srb.wire.openai.completions import content_of
from srb.wire.reply import SSE_TYPED, Reply, parse_one
from srb.wire.request.fields import CompletionFields, Parallel, SamplingFields, ToolChoice
from srb.wire.request.messages import Content, Message, Text, system_message
from srb.wire.request.prompts import MAX_REQUESTS
from srb.wire.request.read import Int, ModelFields, PartFields, show, validate
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


class ResponseFields(SamplingFields, ModelFields):
    """The body of `POST /v1/responses` and `POST /v1/responses/input_tokens`."""

    own_names = frozenset({"max_output_tokens"})

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


def parse_response(fields: ResponseFields, context: RequestContext) -> Reply:
    """Continue a conversation, as OpenAI's responses: an object, or events."""
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
    make = partial(ResponseBuilder, ResponseObject(head, conversation, parsed.logprobs), head["id"], parsed.reader)
    return Reply.of(
        parsed,
        make,
        frame=SSE_TYPED,
        stored=make,
        in_background=fields.background and not fields.stream,
        payload=(head, conversation),
    )


def input_tokens(fields: ResponseFields, context: RequestContext) -> dict[str, Any]:
    """Count the tokens of the prompt of such a conversation."""
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


class ResponseBuilder(Response):
    """Builds a response that is stored."""

    form: "ResponseObject"
    _n_sent = 0

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """OpenAI's events for the next events of the engine, in a stream. Each has its number."""
        for each in super().chunks(events):
            yield each | {"sequence_number": self._n_sent}
            self._n_sent += 1

    def state(self, events: list[Event]) -> dict[str, Any]:
        """The response so far."""
        for event in events:
            self.answer.take(event)
        return self.form.state(self.answer)

    def conversation(self, events: list[Event]) -> list[Message]:
        """The conversation that was sent, and the answer. Raises `InvalidRequestError` if the answer isn't finished."""
        state = self.state(events)
        if not self.answer.done:
            raise InvalidRequestError(
                f"response {state['id']} is {state['status']}; ask for it until it is completed, or cancel it",
                param="previous_response_id",
            )
        items = [
            item | {"content": item["content"][0]["text"]} if "content" in item else item for item in state["output"]
        ]
        answer = [InputItem.model_validate(item) for item in items]
        return [*self.form.conversation, *conversation_of(answer)]


@dataclass(frozen=True)
class ResponseObject:
    """OpenAI's response and events. conversation: the messages that it answers."""

    head: dict[str, Any]
    conversation: list[Message]
    has_logprobs: bool

    def state(self, answer: Answer) -> dict[str, Any]:
        """The response so far."""
        if answer.done:
            return self.body(answer)
        items = answer[0].items
        output = [self._item(answer, item, "in_progress" if item is items[-1] else None) for item in items]
        return self._response("in_progress" if answer.start else "queued", output)

    def chunk(self, answer: Answer, event: Event, changes: list[Change]) -> Iterator[dict[str, Any]]:
        """OpenAI's events for an event of the engine."""
        if isinstance(event, StartEvent):
            started = self._response("in_progress", [])
            yield {"type": "response.created", "response": started}
            yield {"type": "response.in_progress", "response": started}
        for change in changes:
            yield from (self._call if change.item.kind == "call" else self._text)(answer, change)
        if isinstance(event, DoneEvent):
            response = self.body(answer)
            status = response["status"]
            ended = "incomplete" if status == "cancelled" else status  # OpenAI has no event for cancelled responses
            yield {"type": f"response.{ended}", "response": response}

    def _text(self, answer: Answer, change: Change) -> Iterator[dict[str, Any]]:
        """OpenAI's events for a change of a message, or of thoughts."""
        item = change.item
        kind, is_text = _CONTENTS[item.kind], item.kind == "text"
        position = {"item_id": self._item_id(item), "output_index": item.index, "content_index": 0}
        if change.kind == "begin":
            yield self._added(answer, item)
            yield {"type": "response.content_part.added", **position, "part": self._content(Item(0, item.kind))}
        elif change.kind == "end":
            content = self._content(item)
            shown = {"logprobs": content["logprobs"]} if is_text else {}
            yield {"type": f"response.{kind}.done", **position, "text": item.text} | shown
            yield {"type": "response.content_part.done", **position, "part": content}
            yield self._done(answer, item)
        elif change.text or (change.tokens and is_text):
            shown = {"logprobs": content_of(change.tokens)} if is_text else {}
            yield {"type": f"response.{kind}.delta", **position, "delta": change.text} | shown

    def _call(self, answer: Answer, change: Change) -> Iterator[dict[str, Any]]:
        """OpenAI's events for a change of a call."""
        item = change.item
        position = {"item_id": self._item_id(item), "output_index": item.index}
        if change.kind == "begin":
            yield self._added(answer, item)
        elif change.kind == "end":
            done = {"name": item.name, "arguments": item.text}
            yield {"type": "response.function_call_arguments.done", **position, **done}
            yield self._done(answer, item)
        else:
            yield {"type": "response.function_call_arguments.delta", **position, "delta": change.text}

    def _added(self, answer: Answer, item: Item) -> dict[str, Any]:
        value = self._item(answer, replace(item, text="", tokens=[]), "in_progress")
        return {"type": "response.output_item.added", "output_index": item.index, "item": value}

    def _done(self, answer: Answer, item: Item) -> dict[str, Any]:
        value = self._item(answer, item)
        return {"type": "response.output_item.done", "output_index": item.index, "item": value}

    def body(self, answer: Answer) -> dict[str, Any]:
        """The response of a finished request."""
        alternative = answer[0]
        assert alternative.stop
        assert answer.done
        reason, usage = alternative.stop.finish_reason, answer.done.usage
        status = {"stop": "completed", "length": "incomplete", "abort": "cancelled"}.get(reason, "failed")
        response = self._response(status, [self._item(answer, item) for item in alternative.items])
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if answer.failure:
            response["error"] = {"code": "server_error", "message": answer.failure.message}
        response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": alternative.n_thought_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return response

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        nothing = {"error": None, "incomplete_details": None, "usage": None}
        return self.head | nothing | {"status": status, "output": output}

    def _item_id(self, item: Item) -> str:
        if item.kind == "call":
            return f"fc_{item.id}"
        return f"{'msg' if item.kind == 'text' else 'rs'}_{self.head['id'].removeprefix('resp_')}"

    def _item(self, answer: Answer, item: Item, status: str | None = None) -> dict[str, Any]:
        """The JSON of an item. status: left out, it follows from how the answer ended."""
        stop = answer[0].stop
        is_cut = item is answer[0].items[-1] and stop is not None and stop.finish_reason != "stop"
        status = status or ("incomplete" if is_cut else "completed")
        if item.kind == "call":
            call = {"type": "function_call", "call_id": item.id, "name": item.name, "arguments": item.text}
            return {"id": self._item_id(item), "status": status} | call
        content = [self._content(item)] if item.text or status != "in_progress" else []
        if item.kind == "reasoning":
            thoughts = {"type": "reasoning", "status": status, "summary": [], "content": content}
            return {"id": self._item_id(item)} | thoughts
        message = {"type": "message", "role": "assistant", "status": status, "content": content}
        return {"id": self._item_id(item)} | message

    def _content(self, item: Item) -> dict[str, Any]:
        if item.kind == "reasoning":
            return {"type": _CONTENTS[item.kind], "text": item.text}
        shown = content_of(item.tokens) if self.has_logprobs else []
        return {"type": _CONTENTS[item.kind], "text": item.text, "annotations": [], "logprobs": shown}
