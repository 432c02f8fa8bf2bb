"""The formats that generate, each with a body and a reader of its text, for tests of fields that all of them have."""

import json
from typing import Any

import pytest
from fake_backend import END, Script
from server.conftest import Client

from srb.engine.sampling_params import SamplingParams
from srb.llama.model.chat_template import ChatTemplate

TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}>")
HELLO = [{"role": "user", "content": "hi"}]

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("/v1/completions", {"prompt": "p<a>", "n": 1, "stream": "events"}),
    "completions": ("/v1/completions", {"prompt": "p<a>", "model": "fake"}),
    "chat": ("/v1/chat/completions", {"messages": HELLO, "model": "fake"}),
    "responses": ("/v1/responses", {"input": "hi", "model": "fake"}),
    "messages": ("/v1/messages", {"messages": HELLO, "model": "fake", "max_tokens": 40}),
    "llama-server": ("/completion", {"prompt": "p<a>"}),
    "kobold": ("/api/v1/generate", {"prompt": "p<a>"}),
    "ollama": ("/api/generate", {"prompt": "p<a>", "raw": True, "stream": False}),
    "ollama chat": ("/api/chat", {"messages": HELLO, "stream": False}),
}
STREAMED = {
    **{name: {"stream": True} for name in FORMATS},
    "native": {},
    "kobold": {},
}
in_all_formats = pytest.mark.parametrize("name", FORMATS)


def writes(text: bytes) -> Script:
    """Writes a text after the last > of the prompt, and ends."""

    def script(_params: SamplingParams, tokens: tuple[int, ...]) -> int:
        n_written = tokens[::-1].index(ord(">"))
        return text[n_written] if n_written < len(text) else END

    return script


def body_of(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A body of this format with further sampling fields."""
    body = FORMATS[name][1]
    return body | ({"options": fields} if name.startswith("ollama") else fields)


async def text_of(client: Client, name: str, **fields: Any) -> str:
    """The text that a format answers, which must be the same as an object and as a stream."""
    path, body = FORMATS[name][0], body_of(name, fields)
    response = await client.post(path, json=body)
    assert response.status == 200, await response.text()
    assert "x-srb-ignored" not in response.headers, response.headers
    streamed = path.replace("/v1/generate", "/extra/generate/stream")
    chunks = await (await client.post(streamed, json=body | STREAMED[name])).text()
    assert chunks.isascii()
    pieces = [json.loads(line.removeprefix("data: ")) for line in chunks.split("\n") if "{" in line]
    text = "".join(map(_piece, pieces))
    if name != "native":
        answer = await response.json()
        assert _whole(answer) == text
    return text


def _piece(chunk: dict[str, Any]) -> str:
    match chunk:
        case {"choices": [{"text": str(text)}]} | {"choices": [{"delta": {"content": str(text)}}]}:
            return text
        case {"type": "content_block_delta", "delta": {"text": str(text)}}:
            return text
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return text
        case {"event": "stream", "text": str(text)} | {"content": str(text)} | {"token": str(text)}:
            return text
        case {"response": str(text)} | {"message": {"content": str(text)}}:
            return text
    return ""


def _whole(answer: dict[str, Any]) -> str:
    match answer:
        case {"choices": [{"text": str(text)}]} | {"choices": [{"message": {"content": str(text)}}]}:
            return text
        case {"output": [*_, {"content": [{"text": str(text)}]}]} | {"results": [{"text": str(text)}]}:
            return text
        case {"content": [{"text": str(text)}]} | {"content": str(text)}:
            return text
        case {"response": str(text)} | {"message": {"content": str(text)}}:
            return text
        case {"content": []}:
            return ""
    raise AssertionError(answer)
