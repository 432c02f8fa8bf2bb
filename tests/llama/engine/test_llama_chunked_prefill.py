"""A long prompt in the real llama.cpp while sequences are running."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from driver import own, request, run, stops, texts
from fake_backend import IN_STEP
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.engine.request import CompletionRequest
from srb.errors import BackendError
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings

LONG = tuple(97 + (i * i + i // 26) % 26 for i in range(700))


@pytest.fixture(scope="module", params=["llama", "gemma3", "mamba"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaBackend]:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", arch=request.param)
    exact = Settings(flash_attn="off", cache_type_k="f32", cache_type_v="f32")
    with LlamaBackend(dataclasses.replace(exact, model=model, ctx_size=4096, parallel=8)) as backend:
        yield backend


def test_it_leaves_nothing_when_it_is_aborted_or_the_decode_fails(
    backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaBackend, "costs", IN_STEP)  # so the long prompt joins in small chunks
    engine = Engine(backend)
    engine.add_request(request("story", 4, max_tokens=300, ignore_eos=True))
    engine.add_request(CompletionRequest((LONG,), request(max_tokens=5).branches, id="aborted"))
    for _ in range(40):
        engine.step()
    engine.abort("aborted")
    engine.step()
    engine.step()
    engine.add_request(each := CompletionRequest((LONG,), request(max_tokens=5).branches, id="tried twice"))
    for _ in range(40):
        engine.step()
    decode: Callable[..., bool] = backend.decode

    def failing(*args: object) -> bool:
        """Decodes, and fails once."""
        monkeypatch.undo()
        decode(*args)
        raise BackendError("it fails")

    monkeypatch.setattr(backend, "decode", failing)
    events = own(run(engine), each)
    assert engine.stats().last_error == "it fails"
    if backend.window != 0:
        assert texts(events) == texts(run(Engine(backend), each))
    else:  # what the failed decode left can't be removed
        assert stops(events)[0].finish_reason == "error"
    assert backend.used_seq_ids() == []
