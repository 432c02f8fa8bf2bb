"""`/lora-adapters`, and `lora` in bodies."""

from typing import Any

import pytest
from fake_backend import FakeBackend
from server.conftest import Client, Connect, refused

from srb.engine.lora import Adapter

ADAPTERS = (Adapter("plain", "a.gguf", "aa", 0.0), Adapter("wild", "b.gguf", "bb", 1.0))


@pytest.fixture
async def client(connect: Connect) -> Client:
    return await connect(FakeBackend(adapters=ADAPTERS))


async def texts(client: Client, **body: Any) -> list[str]:
    body = {"prompt": "Once upon a time", "max_tokens": 12, "seed": 3, "ignore_eos": True} | body
    response = await client.post("/openai/v1/completions", json=body)
    answer = await response.json()
    assert response.status == 200, answer
    return [each["text"] for each in answer["choices"]]


async def test_they_are_listed_and_set(client: Client) -> None:
    listed = await (await client.get("/lora-adapters")).json()
    assert listed == [
        {"id": 0, "name": "plain", "path": "a.gguf", "scale": 0.0},
        {"id": 1, "name": "wild", "path": "b.gguf", "scale": 1.0},
    ]
    before = await texts(client)
    answer = await client.post("/lora-adapters", json=[listed[0] | {"scale": 0.5}])  # as it was listed
    assert await answer.json() == {"success": True}
    assert [each["scale"] for each in await (await client.get("/lora-adapters")).json()] == [0.5, 0.0]
    assert before != await texts(client) == await texts(client, lora=[{"name": "plain", "scale": "0.5"}])
    assert before == await texts(client, lora=[{"id": 1}])


async def test_branches_have_their_own(client: Client) -> None:
    branches: list[dict[str, Any]] = [{"lora": []}, {"lora": [{"id": "wild"}]}, {}, {"lora": None}]
    said = await texts(client, branches=[{**each, "seed": 3} for each in branches], lora=[{"id": 0, "scale": 1}])
    plain, wild, own, none = said
    assert plain != wild != own
    assert own == none == (await texts(client, lora=[{"id": 0}]))[0]


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ([{"id": 2}], "there is no adapter 2; there are 0 (plain), 1 (wild)"),
        ([{"scale": 1}], 'an adapter has an "id" or a "name"'),
        ([{"id": 0, "scale": 1e9}], "from -100 to 100"),
        ({"id": 0}, "Input should be a valid list"),
    ],
)
async def test_what_is_refused(client: Client, lora: Any, message: str) -> None:
    await refused(client, "/v1/completions", {"prompt": "a", "lora": lora}, "lora", message)


async def test_a_body_that_is_no_list(client: Client) -> None:
    await refused(client, "/lora-adapters", {"id": 0}, None, "the body must be a JSON list, got an object")
    await refused(client, "/lora-adapters", [{"id": 0, "scale": "much"}], "[0].scale")
