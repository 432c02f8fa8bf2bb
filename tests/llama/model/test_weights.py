"""Weights are converted once, completely or not at all, and tuned settings are used where they fit."""

import collections
import dataclasses
import logging
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from driver import request, run, texts
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.errors import ModelLoadError
from srb.llama.backend import LlamaBackend
from srb.llama.model import weights
from srb.llama.model.metadata import read_tensors
from srb.llama.model.weights import convert, converted_bytes, converted_path, mixed, reason_not_to_convert
from srb.llama.native.cost_model import DEFAULT_COST_MODEL
from srb.llama.tune import result as result_module
from srb.llama.tune.result import Tuned, choose, read_tuned, stored_files, tuned_path, write_tuned
from srb.options.settings import Settings


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "llama-srb" / "tuned"


def types(path: Path) -> dict[str, int]:
    return collections.Counter(each.type for each in read_tensors(path) if each.is_matrix)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_the_weights_in_another_format(tiny_model: Path, empty_cache: Path, kind: str) -> None:
    made = convert(tiny_model, kind)
    assert list(types(made)) == [kind]
    assert made.stat().st_size == pytest.approx(converted_bytes(read_tensors(tiny_model), kind), rel=0.1)
    assert [each.name for each in empty_cache.iterdir() if each.suffix != ".lock"] == [made.name]
    before = made.stat().st_mtime_ns
    assert convert(tiny_model, kind) == made
    assert made.stat().st_mtime_ns == before
    with LlamaBackend(Settings(model=tiny_model, ctx_size=256, weights=kind)) as backend:
        assert backend.path == tiny_model
        assert len(texts(run(Engine(backend), request("abc", 2, max_tokens=4, ignore_eos=True)))) == 2


def test_only_the_tensors_of_one_type(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", weight_type=gguf.GGMLQuantizationType.Q4_1)
    halves = tmp_path / "halves.gguf"
    shutil.copy(convert(path, mixed("q4_1", "q8_0")), halves)
    assert list(types(halves)) == ["q8_0"]
    assert list(types(convert(path, mixed("q6_k", "bf16")))) == ["q4_1"]


@pytest.mark.parametrize(
    ("memory", "disk", "said"),
    [(1000, 1 << 40, "more than half of the free memory of 0 MiB"), (1 << 40, 1000, "0 MiB of the disk are free")],
)
def test_without_room_nothing_is_converted(
    tiny_model: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, memory: int, disk: int, said: str
) -> None:
    monkeypatch.setattr(weights, "available_memory", lambda: memory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(disk, 0, disk))
    assert said in str(reason_not_to_convert(tiny_model, "bf16"))
    with pytest.raises(ModelLoadError, match="can't be converted to bf16: "):
        convert(tiny_model, "bf16")
    with pytest.raises(ModelLoadError, match="can't be converted to bf16: "):
        LlamaBackend(Settings(model=tiny_model, weights="bf16"))
    assert not empty_cache.exists()


def test_what_llama_cpp_cannot_convert_leaves_no_file(tmp_path: Path, empty_cache: Path) -> None:
    whole = write_tiny_model(tmp_path / "whole.gguf").read_bytes()
    (half := tmp_path / "half.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelLoadError, match=r"half\.gguf can't be converted to bf16: .*(bounds|corrupted)"):
        convert(half, "bf16")
    assert [each.suffix for each in empty_cache.iterdir()] == [".lock"]


def test_a_stopped_conversion_leaves_no_file(
    tiny_model: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(command: list[str], **_options: object) -> None:
        Path(command[-2]).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        convert(tiny_model, "bf16")
    assert [each.suffix for each in empty_cache.iterdir()] == [".lock"]


@pytest.fixture(scope="module")
def as_bf16(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of the tiny model, converted before."""
    return Path(shutil.copy(convert(tiny_model, "bf16"), tmp_path_factory.mktemp("converted")))


WITH_TYPES = dataclasses.replace(
    DEFAULT_COST_MODEL,
    on=dataclasses.replace(DEFAULT_COST_MODEL.on, cache_type="f16"),
    off=dataclasses.replace(DEFAULT_COST_MODEL.off, cache_type="bf16"),
    preferred="off",
)


@pytest.fixture
def tuned(tiny_model: Path, as_bf16: Path) -> Tuned:
    made = converted_path(tiny_model, "bf16")
    made.parent.mkdir(parents=True)
    shutil.copy(as_bf16, made)
    result = Tuned(
        weights="bf16",
        weights_bytes=made.stat().st_size,
        cache_type="bf16",
        flash_attn="auto",
        threads=1,
        threads_batch=2,
        times_as_fast=2.1,
        cost_model=WITH_TYPES,
    )
    write_tuned(tiny_model, Settings(), result)
    return result


def test_what_was_tuned_is_used_and_said(tiny_model: Path, tuned: Tuned, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "srb")
    assert read_tuned(tiny_model, Settings()) == tuned
    choice = choose(tiny_model, Settings())
    assert choice.weights == converted_path(tiny_model, "bf16")
    assert (choice.settings.cache_type_k, choice.settings.threads, choice.settings.threads_batch) == ("bf16", 1, 2)
    assert choice.cost_model == WITH_TYPES
    assert "weights as bf16" in caplog.text
    assert "2.1 times as fast" in caplog.text


def test_what_is_given_by_hand_wins(tiny_model: Path, tuned: Tuned) -> None:
    choice = choose(tiny_model, Settings(weights="file", threads=2))
    assert (choice.weights, choice.cost_model) == (tiny_model, None)
    assert (choice.settings.cache_type_v, choice.settings.threads, choice.settings.threads_batch) == ("bf16", 2, 2)
    choice = choose(tiny_model, Settings(flash_attn="on"))
    assert choice.weights == converted_path(tiny_model, "bf16")
    assert (choice.settings.cache_type_k, choice.settings.flash_attn, choice.cost_model) == ("f16", "on", None)
    assert choice.machine_costs == WITH_TYPES.with_any_cache_type()
    choice = choose(tiny_model, Settings(tune=False))
    assert (choice.weights, choice.settings.cache_type_k, choice.cost_model) == (tiny_model, "f16", None)


def test_a_server_with_context_shift_has_keys_whose_positions_can_change(
    tiny_model: Path, tuned: Tuned, load: Callable[..., LlamaBackend], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "srb")
    assert not load().can_shift
    assert "the cache is f16" not in caplog.text
    assert load(context_shift=True).can_shift
    assert "the cache is f16" in caplog.text
    assert choose(tiny_model, Settings(context_shift=True)).cost_model == WITH_TYPES.with_any_cache_type()
    given = Settings(cache_type_k="bf16", context_shift=True)
    assert choose(tiny_model, given).settings.cache_type_k == "bf16"


def test_a_model_that_was_not_tuned_uses_the_machines_attention(
    tmp_path: Path, tiny_model: Path, tuned: Tuned, load: Callable[..., LlamaBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", seed=1)
    assert choose(other, Settings()).machine_costs is None
    off_is_better = dataclasses.replace(DEFAULT_COST_MODEL, preferred="off")
    write_tuned(tiny_model, Settings(), dataclasses.replace(tuned, cost_model=off_is_better))
    monkeypatch.setattr(result_module, "find_model", lambda _path: tiny_model)
    assert choose(other, Settings()).machine_costs == off_is_better
    assert choose(other, Settings(tune=False)).machine_costs is None
    assert "flash attention auto" in load(model=other).identity
    assert load(model=other).layout.flash_attn == "off"
    assert load(model=other, tune=False).layout.flash_attn == "auto"


def test_another_model_or_machine_has_another_result(
    tmp_path: Path, tiny_model: Path, tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tiny_model(tmp_path / tiny_model.name, seed=1)
    assert read_tuned(other, Settings()) is None
    monkeypatch.setattr("srb.llama.tune.result.physical_cores", lambda: 77)
    assert read_tuned(tiny_model, Settings()) is None
    assert len(stored_files(tiny_model)) == 2
    assert stored_files(other) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("gone", r"bf16\.gguf is gone; the file is used as it is"),
        ("half", r"bf16\.gguf is incomplete; the file is used as it is"),
        ("zeros", r"can't be loaded.*the file's own weights are used"),
        ("version", r"version 99, and this srb reads version 7\); the file is used"),
        ("toml", "can't be used"),
        ("fields", "can't be used"),
        ("all", None),
    ],
)
def test_a_damaged_cache_is_said_and_the_file_is_served(
    tiny_model: Path, tuned: Tuned, empty_cache: Path, caplog: pytest.LogCaptureFixture, damage: str, said: str | None
) -> None:
    made, toml = converted_path(tiny_model, "bf16"), tuned_path(tiny_model, Settings())
    match damage:
        case "gone":
            made.unlink()
        case "half":
            made.write_bytes(made.read_bytes()[:1000])
        case "zeros":
            made.write_bytes(b"\0" * made.stat().st_size)
        case "version":
            toml.write_text(toml.read_text().replace("version = 7", "version = 99"))
        case "toml":
            toml.write_text("what = is this")
        case "fields":
            toml.write_text("version = 7\n")
        case _:
            shutil.rmtree(empty_cache)
    with LlamaBackend(dataclasses.replace(Settings(), model=tiny_model, ctx_size=256)) as backend:
        assert "/keys f16, values f16/" in backend.identity
    if said is None:
        assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    else:
        assert caplog.text.count("WARNING") == 1
        assert re.search(said, caplog.text)
