"""A long prompt that is evaluated aside, in the real llama.cpp, while sequences are running."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driver import request, run, stops, texts
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.engine.events import Event
from srb.engine.request import CompletionRequest
from srb.errors import BackendError, ModelLoadError
from srb.llama import LlamaBackend
from srb.llama import backend as module
from srb.settings import Settings

pytestmark = pytest.mark.llama

LONG = tuple(97 + (i * i + i // 26) % 26 for i in range(700))


@pytest.fixture(scope="module", params=["llama", "gemma3", "mamba"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaBackend]:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", arch=request.param)
    exact = Settings(flash_attn="off", cache_type_k="f32", cache_type_v="f32")
    with LlamaBackend(dataclasses.replace(exact, model=model, ctx_size=4096, parallel=8)) as backend:
        yield backend


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONG", 50)


def beside(backend: LlamaBackend, *requests: CompletionRequest) -> tuple[Engine, list[Event], bool]:
    """Runs requests beside four sequences; also returns whether one of them was put aside."""
    engine = Engine(backend)
    engine.add_request(request("story", 4, max_tokens=700, ignore_eos=True))
    while not engine.stats().tokens_generated:
        engine.step()
    for each in requests:
        engine.add_request(each)
    events: list[Event] = []
    was_aside = False
    while engine.has_work:
        events += engine.step()
        was_aside |= backend._aside is not None
    assert backend.held() == []
    return engine, events, was_aside


def test_what_is_said_after_it_is_the_same(backend: LlamaBackend) -> None:
    each = CompletionRequest((LONG,), request(n=2, max_tokens=20).branches, id="long")
    _, events, was_aside = beside(backend, each)
    alone = run(Engine(backend), each)
    assert texts([event for event in events if event.request_id == "long"]) == texts(alone)
    assert was_aside == (backend.shares_prefixes and backend.can_cut_saved)


def test_others_fork_off_it_in_the_middle(backend: LlamaBackend) -> None:
    """Each that does so brings it back; what is shared stays where it was when it goes again."""
    ends = [(300, b"one"), (400, b"another"), (700, b""), (700, b"more")]
    requests = [
        CompletionRequest(((*LONG[:n_tokens], *tail),), request(max_tokens=5, seed=k).branches, id=f"{k}")
        for k, (n_tokens, tail) in enumerate(ends)
    ]
    engine, events, _ = beside(
        backend, CompletionRequest((LONG,), request(max_tokens=5).branches, id="first"), *requests
    )
    if backend.shares_prefixes:
        assert engine.stats().prompt_tokens_evaluated == 5 + 700 + 3 + 7 + 4
    for each in requests:
        said = texts([event for event in events if event.request_id == each.id])
        assert said == texts(run(Engine(backend), each))


def test_it_leaves_nothing_when_it_is_aborted_or_the_decode_fails(
    backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(backend)
    engine.add_request(request("story", 4, max_tokens=300, ignore_eos=True))
    engine.add_request(CompletionRequest((LONG,), request(max_tokens=5).branches, id="aborted"))
    for _ in range(40):
        engine.step()
    engine.abort("aborted")
    engine.step()
    engine.step()
    assert backend._aside is None
    engine.add_request(each := CompletionRequest((LONG,), request(max_tokens=5).branches, id="tried twice"))
    for _ in range(40):
        engine.step()
    fail_once(backend, monkeypatch)
    events = [event for event in run(engine) if event.request_id == each.id]
    assert engine.stats().last_error == "it fails"
    if backend.shares_prefixes:
        assert texts(events) == texts(run(Engine(backend), each))
    else:  # what the failed decode left can't be removed
        assert stops(events)[0].finish_reason == "error"
    assert backend.held() == []


def fail_once(backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second context, if there is one, fails after the first has decoded its rows."""
    context = backend._aside or backend._main
    decode: Callable[..., bool] = context.decode

    def failing(*args: object) -> bool:
        monkeypatch.undo()
        monkeypatch.setattr(module, "_LONG", 50)
        decode(*args)
        raise BackendError("it fails")

    monkeypatch.setattr(context, "decode", failing)


def test_without_memory_for_it_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    with LlamaBackend(Settings(model=model, ctx_size=4096, parallel=8)) as backend:

        def refuse(*_args: object) -> None:
            raise ModelLoadError("no memory")

        monkeypatch.setattr(backend, "_make_context", refuse)
        prompt = CompletionRequest((LONG,), request(max_tokens=5).branches, id="long")
        _, events, was_aside = beside(backend, prompt)
        assert not was_aside
        assert stops([event for event in events if event.request_id == "long"])[0].length == 5
