"""What a program saves to a file, and another one loads."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from driver import request, run, texts
from fake_backend import FakeBackend
from memory_store import MemoryStore, StoredEntry

from srb.engine.engine import Engine
from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError, InvalidRequestError
from srb.llm import LLM
from srb.serving.async_engine import AsyncEngine

TEXT = "Once upon a time, there was a king"


@pytest.fixture(params=[None, 0, 8], ids=["full", "recurrent", "window"])
def window(request: pytest.FixtureRequest) -> int | None:
    value: int | None = request.param
    return value


def make(window: int | None = None, cache_bytes: int = 100_000, identity: str = "fake") -> Engine:
    backend = FakeBackend(window=window, identity=identity, script=lambda _params, _tokens: 65)
    return Engine(backend, cache_bytes=cache_bytes)


def test_a_text_that_was_loaded_is_not_computed_again(window: int | None, tmp_path: Path) -> None:
    engine = make(window)
    assert LLM(engine).save(tmp_path / "king", TEXT) == len(TEXT)
    assert engine.stats().prompt_tokens_evaluated == len(TEXT)
    assert LLM(engine).save(str(tmp_path / "again"), TEXT) == len(TEXT)
    assert engine.stats().prompt_tokens_evaluated == len(TEXT)
    assert (engine.stats().cells, engine.has_work) == (0, False)
    other = make(window)
    tokens = LLM(other).load(str(tmp_path / "king"))
    assert tokens == tuple(TEXT.encode())
    assert LLM(other).generate_texts(tokens, 2, SamplingParams(max_tokens=5)) == ["AAAAA"] * 2
    assert other.stats().prompt_tokens_evaluated == 0
    LLM(other).generate_texts((*tokens, 66, 67))
    assert other.stats().prompt_tokens_evaluated == 2


def test_a_state_whose_logits_the_store_has_lost_can_not_be_continued_if_the_model_forgets(window: int | None) -> None:
    entries, backend = dict[str, StoredEntry](), FakeBackend(window=window)
    each = request(TEXT, n=2, max_tokens=20)
    said = texts(run(Engine(backend, store=MemoryStore(entries)), each))
    store = MemoryStore(entries)
    get, n_read = store.get, itertools.count(1)
    store.get = lambda name: get(name) if next(n_read) == 1 else None  # type: ignore[method-assign]
    assert texts(run(Engine(backend, store=store), dataclasses.replace(each, id="again"))) == said
    assert next(n_read) > 2, "it was asked for the logits"


@pytest.mark.parametrize(("text", "cache_bytes"), [(TEXT, 0), (TEXT, 20), ("too short", 100_000)])
def test_what_is_not_cached_can_not_be_saved(text: str, cache_bytes: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=f"of the text's {len(text)} tokens are cached.*--cache-ram"):
        LLM(make(cache_bytes=cache_bytes)).save(tmp_path / "king", text)
    assert not list(tmp_path.iterdir())


def test_a_file_that_can_not_be_used_is_an_error(tmp_path: Path) -> None:
    LLM(make()).save(tmp_path / "king", TEXT)
    with pytest.raises(InvalidRequestError, match="it was saved with another model"):
        LLM(make(identity="other")).load(tmp_path / "king")
    with pytest.raises(InvalidRequestError, match="there is room for 0 of the 34 tokens"):
        LLM(make(cache_bytes=0)).load(tmp_path / "king")
    with pytest.raises(InvalidRequestError, match="there is no such file"):
        LLM(make()).load(tmp_path / "none")
    (tmp_path / "cut").write_bytes((tmp_path / "king").read_bytes()[:-1])
    with pytest.raises(InvalidRequestError, match="cut can't be loaded"):
        LLM(make()).load(tmp_path / "cut")
    with pytest.raises(FileNotFoundError):
        LLM(make()).save(tmp_path / "no folder" / "king", TEXT)


def test_a_fault_is_raised(tmp_path: Path) -> None:
    backend = FakeBackend(poison="O")
    with pytest.raises(BackendError):
        LLM(Engine(backend, cache_bytes=100_000)).save(tmp_path / "king", TEXT)


async def test_with_asyncio_with_other_requests(tmp_path: Path) -> None:
    def make_async() -> AsyncEngine:
        backend = FakeBackend(script=lambda _params, _tokens: 65)
        return AsyncEngine(lambda _progress: backend, make=lambda each: Engine(each, cache_bytes=100_000))

    async with make_async() as engine:
        await engine.ready()
        async with await engine.submit(request("another", max_tokens=200)):
            assert await engine.save(tmp_path / "king", TEXT) == len(TEXT)
    async with make_async() as engine:
        await engine.ready()
        assert await engine.load(tmp_path / "king") == tuple(TEXT.encode())
        assert await engine.generate_texts(TEXT, 2, SamplingParams(max_tokens=3)) == ["AAA"] * 2
        stats = engine.health.stats
        assert stats
        assert stats.prompt_tokens_evaluated == 0
