"""What isn't to be said, on the real llama.cpp: it doesn't come, and samplers that went back are as if they had not."""

import codecs
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from driver import check_order, run, stops, texts, tokens_of
from refused import loved, noted
from tiny_model import EOS, N_VOCAB

from srb.engine.backend import Batch
from srb.engine.constraints.banned_strings import opening_of
from srb.engine.engine import Engine
from srb.engine.events import Event, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.samplers import SAMPLERS
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend

PROMPT = tuple(b"Once upon a time, there was")
N = 16
WILD: dict[str, Any] = {"temperature": 1.5, "top_p": 1, "min_p": 0}
LETTERS = "root ::= [a-e ]*"
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": WILD,
    "penalties": WILD | {"repeat_penalty": 1.3, "presence_penalty": 0.5, "dry_multiplier": 0.8, "min_tokens": 20},
    "grammar": WILD | {"grammar": LETTERS},
    "greedy grammar": {"temperature": 0, "repeat_penalty": 1.2, "grammar": LETTERS},
    "mirostat": {"mirostat": 2, "grammar": LETTERS},
    "adaptive": {"adaptive_target": 0.1},
}


def ask(backend: LlamaBackend, *, distinct: bool = False, **params: Any) -> tuple[CompletionRequest, list[Event]]:
    branches = SamplingParams(**{"seed": 5, "max_tokens": 60} | params).alternatives(N)
    request = CompletionRequest((PROMPT,), branches, logprobs=1, return_tokens=True, distinct=distinct)
    events = run(engine := Engine(backend), request)
    check_order(events, request)
    assert (engine.stats().cells, backend.used_seq_ids()) == (0, [])
    return request, events


@pytest.mark.parametrize("distinct", [False, True], ids=["", "distinct"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_model_loves_does_not_come(load: Callable[..., LlamaBackend], kind: str, distinct: bool) -> None:
    backend = load(ctx_size=2048, parallel=N)
    _, plain = ask(backend, **KINDS[kind], distinct=distinct)
    banned = loved(50, plain)
    assert len(banned) > 5
    _, events = ask(backend, **KINDS[kind], banned_strings=banned, distinct=distinct)
    _, again = ask(backend, **KINDS[kind], banned_strings=banned, distinct=distinct)
    assert texts(again) == texts(events)
    assert sum(stop.rewinds or 0 for stop in stops(events).values()) > N
    for index, text in texts(events).items():
        stop = stops(events)[index]
        own = [event for event in events if isinstance(event, StreamEvent) and event.index == index]
        said = [token for event in own for token in event.tokens]
        assert not stop.rewinds_exhausted
        assert said == [event.token.id for event in own if event.token] == tokens_of(events, index)
        assert len(said) == stop.length
        data = bytes(token for token in said if token < EOS)
        assert text == codecs.getincrementaldecoder("utf-8")("replace").decode(data)  # without half a character
        assert not any(phrase in text for phrase in banned)


@pytest.mark.parametrize("kind", ["greedy", "sampled", "penalties", "greedy grammar"])
def test_sampling_is_as_if_only_the_final_tokens_had_been_sampled(
    load: Callable[..., LlamaBackend], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = load(ctx_size=2048, parallel=N)
    banned = loved(50, ask(backend, **KINDS[kind])[1])
    with monkeypatch.context() as patch:
        notes = noted(backend, patch)
        request, events = ask(backend, **KINDS[kind], banned_strings=banned)
    compiled = backend.compile(request.branches)
    n_redrawn = 0
    for index, params in enumerate(request.branches):
        sampled = tuple(tokens_of(events, index))
        for k, token in enumerate(sampled):
            logits, taken = notes[params.seed][sampled[:k]]
            fresh = backend.sampler(params, compiled, PROMPT, sampled[:k])
            assert fresh.sample(logits, (), taken) == token
            fresh.close()
            n_redrawn += bool(taken)
    compiled.close()
    assert n_redrawn > N


def test_a_replacement_token_has_the_proportions_of_the_rest(load: Callable[..., LlamaBackend]) -> None:
    backend = load()
    batch = Batch()
    row = batch.add(PROMPT, 0, 0, outputs=1)
    backend.decode(batch, None)
    logits = backend.logits(row).copy()
    params: dict[str, Any] = {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0}
    compiled = backend.compile((SamplingParams(**params),))
    first = int(np.argmax(logits))
    sampled: Counter[int] = Counter()
    for seed in range(8_000):
        sampler = backend.sampler(SamplingParams(seed=seed, **params), compiled, PROMPT, ())
        if sampler.sample(logits) == first:  # as it is where something is taken back
            again = backend.sampler(SamplingParams(seed=seed, **params), compiled, PROMPT, ())
            sampled[again.sample(logits, (), {first: -np.inf})] += 1
            again.close()
        sampler.close()
    compiled.close()
    rest = np.exp(logits.astype(float) / 2)
    rest[first] = 0
    rest /= rest.sum()
    n = sum(sampled.values())
    assert n > 300
    for token in np.argsort(-rest)[:5]:
        assert abs(sampled[int(token)] / n - rest[token]) < 4 * np.sqrt(rest[token] / n)


@pytest.mark.parametrize("samplers", [SAMPLERS, ()])
def test_random_numbers_continue_after_tokens_that_were_sampled_again(
    load: Callable[..., LlamaBackend], samplers: tuple[str, ...]
) -> None:
    backend = load()
    flat = np.zeros(N_VOCAB, np.float32)
    params = SamplingParams(seed=3, top_k=0, samplers=samplers)
    compiled = backend.compile((params,))
    for excluded, banned in (({1, 2}, set[int]()), (set[int](), {1, 2}), ({3}, {1, 2})):
        sampler = backend.sampler(params, compiled, PROMPT, ())
        sampled = [sampler.sample(flat), sampler.sample(flat, excluded, dict.fromkeys(banned, -np.inf))]
        sampled += [sampler.sample(flat) for _ in range(6)]
        other = backend.sampler(params, compiled, PROMPT, tuple(sampled[:3]))
        assert [other.sample(flat) for _ in range(5)] == sampled[3:]
        sampler.close()
        other.close()
    compiled.close()


def test_where_the_grammar_leaves_nothing_else_the_text_goes_on(load: Callable[..., LlamaBackend]) -> None:
    _, events = ask(load(parallel=N), grammar='root ::= "a cat sat"', banned_strings=("cat",), temperature=0)
    assert set(texts(events).values()) == {"a cat sat"}
    for stop in stops(events).values():
        assert (stop.finish_reason, stop.rewinds, stop.rewinds_exhausted) == ("stop", 1, True)


@pytest.mark.parametrize("kind", ["greedy", "sampled", "penalties", "mirostat", "adaptive"])
def test_no_two_begin_alike_also_if_asked_again(load: Callable[..., LlamaBackend], kind: str) -> None:
    backend = load(ctx_size=2048, parallel=N)
    _, events = ask(backend, **KINDS[kind], avoid=())
    _, more = ask(backend, **KINDS[kind], avoid=tuple(texts(events).values()))
    seen = [opening_of(text, backend.tokenizer) for each in (events, more) for text in texts(each).values()]
    assert len(seen) == len(set(seen)) == 2 * N
    assert any(stop.rewinds for stop in stops(more).values())


@pytest.mark.parametrize("kind", ["sampled", "penalties", "mirostat", "adaptive"])
def test_siblings_differ_with_diversity_and_do_so_again(load: Callable[..., LlamaBackend], kind: str) -> None:
    backend = load(ctx_size=2048, parallel=N)
    params = KINDS[kind] | {"temperature": 0.5, "grammar": "root ::= [a-z]*"}
    shared = [_in_common(texts(ask(backend, **params, diversity=each)[1])) for each in (0, 3)]
    assert shared[1] < shared[0]
    assert texts(ask(backend, **params, diversity=3)[1]) == texts(ask(backend, **params, diversity=3)[1])


def _in_common(said: dict[int, str]) -> int:
    """How often an alternative has three characters that another one has, too."""
    grams = [{text[k : k + 3] for k in range(len(text) - 2)} for text in said.values()]
    return sum(len(each & other) for k, each in enumerate(grams) for other in grams[:k])


def test_biases_are_added_before_the_samplers(load: Callable[..., LlamaBackend]) -> None:
    backend = load()
    logits = np.zeros(N_VOCAB, np.float32)
    logits[[7, 8, 9]] = 5, 4, 3
    params = SamplingParams(seed=0, temperature=0, top_k=1)
    compiled = backend.compile((params,))
    for biases, token in (({}, 7), ({7: -1.5}, 8), ({7: -1.5, 8: -1.5}, 7), ({7: -2.5, 8: -np.inf}, 9)):
        sampler = backend.sampler(params, compiled, PROMPT, ())
        assert sampler.sample(logits, (), biases) == token
        sampler.close()
    assert logits[7] == 5
    compiled.close()
