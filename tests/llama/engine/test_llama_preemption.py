"""Random traffic in a cache that is much too small, while the layout changes: each text is that of its request alone.

Sequences are preempted all the time, and swapped in again or computed again. `bench/checks/pressure.py` looks for
longer, and shrinks what it finds.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from alone import KINDS, Model, failure, report, tiny_adapter, tiny_model
from driver import few
from traffic import Ask, Program, Run, press, shrink

from srb.engine.backend import Batch
from srb.engine.kv_cache.allocator import Layout
from srb.llama.backend import LlamaBackend

SHRINK_SECONDS = 60

FOUND: dict[str, Program] = {
    "a guide that evaluates forced tokens while the cache is full": Program(
        ops=(
            Ask(
                name=0,
                prompts=((Run(seed=1, length=12),),),
                branches=({"match": 3, "max_tokens": 80, "guide": Run(seed=1, length=16)},),
            ),
            Ask(
                name=1,
                prompts=((Run(seed=1, length=10),),),
                branches=(
                    {"max_tokens": 7},
                    {"draw": 22, "match": 3, "max_tokens": 80, "guide": Run(seed=1, length=16)},
                ),
            ),
        ),
        ctx_size=256,
        layouts=0,
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
            models[kind] = Model(tiny_model(kind, folder), adapter=tiny_adapter(kind, folder))
        return models[kind]

    yield make
    for each in models.values():
        each.close()


def look(model: Model, seeds: range) -> Counter[str]:
    """Runs random programs; fails with a small one. Returns how many preemptions and changes of the layout there were.

    Some have memory for all states that are swapped out, some for a few, and some for none.
    """
    n = Counter[str]()
    for seed in seeds:
        program = press(seed)
        try:
            stats = model.check(program)
        except Exception:  # an engine with a bug may raise anything
            program = shrink(program, lambda smaller: failure(model, smaller) is not None, SHRINK_SECONDS)
            pytest.fail(f"seed {seed}: {report(program, failure(model, program))}", pytrace=False)
        n += Counter(preemptions=stats.preemptions, changes=stats.layout_changes)
    return n


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", few(range(4), many=[range(4, 10)]), ids=str)
def test_what_is_preempted_and_moved_says_what_it_says_alone(
    model: Callable[[str], Model], kind: str, seeds: range
) -> None:
    n = look(model(kind), seeds)
    assert n["preemptions"] > 0
    assert (n["changes"] > 0) == (kind == "full")


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_before(model: Callable[[str], Model], name: str) -> None:
    model("full").check(FOUND[name])


@pytest.mark.parametrize("flash_attn", ["off", "on"])
def test_what_moves_out_of_a_stream_needs_room_for_its_own_cells_alone(
    load: Callable[..., LlamaBackend], flash_attn: str
) -> None:
    """The state also has the cells of the prompt. With flash attention it is laid out in another way."""
    backend = load(cache_type_k="f32", cache_type_v="f32", flash_attn=flash_attn, ctx_size=256, batch_size=256)
    unified, text = backend.layout, tuple(k * k % 26 + 97 for k in range(180))
    expected = next_logits(backend, text)
    backend.remove(0)
    backend.prepare(Layout(False, 256, 4, flash_attn))
    next_logits(backend, text)
    state = backend.save(0, 0, 181, 1 << 30)
    assert state is not None
    backend.remove(0)
    backend.prepare(unified)
    next_logits(backend, text[:149])
    for seq_id in (1, 2):
        backend.fork(0, seq_id, 149)
        assert backend.restore(state, seq_id, 149, 180)
        assert backend.length(seq_id) == 180
        assert next_logits(backend, (), seq_id) == pytest.approx(expected, abs=1e-3)


def next_logits(backend: LlamaBackend, tokens: tuple[int, ...], seq_id: int = 0) -> Any:
    """The logits after these tokens and one more, which are added to a sequence."""
    batch = Batch()
    row = batch.add((*tokens, 99), backend.length(seq_id), seq_id, outputs=1)
    assert backend.decode(batch, None)
    return backend.logits(row).copy()
