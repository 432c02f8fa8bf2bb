"""`POST /v1/chat/completions`: parses bodies, and builds OpenAI's messages where they differ from completions."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from srb.engine.events import FinishReason, Timings, Token
from srb.wire.context import RequestContext
from srb.wire.openai.completions import Completion, content_of, parse_as
from srb.wire.reasoning import AnswerReader
from srb.wire.reply import Reply
from srb.wire.reply import timings as timings_json
from srb.wire.tools.calls import Delta, call_id


def parse_chat(body: bytes, context: RequestContext) -> Reply:
    """Continue a conversation, in n alternatives: OpenAI's object or chunks, or native events."""
    return parse_as(body, context, chat=True, builder_of=lambda parsed: partial(ChatCompletion, reader=parsed.reader))


class ChatCompletion(Completion):
    """Builds the response of a chat. reader: returns what splits the text of an alternative."""

    kind: ClassVar[str] = "chat.completion"
    chunk_kind: ClassVar[str] = "chat.completion.chunk"
    prompt_in_choices: ClassVar[bool] = False
    first: ClassVar[dict[str, Any]] = {"delta": {"role": "assistant", "content": ""}}

    def __init__(self, request_id: str, *, reader: Callable[[], AnswerReader] = AnswerReader, **more: Any) -> None:
        super().__init__(request_id, **more)
        self._request_id = request_id
        self._reader = reader
        self._readers: dict[int, AnswerReader] = {}

    def whole(self, index: int, text: str, finish_reason: FinishReason | None) -> dict[str, Any]:
        """The fields for an alternative's whole text: a message, with the thoughts and calls in the text."""
        reader = self._reader()
        content, thoughts, calls = "", "", []
        for delta in [*reader.push(text), *reader.flush()]:
            if delta.kind == "text":
                content += delta.text
            elif delta.kind == "reasoning":
                thoughts += delta.text
            elif delta.kind == "name":
                calls.append(self._call(index, delta))
            else:
                calls[-1]["function"]["arguments"] += delta.text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if thoughts:
            message["reasoning_content"] = thoughts
        if not calls:
            return {"message": message}
        return {"message": message | {"content": content or None, "tool_calls": calls}} | _finish(reader, finish_reason)

    def parts(self, index: int, text: str) -> list[dict[str, Any]]:
        reader = self._readers.setdefault(index, self._reader())
        return [self._delta(index, delta) for delta in reader.push(text)]

    def rest(self, index: int) -> list[dict[str, Any]]:
        reader = self._readers.get(index)
        return [self._delta(index, delta) for delta in reader.flush()] if reader else []

    def end(self, index: int, finish_reason: FinishReason | None) -> dict[str, Any]:
        reader = self._readers.get(index)
        return {"delta": {}} | (_finish(reader, finish_reason) if reader else {})

    def _delta(self, index: int, delta: Delta) -> dict[str, Any]:
        if delta.kind == "text":
            return {"delta": {"content": delta.text}}
        if delta.kind == "reasoning":
            return {"delta": {"reasoning_content": delta.text}}
        if delta.kind == "name":
            return {"delta": {"tool_calls": [{"index": delta.call, **self._call(index, delta)}]}}
        return {"delta": {"tool_calls": [{"index": delta.call, "function": {"arguments": delta.text}}]}}

    def _call(self, index: int, delta: Delta) -> dict[str, Any]:
        """A call without its arguments."""
        return {
            "id": call_id(self._request_id, index, delta.call or 0),
            "type": "function",
            "function": {"name": delta.text, "arguments": ""},
        }

    def timings(self, timings: Timings | None, n_prompt: int) -> dict[str, Any]:
        return {} if timings is None else {"timings": timings_json(timings, n_prompt)}

    def logprobs(self, tokens: list[Token], offsets: list[int]) -> dict[str, Any]:
        """The probabilities of the message's tokens."""
        return {"content": content_of(tokens), "refusal": None}


def _finish(reader: AnswerReader, finish_reason: FinishReason | None) -> dict[str, Any]:
    """The finish reason `tool_calls`, if the answer ends with complete calls; else nothing."""
    return {"finish_reason": "tool_calls"} if reader.is_complete and finish_reason == "stop" else {}
