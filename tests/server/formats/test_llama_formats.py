"""Grammars, XTC and ends of texts in all formats, on llama.cpp."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from server.conftest import Connect
from server.formats.all_formats import HELLO, in_all_formats, text_of
from tiny_model import EOS, write_tiny_model

from srb.options.settings import Settings

if TYPE_CHECKING:
    from srb.llama.backend import LlamaBackend

pytestmark = pytest.mark.llama


@pytest.fixture
def backend(tmp_path: Path) -> "LlamaBackend":
    """The tiny model; the engine frees it."""
    from srb.llama.backend import LlamaBackend  # not above, because the quick tests are collected without it

    return LlamaBackend(Settings(model=write_tiny_model(tmp_path / "tiny.gguf"), ctx_size=1024, parallel=4))


@in_all_formats
@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ({"grammar": 'root ::= "x"'}, "x"),
        ({"regex": "yy"}, "yy"),
        ({"json_schema": {"const": 1}}, "1"),
        ({"lark": 'start: "z"'}, "z"),
    ],
)
async def test_a_complete_text_ends_although_its_end_is_banned(
    connect: Connect, backend: Any, name: str, constraint: dict[str, Any], text: str
) -> None:
    client = await connect(backend)
    for banned in ({"ignore_eos": True}, {"min_tokens": 9}, {"logit_bias": {str(EOS): False}}):
        assert await text_of(client, name, seed=1, max_tokens=20, **constraint, **banned) == text


async def test_the_siblings_of_a_complete_text_go_on(connect: Connect, backend: Any) -> None:
    client = await connect(backend)
    branches: list[dict[str, Any]] = [{}, {"grammar": 'root ::= "x"'}, {}]
    fields = {"branches": branches, "ignore_eos": True, "max_tokens": 9}
    completion = {"prompt": "p", "model": "m", "seed": 1} | fields
    answer = await (await client.post("/v1/completions", json=completion)).json()
    assert [each["finish_reason"] for each in answer["choices"]] == ["length", "stop", "length"]
    assert answer["choices"][1]["text"] == "x"
    answer = await (await client.post("/completion", json={"prompt": "p", "seed": 1} | fields)).json()
    assert [each["stop_type"] for each in answer] == ["limit", "eos", "limit"]
    answer = await (await client.post("/api/v1/generate", json={"prompt": "p", "seed": 1} | fields)).json()
    assert [each["finish_reason"] for each in answer["results"]] == ["length", "stop", "length"]
    chat = {"messages": HELLO, "model": "m", "seed": 1} | fields
    answer = await (await client.post("/v1/chat/completions", json=chat)).json()
    assert [each["finish_reason"] for each in answer["choices"]] == ["length", "stop", "length"]


@in_all_formats
async def test_xtc_lets_texts_and_lines_end(connect: Connect, backend: Any, name: str) -> None:
    """With the threshold 0, XTC would leave only the least probable token of all."""
    client = await connect(backend)
    xtc = {"xtc_probability": 1.0, "xtc_threshold": 0, "temperature": 0, "samplers": ["xtc", "temperature"]}
    asked = {"logit_bias": {"120": 100}, "max_tokens": 5, "stop_token_ids": [120]}
    assert await text_of(client, name, **asked, **xtc) == ""
    for end, text in ((EOS, ""), (ord("\n"), "\n" * 5)):
        assert await text_of(client, name, logit_bias={str(end): 100}, max_tokens=5, **xtc) == text
