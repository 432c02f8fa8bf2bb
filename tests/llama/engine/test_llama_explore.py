"""Exploring on the real llama.cpp, compared with each text decoded on its own."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from driver import check_order, request, run
from tiny_model import EOS

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.events import NodeEvent
from srb.engine.request import CompletionRequest, Explore
from srb.llama.backend import LlamaBackend

PROMPT = tuple(b"Once upon a time, there was")
Path = tuple[int, ...]
TOP_K = 4


def outlook(backend: LlamaBackend, path: Path) -> tuple[list[tuple[int, float]], float]:
    """The most probable tokens after a text that is decoded alone, in float64, and the entropy."""
    batch = Batch()
    row = batch.add(PROMPT + path, 0, 0, outputs=1)
    assert backend.decode(batch, None)
    logits = backend.logits(row).astype(np.float64)
    backend.remove(0)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    likeliest = np.argsort(-p)[:TOP_K]
    return [(int(token), float(np.log(p[token]))) for token in likeliest], float(-(p * np.log(p)).sum())


def test_nodes_are_the_likeliest_of_all_continuations(load: Callable[..., LlamaBackend]) -> None:
    # Flash attention adds up in half precision, so with it a row is not the same in another batch.
    backend = load(parallel=16, flash_attn="off", cache_type_k="f32", cache_type_v="f32")
    known = cache(lambda path: outlook(backend, path))
    explore = Explore(4, TOP_K, min_probability=0, max_nodes=10_000)
    every: dict[Path, tuple[float, float | None]] = {}

    def grow(path: Path, total: float, depth: int) -> None:
        for token, logprob in known(path)[0]:
            text, sum_logprob = (*path, token), total + logprob
            after = None if token == EOS or depth == explore.depth else known(text)[1]
            every[text] = sum_logprob, after
            if after is not None:
                grow(text, sum_logprob, depth + 1)

    grow((), 0.0, 1)
    asked = CompletionRequest.exploring(PROMPT, explore)
    other = request(n=2, max_tokens=30)
    events = run(engine := Engine(backend), asked, other)
    check_order(events, asked)
    check_order(events, other)
    nodes = [event for event in events if isinstance(event, NodeEvent)]
    paths: list[Path] = [()]
    for node in nodes:
        paths.append(paths[node.parent or 0] + node.tokens)
        sum_logprob, entropy = every.pop(paths[-1])
        assert node.cumulative_logprob == pytest.approx(sum_logprob, abs=1e-4)
        assert node.entropy == (None if entropy is None else pytest.approx(entropy, abs=1e-4))
    assert not every
    totals = [node.cumulative_logprob for node in nodes]
    assert totals == sorted(totals, reverse=True)
    assert (engine.stats().cells, backend.used_seq_ids()) == (0, [])


def test_entropy(load: Callable[..., LlamaBackend]) -> None:
    backend = load()
    assert backend.entropy(np.zeros(100, np.float32)) == pytest.approx(math.log(100))
    one = np.full(100, -np.inf, np.float32)
    one[3] = 7
    assert backend.entropy(one) == 0
    one[4] = 7
    assert backend.entropy(one) == pytest.approx(math.log(2))
