"""OpenAI's wire format for responses: `/v1/responses`. Pure functions."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent
from srb.errors import InvalidRequestError, SrbError
from srb.wire.body import Parsed, chat_prompt
from srb.wire.chat import content_of
from srb.wire.completion_fields import CompletionFields, Parallel, ToolChoice
from srb.wire.fields import Int, SamplingFields, show
from srb.wire.messages import Message, Text, system_message
from srb.wire.one import parse_one
from srb.wire.parts import Change, Part, Parts
from srb.wire.read import depth_refused, read_fields, validate
from srb.wire.reply import Reply, Serving
from srb.wire.tokens import Answer as Counted
from srb.wire.tokens import Vocabulary
from srb.wire.tools import FunctionFields

_LOGPROBS = "message.output_text.logprobs"
"""What `include` may have."""


class InputItem(BaseModel):
    """One of `input`: a message, a call, or what came of one."""

    model_config = ConfigDict(extra="allow")

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: str | None = None
    content: Text | None = None
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
"""What the types of items have."""


def _conversation(items: list[InputItem]) -> list[Message]:
    """Items as messages. Calls join what the assistant says before them."""
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


class _Typed(BaseModel):
    type: Literal["function"] = Field("function", description="there is no other.")


class Tool(FunctionFields, _Typed):  # the last one's fields come first, so that another type is refused by its name
    """One of `tools`."""


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponseFields(SamplingFields):
    """The body of `POST /v1/responses` and `POST /v1/responses/input_tokens`."""

    model: str | None = Field(None, description="there is one; another name is ignored, and reported.")
    input: Annotated[list[InputItem], BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem])] = Field(
        description="a user's text, or a list of messages, calls and what came of these, with texts or parts of the "
        "types input_text and output_text."
    )
    instructions: Text | None = Field(None, description="a system message before the input.")
    text: dict[str, Any] | None = Field(
        None, description='its `format`: {"type": "text"}, json_object, or json_schema with a `schema`.'
    )
    include: list[str] | None = Field(None, description=f"{_LOGPROBS} shows the tokens with their log-probabilities.")
    top_logprobs: Int | None = Field(None, description="the same, with so many of the likeliest tokens at each place.")
    stream: bool = Field(False, description="answer with events.")
    metadata: dict[str, Any] | None = Field(None, description="comes back in the response.")
    store: bool | None = Field(None, description="false is ignored: a response is kept as any request, for a while.")
    tools: list[Tool] | None = Field(None, description="functions that the model may call.")
    tool_choice: ToolChoice = Field(
        None, description='"auto", "none", "required", or the one function that is to be called.'
    )
    parallel_tool_calls: Parallel = Field(None, description="as in chats.")
    previous_response_id: str | None = Field(
        None, description="the response that the input goes on from, while that is kept."
    )
    conversation: Any = Field(None, description="refused: conversations are not kept.")
    background: bool = Field(
        False, description="the response goes on without readers; without `stream` the answer comes at once."
    )
    detach: bool | None = Field(None, description="the request goes on when its connection is closed.")

    def chat(self, messages: list[Message]) -> dict[str, Any]:
        """The conversation, which begins with the instructions, and the tools as chats have them."""
        return {
            "messages": [*system_message(self.instructions), *messages],
            "tools": [{"function": tool.model_dump(exclude={"type"})} for tool in self.tools or ()],
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
        }


def create(body: bytes, serving: Serving) -> Reply:
    """Reads the body of `POST /v1/responses`."""
    with depth_refused():
        fields = read_fields(body, ResponseFields)
        _refuse(fields, "conversation")
        before = serving.before(fields.previous_response_id) if fields.previous_response_id else []
        conversation = [*before, *_conversation(fields.input)]
        logprobs = _LOGPROBS in (fields.include or ()) or fields.top_logprobs is not None
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
            **_response_format(fields.text),
        )
    parsed.ignored.extend(f"include.{name}" for name in fields.include or () if name != _LOGPROBS)
    parsed.ignored.extend(f"text.{name}" for name in fields.text or () if name != "format")
    parsed.ignored.extend(["store"] if fields.store is False else [])

    def again() -> _Out:
        return _Out(parsed, serving, fields, conversation)

    def begin() -> Callable[[list[Event]], Any]:
        return again().chunks if fields.stream else again().object

    return Reply(
        parsed.completion,
        parsed.ignored,
        fields.stream,
        begin,
        parsed.blame,
        parsed.detach,
        again=again,
        at_once=fields.background and not fields.stream,
    )


def input_tokens(data: bytes, vocabulary: Vocabulary) -> Counted:
    """`POST /v1/responses/input_tokens`: how many tokens the prompt has."""
    fields = read_fields(data, ResponseFields)
    _refuse(fields, "conversation", "previous_response_id")
    asked = validate(fields.chat(_conversation(fields.input)), CompletionFields)
    text = chat_prompt(asked, vocabulary.template)
    return {"object": "response.input_tokens", "input_tokens": len(vocabulary.encode(text, "input"))}, []


def _refuse(fields: ResponseFields, *names: str) -> None:
    for name in names:
        if getattr(fields, name):
            raise InvalidRequestError(
                f"{name} is not supported here; leave it out, and send the whole conversation as input",
                param=name,
                code="unsupported_parameter",
            )


def _response_format(text: dict[str, Any] | None) -> dict[str, Any]:
    """`text.format` as chats have it."""
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


class _Out:
    """A response on its way out. conversation: what it answers."""

    def __init__(self, parsed: Parsed, serving: Serving, fields: ResponseFields, conversation: list[Message]) -> None:
        self._asked = conversation
        self._id = response_id = parsed.completion.id
        self._logprobs = parsed.logprobs
        self._head = {
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
        self._parts = Parts(response_id, parsed.calls)
        self._error: SrbError | None = None
        self._n_sent = 0

    def object(self, events: list[Event]) -> dict[str, Any]:
        """The response of a request that is over. Raises `SrbError` if it broke."""
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
        """What was asked, and the answer. Raises `InvalidRequestError` if that isn't over."""
        state = self.state(events)
        if not self._parts.answer.done:
            raise InvalidRequestError(
                f"response {self._id} is {state['status']}; ask for it until it is completed, or cancel it",
                param="previous_response_id",
            )
        items = [
            item | {"content": item["content"][0]["text"]} if "content" in item else item for item in state["output"]
        ]
        return [*self._asked, *_conversation([InputItem.model_validate(item) for item in items])]

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The events of some of a stream's, in the order of their numbers."""
        for event in events:
            for each in self._said(event):
                yield each | {"sequence_number": self._n_sent}
                self._n_sent += 1

    def _said(self, event: Event) -> Iterator[dict[str, Any]]:
        """What one event becomes."""
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
            ended = "incomplete" if status == "cancelled" else status  # there is no event for that
            yield {"type": f"response.{ended}", "response": response}

    def _text(self, change: Change) -> Iterator[dict[str, Any]]:
        """What has changed of a message."""
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
        """What has changed of a call."""
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
        """The response at its end."""
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
        """A part as an item of the output. status: left out: as the part's end says it."""
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
