"""What every format does alike."""

import base64
from typing import Any

import pytest
from fake_backend import END, FakeBackend, FakeReader
from server.conftest import Connect
from server.formats.all_formats import FORMATS, TEMPLATE, body_of, in_all_formats, text_of, writes

from srb.engine.sampling_params import SamplingParams
from srb.llama.model.chat_template import ChatTemplate


@in_all_formats
async def test_streams_are_ascii_since_clients_split_lines_at_other_characters(connect: Connect, name: str) -> None:
    text = "a\u2028b\u2029c\x85d \N{CRESCENT MOON}"
    client = await connect(FakeBackend(n_cells=4096, chat_template=TEMPLATE, script=writes(text.encode())))
    assert await text_of(client, name) == text


@in_all_formats
async def test_every_format_has_the_fields_of_the_engine(connect: Connect, name: str) -> None:
    client = await connect(FakeBackend(n_cells=4096, chat_template=TEMPLATE, script=writes(b"a cat, a DOG|c")))
    banned = {"bad_words": ["cat"], "banned_strings": ["(?i)dog"]}
    for fields, text in (
        (banned | {"stop": ["|c"], "include_stop_str_in_output": True}, "a dat, a EOG|c"),
        (banned | {"stop": ["|c"]}, "a dat, a EOG"),
        ({"stop_token_ids": [ord("D")]}, "a cat, a "),
    ):
        assert await text_of(client, name, **fields) == text


@in_all_formats
async def test_what_can_not_be_used_of_samplers_lists_is_reported(connect: Connect, name: str) -> None:
    client = await connect(FakeBackend(n_cells=4096, chat_template=TEMPLATE, script=writes(b"a")))
    fields = {
        "logit_bias": {"97": 1000, "300": -1},
        "stop_token_ids": [-1],
        "dry_sequence_breakers": [f"{k}" for k in range(129)],
    }
    response = await client.post(FORMATS[name][0], json=body_of(name, fields))
    assert response.status == 200, await response.text()
    ignored = response.headers["x-srb-ignored"].split(", ")
    assert sorted(ignored) == [
        "dry_sequence_breakers (all but the first 128)",
        "logit_bias (beyond 100: 1000)",
        "logit_bias (unknown ids: 300)",
        "stop_token_ids (unknown ids: -1)",
    ]


PARTS = ChatTemplate(
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
    "{% endfor %}|{% endfor %}>"
)
CAT = base64.b64encode(b"\x89cat").decode()
URL = f"data:image/png;base64,{CAT}"
_SAID, _IMAGE = {"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": URL}}
_OF_ANTHROPIC = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": CAT}}
_TURNS = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]


def _chat(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "kind"}, *_TURNS, {"role": "user", "content": content} | more]}


def _input(content: Any) -> dict[str, Any]:
    return {"instructions": "kind", "input": [*_TURNS, {"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("path", "body", "files"),
    [
        ("/v1/chat/completions", _chat("hello"), 0),
        ("/v1/chat/completions", _chat([_SAID]), 0),
        ("/v1/chat/completions", _chat([_IMAGE, _SAID]), 1),
        ("/v1/responses", _input("hello"), 0),
        ("/v1/responses", _input([{"type": "input_image", "image_url": URL}, _SAID | {"type": "input_text"}]), 1),
        ("/v1/messages", {"system": "kind", "messages": _chat([_SAID])["messages"][1:]}, 0),
        ("/v1/messages", {"system": "kind", "messages": _chat([_OF_ANTHROPIC, _SAID])["messages"][1:]}, 1),
        ("/api/chat", _chat("hello"), 0),
        ("/api/chat", _chat("hello", images=[CAT]), 1),
        ("/apply-template", _chat([_SAID]), None),
    ],
)
async def test_a_template_that_only_reads_parts_shows_every_text(
    connect: Connect, path: str, body: dict[str, Any], files: int | None
) -> None:
    prompts: list[tuple[int, ...]] = []

    def script(_params: SamplingParams, tokens: tuple[int, ...]) -> int:
        prompts.append(tokens)
        return END

    client = await connect(FakeBackend(n_cells=4096, chat_template=PARTS, script=script, media=FakeReader()))
    response = await client.post(path, json=body | {"stream": False, "max_tokens": 1})
    assert response.status == 200, await response.text()
    if files is None:
        shown = (await response.json())["prompt"].encode()
    else:
        shown = bytes(each for each in prompts[0] if 0 <= each < 256)
        assert (b"<>" in shown) == bool(files)  # the reader's marks around an image
    assert shown.replace(b"<>", b"") == b"system:kind|user:one|assistant:two|user:hello|>"


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/apply-template"]
)
async def test_a_chat_whose_last_text_is_not_in_the_prompt_is_refused(connect: Connect, path: str) -> None:
    client = await connect(FakeBackend(chat_template=ChatTemplate("{{ messages[0].content }}>")))
    said = [*_TURNS, {"role": "user", "content": "hello"}]
    response = await client.post(path, json={"input": said} if path == "/v1/responses" else {"messages": said})
    assert response.status == 400
    assert "leaves the user's last text out" in await response.text()
