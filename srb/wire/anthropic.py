"""Anthropic's wire format: `/v1/messages`. Pure functions."""

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import Field

from srb.engine.events import ErrorEvent, Event, StopEvent, StreamEvent
from srb.errors import SrbError
from srb.wire.body import chat_prompt
from srb.wire.completion_fields import CompletionFields
from srb.wire.fields import SamplingFields
from srb.wire.messages import Message, Text, system_message
from srb.wire.one import Answer, answer_of, parse_one, refuse_tools
from srb.wire.read import depth_refused, read_fields, validate
from srb.wire.reply import Reply, Serving
from srb.wire.tokens import Answer as Counted
from srb.wire.tokens import Vocabulary

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""What errors are called, by their status. Other faults of a request are `invalid_request_error`, ours `api_error`."""


class MessagesFields(SamplingFields):
    """The body of `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

    model: str | None = Field(None, description="there is one; another name is ignored, and reported.")
    messages: list[Message] = Field(description="the conversation, with texts, or blocks of the type text.")
    system: Text | None = Field(None, description="the system message, a text or blocks of the type text.")
    tools: list[Any] | None = Field(None, description="refused, unless empty.")
    stream: bool = Field(False, description="answer with events.")

    @property
    def conversation(self) -> list[Message]:
        """The messages, with the system's first."""
        return [
            *system_message(self.system),
            *self.messages,
        ]


def messages(body: bytes, serving: Serving) -> Reply:
    """Reads the body of `POST /v1/messages`."""
    with depth_refused():
        fields = read_fields(body, MessagesFields)
        refuse_tools(fields.tools)
        parsed = parse_one(
            fields,
            fields,
            serving,
            prefix="msg_",
            messages=fields.conversation,
            model=fields.model,
            stream=fields.stream,
        )

    def begin() -> Callable[[list[Event]], Any]:
        out = _Out(parsed.completion.id, serving.limits.model)
        return out.chunks if fields.stream else out.object

    return Reply(parsed.completion, parsed.ignored, fields.stream, begin)


def count_tokens(data: bytes, vocabulary: Vocabulary) -> Counted:
    """`POST /v1/messages/count_tokens`: how many tokens the prompt has."""
    fields = read_fields(data, MessagesFields)
    refuse_tools(fields.tools)
    asked = validate({"messages": fields.conversation}, CompletionFields)
    text = chat_prompt(asked, vocabulary.template)
    return {"input_tokens": len(vocabulary.encode(text, "messages"))}, []


def error(error: SrbError) -> dict[str, Any]:
    """The body of an error."""
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class _Out:
    """A message on its way out."""

    def __init__(self, message_id: str, model: str) -> None:
        self._head = {"id": message_id, "type": "message", "role": "assistant", "model": model}
        self._answer = Answer()
        self._begun = False

    def object(self, events: list[Event]) -> dict[str, Any]:
        """The message of a request that is over. Raises `SrbError` if it broke."""
        self._answer = answer = answer_of(events)
        assert answer.stop
        content = [{"type": "text", "text": answer.text}] if answer.text else []
        return self._message(content) | _end(answer.stop) | {"usage": self._usage(answer.stop.length)}

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The events of some of a stream's."""
        for event in events:
            if isinstance(event, ErrorEvent):
                yield error(event.error)
                continue
            self._answer.take(event)
            if not self._begun:
                self._begun = True
                yield {"type": "message_start", "message": self._message([])}
                yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            match event:
                case StreamEvent(text=text) if text:
                    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
                case StopEvent():
                    yield {"type": "content_block_stop", "index": 0}
                    yield {"type": "message_delta", "delta": _end(event), "usage": self._usage(event.length)}
                    yield {"type": "message_stop"}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        end = {"stop_reason": None, "stop_sequence": None}
        return self._head | {"content": content} | end | {"usage": self._usage(0)}

    def _usage(self, n_generated: int) -> dict[str, int]:
        """Tokens of the prompt count as input or as read from the cache."""
        start = self._answer.start
        prompt, cached = (start.prompt_tokens, start.cached_tokens) if start else (0, 0)
        return {
            "input_tokens": prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": n_generated,
        }


def _end(stop: StopEvent) -> dict[str, Any]:
    """Why it ended. What the server has ended early may be sent back and continued: that's a pause."""
    if stop.finish_reason == "stop":
        reason = "stop_sequence" if stop.stop_reason else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop.stop_reason}
    reason = "max_tokens" if stop.finish_reason == "length" else "pause_turn"
    return {"stop_reason": reason, "stop_sequence": None}
