"""Whatever the traffic, each text equals that of the same request alone, on each kind of memory that llama.cpp has.

ORACLE_MODEL=FILE looks at a model file, too. `bench/checks/oracle.py` and `bench/checks/pressure.py` look for longer,
and shrink what they find.
"""

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from alone import BITS_KINDS, BITS_WINDOW, KINDS, Model, answers, exact_copy, failure, report, tiny_adapter, tiny_model
from driver import few, own, request, run
from traffic import Program, generate, press, shrink

from srb.engine.engine import Engine
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings

SHRINK_SECONDS = 60


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
            models[kind] = Model(tiny_model(kind, folder), adapter=tiny_adapter(kind, folder))
        return models[kind]

    yield make
    for each in models.values():
        each.close()


def look(model: Model, programs: Iterable[Program]) -> Counter[str]:
    """Runs random programs; fails with a small one. Returns the numbers of preemptions and of changes of the layout."""
    n = Counter[str]()
    for program in programs:
        try:
            stats = model.check(program)
        except Exception:  # an engine with a bug may raise anything
            smaller = shrink(program, lambda smaller: failure(model, smaller) is not None, SHRINK_SECONDS)
            pytest.fail(report(smaller, failure(model, smaller)), pytrace=False)
        n += Counter(preemptions=stats.preemptions, changes=stats.layout_changes)
    return n


def traffic(model: Model, seeds: range) -> Counter[str]:
    return look(model, (generate(seed, model.unit) for seed in seeds))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", few(range(6), many=[range(6, 25)]), ids=str)
def test_random_traffic(model: Callable[[str], Model], kind: str, seeds: range) -> None:
    traffic(model(kind), seeds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", few(range(4), many=[range(4, 10)]), ids=str)
def test_what_is_preempted_and_moved_says_what_it_says_alone(
    model: Callable[[str], Model], kind: str, seeds: range
) -> None:
    """In a cache that is much too small. Some have memory for all states that are swapped out, and some for none."""
    n = look(model(kind), map(press, seeds))
    assert n["preemptions"] > 0
    assert (n["changes"] > 0) == (kind == "full")


@pytest.mark.parametrize("kind", BITS_KINDS)
def test_with_reproducible_all_bits_are_the_same(tmp_path: Path, kind: str) -> None:
    """Whatever the traffic, and however tokens are sampled. Takes 5 s."""
    model = Model(tiny_model(kind, tmp_path, BITS_WINDOW), bits=True)
    try:
        traffic(model, range(5))
    finally:
        model.close()


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
        traffic(model, range(2))
    finally:
        model.close()
