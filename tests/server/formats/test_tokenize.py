"""Tokens as the clients of several servers ask for them, with what these send. On the fake backend."""

from typing import Any

import pytest
from fake_backend import END, ByteTokenizer, FakeBackend
from server.conftest import Client, Connect

from srb.engine.model import SpecialTokens
from srb.llama.model.chat_template import ChatTemplate

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
WRITTEN = list(b"user: Hi\nassistant:")


class Marking(ByteTokenizer):
    """Begins prompts with a token, and ends what isn't parsed with another."""

    def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        return (1,) * is_prompt + tuple(text.encode()) + (2,) * (not parse_special)


def backend(tokenizer: ByteTokenizer | None = None) -> FakeBackend:
    return FakeBackend(n_cells=256, tokenizer=tokenizer or ByteTokenizer(), chat_template=ChatTemplate(TEMPLATE))


async def answer(client: Client, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status == 200, await response.text()
    return await response.json()


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])  # SillyTavern's vllm type, and its aphrodite type
async def test_vllm(connect: Connect, path: str) -> None:
    client = await connect(backend())
    assert await answer(client, path, model="fake", prompt="hé") == {
        "count": 3,
        "max_model_len": 256,
        "tokens": list("hé".encode()),
        "token_strs": None,
    }
    assert (await answer(client, path, prompt=""))["count"] == 0
    assert (await answer(client, path, prompt="x" * 1_000))["count"] == 1_000  # more than the context
    chat = await answer(client, path, model="fake", **CHAT, return_token_strs=True)
    assert (chat["count"], chat["tokens"]) == (len(WRITTEN), WRITTEN)
    assert "".join(chat["token_strs"]) == "user: Hi\nassistant:"


async def test_bos_is_counted_where_it_would_be_evaluated(connect: Connect) -> None:
    client = await connect(backend(Marking()))
    assert (await answer(client, "/tokenize", content="a"))["tokens"] == [97]
    assert (await answer(client, "/tokenize", prompt="a"))["tokens"] == [1, 97]
    assert (await answer(client, "/tokenize", prompt="a", add_special_tokens=False))["tokens"] == [97]
    assert (await answer(client, "/tokenize", **CHAT))["tokens"] == [1, *WRITTEN]
    assert (await answer(client, "/v1/token/encode", text="a"))["tokens"] == [1, 97]
    assert (await answer(client, "/v1/token/encode", text="a", add_bos_token=False))["tokens"] == [97]
    assert (await answer(client, "/v1/token/encode", text="a", encode_special_tokens=False))["tokens"] == [1, 97, 2]
    count = await answer(client, "/v1/chat/completions/input_tokens", **CHAT)
    completion = await answer(client, "/v1/chat/completions", **CHAT, max_tokens=1)
    assert count["input_tokens"] == completion["usage"]["prompt_tokens"] == len(WRITTEN) + 1


async def test_lm_eval_remote_tokenizer(connect: Connect) -> None:
    served = backend()
    served.tokenizer.special = SpecialTokens(eos=END)
    client = await connect(served)
    info = await (await client.get("/tokenizer_info")).json()
    assert (info["eos_token"], info["bos_token"], info["chat_template"]) == ("<END>", None, TEMPLATE)
    tokens = (await answer(client, "/tokenize", prompt="test", add_special_tokens=False))["tokens"]
    assert (await answer(client, "/detokenize", tokens=tokens))["prompt"] == "test"


async def test_tabby(connect: Connect) -> None:
    """Its status check and its counts in SillyTavern, and its own fields."""
    client = await connect(backend())
    assert [model["id"] for model in (await (await client.get("/v1/model/list")).json())["data"]] == ["fake"]
    card = await (await client.get("/v1/model")).json()
    assert (card["id"], card["parameters"]) == ("fake", {"max_seq_len": 256})
    assert await answer(client, "/v1/token/encode", text="ab") == {"tokens": [97, 98], "length": 2}
    assert (await answer(client, "/v1/token/encode", text=CHAT["messages"]))["tokens"] == WRITTEN
    assert await answer(client, "/v1/token/decode", tokens=[97, 98]) == {"text": "ab"}


async def test_the_routes_below_openai(connect: Connect) -> None:
    client = await connect(backend())
    for path in ("/v1/model/list", "/v1/model", "/v1/internal/model/info", "/tokenizer_info", "/props"):
        answers = [await (await client.get(base + path)).json() for base in ("", "/openai")]
        assert answers[0] == answers[1]
    assert await answer(client, "/openai/tokenize", content="ab") == {"tokens": [97, 98]}
    for path in ("/openai/v1/token/encode", "/openai/v1/internal/encode"):
        assert await answer(client, path, text="ab") == {"tokens": [97, 98], "length": 2}


async def test_text_generation_webui(connect: Connect) -> None:
    client = await connect(backend())
    assert (await (await client.get("/v1/internal/model/info")).json())["model_name"] == "fake"
    assert await answer(client, "/v1/internal/encode", text="ab") == {"tokens": [97, 98], "length": 2}
    assert await answer(client, "/v1/internal/decode", tokens=[97, 98]) == {"text": "ab"}
    assert await answer(client, "/v1/internal/token-count", text="ab") == {"length": 2}


async def test_the_tokens_of_a_chat_are_counted_without_running_it(connect: Connect) -> None:
    served = backend()
    client = await connect(served)
    body: dict[str, Any] = {**CHAT, "model": "fake", "response_format": {"type": "json_object"}, "stream": True}
    got = await answer(client, "/v1/chat/completions/input_tokens", **body)
    assert got == {"object": "response.input_tokens", "input_tokens": len(WRITTEN)}
    assert served.decodes == 0


async def test_what_has_no_effect_is_reported(connect: Connect) -> None:
    client = await connect(backend())
    body: dict[str, Any] = {"content": "a", "prompt": "b", "model": "other", "add_generation_prompt": False}
    response = await client.post("/tokenize", json=body | CHAT)
    assert response.headers["x-srb-ignored"] == "add_generation_prompt, prompt, messages, model"
    response = await client.post("/v1/token/decode", json={"tokens": [], "decode_special_tokens": True})
    assert response.headers["x-srb-ignored"] == "decode_special_tokens"
