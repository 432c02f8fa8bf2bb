"""`POST /v1/chat/completions`: parses bodies, and builds OpenAI's messages where they differ from completions."""

from typing import Any, ClassVar

from srb.engine.events import Timings
from srb.wire.answer import Alternative, Change, Item, Tokens
from srb.wire.context import RequestContext
from srb.wire.openai.completions import Completion, content_of, finish, parse_as
from srb.wire.reply import Reply
from srb.wire.reply import timings as timings_json
from srb.wire.request.fields import CompletionFields


def parse_chat(fields: CompletionFields, context: RequestContext) -> Reply:
    """Continue a conversation, in n alternatives: OpenAI's object or chunks, or native events."""
    return parse_as(ChatCompletion, fields, context, chat=True)


class ChatCompletion(Completion):
    """OpenAI's object and chunks of a chat."""

    kind: ClassVar[str] = "chat.completion"
    chunk_kind: ClassVar[str] = "chat.completion.chunk"
    prompt_in_choices: ClassVar[bool] = False
    first: ClassVar[dict[str, Any]] = {"delta": {"role": "assistant", "content": ""}}
    nothing: ClassVar[dict[str, Any]] = {"delta": {}}

    def message(self, alternative: Alternative) -> dict[str, Any]:
        """A message, with the thoughts and calls in the text."""
        content, thoughts = alternative.all_of("text"), alternative.all_of("reasoning")
        message = {"role": "assistant", "content": content, "refusal": None}
        message |= {"reasoning_content": thoughts} if thoughts else {}
        if not alternative.calls:
            return {"message": message}
        calls = [_call(item, item.text) for item in alternative.calls]
        return {"message": message | {"content": content or None, "tool_calls": calls}} | finish(alternative)

    def content(self, change: Change) -> dict[str, Any]:
        item, text = change.item, change.text
        if item.kind != "call":
            return {"delta": {"content" if item.kind == "text" else "reasoning_content": text}} if text else {}
        if change.kind == "begin":
            return {"delta": {"tool_calls": [{"index": item.call, **_call(item, "")}]}}
        return {"delta": {"tool_calls": [{"index": item.call, "function": {"arguments": text}}]}} if text else {}

    def timings(self, timings: Timings | None, n_prompt: int) -> dict[str, Any]:
        return {} if timings is None else {"timings": timings_json(timings, n_prompt)}

    def logprobs(self, tokens: Tokens) -> dict[str, Any]:
        """The probabilities of the message's tokens."""
        return {"content": content_of(tokens.reported), "refusal": None}


def _call(item: Item, arguments: str) -> dict[str, Any]:
    return {"id": item.id, "type": "function", "function": {"name": item.name, "arguments": arguments}}
