"""Cells that are shared, saved and restored in the real llama.cpp are those that would have been computed."""

import dataclasses
from pathlib import Path

import pytest
from driver import request, run, texts
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.engine.events import Event, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend
from srb.llm import LLM
from srb.options.settings import Settings

pytestmark = pytest.mark.llama

STORY = "".join(chr(97 + (i * i) % 26) for i in range(100))


@pytest.fixture(scope="module", params=["llama", "gemma3", "mamba"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LlamaBackend:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", arch=request.param)
    exact = Settings(flash_attn="off", cache_type_k="f32", cache_type_v="f32")
    return LlamaBackend(dataclasses.replace(exact, model=model, ctx_size=1024, parallel=8))


def evaluated(engine: Engine, each: CompletionRequest) -> int:
    before = engine.stats().prompt_tokens_evaluated
    run(engine, each)
    return engine.stats().prompt_tokens_evaluated - before


def answer_of(engine: Engine) -> tuple[int, ...]:
    """The first tokens of an answer to the story, which are cached."""
    each = dataclasses.replace(request(STORY, 2, max_tokens=60, ignore_eos=True), return_tokens=True)
    events = run(engine, each)
    return tuple(
        token for event in events if isinstance(event, StreamEvent) and event.index == 0 for token in event.tokens
    )


def foresight(engine: Engine, prompt: tuple[int, ...]) -> dict[int, float]:
    """What the model expects after a prompt: the likeliest tokens with their logprobs."""
    branches = request(max_tokens=1).branches
    events = run(engine, CompletionRequest((prompt,), branches, logprobs=20))
    token = next(event.token for event in events if isinstance(event, StreamEvent) and event.token)
    return {each.id: each.logprob or 0.0 for each in token.top_logprobs}


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


def test_a_repeated_request_says_the_same_and_evaluates_nothing(backend: LlamaBackend) -> None:
    engine = Engine(backend, cache_bytes=10_000_000)
    each = request(STORY, 4, max_tokens=30)
    first = texts(run(engine, each))
    assert texts(run(engine, dataclasses.replace(each, id="again"))) == first
    assert engine.stats().prompt_tokens_evaluated == 100
    assert backend.used_seq_ids() == []


@pytest.mark.parametrize(("length", "line"), [(0, "x"), (10, "line"), (59, "line"), (60, "line")])
def test_a_continued_answer_is_as_if_it_had_been_evaluated(backend: LlamaBackend, length: int, line: str) -> None:
    """From its beginning, from its middle, and from its end."""
    engine = Engine(backend, cache_bytes=10_000_000)
    prompt = (*STORY.encode(), *answer_of(engine)[:length], *line.encode())
    assert foresight(engine, prompt) == pytest.approx(foresight(Engine(backend), prompt), abs=2e-3)
    assert backend.used_seq_ids() == []


def test_a_running_answer_is_forked_in_the_middle(backend: LlamaBackend) -> None:
    answer = answer_of(Engine(backend))
    prompt = (*STORY.encode(), *answer[:40], *b"line")
    engine = Engine(backend)
    engine.add_request(request(STORY, 2, max_tokens=60, ignore_eos=True))
    while engine.stats().tokens_generated < 110:
        engine.step()
    assert foresight(engine, prompt) == pytest.approx(foresight(Engine(backend), prompt), abs=2e-3)
    # A recurrent state can't go back to the middle of the answer, but its prompt's sequence is where that ended.
    assert engine.stats().prompt_tokens_cached == (100 if backend.window == 0 else 140)


def test_only_what_is_new_is_evaluated_at_the_end_of_an_answer(backend: LlamaBackend) -> None:
    engine = Engine(backend, cache_bytes=10_000_000)
    answer = answer_of(engine)
    new = evaluated(engine, CompletionRequest(((*STORY.encode(), *answer[:59], *b"line"),), request().branches))
    middle = evaluated(engine, CompletionRequest(((*STORY.encode(), *answer[:20], *b"line"),), request().branches))
    assert (new, middle) == (4, 4 if backend.window is None else 24)
    assert engine.stats().retained_bytes < 10_000_000


def test_a_conversation_evaluates_the_new_tokens_of_each_turn(backend: LlamaBackend) -> None:
    engine = Engine(backend, cache_bytes=10_000_000)
    text = [*STORY.encode()]
    for turn in range(10):
        each = CompletionRequest((tuple(text),), request(max_tokens=20, ignore_eos=True).branches, return_tokens=True)
        before = engine.stats().prompt_tokens_evaluated
        answer = [token for event in run(engine, each) if isinstance(event, StreamEvent) for token in event.tokens]
        # The last token of an answer isn't computed when it is sampled.
        assert engine.stats().prompt_tokens_evaluated - before == (1 + 7 if turn else len(text))
        text += [*answer, *b"and on "]
    assert backend.used_seq_ids() == []


def test_a_state_is_saved_by_one_engine_and_loaded_by_another(backend: LlamaBackend, tmp_path: Path) -> None:
    params = SamplingParams(seed=3, max_tokens=20)
    expected = LLM(Engine(backend, cache_bytes=1 << 24)).generate_texts(STORY, 2, params)
    assert LLM(Engine(backend, cache_bytes=1 << 24)).save(tmp_path / "story", STORY) == len(STORY)
    engine = Engine(backend, cache_bytes=1 << 24)
    assert LLM(engine).load(tmp_path / "story") == tuple(STORY.encode())
    assert LLM(engine).generate_texts(STORY, 2, params) == expected
    assert (engine.stats().prompt_tokens_evaluated, backend.used_seq_ids()) == (0, [])
