"""A backend that frees its model and loads it again, on the real llama.cpp."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from driver import run, texts
from tiny_lora import write_tiny_lora
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import UnavailableError
from srb.llama.backend import LlamaBackend
from srb.llm import LLM

Load = Callable[..., LlamaBackend]
PROMPT = tuple(b"It was a dark and stormy night; the rain fell in torrents, except at occasional intervals.")


def asked(grammar: str | None = None) -> CompletionRequest:
    return CompletionRequest(
        (PROMPT,), (SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, grammar=grammar),)
    )


def test_it_goes_on_as_before(load: Load, tiny_model: Path, tmp_path: Path) -> None:
    model = shutil.copy(tiny_model, tmp_path / "model.gguf")
    adapter = write_tiny_lora(tmp_path / "adapter.gguf")
    backend = load(model=model, lora=f"{adapter}:0.5", sleep_idle_seconds=1)
    engine = Engine(backend, cache_bytes=1 << 20)
    said = texts(run(engine, asked()))
    engine.step()  # caches what is computed
    assert not engine.has_work
    engine.sleep()
    engine.sleep()
    engine.add_request(asked('root ::= "x"+'))  # the vocabulary stays
    assert engine.tokenize("text") == tuple(b"text")
    reused = engine.stats().prompt_tokens_cached
    while engine.has_work:
        engine.step()
    assert texts(run(engine, asked())) == said
    assert engine.stats().prompt_tokens_cached > reused, "what was retained is found again"
    engine.sleep()


def test_a_file_that_has_changed(load: Load, tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copy(tiny_model, tmp_path / "model.gguf"))
    engine = Engine(load(model=model, sleep_idle_seconds=1))
    engine.sleep()
    write_tiny_model(tmp_path / "other.gguf", seed=1).rename(model)
    for _ in range(2):  # the second one finds it out, too
        with pytest.raises(UnavailableError, match="has changed while it was asleep"):
            LLM(engine).generate_texts(PROMPT, 2)
    assert not engine.has_work


def test_an_adapter_that_has_changed(load: Load, tmp_path: Path) -> None:
    adapter = write_tiny_lora(tmp_path / "adapter.gguf")
    engine = Engine(load(lora=f"{adapter}:0.5", sleep_idle_seconds=1))
    said = LLM(engine).generate_texts(PROMPT, 1, SamplingParams(temperature=0))
    engine.step()
    engine.sleep()
    original = adapter.rename(tmp_path / "kept.gguf")
    for change in (lambda: None, lambda: adapter.write_bytes(original.read_bytes() + b"more")):
        change()
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"adapter\.gguf|has changed while the model was asleep"):
                LLM(engine).generate_texts(PROMPT, 1)
    original.replace(adapter)
    assert LLM(engine).generate_texts(PROMPT, 1, SamplingParams(temperature=0)) == said


def test_one_that_makes_embeddings_keeps_the_model(load: Load) -> None:
    backend = load(embeddings=True, sleep_idle_seconds=1)
    engine = Engine(backend)
    said = texts(run(engine, asked()))
    engine.step()
    engine.sleep()
    assert backend.embedder
    assert backend.embedder.embed(PROMPT[:8])
    assert texts(run(engine, asked())) == said
