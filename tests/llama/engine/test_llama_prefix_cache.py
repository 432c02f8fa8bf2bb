"""Cells that are shared, saved and restored in the real llama.cpp are those that would have been computed."""

import dataclasses
from pathlib import Path

import pytest
from driver import evaluated, request, run
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.engine.events import Event, StreamEvent
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend
from srb.llm import LLM
from srb.options.settings import Settings

STORY = "".join(chr(97 + (i * i) % 26) for i in range(100))


@pytest.fixture(scope="module", params=["llama", "gemma3", "mamba"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LlamaBackend:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", arch=request.param)
    exact = Settings(flash_attn="off", cache_type_k="f32", cache_type_v="f32")
    return LlamaBackend(dataclasses.replace(exact, model=model, ctx_size=1024, parallel=8))


def logprobs_of(events: list[Event]) -> list[list[float]]:
    """The log-probabilities that were reported, by index."""
    found: dict[int, list[float]] = {}
    for event in events:
        if isinstance(event, StreamEvent) and event.token:
            found.setdefault(event.index, []).append(event.token.logprob or 0.0)
    return [found[index] for index in sorted(found)]


def test_scored_texts_share_what_they_begin_with_and_have_their_own_log_probabilities(backend: LlamaBackend) -> None:
    engine, ends = Engine(backend, cache_bytes=10_000_000), ["one", "two, and more", "x", "one more"]
    texts = [STORY[start:] + end for start in (0, 1) for end in ends]
    uncached = dataclasses.replace(request(texts, max_tokens=1), echo=True, logprobs=1, cache_prompt=False)
    expected = logprobs_of(run(engine, uncached))
    cached = dataclasses.replace(uncached, cache_prompt=True, id="cached")
    events = run(engine, cached)
    for said, right in zip(logprobs_of(events), expected, strict=True):
        assert said == pytest.approx(right, abs=1e-4)
    assert evaluated(engine, dataclasses.replace(cached, id="again")) == 0
    assert logprobs_of(run(engine, dataclasses.replace(cached, id="and again"))) == logprobs_of(events)
    for score, right in zip(LLM(engine).score(STORY, ends), expected, strict=False):
        assert score.logprobs == pytest.approx(right[len(STORY) : -1], abs=1e-4)
    assert backend.used_seq_ids() == []


def test_a_state_is_saved_by_one_engine_and_loaded_by_another(backend: LlamaBackend, tmp_path: Path) -> None:
    params = SamplingParams(seed=3, max_tokens=20)
    expected = LLM(Engine(backend, cache_bytes=1 << 24)).generate_texts(STORY, 2, params)
    assert LLM(Engine(backend, cache_bytes=1 << 24)).save(tmp_path / "story", STORY) == len(STORY)
    engine = Engine(backend, cache_bytes=1 << 24)
    assert LLM(engine).load(tmp_path / "story") == tuple(STORY.encode())
    assert LLM(engine).generate_texts(STORY, 2, params) == expected
    assert (engine.stats().prompt_tokens_evaluated, backend.used_seq_ids()) == (0, [])
