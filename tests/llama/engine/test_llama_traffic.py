"""Whatever the traffic, each text equals that of the same request alone, on each kind of memory that llama.cpp has.

ORACLE_MODEL=FILE looks at a model file, too. `bench/checks/oracle.py` looks for longer, and shrinks what it finds to a
program like those in FOUND.
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alone import BITS_KINDS, BITS_WINDOW, KINDS, Model, answers, exact_copy, failure, report, tiny_model
from driver import few, own, request, run
from traffic import Ask, Program, Run, Said, Step, generate, shrink

from srb.engine.engine import Engine
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings

SHRINK_SECONDS = 60

ONE = ({"max_tokens": 1},)

FOUND: dict[str, Program] = {
    "a prompt with a window, and rows for which llama.cpp drops old cells of it": Program(
        ops=(
            Ask(name=0, prompts=((Run(seed=492253, length=1),),), branches=({"max_tokens": 2},)),
            Ask(
                name=1,
                prompts=((Run(seed=492253, length=1),),),
                branches=(
                    *[{"max_tokens": n} for n in (32, 32, 32, 32, 44, 32, 45)],
                    {"max_tokens": 32, "ban": 0, "refuse": 4},
                ),
            ),
            Ask(
                name=3,
                prompts=((Run(seed=1, length=115), Run(seed=365450, length=2)), (Run(seed=962928, length=10),)),
                branches=({"max_tokens": 57},),
            ),
        ),
        parallel=8,
        batch_size=32,
    ),
    "a fork in an answer, behind its end, after a neighbour has left free cells": Program(
        ops=(
            Ask(name=0, prompts=((Run(seed=5, length=27),),), branches=({"max_tokens": 50},)),
            Ask(name=1, prompts=((Run(seed=1, length=35),),), branches=({"max_tokens": 150},)),
            Step(times=130),
            Ask(name=2, prompts=((Said(name=1, index=0, length=43), Run(seed=7, length=5)),), branches=ONE),
        ),
    ),
    "a list whose prompts fork off each other in several places": Program(
        ops=(
            Ask(name=1, prompts=((Run(seed=805743, length=1),),), branches=ONE),
            Ask(name=2, prompts=((Run(seed=2, length=36),), (Run(seed=2, length=18),)), branches=(*ONE, *ONE)),
            Ask(name=3, prompts=((Run(seed=2, length=33),),), branches=ONE),
        ),
        cache_bytes=10**8,
    ),
    "a list whose first prompt is restored, and the second forks behind the end of that": Program(
        ops=(
            Ask(name=0, prompts=((Run(seed=1, length=150),),), branches=({"max_tokens": 2},)),
            Step(times=50),
            Ask(
                name=1,
                prompts=(
                    (Run(seed=1, length=150), Run(seed=7, length=5)),
                    (Run(seed=1, length=100), Run(seed=7, length=5)),
                ),
                branches=ONE,
            ),
        ),
        cache_bytes=10**8,
    ),
    "a fork behind the end of what was restored and is running": Program(
        ops=(
            Ask(name=0, prompts=((Run(seed=1, length=174),),), branches=({"max_tokens": 2},)),
            Step(times=50),
            Ask(name=1, prompts=((Run(seed=1, length=174), Run(seed=8, length=5)),), branches=({"max_tokens": 60},)),
            Step(times=10),
            Ask(name=2, prompts=((Run(seed=1, length=130), Run(seed=7, length=5)),), branches=ONE),
        ),
        cache_bytes=10**8,
    ),
    "a fork in the hole between two states that were restored, which ended all in the batch": Program(
        ops=(
            Ask(name=0, prompts=((Run(seed=1, length=100),),), branches=({"max_tokens": 2},)),
            Step(times=50),
            Ask(name=1, prompts=((Run(seed=1, length=150),),), branches=({"max_tokens": 2},)),
            Step(times=50),
            Ask(name=2, prompts=((Run(seed=1, length=150), Run(seed=8, length=5)),), branches=({"max_tokens": 60},)),
            Step(times=3),
            Ask(name=3, prompts=((Run(seed=1, length=110), Run(seed=7, length=5)),), branches=ONE),
        ),
        cache_bytes=10**8,
    ),
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Without what llama.cpp says about each of the many contexts."""
    caplog.set_level(logging.ERROR)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Model]]:
    """The tiny model of each kind."""
    folder = tmp_path_factory.mktemp("models")
    models: dict[str, Model] = {}

    def make(kind: str) -> Model:
        if kind not in models:
            models[kind] = Model(tiny_model(kind, folder))
        return models[kind]

    yield make
    for each in models.values():
        each.close()


def look(model: Model, seeds: range) -> None:
    """Runs random programs; fails with a small one."""
    for seed in seeds:
        program = generate(seed, model.unit)
        if failure(model, program):
            program = shrink(program, lambda smaller: failure(model, smaller) is not None, SHRINK_SECONDS)
            pytest.fail(f"seed {seed}: {report(program, failure(model, program))}", pytrace=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", few(range(6), many=[range(6, 25)]), ids=str)
def test_random_traffic(model: Callable[[str], Model], kind: str, seeds: range) -> None:
    look(model(kind), seeds)


@pytest.mark.parametrize("kind", BITS_KINDS)
def test_with_reproducible_all_bits_are_the_same(tmp_path: Path, kind: str) -> None:
    """Whatever the traffic, and however tokens are sampled. Takes 5 s."""
    model = Model(tiny_model(kind, tmp_path, BITS_WINDOW), bits=True)
    try:
        look(model, range(5))
    finally:
        model.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_before(model: Callable[[str], Model], name: str, kind: str) -> None:
    model(kind).check(FOUND[name])


def test_a_scored_prompt_has_the_same_scores_among_others(tmp_path: Path) -> None:
    """With flash attention small pieces are computed in another way than pieces of 64 tokens and more."""
    settings = Settings(model=tiny_model("full", tmp_path), ctx_size=1024, parallel=4, threads=1, flash_attn="on")
    backend = LlamaBackend(dataclasses.replace(settings, cache_type_k="f32", cache_type_v="f32"))
    text = "".join(chr(97 + (i * i) % 26) for i in range(230))
    scored = dataclasses.replace(request(text, max_tokens=0), echo=True, logprobs=0)
    alone = answers(run(Engine(backend), scored), scored)[0]
    engine = Engine(backend)
    engine.add_request(request("neighbours", 3, max_tokens=200, ignore_eos=True))
    events = own(run(engine, scored), scored)
    among_others = answers(events, scored)[0]
    backend.close()
    pairs = zip(among_others.tokens[1:], alone.tokens[1:], strict=True)  # nothing foretells the first
    off = [abs((one.logprob or 0.0) - (other.logprob or 0.0)) for one, other in pairs]
    assert len(off) == 229
    assert max(off) < 3e-3


@pytest.mark.skipif("ORACLE_MODEL" not in os.environ, reason="ORACLE_MODEL names no model file")
def test_random_traffic_on_a_model_file(tmp_path: Path) -> None:
    model = Model(exact_copy(Path(os.environ["ORACLE_MODEL"]), tmp_path), unit=128)
    try:
        look(model, range(2))
    finally:
        model.close()
