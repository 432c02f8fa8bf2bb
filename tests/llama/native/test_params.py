"""Options that go to llama.cpp by llama-server's names: what each of them does, or its error."""

import ctypes
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from tiny_model import write_tiny_model

from srb.engine.backend import Batch
from srb.errors import ModelLoadError, SettingsError
from srb.llama.backend import LlamaBackend
from srb.llama.native.params import context_params, is_on_gpu, model_params, ubatch_size
from srb.llama.tune.result import tuned_path
from srb.options.settings import Settings

TOKENS = tuple(range(60, 124))
EPSILON = "llama.attention.layer_norm_rms_epsilon"
YARN = {"rope_scaling": "yarn", "rope_freq_scale": 0.5, "yarn_orig_ctx": 32}

Load = Callable[..., LlamaBackend]


def logits(backend: LlamaBackend) -> Any:
    batch = Batch()
    batch.add(TOKENS[: backend.n_batch], 0, 0, outputs=1)
    assert backend.decode(batch, None)
    return backend.logits(len(batch) - 1).copy()


@pytest.mark.parametrize(
    ("options", "base"),
    [
        ({"rope_freq_base": 500.0}, {}),
        ({"rope_freq_scale": 0.5}, {}),
        ({"rope_scale": 4.0}, {}),
        ({"rope_scaling": "yarn"}, {"rope_freq_scale": 0.5}),
        ({"yarn_orig_ctx": 2048}, YARN),
        ({"yarn_ext_factor": 0.0}, YARN),
        ({"yarn_attn_factor": 2.0}, YARN | {"yarn_ext_factor": 0.0}),
        ({"yarn_beta_slow": 20.0}, YARN),
        ({"yarn_beta_fast": 1.5}, YARN | {"yarn_orig_ctx": 4096}),
        ({"override_kv": f"{EPSILON}=float:0.5"}, {}),
    ],
)
def test_what_changes_the_evaluation_is_part_of_what_a_state_must_fit(
    load: Load, tiny_model: Path, options: dict[str, Any], base: dict[str, Any]
) -> None:
    plain, other = load(**base), load(**base | options)
    assert not np.allclose(logits(plain), logits(other))
    assert plain.identity != other.identity
    settings = Settings(model=tiny_model, **base)
    assert tuned_path(tiny_model, settings) != tuned_path(tiny_model, dataclasses.replace(settings, **options))


def test_scales_that_are_the_same(load: Load) -> None:
    assert np.array_equal(logits(load(rope_scale=2.0)), logits(load(rope_freq_scale=0.5)))
    assert np.array_equal(logits(load(rope_scaling="none", rope_scale=2.0)), logits(load()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{EPSILON}=int:1", rf"--override-kv {EPSILON}: it is float but got int"),
        ("llama.nothing=int:1", r"--override-kv llama\.nothing: llama\.cpp doesn't ask for this key"),
    ],
)
def test_metadata_that_nobody_reads(load: Load, text: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(override_kv=text)


@pytest.mark.parametrize("text", ["a", "a=1", "a=int:x", "a=bool:1", "=int:1", f"a=str:{'x' * 128}", "a=i:1"])
def test_metadata_that_cant_be_read(text: str) -> None:
    with pytest.raises(SettingsError, match="--override-kv takes KEY=TYPE:VALUE"):
        model_params(Settings(override_kv=text))


def test_all_types_of_metadata(load: Load, tiny_model: Path) -> None:
    backend = load(
        override_kv="tokenizer.ggml.add_bos_token=bool:true, general.name=str:other,llama.context_length=int:512"
    )
    assert backend.tokenizer.tokenize("a", is_prompt=True)[0] == 257
    assert load(ctx_size=0, override_kv="llama.context_length=int:512").n_cells == 512


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "load_mode = mmap"),
        ({"mmap": False}, "load_mode = none"),
        ({"mlock": True}, "load_mode = mmap+mlock"),
        ({"mlock": True, "mmap": False}, "load_mode = mlock"),
        ({"override_tensor": r"blk\.1\.ffn_up=CPU"}, "blk.1.ffn_up.weight"),
    ],
)
def test_where_the_weights_are(
    load: Load, caplog: pytest.LogCaptureFixture, options: dict[str, Any], expected: str
) -> None:
    caplog.set_level(logging.DEBUG, "srb.llama")
    load(**options)
    assert any(expected in line for line in caplog.messages if "load_mode" in line or "overridden" in line)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "CUDA7"}, SettingsError, "--device: there is no 'CUDA7'; there are none"),
        ({"override_tensor": "exps=Nowhere"}, SettingsError, "a buffer of CPU.*; got 'exps=Nowhere'"),
        ({"override_tensor": "exps"}, SettingsError, "--override-tensor takes PATTERN=BUFFER"),
        ({"override_tensor": "(=CPU"}, ModelLoadError, "can't be loaded"),
        ({"tensor_split": "one,2"}, SettingsError, "--tensor-split takes numbers with commas between"),
        (
            {"tensor_split": ",".join("1" * 99)},
            SettingsError,
            "--tensor-split has 99 shares, and llama.cpp takes up to",
        ),
    ],
)
def test_places_that_there_arent(load: Load, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load(**options)


def test_experts_stay_off_the_gpu() -> None:
    def patterns(**options: Any) -> list[bytes]:
        params = model_params(Settings(**options))
        address, found = params.tensor_buft_overrides, []
        while address and (pattern := ctypes.c_char_p.from_address(address).value):
            assert ctypes.c_void_p.from_address(address + 8).value  # a buffer type
            found.append(pattern)
            address += 16
        return found

    experts = rb"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    assert patterns() == []
    assert patterns(cpu_moe=True) == [experts]
    assert patterns(n_cpu_moe=2) == [rb"blk\.0" + experts, rb"blk\.1" + experts]
    assert patterns(override_tensor="one=CPU,two=CPU", cpu_moe=True) == [b"one", b"two", experts]


def test_what_only_gpus_have(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    params = model_params(Settings(split_mode="none", main_gpu=3, tensor_split="3,1", n_gpu_layers=5))
    assert (params.split_mode, params.main_gpu, params.n_gpu_layers) == (0, 3, 5)
    assert params.tensor_split[:2] == [3, 1]
    assert not context_params(Settings(kv_offload=False)).offload_kqv
    assert not is_on_gpu(Settings(device="none"))
    load(device="none")
    if not llama_cpp.llama_supports_gpu_offload():
        assert "llama.cpp has no GPU here, so this has no effect: --" in caplog.text


def test_a_smaller_window(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "window.gguf", arch="gemma3")
    settings = Settings(model=model, ctx_size=2048, parallel=2, ubatch_size=32, batch_size=32)
    found = []
    for swa_full in (True, False):
        caplog.set_level(logging.DEBUG, "srb.llama")
        caplog.clear()
        with LlamaBackend(dataclasses.replace(settings, swa_full=swa_full)) as backend:
            found.append((logits(backend), backend.identity))
        cells = [line for line in caplog.messages if "size =" in line and "cells" in line]
        assert ("2048 cells" in cells[-1]) == swa_full
    assert np.allclose(found[0][0], found[1][0])
    assert found[0][1] != found[1][1]


def test_ubatches_are_smaller_where_flash_attention_is_off_by_choice() -> None:
    asked: list[dict[str, Any]] = [{}, {"flash_attn": "off"}, {"mmproj": Path("m")}, {"ubatch_size": 64}]
    assert [ubatch_size(Settings(**each), "off") for each in asked] == [256, 512, 512, 64]
    assert ubatch_size(Settings(), "auto") == 512


def test_several_nodes(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(llama_cpp, "llama_numa_init", calls.append)
    load()
    load(numa="isolate")
    assert calls == [2]
