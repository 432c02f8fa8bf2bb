"""Keeps what `srb tune` has chosen for a model on this machine, in a small TOML file in the user's cache."""

import dataclasses
import glob
import hashlib
import json
import logging
import math
import platform
import re
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
from srb.llama.native.attention import MAKING, Pace, Paces
from srb.llama.native.context import shiftable
from srb.llama.native.params import physical_cores
from srb.options.settings import EVALUATION, PLACEMENT, Settings

# Which formats of the weights `srb tune` tries.

_SHARE_OF_MIX = 0.05  # a type that fewer of the weights have isn't worth a format of its own


def computes_bf16() -> bool:
    """Whether the processor has instructions for bf16, with which such weights are often the fastest."""
    return b"BF16 = 1" in llama_cpp.llama_print_system_info()


def formats(path: Path) -> list[str]:
    """The formats to try for a model file, the most promising first.

    All weights are converted to one format, or only those of a type that the file has among others.
    """
    sizes: dict[str, int] = {}
    for each in read_tensors(path):
        if each.is_matrix:
            sizes[each.type] = sizes.get(each.type, 0) + math.prod(each.shape)
    # F16 is as large as BF16, and slower where the processor computes with BF16.
    names = ("bf16", "q8_0") if computes_bf16() else ("q8_0", "bf16", "f16")
    whole = [name for name in names if set(sizes) != {name}]
    parts = [kind for kind in sizes if kind not in (*FORMATS, "f32")]
    large = [kind for kind in parts if sizes[kind] > _SHARE_OF_MIX * sum(sizes.values())]
    return whole + ([mixed(kind, "q8_0") for kind in large] if len(parts) > 1 else [])


logger = logging.getLogger("srb.tuned")

VERSION = 3
_ADVICE = "going on with the file as it is; `srb tune` measures again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What `srb tune` has chosen for a model.

    weights: `FILE`, or a format of `srb.llama.model.weights`. weights_bytes: the size of the file with the weights.
    cache_type: the type of keys and values, for most work. flash_attn, threads, threads_batch: as the options of the
        same names.
    times_as_fast: compared with the file as it is and llama.cpp's defaults.
    paces: the costs of contexts of both kinds, if both were measured and neither is refused.
    busy: how many processors other programs used while this was measured, if the machine wasn't idle.
    unsure: whether something wasn't tried, or tries differed by more than the choice is ahead of another one.
    """

    weights: str
    weights_bytes: int
    cache_type: str
    flash_attn: str
    threads: int
    threads_batch: int
    times_as_fast: float
    paces: Paces | None
    busy: float = 0.0
    unsure: bool = False

    @property
    def is_guess(self) -> bool:
        """Whether it isn't sure that this is the fastest, or how long it takes. Measuring again may know better."""
        return self.busy > 0 or self.unsure

    def describe(self) -> str:
        """The choice in one line, for people."""
        weights = "the file's weights" if self.weights == FILE else f"weights as {self.weights}"
        return (
            f"{weights} ({self.weights_bytes >> 20:,} MiB), {self.cache_type} cache, "
            f"{self.threads_batch} threads: {self.times_as_fast:.1f} times as fast as the file as it is"
        )


def tuned_path(path: Path, settings: Settings) -> Path:
    """Where the result for a model file is, or would be.

    The name depends on the file's contents, the processor, the build, the number of cores, and the options in
    `EVALUATION` and `PLACEMENT`.
    """
    gpu = max(-1, settings.n_gpu_layers) if llama_cpp.llama_supports_gpu_offload() else 0
    machine = [processor(), llama_cpp.__version__, llama_cpp.llama_print_system_info().decode(), physical_cores(), gpu]
    if other := settings.given((*EVALUATION, *PLACEMENT)):
        machine.append(other)
    key = hashlib.sha256(json.dumps(machine).encode()).hexdigest()[:8]
    return cache_folder() / "tuned" / f"{path.stem}-{identity(path)}-{key}.toml"


def read_tuned(path: Path, settings: Settings) -> Tuned | None:
    """What was chosen for this model file on this machine. None if there is nothing.

    None, with a warning, if the result can't be used.
    """
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
        what = "isn't whole" if size else "is gone"
        logger.warning("%s %s; %s", weights, what, _ADVICE)
        return None
    return tuned


def write_tuned(path: Path, settings: Settings, tuned: Tuned) -> Path:
    """Writes the result to its file, and returns the path. Raises `OSError`."""
    target = tuned_path(path, settings)
    target.parent.mkdir(parents=True, exist_ok=True)
    values = dataclasses.asdict(tuned)
    paces = values.pop("paces") or {}
    tables = {kind: paces.pop(kind) for kind in ("on", "off") if kind in paces}
    lines = [f"# What srb tune chose for {path.name} on {processor()}", f"version = {VERSION}", *_lines(values | paces)]
    for kind, pace in tables.items():
        lines += [f"\n[{kind}]", *_lines(pace)]
    part = target.with_suffix(".toml.part")
    part.write_text("\n".join(lines) + "\n")
    part.rename(target)
    return target


def keep(result: Tuned | None, made: list[Path], path: Path, settings: Settings) -> Path | None:
    """Writes a result, and returns the path. None if there is none, or if it is a guess and a better one is there.

    made: weights that were converted for it. Those that the result doesn't use are removed, and so are those of the
        result before. Raises `OSError`.
    """
    before = read_tuned(path, settings)
    if result and result.is_guess and before and not before.is_guess:
        result = None
    wanted = converted_path(path, result.weights) if result else None
    for each in made:
        if each != wanted:
            each.unlink(missing_ok=True)
    if result is None:
        return None
    kept = write_tuned(path, settings, result)
    if before is not None and before.weights not in (FILE, result.weights):
        converted_path(path, before.weights).unlink(missing_ok=True)
    return kept


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings and weights that a model runs with.

    settings: with values for all options that were left to `srb tune`. weights: the file with the weights.
    paces: the costs that were measured with exactly these settings and weights. None if nothing was measured, if it
        was measured beside other programs, or if options given by hand differ from what was measured.
    machine: the costs that were measured on this machine, also if it was with other settings or another model.
    """

    settings: Settings
    weights: Path
    paces: Paces | None
    machine: Paces | None


def choose(path: Path, settings: Settings) -> Choice:
    """Chooses what the model of this file runs with. If results of `srb tune` are used, the log says so.

    Options given by hand win. Flash attention and the types of the cache are one choice: if one of them is given, the
    others have llama.cpp's defaults. Raises `ModelLoadError` if weights given by hand can't be converted.
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
    paces = tuned.paces if tuned else (_paces_of_machine(path, settings) if settings.tune else None)
    if paces and (settings.context_shift or not attention):
        paces = paces.of_any_cache()
    but = ""
    if attention and attention.cache_type == "bf16" and settings.context_shift:
        chosen, but = (
            shiftable(chosen),
            "; but the cache is f16, because --context-shift changes the positions of cells",
        )
    if tuned and attention and settings.weights is None:
        logger.info("tuned for this machine: %s%s", tuned.describe(), but)
        # Beside other programs all is slower, so such costs say which kind is faster, but not how long a decode takes.
        return Choice(chosen, weights, None if tuned.busy else paces, paces)
    if tuned:
        logger.info("tuned for this machine, but for what is given by hand")
    return Choice(chosen, weights, None, paces)


def _paces_of_machine(path: Path, settings: Settings) -> Paces | None:
    """The costs of both kinds of attention that `srb tune` measured here with the default model. None if it didn't.

    They are used for models that weren't measured, because which kind is faster depends on the processor more than on
    the model.
    """
    try:
        default = find_model(None)
    except ModelLoadError:  # it isn't installed
        return None
    tuned = read_tuned(default, settings) if default != path else None
    return tuned.paces if tuned else None


def kept_files(path: Path) -> list[Path]:
    """All files that are kept for a model file: results for any machine, and converted weights."""
    folder = cache_folder() / "tuned"
    return sorted(folder.glob(f"{glob.escape(path.stem)}-{identity(path)}-*")) if folder.is_dir() else []


def _read(source: Path) -> Tuned:
    data = tomllib.loads(source.read_text())
    if (version := data.pop("version")) != VERSION:
        raise ValueError(f"it is of version {version}, and this srb reads version {VERSION}")
    paces = None
    if "on" in data:
        off = data.pop("off") | {"walks_all": True}  # srb wrote false before it used it
        paces = Paces(
            Pace(**data.pop("on")), Pace(**off), data.pop("change"), data.pop("usual"), data.pop("making", MAKING)
        )
    return Tuned(**data, paces=paces)


def _lines(values: dict[str, Any]) -> list[str]:
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]


def processor() -> str:
    """The name of the processor."""
    try:
        found = re.search(r"^(?:model name|Model)\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
