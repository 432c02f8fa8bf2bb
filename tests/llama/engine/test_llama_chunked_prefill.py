"""A long prompt in the real llama.cpp while sequences are running."""

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from driver import own, request, run, stops, texts
from fake_backend import IN_STEP
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.engine.events import Event
from srb.engine.request import CompletionRequest
from srb.errors import BackendError
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings

pytestmark = pytest.mark.llama

LONG = tuple(97 + (i * i + i // 26) % 26 for i in range(700))


@pytest.fixture(scope="module", params=["llama", "gemma3", "mamba"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaBackend]:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", arch=request.param)
    exact = Settings(flash_attn="off", cache_type_k="f32", cache_type_v="f32")
    with LlamaBackend(dataclasses.replace(exact, model=model, ctx_size=4096, parallel=8)) as backend:
        yield backend


def run_with_story(backend: LlamaBackend, *requests: CompletionRequest) -> tuple[Engine, list[Event]]:
    """Runs requests while four sequences run."""
    engine = Engine(backend)
    engine.add_request(request("story", 4, max_tokens=700, ignore_eos=True))
    while not engine.stats().tokens_generated:
        engine.step()
    events = run(engine, *requests)
    assert backend.used_seq_ids() == []
    return engine, events


def test_what_is_said_after_it_is_the_same(backend: LlamaBackend) -> None:
    each = CompletionRequest((LONG,), request(n=2, max_tokens=20).branches, id="long")
    _, events = run_with_story(backend, each)
    alone = run(Engine(backend), each)
    assert texts([event for event in events if event.request_id == "long"]) == texts(alone)


def test_others_fork_off_it_in_the_middle(backend: LlamaBackend) -> None:
    ends = [(300, b"one"), (400, b"another"), (700, b""), (700, b"more")]
    requests = [
        CompletionRequest(((*LONG[:n_tokens], *tail),), request(max_tokens=5, seed=k).branches, id=f"{k}")
        for k, (n_tokens, tail) in enumerate(ends)
    ]
    first = CompletionRequest((LONG,), request(max_tokens=5).branches, id="first")
    engine, events = run_with_story(backend, first, *requests)
    assert engine.stats().prompt_tokens_evaluated == 5 + 700 + 3 + 7 + 4
    for each in requests:
        said = texts(own(events, each))
        assert said == texts(run(Engine(backend), each))


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
