"""Stores what `srb tune` has chosen for a model on this machine, in a small TOML file in the user's cache folder."""

import dataclasses
import glob
import hashlib
import json
import logging
import math
import platform
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp

from srb.errors import ModelLoadError
from srb.files.download import cache_folder
from srb.llama.model.metadata import read_tensors
from srb.llama.model.model_file import find_model
from srb.llama.model.weights import FILE, FORMATS, convert, converted_path, identity, mixed
from srb.llama.native.context import shiftable
from srb.llama.native.cost_model import AttentionCosts, CostModel
from srb.llama.native.library import build, cpu_variant
from srb.llama.native.macos import sysctl
from srb.llama.native.params import physical_cores
from srb.options.settings import EVALUATION, PLACEMENT, Settings

logger = logging.getLogger("srb.tuned")

VERSION = 7
_KEYS = {"usual": "preferred", "making": "seconds_per_mib"}
"""Keys of the file, and the fields of `CostModel`."""

_MIN_SHARE = 0.05  # a type that a smaller share of the weights has isn't worth a format of its own
_ADVICE = "the file is used as it is; run `srb tune` to measure again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What `srb tune` has chosen for a model. The fields are also those of the file, except `cost_model`.

    Args:
        weights: `FILE`, or a format of `srb.llama.model.weights`.
        weights_bytes: the size of the file with the weights.
        cache_type: the type of keys and values that suits most work.
        flash_attn, threads, threads_batch: as the options of the same names.
        times_as_fast: compared with the file as it is and llama.cpp's defaults.
        cost_model: the costs of contexts with flash attention and without, if both were measured and none is refused.
    """

    weights: str
    weights_bytes: int
    cache_type: str
    flash_attn: str
    threads: int
    threads_batch: int
    times_as_fast: float
    cost_model: CostModel | None

    def describe(self) -> str:
        """Return the choice in one line, for people."""
        weights = "the file's weights" if self.weights == FILE else f"weights as {self.weights}"
        return (
            f"{weights} ({self.weights_bytes >> 20:,} MiB), {self.cache_type} cache, "
            f"{self.threads_batch} threads: {self.times_as_fast:.1f} times as fast as the file as it is"
        )


def tuned_path(path: Path, settings: Settings) -> Path:
    """Return where the result for a model file is, or would be.

    The name depends on the file's contents, the processor, the build, the number of cores, and the options in
    `EVALUATION` and `PLACEMENT`.
    """
    gpu = max(-1, settings.n_gpu_layers) if llama_cpp.llama_supports_gpu_offload() else 0
    # The kernels first: llama.cpp knows its own features when they are loaded.
    machine = [processor(), build(), llama_cpp.llama_print_system_info().decode(), physical_cores(), gpu]
    if other := settings.given((*EVALUATION, *PLACEMENT)):
        machine.append(other)
    key = hashlib.sha256(json.dumps(machine).encode()).hexdigest()[:8]
    return cache_folder() / "tuned" / f"{path.stem}-{identity(path)}-{key}.toml"


def read_tuned(path: Path, settings: Settings) -> Tuned | None:
    """Return what was chosen for this model file on this machine; None, with a warning, if it can't be used."""
    source = tuned_path(path, settings)
    if not source.exists():
        return None
    try:
        tuned = _read(source)
        if tuned.weights == FILE:
            return tuned
        weights = converted_path(path, tuned.weights)
        size = weights.stat().st_size if weights.exists() else 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s can't be used (%s: %s); %s", source, type(error).__name__, error, _ADVICE)
        return None
    if size != tuned.weights_bytes:
        what = "is incomplete" if size else "is gone"
        logger.warning("%s %s; %s", weights, what, _ADVICE)
        return None
    return tuned


def write_tuned(path: Path, settings: Settings, tuned: Tuned) -> Path:
    """Write the result to its file, and return the path. Raises `OSError`."""
    target = tuned_path(path, settings)
    target.parent.mkdir(parents=True, exist_ok=True)
    values = dataclasses.asdict(tuned)
    costs = values.pop("cost_model") or {}
    tables = {kind: costs.pop(kind) for kind in ("on", "off") if kind in costs}
    values |= {key: costs[name] for key, name in _KEYS.items() if name in costs}
    lines = [f"# What srb tune chose for {path.name} on {processor()}", f"version = {VERSION}", *_lines(values)]
    for kind, table in tables.items():
        lines += [f"\n[{kind}]", *_lines(table)]
    part = target.with_suffix(".toml.part")
    part.write_text("\n".join(lines) + "\n")
    part.rename(target)
    return target


def save_result(result: Tuned | None, made: list[Path], path: Path, settings: Settings) -> Path | None:
    """Write a result instead of the previous one. Converted weights that aren't used are removed. Raises `OSError`.

    Args:
        result: None if the search was stopped; the previous one then stays.
        made: weights that were converted during the search.

    Returns:
        The path of the file; None if nothing was written.
    """
    before = read_tuned(path, settings) if result else None
    wanted = converted_path(path, result.weights) if result else None
    old = [converted_path(path, before.weights)] if before and before.weights != FILE else []
    target = write_tuned(path, settings, result) if result else None
    for each in (*made, *old):
        if each != wanted:
            each.unlink(missing_ok=True)
    return target


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings and weights that a model runs with.

    Args:
        settings: with values for all options that were left to `srb tune`.
        cost_model: the costs that were measured with these settings and weights. None if nothing was measured, or if
            given options differ from what was measured.
        machine_costs: costs that were measured on this machine, also with other settings or another model.
    """

    settings: Settings
    weights: Path
    cost_model: CostModel | None
    machine_costs: CostModel | None


def choose(path: Path, settings: Settings) -> Choice:
    """Choose the settings and weights for a model file. The log says whether results of `srb tune` are used.

    Given options take precedence. Flash attention and the cache types are one choice: if one of them is given, the
    others have llama.cpp's defaults. Raises `ModelLoadError`.
    """
    tuned = read_tuned(path, settings) if settings.tune else None
    attention = None if settings.flash_attn != "auto" or settings.cache_type_k or settings.cache_type_v else tuned
    format_ = settings.weights or (tuned.weights if tuned else FILE)
    weights = path if format_ == FILE else convert(path, format_)
    chosen = dataclasses.replace(
        settings,
        flash_attn=attention.flash_attn if attention else settings.flash_attn,
        cache_type_k=attention.cache_type if attention else settings.cache_type_k or "f16",
        cache_type_v=attention.cache_type if attention else settings.cache_type_v or "f16",
        threads=settings.threads or (tuned.threads if tuned else physical_cores()),
        threads_batch=settings.threads_batch or settings.threads or (tuned.threads_batch if tuned else None),
    )
    costs = tuned.cost_model if tuned else (_costs_of_machine(path, settings) if settings.tune else None)
    if costs and (settings.context_shift or not attention):
        costs = costs.with_any_cache_type()
    but = ""
    if attention and attention.cache_type == "bf16" and settings.context_shift:
        chosen, but = shiftable(chosen), "; but the cache is f16, which --context-shift needs"
    if tuned and attention and settings.weights is None:
        logger.info("tuned for this machine: %s%s", tuned.describe(), but)
        return Choice(chosen, weights, costs, costs)
    if tuned:
        logger.info("tuned for this machine, except for given options")
    return Choice(chosen, weights, None, costs)


def _costs_of_machine(path: Path, settings: Settings) -> CostModel | None:
    """Return the costs that `srb tune` measured here with the default model; None if it didn't.

    Other models use them, too: which kind of attention is faster depends on the processor more than on the model.
    """
    try:
        default = find_model(None)
    except ModelLoadError:  # it isn't installed
        return None
    tuned = read_tuned(default, settings) if default != path else None
    return tuned.cost_model if tuned else None


def stored_files(path: Path) -> list[Path]:
    """Return all stored files of a model file: results for any machine, and converted weights."""
    folder = cache_folder() / "tuned"
    return sorted(folder.glob(f"{glob.escape(path.stem)}-{identity(path)}-*")) if folder.is_dir() else []


def _read(source: Path) -> Tuned:
    data = tomllib.loads(source.read_text())
    if (version := data.pop("version")) != VERSION:
        raise ValueError(f"it is of version {version}, and this srb reads version {VERSION}")
    cost_model = None
    if "on" in data:
        on, off = data.pop("on"), data.pop("off")
        rest = {name: data.pop(key) for key, name in _KEYS.items() if key in data}
        cost_model = CostModel(AttentionCosts(**on), AttentionCosts(**off), **rest)
    return Tuned(**data, cost_model=cost_model)


def _lines(values: dict[str, Any]) -> list[str]:
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]


def processor() -> str:
    """Return the name of the processor."""
    if sys.platform == "darwin" and (name := sysctl("machdep.cpu.brand_string")):
        return name
    try:
        found = re.search(r"^(?:model name|Model)\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def computes_bf16() -> bool:
    """Return whether the processor has instructions for bf16. Such weights are often the fastest then."""
    cpu_variant()  # llama.cpp knows its own features when its kernels are loaded
    return b"BF16 = 1" in llama_cpp.llama_print_system_info()


def formats(path: Path) -> list[str]:
    """Return the formats of weights to try for a model file, the most promising first.

    Either all weights are converted, or only those of one of the file's types.
    """
    sizes: dict[str, int] = {}
    for each in read_tensors(path):
        if each.is_matrix:
            sizes[each.type] = sizes.get(each.type, 0) + math.prod(each.shape)
    # F16 is as large as BF16, and slower where the processor computes with BF16.
    names = ("bf16", "q8_0") if computes_bf16() else ("q8_0", "bf16", "f16")
    whole = [name for name in names if set(sizes) != {name}]
    parts = [kind for kind in sizes if kind not in (*FORMATS, "f32")]
    large = [kind for kind in parts if sizes[kind] > _MIN_SHARE * sum(sizes.values())]
    return whole + ([mixed(kind, "q8_0") for kind in large] if len(parts) > 1 else [])
