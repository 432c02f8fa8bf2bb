"""Images in every format that has them, on the fake backend."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from fake_backend import END, FakeBackend, FakeReader
from server.conftest import Client, Connect

from srb.engine.engine import Engine
from srb.engine.media import Media
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError
from srb.history.history import History
from srb.history.recorder import pack_request, unpack_request
from srb.llama.model.chat_template import ChatTemplate

SOURCE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"
CAT, DOG = b"\x89cat" * 3, b"\x89dog" * 4


def b64(file: bytes) -> str:
    return base64.b64encode(file).decode()


def image(file: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(file)}"}}


def text(of: str) -> dict[str, Any]:
    return {"type": "text", "text": of}


class Seeing:
    """A backend that takes images, and what prompts it has seen, with the name of each image in them."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        names = {
            Media.of(each.name, len(each.tokens), None).tokens: f"[{file[1:4].decode()}]"
            for file in (CAT, DOG)
            for each in FakeReader().read(file)
            if isinstance(each, Media)
        }

        def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
            shown = ""
            while tokens:
                found = next((each for each in names if tokens[: len(each)] == each), tokens[:1])
                shown += names.get(found) or chr(found[0])
                tokens = tokens[len(found) :]
            self.prompts.append(shown)
            return END

        self.backend = FakeBackend(n_cells=1000, chat_template=ChatTemplate(SOURCE), script=script, media=FakeReader())

    @property
    def first(self) -> str:
        return self.prompts[0]


async def post(client: Client, path: str, body: dict[str, Any], status: int = 200) -> Any:
    data = json.dumps({"max_tokens": 1, "seed": 0} | body).encode()
    response = await client.post(path, data=io.BytesIO(data))
    result = await response.json()
    assert response.status == status, result
    return result


def user(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


async def test_images_of_a_chat_stand_where_they_are_in_it(connect: Connect) -> None:
    seeing = Seeing()
    client = await connect(seeing.backend)
    messages = [
        *user(text("What"), text("is"), image(CAT), text("and"), image(DOG)),
        {"role": "assistant", "content": "A <__media__>."},
        {"role": "user", "content": "Sure?"},
    ]
    answer = await post(client, "/v1/chat/completions", {"messages": messages, "n": 2, "model": "fake"})
    assert seeing.first == "u:What\nis<[cat]>and<[dog]>\na:A <__media__>.\nu:Sure?\na:"
    assert len(answer["choices"]) == 2
    assert answer["usage"]["prompt_tokens"] == len(seeing.first) + len(CAT) + len(DOG) - 10
    health = await (await client.get("/health")).json()
    assert health["media_encoded"] == 2


ANTHROPIC_CAT = {"type": "image", "source": {"type": "base64", "data": b64(CAT)}}
INPUT_DOG = {"type": "input_image", "image_url": image(DOG)["image_url"]["url"]}
CALLED = 'u:?\na:<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\nu:'

FORMATS: list[tuple[str, dict[str, Any], str]] = [
    (
        "/v1/messages",
        {"messages": user({"type": "image", "source": {"type": "base64", "data": b64(CAT)}}, text("What?"))},
        "u:<[cat]>What?\na:",
    ),
    (
        "/v1/messages",
        {
            "messages": [
                *user(text("?")),
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
                *user({"type": "tool_result", "tool_use_id": "1", "content": [ANTHROPIC_CAT, text("seen")]}),
            ]
        },
        f"{CALLED}<tool_response>\n<[cat]>seen\n</tool_response>\na:",
    ),
    (
        "/v1/responses",
        {
            "input": [
                *user({"type": "input_text", "text": "?"}),
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": [INPUT_DOG]},
            ]
        },
        f"{CALLED}<tool_response>\n<[dog]>\n</tool_response>\na:",
    ),
    (
        "/v1/responses",
        {"input": user({"type": "input_image", "image_url": image(DOG)["image_url"]["url"]})},
        "u:<[dog]>\na:",
    ),
    (
        "/v1/chat/completions",
        {"messages": user({"type": "input_audio", "input_audio": {"data": b64(DOG), "format": "wav"}}), "model": "x"},
        "u:<[dog]>\na:",
    ),
    ("/api/chat", {"messages": [{"role": "user", "content": "?", "images": [b64(CAT)]}]}, "u:<[cat]>?\na:"),
    ("/api/generate", {"prompt": "?", "images": [b64(CAT)]}, "u:<[cat]>?\na:"),
    (
        "/completion",
        {"prompt": {"prompt_string": "<__media__> or <__media__>?", "multimodal_data": [b64(CAT), b64(DOG)]}},
        "<[cat]> or <[dog]>?",
    ),
    (
        "/v1/completions",
        {"prompt": [{"prompt_string": "<__media__>?", "multimodal_data": [b64(CAT)]}], "model": "fake"},
        "<[cat]>?",
    ),
]


async def test_every_format_has_its_own_way(connect: Connect) -> None:
    client = await connect((seeing := Seeing()).backend)
    for path, body, expected in FORMATS:
        await post(client, path, body | {"stream": False})
        assert seeing.prompts[-1] == expected


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": user(image(b"bad"))}, "no image"),
    (
        "/v1/chat/completions",
        {"messages": user({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}})},
        "base64",
    ),
    (
        "/v1/chat/completions",
        {"messages": user({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}})},
        "data:image",
    ),
    ("/v1/chat/completions", {"messages": user({"type": "image_url", "image_url": {}})}, "image_url"),
    (
        "/v1/chat/completions",
        {"messages": user({"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}})},
        "data:",
    ),
    ("/v1/chat/completions", {"messages": user({"type": "video_url"})}, "'video_url'"),
    ("/v1/chat/completions", {"messages": user(image(CAT)), "echo": True}, "echo"),
    ("/v1/chat/completions/input_tokens", {"messages": user(image(CAT))}, "not here"),
    ("/v1/explore", {"prompt": {"prompt_string": "<__media__>?", "multimodal_data": [b64(CAT)]}}, "not here"),
    ("/completion", {"prompt": {"prompt_string": "?", "multimodal_data": [b64(CAT)]}}, "0 places"),
    ("/completion", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["?"]}}, "base64"),
    ("/completion", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": "?"}}, "multimodal_data"),
    ("/api/generate", {"prompt": "?", "images": [b64(CAT)], "raw": True}, "raw"),
]


async def test_what_cant_be_used_is_a_400(connect: Connect) -> None:
    client = await connect(Seeing().backend)
    for path, body, expected in BROKEN:
        answer = await post(client, path, body, 400)
        assert expected in str(answer["error"])


async def test_a_model_without_a_projector_names_the_option(connect: Connect) -> None:
    client = await connect(FakeBackend(chat_template=ChatTemplate(SOURCE)))
    answer = await post(client, "/v1/chat/completions", {"messages": user(image(CAT))}, 400)
    assert "--mmproj" in answer["error"]["message"]
    assert (await (await client.get("/props")).json())["modalities"] == {"vision": False, "audio": False}
    (model,) = (await (await client.get("/v1/models")).json())["data"]
    assert model["capabilities"] == ["completion"]


async def test_what_the_model_takes_is_reported(connect: Connect) -> None:
    client = await connect(Seeing().backend)
    props = await (await client.get("/props")).json()
    assert (props["modalities"], props["media_marker"]) == ({"vision": True, "audio": True}, "<__media__>")
    (model,) = (await (await client.get("/v1/models")).json())["data"]
    assert model["capabilities"] == ["completion", "multimodal"]
    applied = await post(client, "/apply-template", {"messages": user(image(CAT), text("?"))})
    assert applied["prompt"] == "u:<__media__>?\na:"


async def test_a_body_may_be_as_large_as_photographs_are(connect: Connect) -> None:
    client = await connect(Seeing().backend)
    padded = {"messages": user(image(CAT)), "stream": False, "x": "x" * (5 << 20)}
    await post(client, "/v1/chat/completions", padded)
    client = await connect(FakeBackend(chat_template=ChatTemplate(SOURCE)))
    await post(client, "/v1/chat/completions", padded, 413)


async def test_with_a_history_the_texts_last_and_images_have_no_place_in_stories(
    connect: Connect, tmp_path: Path
) -> None:
    with History(tmp_path / "history.db") as history:
        client = await connect(Seeing().backend, history=history)
        asked = {"messages": user(image(CAT), text("?"))}
        story = await post(client, "/v1/stories", {"title": "t"})
        refused = await post(client, "/v1/chat/completions", asked | {"story": story["id"]}, 400)
        assert "story" in refused["error"]["message"]
        said = await post(client, "/v1/chat/completions", asked | {"n": 2, "stream": False})
        stored = await (await client.get(f"/v1/completions/{said['id']}")).json()
        assert len(stored["choices"]) == 2
        in_history = await (await client.get(f"/v1/history/{said['id']}")).json()
        assert in_history["body"]["messages"] == asked["messages"]
        engine = Engine(Seeing().backend)
        tokens, media = engine.tokenize_parts([CAT, "?"])
        request = CompletionRequest((tokens,), SamplingParams().alternatives(1), media=media)
        unpacked = unpack_request(pack_request(request))
        assert (unpacked.prompts, unpacked.media) == (request.prompts, ())
        with pytest.raises(InvalidRequestError, match="prompt has"):  # after a restart it can't go on
            engine.check(unpacked)
