"""Context shift on the real llama.cpp: the remaining cells are those of a lone sequence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from driver import check_order, run, stops, tokens_of
from refused import noted
from tiny_model import write_tiny_model

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import ModelLoadError
from srb.llama.backend import LlamaBackend
from srb.options.groups import CACHE_TYPES
from srb.options.settings import Settings
from srb.serving.async_engine import AsyncEngine

PROMPT = tuple(b"Once upon a time, there was a king who had three daughters, and the youngest of them was so fair")
N, N_KEEP, N_TOKENS = 3, 5, 250


class Lone:
    """A sequence that has the context to itself, and is shifted by llama.cpp's own functions."""

    def __init__(self, backend: LlamaBackend, tokens: tuple[int, ...]) -> None:
        self._backend = backend
        self._memory = llama_cpp.llama_get_memory(backend.context.pointer)
        backend.remove(0)
        self.n_tokens = 0
        self.logits = self.add(tokens)

    def add(self, tokens: tuple[int, ...]) -> Any:
        batch = Batch()
        row = batch.add(tokens, self.n_tokens, 0, outputs=1)
        assert self._backend.decode(batch, None)
        self.n_tokens += len(tokens)
        self.logits = self._backend.logits(row).copy()
        return self.logits

    def leave_out(self, start: int, end: int) -> None:
        assert llama_cpp.llama_memory_seq_rm(self._memory, 0, start, end)
        llama_cpp.llama_memory_seq_add(self._memory, 0, end, -1, start - end)
        self.n_tokens -= end - start


def test_an_alternative_sees_what_a_lone_sequence_sees(
    load: Callable[..., LlamaBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    f32 = {"cache_type_k": "f32", "cache_type_v": "f32"}
    backend = load(ctx_size=256, parallel=4, batch_size=128, flash_attn="off", **f32)
    branches = SamplingParams(seed=3, max_tokens=N_TOKENS, ignore_eos=True).alternatives(N)
    request = CompletionRequest((PROMPT,), branches, context_shift=True, n_keep=N_KEEP)
    with monkeypatch.context() as patch:
        notes = noted(backend, patch)
        events = run(engine := Engine(backend), request)
    check_order(events, request)
    assert all(stop.truncated and stop.length == N_TOKENS for stop in stops(events).values())
    assert (engine.stats().cells, backend.used_seq_ids()) == (0, [])
    for index, params in enumerate(branches):
        lone = Lone(backend, PROMPT)
        n_prompt, n_own, room = len(PROMPT), 0, (256 - len(PROMPT)) // N + 1
        n_shifts, said = 0, tuple(tokens_of(events, index))
        for k, token in enumerate(said):
            np.testing.assert_allclose(notes[params.seed][said[:k]][0], lone.logits, atol=5e-4)
            n_own += 1
            if n_own == room:
                n_leaving = (n_prompt - N_KEEP + n_own - 1) // 2
                of_prompt = min(n_leaving, n_prompt - N_KEEP)
                lone.leave_out(N_KEEP, N_KEEP + n_leaving)
                n_prompt, n_own, room = n_prompt - of_prompt, n_own - n_leaving + of_prompt, room + of_prompt // N
                n_shifts += 1
            lone.add((token,))
        assert n_shifts > 5
        backend.remove(0)


LONG = CompletionRequest(
    (PROMPT,), SamplingParams(seed=3, max_tokens=N_TOKENS, ignore_eos=True).alternatives(N), context_shift=True
)


@pytest.mark.parametrize("kind", [each for each in CACHE_TYPES if each != "bf16"])
def test_it_goes_with_every_type_of_the_cache(load: Callable[..., LlamaBackend], tmp_path: Path, kind: str) -> None:
    model = write_tiny_model(tmp_path / "wide.gguf", n_embd=128, n_head=2)
    backend = load(model=model, ctx_size=256, parallel=4, batch_size=128, cache_type_k=kind, cache_type_v=kind)
    events = run(engine := Engine(backend), LONG)
    assert all(stop.truncated and stop.length == N_TOKENS for stop in stops(events).values())
    assert (engine.stats().cells, backend.used_seq_ids()) == (0, [])


@pytest.mark.parametrize(
    ("model", "options", "can_shift"),
    [
        *(({"arch": arch}, {}, False) for arch in ("gemma3", "mamba", "jamba")),
        ({}, {"cache_type_k": "bf16"}, False),  # ggml can't rotate such keys
        ({"n_embd": 128, "n_head": 4}, {"cache_type_k": "q8_0"}, False),
        ({"n_embd": 192, "n_head": 2}, {"cache_type_k": "q8_0"}, False),
        ({"n_embd": 128, "n_head": 4}, {"cache_type_v": "q8_0"}, True),
    ],
    ids=str,
)
def test_whose_positions_can_change(
    load: Callable[..., LlamaBackend], tmp_path: Path, model: dict[str, Any], options: dict[str, Any], can_shift: bool
) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", **model)
    assert load(model=path, ctx_size=256, **options).can_shift is can_shift


@pytest.mark.parametrize(("arch", "keys"), [("mamba", None), ("llama", "bf16")])
async def test_a_server_does_not_start_with_it_on_such_a_model(tmp_path: Path, arch: str, keys: str | None) -> None:
    model = write_tiny_model(tmp_path / "model.gguf", arch=arch)
    settings = Settings(model=model, ctx_size=256, context_shift=True, cache_type_k=keys)
    with pytest.raises(ModelLoadError, match=r"--context-shift doesn't work here"):
        async with AsyncEngine.from_settings(settings):
            pass
