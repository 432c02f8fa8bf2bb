"""What is wrong in a body is named, on the routes of KoboldCpp, of llama-server, for responses and for tokens."""

from typing import Any

import pytest
from fake_backend import FakeBackend
from server.conftest import Connect, refused

from srb.llama.model.chat_template import ChatTemplate

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/api/v1/generate", {}, "prompt"),
    ("/api/v1/generate", {"prompt": ["a"]}, "prompt"),
    ("/api/v1/generate", {"prompt": "a", "max_context_length": 0}, "max_context_length"),
    ("/api/v1/generate", {"prompt": "a", "max_length": 9000}, "max_length"),
    ("/api/extra/abort", {"genkey": 1}, "genkey"),
    ("/api/extra/detokenize", {"ids": [257]}, "ids"),
    ("/tokenize", {"prompt": 1.5}, "prompt"),
    ("/tokenize", {"prompt": [257]}, "prompt"),
    ("/tokenize", {"messages": []}, "messages"),
    ("/v1/token/encode", {}, "text"),
    ("/v1/token/encode", {"text": 1.5}, "text"),
    ("/v1/token/decode", {"tokens": [257]}, "tokens"),
    ("/v1/chat/completions/input_tokens", {"prompt": "a"}, "messages"),
    ("/completion", {}, "prompt"),
    ("/completion", {"prompt": "p", "stream": "events"}, "stream"),
    ("/completion", {"prompt": "p", "t_max_predict_ms": -2}, "t_max_predict_ms"),
    ("/completion", {"prompt": "p", "response_fields": "content"}, "response_fields"),
    ("/completion", {"prompt": {"prompt_string": "p", "multimodal_data": ["AAAA"]}}, "prompt"),
    ("/tokenize", {"content": 1.5}, "content"),
    ("/tokenize", {"content": [[1]]}, "content"),
    ("/tokenize", {"content": [257]}, "content"),
    ("/tokenize", {"content": "\ud800"}, "content"),
    ("/tokenize", {"content": "x", "with_pieces": "perhaps"}, "with_pieces"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [True]}, "tokens[0]"),
    ("/infill", {"input_prefix": "a"}, "input_suffix"),
    ("/infill", {"input_suffix": "a"}, "input_prefix"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": [1]}, "prompt"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": {}}, "input_extra"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]}, "input_extra[0].text"),
    ("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
    ("/v1/responses", {"input": "a", "conversation": "conv_1"}, "conversation"),
    ("/v1/responses", {"input": "a", "tool_choice": "required", "tools": [{"name": "x y"}]}, "tool_choice"),
    ("/v1/responses", {"input": "a", "tool_choice": "all", "tools": [{"name": "x"}]}, "tool_choice"),
    ("/v1/responses", {"input": "a", "n": 2}, "n"),
    ("/v1/responses", {"input": [{"type": "function_call_output", "output": "x"}]}, "input[0]"),
    ("/v1/responses", {"input": []}, "input"),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "rs_1"}]}, "input"),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "yaml"}}}, "text.format"),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
]


@pytest.mark.parametrize(("path", "body", "param"), WRONG)
async def test_what_is_wrong_is_named(connect: Connect, path: str, body: dict[str, Any], param: str) -> None:
    client = await connect(FakeBackend(chat_template=ChatTemplate("{{ messages[0].content }}")))
    error = await refused(client, path, body, param)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "param", "limit"),
    [
        ("/api/v1/generate", {"prompt": "a", "sampler_order": [7]}, "sampler_order", "from 0 to 6, got 7"),
        ("/completion", {"prompt": "p", "n_probs": 101}, "logprobs", "from 0 to 100"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "from 0 to 256"),
    ],
)
async def test_the_limit_is_named(connect: Connect, path: str, body: dict[str, Any], param: str, limit: str) -> None:
    await refused(await connect(FakeBackend()), path, body, param, limit)
