"""The layouts of the KV cache: which one is chosen, and that texts go on in the other one."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import write_tiny_model

from srb.engine.backend import TRY_AGAIN_SECONDS, Batch
from srb.engine.kv_cache.allocator import Layout, Load
from srb.errors import ModelLoadError, SettingsError
from srb.llama.backend import LlamaBackend
from srb.llama.contexts import Contexts
from srb.llama.layouts import FEWEST_STREAMS, Layouts
from srb.llama.native.cost_model import DEFAULT_COST_MODEL, AttentionCosts, CostModel
from srb.llama.native.state import first_position
from srb.options.settings import Settings

Loading = Callable[..., LlamaBackend]

PROMPTS = [tuple((k * k * 7 + i * i) % 26 + 97 for k in range(40 + 9 * i)) for i in range(8)]
F32 = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
STREAMS = Layout(False, 256, 8, "off")


def read(backend: LlamaBackend, prompts: Iterable[tuple[int, ...]], chunk: int = 16) -> list[int]:
    """Evaluates prompts at the same time, chunk by chunk. Returns the likeliest token after each."""
    prompts, found = list(prompts), dict[int, int]()
    for start in range(0, max(map(len, prompts)), chunk):
        batch, lasts = Batch(), {}
        for seq_id, prompt in enumerate(prompts):
            if part := prompt[start : start + chunk]:
                is_last = start + chunk >= len(prompt)
                row = batch.add(part, start, seq_id, outputs=int(is_last))
                if is_last:
                    lasts[seq_id] = row
        assert backend.decode(batch, None)
        found |= {seq_id: int(backend.logits(row).argmax()) for seq_id, row in lasts.items()}
    return [found[seq_id] for seq_id in range(len(prompts))]


def go_on(backend: LlamaBackend, texts: dict[int, list[int]], n: int) -> None:
    """Adds the n most probable tokens to the texts of sequences. The last token of a text isn't computed yet."""
    for _ in range(n):
        batch = Batch()
        rows = {s: batch.add_row(text[-1], backend.length(s), s) for s, text in reversed(texts.items())}
        assert backend.decode(batch, None)
        for seq_id, row in rows.items():
            texts[seq_id].append(int(backend.logits(row).argmax()))


def move(backend: LlamaBackend, layout: Layout) -> None:
    """Moves all sequences into another layout."""
    ends = {seq_id: backend.length(seq_id) for seq_id in backend.used_seq_ids()}
    states = {seq_id: backend.save(seq_id, 0, end, 1 << 30) for seq_id, end in ends.items()}
    for seq_id in ends:
        backend.remove(seq_id)
    backend.prepare(layout)
    assert backend.layout == layout
    for seq_id, state in states.items():
        assert state is not None
        assert backend.restore(state, seq_id, 0, ends[seq_id])
        assert backend.length(seq_id) == ends[seq_id]


@pytest.fixture
def f32(load: Loading, tmp_path: Path) -> LlamaBackend:
    model = write_tiny_model(tmp_path / "f32.gguf", weight_type=GGMLQuantizationType.F32)
    return load(model=model, ctx_size=2048, batch_size=256, ubatch_size=64, **F32)


def test_a_full_stream_fills_no_gap(f32: LlamaBackend) -> None:
    f32.prepare(Layout(False, 256, 8, "off"))
    batch = Batch()
    batch.add(tuple(97 + k % 26 for k in range(256)), 0, 1, outputs=0)
    assert f32.decode(batch, None)
    texts = {0: [97], 2: [98]}
    go_on(f32, texts, 3)
    assert [f32.length(seq_id) for seq_id in range(4)] == [3, 256, 3, 0]


@pytest.mark.parametrize("types", [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16")])
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_texts_go_on_in_streams_and_back(
    load: Loading, tmp_path: Path, flash_attn: str, types: tuple[str, str]
) -> None:
    model = write_tiny_model(tmp_path / "f32.gguf", weight_type=GGMLQuantizationType.F32)
    options = {"flash_attn": flash_attn, "cache_type_k": types[0], "cache_type_v": types[1]}
    backend = load(model=model, ctx_size=2048, batch_size=256, ubatch_size=64, **options)
    unified, streams = backend.layout, Layout(False, 256, 8, flash_attn)
    said = []
    for layouts in ([unified] * 3, [streams, unified, streams]):
        texts = {0: read(backend, PROMPTS[:1])}
        for seq_id in range(1, 4):  # the cells of a prompt are shared in the first layout
            backend.fork(0, seq_id, len(PROMPTS[0]) - seq_id)
            texts[seq_id] = [98 + seq_id]
        go_on(backend, texts, 6)
        for layout in layouts:
            move(backend, layout)
            go_on(backend, texts, 6)
        said.append(texts)
        for seq_id in backend.used_seq_ids():
            backend.remove(seq_id)
        backend.prepare(unified)
    assert said[0] == said[1]


def test_a_suffix_state_is_restored_in_a_unified_cache_only(f32: LlamaBackend) -> None:
    unified = f32.layout
    read(f32, PROMPTS[:1])
    first, rest = f32.save(0, 0, 20, 1 << 20), f32.save(0, 20, 40, 1 << 20)
    assert first is not None
    assert rest is not None
    assert (first_position(first), first_position(rest), first_position(bytearray())) == (0, 20, 0)
    f32.remove(0)
    f32.prepare(STREAMS)
    assert f32.restore(first, 3, 0, 18)
    assert not f32.restore(rest, 3, 20, 40)
    assert f32.length(3) == 18
    assert not f32.restore(bytearray(40), 3, 0, 18)
    assert f32.length(3) == 0
    assert f32.restore(first, 3, 0, 20)
    whole = f32.save(3, 10, 20, 1 << 20)
    f32.remove(3)
    f32.prepare(unified)
    assert f32.restore(first, 0, 0, 10)
    assert whole is not None
    assert f32.restore(whole, 0, 10, 20)  # only its cells after the first ten
    assert f32.restore(rest, 0, 20, 40)
    texts = {0: [PROMPTS[0][-1]]}
    f32.truncate(0, 39)
    go_on(f32, texts, 4)
    f32.remove(0)
    texts_alone = {0: read(f32, PROMPTS[:1])}
    go_on(f32, texts_alone, 3)
    assert texts[0][1:] == texts_alone[0]


@pytest.mark.parametrize("flash_attn", ["off", "on"])
def test_what_moves_out_of_a_stream_needs_room_for_its_own_cells_alone(load: Loading, flash_attn: str) -> None:
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


def test_a_fork_is_copied_before_anything_is_saved_or_restored(f32: LlamaBackend) -> None:
    f32.prepare(STREAMS)
    read(f32, (PROMPTS[0], PROMPTS[1], PROMPTS[0][:30]))
    other = f32.save(1, 0, 30, 1 << 20)
    f32.fork(0, 3, 30)
    f32.remove(0)
    f32.fork(1, 0, 30)  # its seq_id has another text when llama.cpp copies
    state = f32.save(3, 0, 30, 1 << 20)
    assert state is not None
    assert other is not None
    f32.fork(0, 4, 30)
    assert f32.restore(state, 4, 0, 30)  # llama.cpp must not copy over it afterwards
    f32.fork(4, 5, 30)
    assert f32.restore(other, 4, 0, 30)  # nor copy this
    assert [f32.length(seq_id) for seq_id in range(7)] == [30, 49, 30, 30, 30, 30, 0]
    texts = {seq_id: [99] for seq_id in (0, 2, 3, 4, 5)}
    go_on(f32, texts, 5)
    assert texts[0] == texts[4] != texts[2] == texts[3] == texts[5]


def test_positions_move_in_streams(load: Loading) -> None:
    backend = load(**F32)
    assert backend.can_shift
    said = []
    for layout in (backend.layout, STREAMS):
        backend.prepare(layout)
        read(backend, PROMPTS[:1])
        backend.fork(0, 1, 40)
        backend.discard([0, 1], 10, 20, 40)
        assert [backend.length(seq_id) for seq_id in range(3)] == [30, 30, 0]
        texts = {seq_id: [99] for seq_id in range(2)}
        go_on(backend, texts, 5)
        said.append(texts)
        for seq_id in range(2):
            backend.remove(seq_id)
    assert said[0] == said[1]
    assert said[0][0] == said[0][1]


# The choice


OFF = AttentionCosts(
    step=0.01, row=0.0004, prompt_token=0.0005, row_cell=0.61e-6, prompt_cell=0.6e-6, walks_all=True, lone_step=0.008,
    lone_row_cell=2.9e-6,
)  # fmt: skip
ON = AttentionCosts(
    step=0.01, row=0.0004, prompt_token=0.0005, row_cell=2.7e-6, prompt_cell=0.6e-6, lone_step=0.008,
    lone_row_cell=2.7e-6,
)  # fmt: skip
COSTS = CostModel(ON, OFF, preferred="off")


def layouts(**options: Any) -> Layouts:
    sizes: dict[str, Any] = {"n_cells": 8192, "n_seqs": 67, "n_parallel": 32, "cell_bytes": 23_040}
    costs: dict[str, Any] = {
        "max_cells": 32_768,
        "costs": COSTS,
        "flash_attn": ("off",),
    }
    return Layouts(**(sizes | costs | options))


UNIFIED = Layout(True, 8192, 67, "off")
MANY = Layout(False, 1024, 16, "off")


def load_of(n_tokens: int, n_rows: int, max_tokens: int = 100, **options: Any) -> Load:
    return Load(n_tokens, 0, 0, n_rows, 0, max_tokens, **options)


def chosen(loads: list[Load], present: Layout = UNIFIED, n_used: int = 0, **options: Any) -> Layout:
    return layouts(**options).choose(loads, present, n_used, is_open=True)


def test_one_prompt_with_alternatives_has_a_unified_cache() -> None:
    assert chosen([load_of(600, 8)]) == UNIFIED
    assert chosen([load_of(600, 32)]) == UNIFIED
    assert chosen([load_of(600, 32)], MANY) == UNIFIED
    assert chosen([load_of(600, 1)]) == UNIFIED


def test_many_prompts_have_streams() -> None:
    assert chosen([load_of(600, 1, 32)] * 16) == Layout(False, 768, 32, "off")
    assert chosen([load_of(2000, 1, 32)] * 8) == Layout(False, 2048, 16, "off")
    assert chosen([load_of(150, 1, 100)] * 32) == Layout(False, 256, 32, "off")
    assert chosen([load_of(600, 4, 64)] * 8) == Layout(False, 768, 32, "off")
    assert chosen([load_of(900, 2, 64)] * 2) == Layout(False, 1024, 8, "off"), "the first tokens come sooner"


def test_streams_have_room_for_max_tokens_if_that_fits() -> None:
    assert chosen([load_of(600, 1, 1000)] * 16) == Layout(False, 1792, 18, "off")
    assert chosen([load_of(600, 1, 7000)] * 16) == Layout(False, 1024, 32, "off")  # too many for all: 256 at first
    # Five at a time, if there is no room for all of them; but not one at a time.
    assert chosen([load_of(6000, 1, 100)] * 6) == Layout(False, 6144, 5, "off")
    assert chosen([load_of(6000, 1, 100)] * 6, max_cells=10_000).is_unified
    assert chosen([load_of(600, 4, 1000)] * 16).n_seqs == 32
    assert chosen([load_of(800, 4, 1000)] * 16) == Layout(False, 1280, 25, "off")


def test_a_short_request_changes_nothing() -> None:
    short = load_of(20, 1, 16)
    assert chosen([short], MANY) == MANY
    assert chosen([short], MANY, 5000) == MANY
    assert chosen([short] * 2, UNIFIED) == UNIFIED


def test_while_something_runs_a_change_must_save_more() -> None:
    running = Load(600, 600, 0, 16, 30, 70)
    assert chosen([running], UNIFIED, 1080) == UNIFIED
    arrived = [load_of(600, 1, 64)] * 12
    assert not chosen([Load(600, 600, 0, 4, 30, 70), *arrived], UNIFIED, 720).is_unified
    # What is computed doesn't pay for a change any more, unless it goes on for long.
    computed = [Load(600, 600, 0, 1, 0, 8)] * 5
    assert chosen(computed, UNIFIED, 3000) == UNIFIED


def test_a_sequence_that_outgrows_its_stream_gets_another_layout() -> None:
    loads = [Load(600, 600, 0, 1, 423, 500)] * 16
    assert chosen(loads, MANY, 16_000) == MANY
    loads[0] = Load(600, 600, 0, 1, 424, 500)
    assert chosen(loads, MANY, 16_000) == Layout(False, 1536, 21, "off")
    assert chosen([load_of(1024, 1)], MANY) != MANY


def test_a_unified_cache_grows_for_work_that_needs_it_and_stays() -> None:
    loads = [load_of(1500, 8, 1000, needs_unified=True)] * 4
    large = chosen(loads)
    assert large == Layout(True, 16_384, 67, "off")
    assert chosen([load_of(600, 8)], large) == large
    assert chosen([load_of(6000, 8, needs_unified=True)] * 9).n_cells == 32_768
    assert chosen([load_of(6000, 8, needs_unified=True)] * 9, max_cells=10_000).n_cells == 9984
    assert chosen([load_of(6000, 8, needs_unified=True)] * 9, max_cells=8192) == UNIFIED


def test_a_layout_without_memory_is_tried_again_after_a_while() -> None:
    now = 0.0
    chooser = layouts(clock=lambda: now)
    loads = [load_of(600, 1)] * 16

    def choose() -> Layout:
        return chooser.choose(loads, UNIFIED, 0, is_open=True)

    first = choose()
    chooser.refuse(MANY)
    assert choose() == Layout(False, 768, 10, "off"), "of at most half the cells"
    chooser.refuse(Layout(False, 768, 10, "off"))
    assert choose() == UNIFIED
    now += TRY_AGAIN_SECONDS
    assert choose() == first


@pytest.mark.parametrize("n_failures", [1, 2])
def test_without_memory_for_a_context_the_present_one_stays(
    load: Loading, monkeypatch: pytest.MonkeyPatch, n_failures: int
) -> None:
    backend, make, failures = load(), Contexts._make, [ModelLoadError("no memory")] * n_failures

    def fail(self: Contexts) -> Any:
        if failures:
            raise failures.pop()
        return make(self)

    monkeypatch.setattr(Contexts, "_make", fail)
    present = backend.layout
    larger = backend.choose([load_of(900, 1, needs_unified=True)] * 3, 0)
    with pytest.raises(ModelLoadError) if n_failures == 2 else nullcontext():
        backend.prepare(larger)
    assert backend.layout == present
    again = backend.choose([load_of(900, 1, needs_unified=True)] * 3, 0)
    assert again.n_cells < larger.n_cells
    backend.prepare(again)
    assert len(read(backend, PROMPTS[:1])) == 1


def test_layouts_follow_requests_that_come_one_by_one() -> None:
    present, seen = UNIFIED, [UNIFIED]
    for n in range(16):
        loads = [Load(800, 800, 0, 1, 10, 54)] * n + [load_of(800, 1, 64)]
        present = chosen(loads, present, 810 * n)
        if present != seen[-1]:
            seen.append(present)
    assert seen == [UNIFIED, Layout(False, 1024, 8, "off"), Layout(False, 1024, 32, "off")]


BOTH: dict[str, Any] = {"flash_attn": ("auto", "off")}


def test_the_kind_of_attention_changes_in_an_empty_cache_only() -> None:
    unified = Layout(True, 8192, 67, "auto")
    assert chosen([load_of(2000, 32, 64)], unified, **BOTH) == UNIFIED
    assert chosen([load_of(2000, 32, 64)], unified, 100, **BOTH) == unified
    assert chosen([load_of(600, 1, 64)] * 16, unified, 5000, **BOTH).flash_attn == "auto"


def test_the_faster_attention_is_chosen() -> None:
    def faster(n_tokens: int, n_rows: int, max_tokens: int, n_prompts: int = 1) -> str:
        loads = [load_of(n_tokens, n_rows, max_tokens)] * n_prompts
        present = Layout(True, 8192, 67, "auto")
        return chosen(loads, present, streams=False, costs=DEFAULT_COST_MODEL, **BOTH).flash_attn

    assert faster(2000, 32, 64) == "off"
    assert faster(2000, 8, 256) == "off"
    assert faster(600, 32, 64) == "auto", "hardly any difference"
    assert faster(20, 8, 256) == "auto", "the tokens are their own"
    assert faster(2000, 32, 1000) == "auto"
    assert faster(2000, 1, 1000) == "auto", "one row has a fast kernel of its own"
    assert faster(2000, 8, 2) == "auto", "too little"
    assert faster(2000, 4, 64, 3) == "auto", "nothing shared"


def test_streams_have_flash_attention_where_both_kinds_may_be_chosen() -> None:
    streams = Layout(False, 768, 32, "auto")
    for n_used in (0, 500):
        assert chosen([load_of(600, 4, 64)] * 8, UNIFIED, n_used, **BOTH) == streams
        assert chosen([load_of(600, 32)], streams, n_used, **BOTH) == UNIFIED
    assert chosen([load_of(600, 4, 64)] * 8).flash_attn == "off", "--flash-attn off"


LOADS = st.lists(
    st.builds(
        Load,
        n_tokens=st.integers(600, 6000),
        n_computed=st.integers(0, 600),
        n_shared=st.integers(0, 600),
        n_rows=st.integers(0, 64),
        n_generated=st.integers(0, 1000),
        max_tokens=st.integers(1, 1000),
        needs_unified=st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


@given(st.lists(LOADS, min_size=1, max_size=4), st.sampled_from([8192, 10_000, 32_768, 100_000]), st.booleans())
def test_any_work_has_room_in_its_layout(works: list[list[Load]], max_cells: int, is_forced: bool) -> None:
    chooser = layouts(max_cells=max_cells, unified=not is_forced, **BOTH)
    present = Layout(False, 256, 32, "auto") if is_forced else UNIFIED
    for loads in works:
        n_used = sum(load.n_computed for load in loads)
        present = chooser.choose(loads, present, n_used, is_open=True)
        again = chooser.choose(loads, present, n_used, is_open=True)
        n_seqs = 1 if present.is_unified else present.n_seqs
        assert present.n_cells * n_seqs <= max_cells or (is_forced and n_seqs == FEWEST_STREAMS)
        if present.is_unified:
            assert present.n_cells >= 8192
            assert not is_forced
        else:
            assert all(load.n_tokens + load.n_generated + 1 <= present.n_cells for load in loads)
            assert is_forced or not any(load.needs_unified for load in loads)
        assert again == present  # it doesn't go to and fro


def test_reproducible_has_one_layout(load: Loading) -> None:
    backend = load(reproducible=True, parallel=4, ctx_size=1024, ubatch_size=64)
    assert backend.layout == Layout(False, 255, 6, "off")
    assert backend.choose([load_of(100, 1)] * 16, 0) == backend.layout
    assert (backend.n_cells, backend.layout.n_cells, backend.layout.n_seqs) == (255, 255, 6)
    with pytest.raises(SettingsError, match="--reproducible excludes --kv-layout unified"):
        Settings(reproducible=True, kv_layout="unified")


@pytest.mark.parametrize("arch", ["gemma3", "mamba", "jamba"])
def test_a_model_that_forgets_stays_unified(load: Loading, tmp_path: Path, arch: str) -> None:
    model = write_tiny_model(tmp_path / "forgets.gguf", arch=arch)
    backend = load(model=model)
    assert backend.choose([load_of(600, 1)] * 16, 0).is_unified
    assert backend.choose([load_of(600, 1)] * 16, 500) == backend.layout
    with pytest.raises(
        ModelLoadError, match="--kv-layout streams can't be used with this model: it has a sliding window"
    ):
        load(model=model, kv_layout="streams")


def test_a_layout_that_is_given_stays(load: Loading) -> None:
    backend = load(kv_layout="unified")
    assert backend.choose([load_of(200, 1)] * 16, 0).is_unified
    backend = load(kv_layout="streams")
    assert backend.layout == Layout(False, 256, 8, "auto")
    alone = backend.choose([load_of(1000, 8)], 0)
    assert not alone.is_unified
    assert alone.n_cells == 1024
    backend.prepare(alone)
    assert backend.n_cells == 1024
    assert len(read(backend, PROMPTS, 8)) == 8


def test_costs_are_those_of_the_layout(load: Loading) -> None:
    backend = load(**F32)
    assert backend.costs.in_turn
    backend.prepare(STREAMS)
    assert (backend.costs.walks_all, backend.costs.in_turn) == (False, True)
    assert OFF.in_streams().row_cell == 2.9e-6
    assert np.isclose(ON.in_streams().row_cell, ON.row_cell)


def test_more_cells_are_made_for_more_work(load: Loading) -> None:
    backend = load()
    assert backend.layout == Layout(True, 1024, 19, "auto")
    larger = backend.choose([load_of(900, 1, needs_unified=True)] * 3, 0)
    assert larger.n_cells == 4096
    backend.prepare(larger)
    assert (backend.n_cells, backend.layout.n_cells) == (1024, 4096)
    backend.sleep()
    assert backend.layout == larger
    backend.prepare(backend.layout)
    assert backend.used_seq_ids() == []
