"""What is kept of a finished request: only what its readers need, and all of it is counted in `keep_bytes`."""

import gc
from typing import Any

import pytest
from aiohttp import web
from fake_backend import FakeBackend
from server.conftest import Connect
from server.formats.test_media_parts import FORMATS, Seeing

from srb.engine.media import Media
from srb.llama.model.chat_template import ChatTemplate
from srb.serving.event_log import EventLog, memory_of
from srb.wire.context import RequestContext

KEPT: dict[str, Any] = {"keep_seconds": 900, "keep_bytes": 1 << 20}
TEXT = [("/api/v1/generate", {"prompt": "a"}), ("/v1/explore", {"prompt": "a"})]
LONG = "x" * 40_000


@pytest.fixture
def frozen() -> None:
    """Hides what other tests have left from the garbage collector, which is also much faster then."""
    gc.collect()
    gc.freeze()


def there(*kinds: type) -> list[Any]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


async def test_bodies_and_images_are_not_stored(frozen: None, connect: Connect) -> None:
    client = await connect((seeing := Seeing()).backend, **KEPT)
    for path, body in [(path, body) for path, body, _ in FORMATS] + TEXT:
        async with client.post(path, json={"max_tokens": 1, "stream": False} | body) as answer:
            text = await answer.text()  # else the connection isn't used again, and holds its request
            assert answer.status == 200, text
    await client.get("/health")  # the connection holds its last request
    assert len(there(EventLog)) == len(FORMATS) + len(TEXT)  # they are all kept
    assert not [each for each in there(web.BaseRequest) if each.method == "POST"]
    assert there(RequestContext, Media) == []
    assert seeing.prompts


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": LONG, "truncate": "auto"}),
        ("/v1/responses", {"input": "a", "metadata": {"a": LONG}}),
        ("/v1/completions", {"prompt": "a", "n": 1, LONG: 1}),
        ("/v1/completions", {"prompt": "a", "branches": [{"grammar": LONG[k:9_000]} for k in range(4)]}),
        ("/api/v1/generate", {"prompt": "a", **{f"field {k}": k for k in range(500)}}),
    ],
)
async def test_stored_memory_is_counted(connect: Connect, path: str, body: dict[str, Any]) -> None:
    backend = FakeBackend(n_cells=60_000, chat_template=ChatTemplate("{{ messages[0].content[:9] }}"))
    client = await connect(backend, **KEPT | {"keep_bytes": 30_000})
    async with client.post(path, json=body | {"max_tokens": 1, "stream": False}) as answer:
        assert answer.status == 200, await answer.text()
        request_id = answer.headers["X-Request-Id"]
    assert (await client.get(f"/v1/completions/{request_id}")).status == 410
    small = await client.post("/v1/completions", json={"prompt": "a", "n": 1, "stream": False})
    assert (await client.get(f"/v1/completions/{small.headers['X-Request-Id']}")).status == 200


def test_memory_counts_what_is_inside_and_nothing_twice() -> None:
    text = "ж" * 1_000
    assert 2_000 < memory_of(text) < memory_of([{"a": (text, text)}, RequestContext]) < 3_000
    assert memory_of([text, text + "x"]) > 2 * memory_of(text)
