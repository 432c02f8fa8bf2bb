"""What isn't to be said, on the real llama.cpp: it doesn't come, and samplers that went back are as if they had not."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from driver import check_order, run, stops, texts
from tiny_model import N_VOCAB

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.events import Event
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend

PROMPT = tuple(b"Once upon a time, there was")
N = 16


def ask(backend: LlamaBackend, *, distinct: bool = False, **params: Any) -> tuple[CompletionRequest, list[Event]]:
    branches = SamplingParams(**{"seed": 5, "max_tokens": 60} | params).alternatives(N)
    request = CompletionRequest((PROMPT,), branches, logprobs=1, return_tokens=True, distinct=distinct)
    events = run(engine := Engine(backend), request)
    check_order(events, request)
    assert (engine.stats().cells, backend.used_seq_ids()) == (0, [])
    return request, events


def test_replacement_tokens_have_the_proportions_of_the_rest(load: Callable[..., LlamaBackend]) -> None:
    """The first and the second one: what is banned leaves the candidates, so each needs random numbers of its own."""
    backend = load()
    batch = Batch()
    row = batch.add(PROMPT, 0, 0, outputs=1)
    backend.decode(batch, None)
    logits = backend.logits(row).copy()
    params: dict[str, Any] = {"temperature": 4, "top_k": 8, "top_p": 1, "min_p": 0}
    compiled = backend.compile((SamplingParams(**params),))

    def draw(seed: int, banned: Collection[int]) -> int:
        sampler = backend.sampler(SamplingParams(seed=seed, **params), compiled, PROMPT, ())
        token = sampler.sample(logits, (), dict.fromkeys(banned, -np.inf))
        sampler.close()
        return token

    best = np.argsort(-logits)[:10].tolist()
    sampled: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for seed in range(8_000):
        if draw(seed, ()) == best[0]:  # as it is where something is taken back
            second = draw(seed, best[:1])
            sampled[0][second] += 1
            if second == best[1]:
                sampled[1][draw(seed, best[:2])] += 1
    compiled.close()
    for k, counts in enumerate(sampled, start=1):
        rest = np.exp(logits[best[k : k + 8]].astype(float) / 4)
        n = counts.total()
        assert n > 150
        for token, p in zip(best[k : k + 8], rest / rest.sum(), strict=True):
            assert abs(counts[token] / n - p) < 4 * np.sqrt(p / n)


def test_where_the_grammar_leaves_nothing_else_the_text_goes_on(load: Callable[..., LlamaBackend]) -> None:
    _, events = ask(load(parallel=N), grammar='root ::= "a cat sat"', banned_strings=("cat",), temperature=0)
    assert set(texts(events).values()) == {"a cat sat"}
    for stop in stops(events).values():
        assert (stop.finish_reason, stop.rewinds, stop.rewinds_exhausted) == ("stop", 1, True)


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
