"""Sizes that fit into a memory of a made-up size, and the errors if nothing fits."""

import dataclasses
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest
from driver import request
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.errors import InvalidRequestError, ModelLoadError
from srb.llama.backend import LlamaBackend
from srb.llama.model import fit, loader
from srb.llama.model import weights as free_memory
from srb.llama.native import library as ggml
from srb.options.settings import Settings

MIB = 1 << 20

Load = Callable[..., LlamaBackend]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights take about 13 MiB, and a cell 8 KiB."""
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    return write_tiny_model(path, n_layer=8, n_embd=256, n_ff=512, n_ctx_train=32768, layers_alike=True)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many bytes are free."""
    return lambda n_bytes: monkeypatch.setattr(fit, "available_memory", lambda: n_bytes)


def settings(model: Path) -> Settings:
    return Settings(model=model, ctx_size=4096, parallel=2, batch_size=64, ubatch_size=32, cache_ram=0)


def test_the_error_for_a_model_that_doesnt_fit_has_numbers(model: Path, free: Callable[[int], None]) -> None:
    free(60 * MIB)
    with LlamaBackend(settings(model)) as backend:
        assert backend.n_cells == 4096
    free(40 * MIB)
    with pytest.raises(ModelLoadError) as caught:
        LlamaBackend(settings(model))
    found = re.search(
        r"doesn't fit: its weights take (\d+) MiB, 4,096 cells 32 MiB and buffers (\d+) MiB of memory, and 40 MiB are "
        r"free\. --ctx-size (\d+) or less fits; --fit off loads it anyway$",
        caught.value.message,
    )
    assert found
    weights, buffers, most = map(int, found.groups())
    assert weights == model.stat().st_size // MIB
    assert buffers < 5
    with LlamaBackend(dataclasses.replace(settings(model), ctx_size=most)) as backend:
        assert backend.n_cells == most
    with pytest.raises(ModelLoadError):
        LlamaBackend(dataclasses.replace(settings(model), ctx_size=most + 256))
    with LlamaBackend(dataclasses.replace(settings(model), fit="off")) as backend:
        assert backend.n_cells == 4096


def test_flash_attention_stays_on_where_it_only_fits_with_it(model: Path, free: Callable[[int], None]) -> None:
    asked = dataclasses.replace(settings(model), batch_size=512, ubatch_size=512)
    free(MIB)
    sums = []
    for flash_attn in ("on", "off"):
        with pytest.raises(ModelLoadError) as caught:
            LlamaBackend(dataclasses.replace(asked, flash_attn=flash_attn))
        sizes = re.search(r"take (\d+) MiB, 4,096 cells (\d+) MiB and buffers (\d+) MiB", caught.value.message)
        assert sizes
        sums.append(sum(map(int, sizes.groups())))
    on, off = sums
    assert off > on + 10
    by_choice = (on + off) // 2  # in ubatches of half as many tokens
    for mib, kind in ((by_choice + 5, "auto"), (on + 5, "on")):
        free(mib * MIB)
        with LlamaBackend(asked) as backend:
            assert f"flash attention {kind}" in backend.identity


def test_half_of_the_memory_is_for_cells_and_attention_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "llama_model_n_head", lambda _model: 4)
    kinds = {"auto": 904 + 4 * 4 * 256, "off": 904 + 4 * 4 * 512, "on": 904}
    for kind, cell in kinds.items():
        asked = Settings(flash_attn=kind, parallel=32)
        assert [fit.max_cells(None, asked, 1000, 904, 2 * n * cell) for n in (999, 9984, 40_000)] == [
            1000,
            9984,
            32_768,
        ]


def test_weights_that_are_too_large(model: Path, free: Callable[[int], None]) -> None:
    free(MIB)
    with pytest.raises(ModelLoadError, match=r"free; use a smaller model, or one with fewer bits per weight;"):
        LlamaBackend(settings(model))


def test_what_fits_by_far_isnt_tried(model: Path, free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    free(1 << 50)
    load, loaded = llama_cpp.llama_model_load_from_file, []

    def note(path: bytes, params: Any) -> Any:
        loaded.append(path)
        return load(path, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", note)
    LlamaBackend(settings(model)).close()
    assert len(loaded) == 1


@pytest.mark.parametrize(
    ("mib", "cache_ram", "cells"),
    [(1 << 20, 0, 32768), (1024 + 100, 0, range(9000, 11000)), (1024 + 100, 20, range(6000, 9000)), (500, 0, 4096)],
)
def test_a_context_that_fits_itself(
    model: Path, free: Callable[[int], None], mib: int, cache_ram: int, cells: int | range
) -> None:
    free(mib * MIB)
    with LlamaBackend(dataclasses.replace(settings(model), ctx_size=-1, cache_ram=cache_ram)) as backend:
        assert backend.n_cells in (cells if isinstance(cells, range) else [cells])


def test_with_reproducible_each_alternative_has_its_part_of_what_fits(
    model: Path, free: Callable[[int], None], tmp_path: Path
) -> None:
    free((1024 + 100) * MIB)
    asked = dataclasses.replace(
        settings(model), ctx_size=-1, parallel=4, batch_size=64, ubatch_size=64, reproducible=True
    )
    with LlamaBackend(asked) as backend:
        assert backend.n_cells in range(1000, 2000)  # seven of them take 80 MiB
        with pytest.raises(InvalidRequestError, match="or start with --ctx-size 12288 or more, or with a smaller --pa"):
            Engine(backend).add_request(request("p" * 3000, 1, max_tokens=5))
    short = write_tiny_model(tmp_path / "short.gguf", n_ctx_train=512)
    with LlamaBackend(dataclasses.replace(asked, model=short)) as backend:
        assert backend.n_cells == 512 - 1


@pytest.mark.parametrize("arch", ["gemma3", "mamba", "jamba"])
def test_every_kind_of_memory_is_measured(tmp_path: Path, free: Callable[[int], None], arch: str) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", arch=arch)
    free(1000)
    cells = "0" if arch == "mamba" else r"[1-9]\d*"
    with pytest.raises(ModelLoadError, match=rf"its weights take \d MiB, 4,096 cells {cells} MiB and buffers"):
        LlamaBackend(settings(path))


@pytest.fixture
def projector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 20 MiB that takes the place of a projector, where llama.cpp may have no reader for these."""
    media = SimpleNamespace(close=lambda: None, has_positions=False, identity="")
    for name in ("check_media", "LlamaMedia"):
        monkeypatch.setitem(LlamaBackend.__init__.__globals__, name, lambda *_arguments: media)
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(b"GGUF" + bytes(20 * MIB))
    return path


def test_a_projector_counts(model: Path, free: Callable[[int], None], projector: Path) -> None:
    asked = dataclasses.replace(settings(model), mmproj=projector)
    free(80 * MIB)
    LlamaBackend(asked).close()
    free(60 * MIB)  # enough without
    with pytest.raises(ModelLoadError, match=r"its weights take \d+ MiB, its projector 20 MiB, 4,096 cells"):
        LlamaBackend(asked)


def test_a_draft_model_counts(model: Path, free: Callable[[int], None]) -> None:
    asked = dataclasses.replace(settings(model), model_draft=model)
    free(130 * MIB)
    LlamaBackend(asked).close()
    free(60 * MIB)  # enough without
    LlamaBackend(dataclasses.replace(asked, draft_max=0)).close()
    with pytest.raises(ModelLoadError, match=r"take \d+ MiB, its draft model (\d+) MiB, 4,096 cells 32 MiB") as caught:
        LlamaBackend(asked)
    found = re.search(r"draft model (\d+) MiB.*--ctx-size (\d+) or less", caught.value.message)
    assert found
    assert int(found[1]) in range(55, 70)  # weights, cells of its own, and buffers
    free((1024 + 150) * MIB)
    with LlamaBackend(dataclasses.replace(asked, ctx_size=-1)) as backend:
        assert backend.n_cells in range(5500, 7000)  # without, there are over 16,000


class Card:
    """A GPU of a made-up size."""

    name = "CUDA0"
    is_gpu = True
    is_cpu = False

    def __init__(self, free: int) -> None:
        self._free = free

    def free(self) -> int:
        return self._free


@pytest.fixture
def add_cards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Adds GPUs to the devices of this machine."""
    devices = ggml.devices()

    def add(*cards: Card) -> None:
        monkeypatch.setattr(fit, "devices", lambda: [*devices, *cards])
        monkeypatch.setattr(fit, "is_on_gpu", lambda _settings: True)

    return add


@pytest.mark.parametrize(("mib", "layers"), [(1 << 20, -1), (3 << 10, 9), (1024 + 30, range(4, 7)), (1024, 0)])
def test_layers_that_fit_onto_a_card(
    model: Path, monkeypatch: pytest.MonkeyPatch, add_cards: Callable[..., None], mib: int, layers: int | range
) -> None:
    add_cards(Card(mib * MIB))
    seen: list[Settings] = []
    load_model = loader.load_model

    def load(path: Path, settings: Settings, *others: Any) -> object:
        seen.append(settings)
        return load_model(path, dataclasses.replace(settings, n_gpu_layers=0), *others)

    monkeypatch.setattr(loader, "load_model", load)
    LlamaBackend(settings(model)).close()
    assert seen[0].n_gpu_layers in (layers if isinstance(layers, range) else [layers])
    everything = dataclasses.replace(settings(model), n_gpu_layers=-2)
    if layers in (-1, 9):
        LlamaBackend(everything).close()
    LlamaBackend(
        dataclasses.replace(settings(model), n_gpu_layers=-2, kv_offload=False, override_tensor=".*=CPU")
    ).close()


def test_all_named_cards_count(add_cards: Callable[..., None]) -> None:
    cards = [Card(MIB), Card(MIB), Card(MIB)]
    for k, card in enumerate(cards):
        card.name = f"CUDA{k}"
    add_cards(*cards)
    for device, named in (("CUDA0, CUDA1", cards[:2]), ("CUDA2", cards[2:]), (None, cards)):
        found: list[Any] = fit.gpus(Settings(device=device))
        assert found == named


def test_a_card_that_is_too_small(model: Path, add_cards: Callable[..., None]) -> None:
    add_cards(Card(30 * MIB))
    with pytest.raises(
        ModelLoadError,
        match=r"of the GPU's memory, and 30 MiB are free\. --ctx-size \d+ or less or --n-gpu-layers [456] or less fits",
    ):
        LlamaBackend(dataclasses.replace(settings(model), n_gpu_layers=-2))


def test_a_projector_takes_its_place_on_the_card(model: Path, add_cards: Callable[..., None], projector: Path) -> None:
    add_cards(Card(60 * MIB))
    asked = dataclasses.replace(settings(model), n_gpu_layers=-2)
    LlamaBackend(asked).close()
    with pytest.raises(ModelLoadError, match=r"its projector 20 MiB, 4,096 cells .* of the GPU's memory"):
        LlamaBackend(dataclasses.replace(asked, mmproj=projector))


def test_a_card_has_a_copy_of_weights_that_are_input_and_output(tmp_path: Path, add_cards: Callable[..., None]) -> None:
    add_cards(Card(MIB))
    said = []
    for is_tied in (False, True):
        path = write_tiny_model(tmp_path / "some.gguf", n_vocab=20_000, is_tied=is_tied)
        with pytest.raises(ModelLoadError, match=r"take (\d+) MiB, .* of the GPU's memory") as caught:
            LlamaBackend(dataclasses.replace(settings(path), n_gpu_layers=-2))
        said.append(re.findall(r"its weights take (\d+) MiB", caught.value.message)[-1])
    assert said[0] == said[1] == "5"


def test_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = free_memory.available_memory()
    assert 0 < plain < sys.maxsize
    monkeypatch.setattr(free_memory, "CGROUP", tmp_path)
    for name, text in (
        ("max", "1000000\n"),
        ("current", "900000\n"),
        ("stat", "anon 100\nfile 700\ninactive_file 300\nactive_file 400\nslab 5\n"),
    ):
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory.available_memory() == 100_700  # cached files can be taken back
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory.available_memory() > 100_700
    statm = Path("/proc/self/statm")  # without it, as on macOS, nothing counts as used
    used = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (used + 5 * MIB, 0))
    assert free_memory.available_memory() <= 5 * MIB
