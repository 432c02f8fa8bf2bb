"""JSON in parts is the same JSON."""

import json
from typing import Any

import pytest

from srb.wire import reply as encode_module
from srb.wire.reply import encode

TOKEN = {"token": "é\ud800", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [{"id": 1}, {}, None]}
SMALL: list[Any] = [None, 1, "é", [], {}, {"a": []}, [1] * 10_000]
LARGE: list[Any] = [
    {"choices": [{"text": "t", "logprobs": {"content": [TOKEN] * 300, "none": None}}] * 3, "usage": {}},
    [[TOKEN] * 1_000, [], "text", 1.5, True, None],
    {"": [[]] * 1_000, "seeds": (1, 2)},
    [[[[[[{}] * 600]]]]],
    [[0.5] * 1_000] * 100,
]


@pytest.mark.parametrize("value", [*SMALL, *LARGE], ids=lambda value: str(value)[:20])
def test_it_is_what_json_writes(value: Any) -> None:
    assert encode(value) == json.dumps(value).encode()


@pytest.mark.parametrize("value", LARGE, ids=lambda value: str(value)[:20])
def test_no_part_is_large(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """json's encoder lets no other thread run, so it must never get much at once."""
    parts: list[str] = []

    def dumps(part: Any) -> str:
        parts.append(text := json.dumps(part))
        return text

    monkeypatch.setattr(encode_module, "json", type("json", (), {"dumps": staticmethod(dumps)}))
    encode(value)
    assert max(part.count("{") + part.count("[") for part in parts) <= 501
    assert max(map(len, parts)) <= 150_000
