"""Alternatives with and without adapters, in one request: each says what it would say alone with its own."""

import dataclasses
import itertools

import pytest
from driver import request, run, run_interrupted, texts
from fake_backend import FakeBackend

from srb.engine.engine import Engine
from srb.engine.lora import Adapter, Adapters, Asked
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError

ADAPTERS = (Adapter("plain", "a.gguf", "aa", 0.0), Adapter("wild", "b.gguf", "bb", 1.0))
PROMPT = "a prompt that is long enough to be shared"
SETTINGS: list[Asked | None] = [None, (), ((0, 1.0),), (("wild", 1.0),), (("plain", 0.5), (1, 2.0))]


def backend(**fields: object) -> FakeBackend:
    return FakeBackend(adapters=ADAPTERS, **fields)  # type: ignore[arg-type]


def asked(*settings: Asked | None, **fields: object) -> CompletionRequest:
    each = request(PROMPT, **fields)  # type: ignore[arg-type]
    seeds = range(len(settings))
    branches = [
        dataclasses.replace(each.branches[0], lora=lora, seed=k) for k, lora in zip(seeds, settings, strict=True)
    ]
    return dataclasses.replace(each, branches=tuple(branches))


def alone(lora: Asked | None, seed: int, **fields: object) -> str:
    each = asked(lora, **fields)
    each = dataclasses.replace(each, branches=(dataclasses.replace(each.branches[0], seed=seed),))
    return texts(run(Engine(backend()), each)).get(0, "")


def test_each_says_what_it_says_alone() -> None:
    said = texts(run(Engine(backend()), asked(*SETTINGS, max_tokens=9, ignore_eos=True)))
    assert said == {k: alone(lora, k, max_tokens=9, ignore_eos=True) for k, lora in enumerate(SETTINGS)}
    assert said[0] != alone((), 0, max_tokens=9, ignore_eos=True)


def test_a_prompt_is_computed_once_for_each_setting_and_never_again() -> None:
    fake = backend()
    engine = Engine(fake, cache_bytes=10_000)
    run(engine, asked((), (), ((1, 1.0),), None, max_tokens=5, ignore_eos=True))
    assert engine.stats().prompt_tokens_evaluated == 2 * len(PROMPT)  # None is the same as wild at 1
    run(engine, asked((), None, max_tokens=5, ignore_eos=True))
    assert engine.stats().prompt_tokens_evaluated == 2 * len(PROMPT)
    run(engine, asked(((1, 0.5),), max_tokens=1))
    assert engine.stats().prompt_tokens_evaluated == 3 * len(PROMPT)


def test_adapters_are_changed_once_a_step() -> None:
    fake = backend()
    used = []
    decode = fake.decode

    def seen(batch: object, interrupted: object) -> bool:
        used.append(batch.setting)  # type: ignore[attr-defined]
        return decode(batch, None)  # type: ignore[arg-type]

    fake.decode = seen  # type: ignore[method-assign]
    run(Engine(fake), asked((), ((0, 1.0),), (), ((0, 1.0),), max_tokens=9, ignore_eos=True))
    assert len(used) > 16  # two for each step
    assert sum(one != other for one, other in itertools.pairwise(used)) <= len(used) / 2


def test_scales_may_be_set_for_requests_without_lora() -> None:
    engine = Engine(backend())
    before = texts(run(engine, asked(None, max_tokens=9, ignore_eos=True)))
    engine.adapters.set_scales((("plain", 0.5),))
    assert [each.scale for each in engine.adapters.listed] == [0.5, 0.0]
    after = texts(run(engine, asked(None, max_tokens=9, ignore_eos=True)))
    assert after[0] == alone(((0, 0.5),), 0, max_tokens=9, ignore_eos=True) != before[0]


def test_what_is_not_there_is_refused() -> None:
    engine = Engine(backend())
    with pytest.raises(InvalidRequestError, match=r"no adapter 2; there are 0 \(plain\), 1 \(wild\)"):
        engine.add_request(asked(((2, 1.0),)))
    with pytest.raises(InvalidRequestError, match="no adapter 'x'; start the server with --lora FILE"):
        Engine(FakeBackend()).add_request(asked((("x", 1.0),)))
    with pytest.raises(InvalidRequestError, match="from -100 to 100, got nan"):
        Adapters(ADAPTERS).lora(((0, float("nan")),))


def test_resumed_alternatives_of_different_settings_share_no_cells() -> None:
    """Two that were interrupted and don't fit at once: if their prompts counted as shared, they would never begin."""
    each = asked((), ((0, 1.0),), max_tokens=60, ignore_eos=True)
    sizes = iter((256, len(PROMPT) + 2 * 60 + 20))

    def make() -> Engine:
        return Engine(backend(n_cells=next(sizes)))

    whole = run(Engine(backend()), each)
    assert texts(run_interrupted(make, each, [50])) == texts(whole)
