"""Rolling back on models with a window or a recurrent state, on the real llama.cpp."""

import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
from alone import KINDS, tiny_model
from driver import check_order, run, stops, texts, tokens_of
from refused import loved, noted, refusing
from tiny_model import EOS, N_VOCAB

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.events import Event
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings

PROMPT = tuple(b"Once upon a time, there was a model that forgot")
N = 8
LETTERS = tuple((token, -math.inf) for token in range(N_VOCAB) if token not in set(b"abcdefghijklmnopqrstuvwxyz "))
TOLERANCE = 2e-3  # of logits; the number of rows in a batch moves them by up to 5e-4
WILD: dict[str, Any] = {"temperature": 0.7, "max_tokens": 50, "logit_bias": LETTERS}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "plain": WILD,
    "guided": WILD | {"guidance_scale": 1.5, "negative_prompt": tuple(b"There was a model that knew" * 2)},
}


@pytest.fixture(scope="module", params=[kind for kind in KINDS if kind != "full"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaBackend]:
    model = tiny_model(request.param, tmp_path_factory.mktemp("models"))
    exact: dict[str, Any] = {"threads": 1, "flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
    with LlamaBackend(Settings(model=model, ctx_size=1024, parallel=2 * N, **exact)) as backend:
        yield backend


def ask(backend: LlamaBackend, n: int = N, **params: Any) -> tuple[CompletionRequest, list[Event]]:
    branches = SamplingParams(**{"seed": 5} | params).alternatives(n)
    request = CompletionRequest((PROMPT,), branches, logprobs=3, return_tokens=True)
    events = run(engine := Engine(backend), request)
    check_order(events, request)
    assert (engine.stats().cells, backend.used_seq_ids()) == (0, [])
    return request, events


def foretold(backend: LlamaBackend, tokens: tuple[int, ...]) -> Any:
    """The logits after some tokens that aren't in the cache."""
    batch = Batch()
    row = batch.add(tokens, 0, 0, outputs=1)
    assert backend.decode(batch, None)
    logits = backend.logits(row).copy()
    backend.remove(0)
    return logits


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_texts_are_those_of_recomputing_everything_for_each_token(
    backend: LlamaBackend, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    banned = loved(20, ask(backend, **SAMPLINGS[sampling])[1])
    with monkeypatch.context() as patch:
        notes = noted(backend, patch)
        request, events = ask(backend, 2, **SAMPLINGS[sampling], banned_strings=banned)
    compiled = backend.compile(request.branches)
    for index, params in enumerate(request.branches):

        def draw(before: tuple[int, ...], refused: Collection[int], params: SamplingParams = params) -> int:
            logits = foretold(backend, PROMPT + before)
            if params.negative_ids:
                negative = foretold(backend, params.negative_ids + before)
                logits = backend.guided(logits, negative, params.guidance_scale)
            seen, _ = notes[params.seed][before]
            assert np.abs(seen - logits).max() < TOLERANCE
            alone = backend.sampler(params, compiled, PROMPT, before)
            token = alone.sample(seen, (), dict.fromkeys(refused, -math.inf))
            alone.close()
            return token

        text, said, _ = refusing(draw, params, EOS)
        assert tokens_of(events, index) == said
        assert texts(events)[index] == text
    compiled.close()
    assert sum(stop.rewinds or 0 for stop in stops(events).values()) > 2
