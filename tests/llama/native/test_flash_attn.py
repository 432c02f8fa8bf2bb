"""Flash attention is turned off for the work that is faster without, and cached states fit both."""

import dataclasses
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import request, run, texts
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.engine.kv_cache.allocator import Load
from srb.llama import contexts, layouts
from srb.llama.backend import LlamaBackend
from srb.llama.native import cost_model as cost_module
from srb.llama.native.state import StateFormat, converted, first_position
from srb.options.settings import Settings

LONG = Load(10**6, 0, 0, 8, 0, 10**3)
STORY = "".join(chr(97 + (i * i) % 26) for i in range(200))


@pytest.fixture(params=["f32", "f16", "bf16"])
def backend(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[LlamaBackend]:
    with LlamaBackend(Settings(model=tiny_model, ctx_size=1024, parallel=8, cache_type_v=request.param)) as backend:
        yield backend


@pytest.fixture
def set_costs(monkeypatch: pytest.MonkeyPatch) -> Callable[[cost_module.CostModel], None]:
    """Sets what attention costs on every machine, with any model. Making a context costs nothing."""
    monkeypatch.setattr(layouts, "CONTEXT_SECONDS", 0)
    monkeypatch.setattr(cost_module.CostModel, "scaled_to", lambda model, _estimated: model)
    return lambda model: monkeypatch.setattr(
        contexts, "DEFAULT_COST_MODEL", dataclasses.replace(model, seconds_per_mib=0)
    )


@pytest.fixture
def cheap(set_costs: Callable[[cost_module.CostModel], None]) -> None:
    """Changing costs nothing, and prompts take as long without it."""
    off = dataclasses.replace(cost_module.DEFAULT_COST_MODEL.off, prompt_token=0)
    set_costs(dataclasses.replace(cost_module.DEFAULT_COST_MODEL, off=off))


def cached_states(backend: LlamaBackend) -> list[bytearray]:
    """The states that an engine has cached of a prompt and of its two texts."""
    run(engine := Engine(backend, cache_bytes=10_000_000), request(STORY, 2, max_tokens=20, ignore_eos=True))
    answer = engine.ask(0, lambda states: [states.copies(tokens) for tokens in states.slots.values()])
    engine.step()
    return [bytearray(each) for each in {bytes(piece.state) for pieces in answer.result() for piece in pieces}]


F16, BF16 = 1, 30


@pytest.mark.parametrize(
    "change", [{"keys": BF16}, {"by_channel": True}, {"n_streams": 3}, {"keys": BF16, "n_streams": 2}]
)
def test_a_state_is_converted_and_back(backend: LlamaBackend, change: dict[str, Any]) -> None:
    own = backend.context.format
    for state in cached_states(backend):
        other = converted(state, wanted := own._replace(**change))
        assert converted(other, wanted) is other != state
        back = converted(other, own)
        assert converted(back, wanted) == other  # bf16 numbers that are so small stay the same as f16
        assert "keys" in change or back[8:] == state[8:]
        assert first_position(other) == first_position(state)
        assert converted(state[:-1], wanted) == state[:-1]
    assert converted(bytearray(), own) == bytearray()


def test_converting_takes_no_second_copy_of_a_state() -> None:
    number = struct.pack("<iQ", F16, 2000) + bytes(2000)
    head = struct.pack("<IiII", 0xAF143CD8, 0, 1, 1) + struct.pack("<3iII", 0, 1, 0, 0, 500)
    state = bytearray(head + 1000 * number)
    tracemalloc.start()
    converted(state, StateFormat(F16, F16, by_channel=True, n_streams=2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * len(state)


def state_of(kind: int, numbers: bytes) -> bytearray:
    """The state of one cell, whose keys and values are these numbers."""
    tensor = struct.pack("<iQ", kind, len(numbers)) + numbers
    return bytearray(struct.pack("<IiII3iII", 0xAF143CD8, 0, 1, 1, 0, 1, 0, 0, 1) + tensor + tensor)


def test_numbers_of_the_other_type_are_the_nearest() -> None:
    floats = np.array([1, -2.5, 3.14159, 1e-3, 1.0068, 60_000], "<f2")
    state = converted(state_of(F16, floats.tobytes()), StateFormat(BF16, BF16, by_channel=False, n_streams=1))
    found = (np.frombuffer(state[-12:], "<u2").astype("<u4") << 16).view("<f4")
    assert found == pytest.approx(floats.astype("<f4"), rel=2**-8)
    back = converted(state, StateFormat(F16, F16, by_channel=False, n_streams=1))
    assert back == state_of(F16, found.astype("<f2").tobytes())


def test_a_number_that_the_other_type_does_not_have_leaves_a_state_as_it_is() -> None:
    state = state_of(BF16, struct.pack("<2H", 0x3F80, 0x7F00))  # 1 and 1.7e38
    assert converted(state, StateFormat(F16, F16, by_channel=False, n_streams=1)) is state


@pytest.mark.parametrize("by_channel", [False, True])
def test_a_state_of_another_format_stays_as_it_is(by_channel: bool) -> None:
    wanted = StateFormat(BF16, BF16, by_channel=False, n_streams=1)
    state = converted(state_of(F16, bytes(4)), StateFormat(F16, F16, by_channel, n_streams=2))
    for at in range(0, len(state), 4):
        for number in (0, 1 << 31, (1 << 32) - 1):
            other = bytearray(state)
            struct.pack_into("<I", other, at, number)
            converted(other, wanted)
            first_position(other)
    assert converted(other, wanted) is other


@pytest.mark.usefixtures("cheap")
def test_cached_states_continue_with_and_without_it(backend: LlamaBackend) -> None:
    engine = Engine(backend, cache_bytes=10_000_000)
    many = dataclasses.replace(request(STORY, 8, max_tokens=8, seed=5, ignore_eos=True), id="many")
    few = dataclasses.replace(request(STORY + "and", 2, max_tokens=8, seed=5, ignore_eos=True), id="few")
    seen, said = [], []
    for each in (few, many, few, many):
        said.append(texts(run(engine, each)))
        seen.append(backend.layout.flash_attn)
    assert seen == ["auto", "off", "auto", "off"]
    assert said[:2] == said[2:]
    assert engine.stats().prompt_tokens_evaluated == 203 + 1  # the last token of the shorter one had no logits


def test_each_kind_has_its_own_type_of_keys_and_values(
    tiny_model: Path, set_costs: Callable[[cost_module.CostModel], None]
) -> None:
    """Cached states fit both. It takes 0.1 s."""
    on = dataclasses.replace(cost_module.DEFAULT_COST_MODEL.on, cache_type="f16")
    off = dataclasses.replace(cost_module.DEFAULT_COST_MODEL.off, cache_type="bf16", prompt_token=0)
    set_costs(cost_module.CostModel(on, off, preferred="off"))
    with LlamaBackend(Settings(model=tiny_model, ctx_size=1024, parallel=8)) as backend:
        assert "keys bf16, values bf16 or keys f16, values f16" in backend.identity
        engine = Engine(backend, cache_bytes=10_000_000)
        seen = [backend.context.format[:2]]
        for n in (2, 8, 2, 8):
            run(engine, request(STORY, n, max_tokens=8, ignore_eos=True))
            seen.append(backend.context.format[:2])
        assert seen == [(each, each) for each in (BF16, F16, BF16, F16, BF16)]
        assert engine.stats().prompt_tokens_evaluated == 200
        assert not backend.can_shift  # not in both kinds


def test_quantized_values_need_flash_attention(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "wide.gguf", n_embd=128)
    with LlamaBackend(Settings(model=model, ctx_size=1024, parallel=8, cache_type_v="q8_0")) as backend:
        assert backend.choose([LONG], 0).flash_attn == "auto"
