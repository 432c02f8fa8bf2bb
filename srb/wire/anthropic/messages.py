"""`POST /v1/messages`: parses Anthropic's bodies, and builds its messages and events."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from srb.engine.events import ErrorEvent, Event, StartEvent, StopEvent
from srb.errors import InvalidRequestError, SrbError
from srb.wire.answer import Alternative, Answer, Change, Item, Response
from srb.wire.context import RequestContext
from srb.wire.reply import SSE_TYPED, Reply, parse_one
from srb.wire.request.fields import CompletionFields, SamplingFields
from srb.wire.request.media import as_content
from srb.wire.request.messages import Message, Text, system_message
from srb.wire.request.read import ModelFields, PartFields, show, validate
from srb.wire.tokenize import count_prompt
from srb.wire.tools.definitions import ToolList

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""The types of errors, by their HTTP status. Another status below 500 is `invalid_request_error`, else `api_error`."""


_FOREIGN = re.compile(r"server_tool_use|mcp_tool_use|\w+_tool_result|container_upload|compaction")
"""The types of the blocks of Anthropic's own tools, which are left out, as these tools are."""


class AnthropicTurn(PartFields):
    """One of `messages`: a text, or blocks of the types text, image, thinking, tool_use and tool_result."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(description="user or assistant.")
    content: str | list[dict[str, Any] | None] = Field("", description="a text, or blocks.")
    _messages: list[Message] = PrivateAttr()

    @model_validator(mode="after")
    def _split(self) -> "AnthropicTurn":
        self._messages = list(_messages_of(self))
        return self

    @property
    def left_out(self) -> list[str]:
        """The blocks of Anthropic's own tools, for `ignored`."""
        blocks = enumerate(self.content if isinstance(self.content, list) else ())
        return [f"content[{k}] ({block['type']:.60})" for k, block in blocks if block and _is_foreign(block)]


def _is_foreign(block: dict[str, Any]) -> bool:
    kind = block.get("type")
    return isinstance(kind, str) and _FOREIGN.fullmatch(kind) is not None


def _messages_of(turn: AnthropicTurn) -> Iterator[Message]:
    """The messages, in OpenAI's notation, that a turn stands for. Raises `ValueError`."""
    texts: str | list[Any] = turn.content if isinstance(turn.content, str) else []
    calls, thoughts, n_results = [], [], 0
    for k, block in enumerate(turn.content if isinstance(turn.content, list) else ()):
        match block:
            case {"type": "tool_use", "id": str(call), "name": str(name), **rest} if isinstance(
                arguments := rest.get("input") or {}, dict
            ):
                calls.append({"id": call, "function": {"name": name, "arguments": arguments}})
            case {"type": "tool_result", "tool_use_id": str(call), **rest} if isinstance(
                content := rest.get("content") or "", str | list
            ):  # yielded at once: Anthropic's rule is that results come before texts
                n_results += 1
                yield Message.model_validate({"role": "tool", "tool_call_id": call, "content": as_content(content)})
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "thinking", **rest} if rest.get("thinking") is None:
                pass
            case {"type": "redacted_thinking"}:  # it is encrypted, and only the service that wrote it can read it
                pass
            case dict() if _is_foreign(block):
                pass
            case {"type": "tool_use" | "tool_result" | "thinking" as kind}:
                raise ValueError(f"block {k} misses fields of a {kind}")
            case _:
                assert isinstance(texts, list)
                texts.append(block)
    if texts or calls or not n_results:
        shown = {"tool_calls": calls or None, "reasoning_content": "\n".join(thoughts) or None}
        message = {"role": turn.role, "content": as_content(texts)} | shown
        yield Message.model_validate((turn.model_extra or {}) | message)


class AnthropicChoice(PartFields):
    """The `tool_choice` of a request."""

    type: Literal["auto", "any", "tool", "none"] = Field(
        description="any: the answer must have a call. tool: a call of the tool with this name."
    )
    name: str | None = Field(None, description="the name of the tool that must be called.")
    disable_parallel_tool_use: bool = Field(False, description="the answer has at most one call.")


class MessagesFields(SamplingFields, ModelFields):
    """The body of `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

    own_names = frozenset({"stop_sequences"})

    messages: list[AnthropicTurn] = Field(description="the conversation.")
    system: Text | None = Field(None, description="the system message, a text or blocks of the type text.")
    tools: ToolList | None = Field(
        None,
        description="functions that the model may call, each with the JSON schema `input_schema`, which its input "
        "matches.",
    )
    tool_choice: AnthropicChoice | None = Field(
        None, description="whether the model may call tools, or must, and which one."
    )
    output_config: dict[str, Any] | None = Field(
        None, description='its `format`: {"type": "json_schema", "schema": ...}, which the text matches.'
    )
    output_format: dict[str, Any] | None = Field(None, description="the same format, by its older name.")
    thinking: Any = Field(
        None,
        description='{"type": "disabled"}: the template gets `enable_thinking`: false. Other types change nothing.',
    )
    stream: bool = Field(False, description="answer with a stream of events.")
    detach: bool | None = Field(None, description="the request goes on when its connection is closed.")

    @property
    def structure(self) -> dict[str, Any]:
        """What the text must match, as the `response_format` of chats. Raises `InvalidRequestError`."""
        configured = (self.output_config or {}).get("format")
        form = self.output_format if configured is None else configured
        if not form:
            return {}
        if (
            not isinstance(form, dict)
            or form.get("type") != "json_schema"
            or not isinstance(form.get("schema"), dict | bool)
        ):
            name = "output_format" if configured is None else "output_config.format"
            raise InvalidRequestError(
                f'{name} must be {{"type": "json_schema", "schema": {{...}}}}, got {show(form)}', param=name
            )
        return {"response_format": form}

    @property
    def may_think(self) -> bool:
        """Whether the answer may begin with thoughts."""
        return not (isinstance(self.thinking, dict) and self.thinking.get("type") == "disabled")

    @property
    def chat(self) -> dict[str, Any]:
        """The conversation and the tools in OpenAI's notation for chats."""
        conversation = [*system_message(self.system), *(each for turn in self.messages for each in turn._messages)]
        choice = self.tool_choice
        asked = {
            "messages": conversation,
            "tools": self.tools or [],
            "chat_template_kwargs": None if self.may_think else {"enable_thinking": False},
        }
        if choice is None:
            return asked
        named = {"type": "function", "function": {"name": choice.name}}
        return asked | {
            "tool_choice": {"any": "required", "tool": named}.get(choice.type, choice.type),
            "parallel_tool_calls": False if choice.disable_parallel_tool_use else None,
        }


def parse_messages(fields: MessagesFields, context: RequestContext) -> Reply:
    """Continue a conversation, as in Anthropic's API: a message, or events."""
    parsed = parse_one(
        fields,
        fields,
        context,
        prefix="msg_",
        model=fields.model,
        stream=fields.stream,
        detach=fields.detach,
        **fields.chat,
        **fields.structure,
    )
    parsed.ignored.extend(f"output_config.{name}" for name in fields.output_config or () if name != "format")
    parsed.ignored.extend(f"messages[{k}].{name}" for k, turn in enumerate(fields.messages) for name in turn.left_out)
    if isinstance(fields.thinking, dict):
        parsed.ignored.extend(f"thinking.{name}" for name in fields.thinking if name != "type")
    elif fields.thinking is not None:
        parsed.ignored.append("thinking")
    form = AnthropicMessage(parsed.completion.id, context.limits.model)
    make = partial(Response, form, parsed.completion.id, parsed.reader)
    return Reply.of(parsed, make, frame=SSE_TYPED)


def count_tokens(fields: MessagesFields, context: RequestContext) -> dict[str, Any]:
    """Count the tokens of the prompt of such a conversation."""
    return count_prompt(validate(fields.chat, CompletionFields), context, "messages")


def error_json(error: SrbError) -> dict[str, Any]:
    """The body of an error."""
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


@dataclass(frozen=True)
class AnthropicMessage:
    """Anthropic's message and events. id: that of the message. model: the name of the model."""

    id: str
    model: str

    def body(self, answer: Answer) -> dict[str, Any]:
        """The message of a finished request."""
        stop = answer[0].stop
        assert stop
        content = [_block(item, item.text, item.arguments) for item in answer[0].items]
        shown = [
            block for block in content if block.get("text") or block.get("input") is not None or "thinking" in block
        ]
        return self._message(answer, shown) | _end(answer[0], stop) | {"usage": _usage(answer, stop.length)}

    def chunk(self, answer: Answer, event: Event, changes: list[Change]) -> Iterator[dict[str, Any]]:
        """Anthropic's events for an event."""
        if isinstance(event, ErrorEvent):
            yield error_json(event.error)
        elif isinstance(event, StartEvent) or (isinstance(event, StopEvent) and not answer.start):
            yield {"type": "message_start", "message": self._message(answer, [])}
        for change in changes:
            yield from _events_of(change)
        if isinstance(event, StopEvent):
            yield {"type": "message_delta", "delta": _end(answer[0], event), "usage": _usage(answer, event.length)}
            yield {"type": "message_stop"}

    def _message(self, answer: Answer, content: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content}
        return head | {"stop_reason": None, "stop_sequence": None, "usage": _usage(answer, 0)}


def _usage(answer: Answer, n_generated: int) -> dict[str, int]:
    """The numbers of tokens. Each token of the prompt counts either as input or as read from the cache."""
    cached = answer.start.cached_tokens if answer.start else 0
    return {
        "input_tokens": answer.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": n_generated,
    }


def _end(alternative: Alternative, stop: StopEvent) -> dict[str, Any]:
    """Why the message ended. One that the server aborted is paused: a client may send it back to continue it."""
    if alternative.ends_with_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if stop.finish_reason == "stop":
        text = stop.stop_reason if isinstance(stop.stop_reason, str) else None  # clients expect no token id here
        return {"stop_reason": "end_turn" if text is None else "stop_sequence", "stop_sequence": text}
    return {"stop_reason": "max_tokens" if stop.finish_reason == "length" else "pause_turn", "stop_sequence": None}


def _block(item: Item, text: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
    """The block of thoughts, of a text, or of a call with its arguments."""
    if item.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    if item.kind == "text":
        return {"type": "text", "text": text}
    return {"type": "tool_use", "id": item.id, "name": item.name, "input": arguments}


def _events_of(change: Change) -> Iterator[dict[str, Any]]:
    """Anthropic's events for a change."""
    item, position = change.item, {"index": change.item.index}
    delta: dict[str, Any] | None = None
    if change.kind == "begin":
        yield {"type": "content_block_start", **position, "content_block": _block(item, "", {})}
    elif change.kind == "end" and item.kind == "reasoning":
        delta = {"type": "signature_delta", "signature": ""}
    elif change.text:
        delta = {
            "reasoning": {"type": "thinking_delta", "thinking": change.text},
            "text": {"type": "text_delta", "text": change.text},
            "call": {"type": "input_json_delta", "partial_json": change.text},
        }[item.kind]
    if delta:
        yield {"type": "content_block_delta", **position, "delta": delta}
    if change.kind == "end":
        yield {"type": "content_block_stop", **position}
