"""The routes that rank, over HTTP, on the fake backend."""

from typing import Any

import pytest
from aiohttp import ClientResponse
from fake_backend import FakeBackend
from server.conftest import Connect
from server.routes.test_pooling import FakeEmbedder

TEMPLATE = "{query}:{document}"
PATHS = ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")


async def post(connect: Connect, path: str = "/rerank", **body: Any) -> ClientResponse:
    client = await connect(FakeBackend(embedder=FakeEmbedder(max_tokens=20, rank_template=TEMPLATE)))
    return await client.post(path, json=body)


def score(query: str, document: str) -> int:
    """What the fake embedder says of the two."""
    return sum(f"{query}:{document}".encode())


@pytest.mark.parametrize("path", PATHS)
async def test_the_best_come_first(connect: Connect, path: str) -> None:
    response = await post(connect, path, query="q", documents=["a", {"text": "c"}, "b"], model="other", rank_fields=[])
    assert await response.json() == {
        "object": "list",
        "model": "fake",
        "results": [
            {"index": i, "relevance_score": score("q", document)} for i, document in ((1, "c"), (2, "b"), (0, "a"))
        ],
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
    assert response.headers["x-srb-ignored"] == "rank_fields, model"


async def test_as_tei(connect: Connect) -> None:
    answer = await (await post(connect, query="q", texts=["a", "b"], return_text=True)).json()
    assert answer == [
        {"index": 1, "score": score("q", "b"), "text": "b"},
        {"index": 0, "score": score("q", "a"), "text": "a"},
    ]
    assert await (await post(connect, query="q", texts=["a"])).json() == [{"index": 0, "score": score("q", "a")}]


@pytest.mark.parametrize(("top_n", "expected"), [(1, 1), (2, 2), (99, 3)])
async def test_top_n(connect: Connect, top_n: int, expected: int) -> None:
    answer = await (
        await post(connect, query="q", documents=["a", "b", "c"], top_n=top_n, return_documents=True)
    ).json()
    assert len(answer["results"]) == expected
    assert answer["results"][0]["document"] == {"text": "c"}


async def test_placeholders_in_the_texts_stay(connect: Connect) -> None:
    answer = await (await post(connect, query="{document}", documents=["{query}"])).json()
    assert answer["results"][0]["relevance_score"] == score("{document}", "{query}")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"documents": ["a"]}, "query is missing"),
        ({"query": "q"}, "documents is missing"),
        ({"query": "q", "documents": []}, "documents takes 1 to 2048 texts, got 0"),
        ({"query": "q", "documents": 123}, "documents"),
        ({"query": "q", "documents": [1]}, "documents takes strings, or objects with a string as text; got 1"),
        ({"query": "q", "texts": ["x" * 19]}, "texts: text 0 makes 21 tokens with the query; the limit is 20"),
        ({"query": 1, "documents": ["a"]}, "query"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "\ud800", "documents": ["a"]}, "not valid Unicode"),
    ],
)
async def test_what_is_refused(connect: Connect, body: dict[str, Any], message: str) -> None:
    response = await post(connect, **body)
    assert (response.status, message in (await response.json())["error"]["message"]) == (400, True)


async def test_a_server_does_one_of_the_two_or_neither(connect: Connect) -> None:
    ranks, embeds = (FakeEmbedder(rank_template=each) for each in (TEMPLATE, None))
    for embedder, path, way in (
        (ranks, "/v1/embeddings", "--embeddings"),
        (None, "/v1/embeddings", "--embeddings"),
        (embeds, "/rerank", "--reranking"),
        (None, "/rerank", "--reranking"),
    ):
        response = await (await connect(FakeBackend(embedder=embedder))).post(path, json={})
        assert response.status == 501
        assert way in (await response.json())["error"]["message"]
