"""Results without events: texts, and how likely texts are."""

from collections.abc import Callable

import pytest

from srb.engine.engine import Engine
from srb.errors import InvalidRequestError, NotSupportedError
from srb.llama.backend import LlamaBackend
from srb.llm import LLM
from srb.serving.async_engine import AsyncEngine

Load = Callable[..., LlamaBackend]


async def test_embeddings(load: Load) -> None:
    engine = Engine(backend := load(embeddings=True, pooling="mean"))
    first, again, other = LLM(engine).embed(["a text", tuple(b"a text"), "another one"])
    assert first == again != other
    assert sum(value * value for value in first) == pytest.approx(1)
    assert backend.embedder
    (raw,) = backend.embedder.embed(tuple(b"a text"))
    assert first[0] / first[1] == pytest.approx(raw[0] / raw[1])
    with pytest.raises(InvalidRequestError, match=r"texts\[1\] has 33 tokens; the limit is 32"):
        LLM(engine).embed(["x", "x" * 33])
    with pytest.raises(InvalidRequestError, match=r"write .* around it"):
        LLM(engine).embed("a text")
    for settings, advice in (({}, "embeddings=True"), ({"embeddings": True}, "pooling=")):
        with pytest.raises(NotSupportedError, match=advice):
            LLM(Engine(load(**settings))).embed(["a text"])
    async with AsyncEngine(lambda _progress: load(embeddings=True, pooling="mean")) as client:
        assert await client.embed(["a text"]) == [first]
