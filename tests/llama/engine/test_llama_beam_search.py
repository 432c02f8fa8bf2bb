"""Searches on real llama.cpp find what looking at every text finds, on models of every kind of memory."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import check_order, request, run, stops
from tiny_model import EOS, N_VOCAB, write_tiny_model

from srb.engine.engine import Engine
from srb.engine.events import Event, StreamEvent
from srb.engine.request import CompletionRequest
from srb.llama.backend import LlamaBackend

Load = Callable[..., LlamaBackend]

LETTERS = b"abc"
ENDS = EOS, ord("d")
BIAS = (*((token, -math.inf) for token in range(N_VOCAB) if token not in (*b"abcd", EOS)), (ord("a"), 1.5))
"""What leaves a few letters, and the end."""


def search(n: int, **given: Any) -> CompletionRequest:
    own = {"beams", "length_penalty", "early_stopping", "logprobs", "return_tokens"} & given.keys()
    fields = {name: given.pop(name) for name in own}
    asked = request("Once upon a time, there was a prompt", n, **{"logit_bias": BIAS, "stop": ("d",)} | given)
    return dataclasses.replace(asked, search="beam", **fields)


def texts_of(events: list[Event]) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for event in events:
        if isinstance(event, StreamEvent):
            found[event.index] = found.get(event.index, ()) + event.tokens
    return found


class Watched(LlamaBackend):
    on_logprobs: Callable[[Any], object] = staticmethod(lambda _logits: None)

    def logprobs(self, logits: Any, token: int, top: int) -> Any:
        self.on_logprobs(logits)
        return super().logprobs(logits, token, top)


def every_text(backend: Watched, asked: CompletionRequest, length: int) -> list[tuple[tuple[int, ...], float]]:
    """Each text with its log-probability, by the logits of a decode for each beginning."""
    rows: dict[tuple[int, ...], Any] = {}

    def keep(logits: Any) -> None:
        rows[current] = logits.copy()

    backend.on_logprobs = keep
    engine = Engine(backend)
    for n in range(length):
        for text in itertools.product(LETTERS, repeat=n):
            current = text
            once = request("p", max_tokens=1)
            run(engine, dataclasses.replace(once, prompts=((*asked.prompts[0], *text),), logprobs=0))
    del backend.on_logprobs
    found = []
    for text, logits in rows.items():
        for token, bias in BIAS:
            logits[token] += bias
        rows[text] = logits - np.logaddexp.reduce(logits.astype(np.float64))
    for n in range(1, length + 1):
        for text in itertools.product((*LETTERS, *ENDS), repeat=n):
            ended = text[-1] in ENDS or n == length
            if ended and not set(text[:-1]) & set(ENDS):
                found.append((text, float(sum(rows[text[:k]][text[k]] for k in range(n)))))
    return found


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "jamba"])
def test_wide_beams_find_the_best_of_all_texts(arch: str, load: Load, tmp_path: Path) -> None:
    n, length = 10, 4
    path = write_tiny_model(tmp_path / "tiny.gguf", arch=arch, scale=0.1)
    backend = load(Watched, model=path, parallel=120, ctx_size=2048)
    assert isinstance(backend, Watched)
    asked = search(n, beams=120, max_tokens=length, length_penalty=0.7, early_stopping="never", return_tokens=True)
    every = every_text(backend, asked, length)
    assert sum(math.exp(logprob) for _, logprob in every) == pytest.approx(1, abs=1e-3)
    ranked = sorted(every, key=lambda each: -each[1] / len(each[0]) ** 0.7)[:n]
    engine = Engine(backend)
    events = run(engine, asked)
    check_order(events, asked)
    assert [texts_of(events)[k] for k in range(n)] == [text for text, _ in ranked]
    ends = stops(events)
    assert [ends[k].logprob for k in range(n)] == pytest.approx([logprob for _, logprob in ranked], abs=1e-3)
    assert backend.used_seq_ids() == []
    assert engine.stats().cells == 0


@pytest.mark.parametrize("arch", ["gemma3", "mamba", "jamba"])
def test_long_texts_of_models_that_forget(arch: str, load: Load, tmp_path: Path) -> None:
    """The log-probabilities of a beam are those of its text, far beyond the sliding window."""
    path = write_tiny_model(tmp_path / "tiny.gguf", arch=arch)
    backend = load(model=path, parallel=8)
    engine = Engine(backend, cache_bytes=10_000_000)
    asked = search(3, beams=6, max_tokens=80, ignore_eos=True, logit_bias=(), stop=(), return_tokens=True, logprobs=0)
    events = run(engine, asked)
    reported: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for event in events:
        if isinstance(event, StreamEvent):
            assert event.token
            assert event.token.logprob is not None
            reported[event.index].append(event.token.logprob)
    for index, tokens in texts_of(events).items():
        assert len(tokens) == 80
        scored = dataclasses.replace(
            request("p", max_tokens=0), prompts=((*asked.prompts[0], *tokens),), echo=True, logprobs=0
        )
        again = [each.token.logprob for each in run(engine, scored) if isinstance(each, StreamEvent) and each.token]
        assert reported[index] == pytest.approx(again[-80:], abs=0.05)
        assert stops(events)[index].mean_logprob == pytest.approx(sum(reported[index]) / 80)
    assert texts_of(run(engine, dataclasses.replace(asked, id="again"))) == texts_of(events)  # from the cached prompt
    assert backend.used_seq_ids() == []
