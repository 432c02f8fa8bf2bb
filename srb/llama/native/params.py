"""Turns the settings into llama.cpp's parameters for models and contexts. The options have llama-server's names.

Options in `settings.EVALUATION` change what a text becomes, so they are a part of `Backend.identity`. Together with
`settings.PLACEMENT` they are the key under which `srb tune` stores its results.
"""

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp

from srb.engine.kv_cache.allocator import Layout
from srb.errors import ModelLoadError, SettingsError
from srb.llama.native import library as log
from srb.llama.native.library import devices
from srb.llama.native.macos import sysctl
from srb.options.settings import PLACEMENT, Settings

_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_ROPE_SCALING = {"none": 0, "linear": 1, "yarn": 2}
_FLASH_ATTN = {
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
}
_CELLS_STEP = 256  # llama.cpp rounds a context up to this
_ROPE_OPTIONS = (
    *("rope_freq_base", "rope_freq_scale"),
    *("yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"),
)
_UBATCH_WITHOUT_FLASH = 256
"""The most tokens of a ubatch where flash attention is off by choice.

A larger table of tokens by cells doesn't fit into the processor's cache (docs/figures/layouts.md)."""

_NUMA = {"distribute": 1, "isolate": 2, "numactl": 3}
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # llama.cpp's own pattern
_KEY_BYTES = 127
_OVERRIDES: dict[str, tuple[int, str, Callable[[str], Any]]] = {
    "int": (0, "val_i64", int),
    "float": (1, "val_f64", float),
    "bool": (2, "val_bool", {"true": True, "false": False}.__getitem__),
    "str": (3, "val_str", str.encode),
}
"""For each type of `--override-kv`: llama.cpp's number, its field, and the conversion of a value."""
_GPU_OPTIONS = frozenset(PLACEMENT) - {"mmap", "mlock", "numa", "override_tensor"}


_parents: set[int] = set()
"""The ids of the processes that have started llama.cpp: this process, and those that it was forked from."""


def start(settings: Settings) -> None:
    """Start llama.cpp in this process. Raises `ModelLoadError`."""
    _parents.add(os.getpid())
    if len(_parents) > 1:
        raise ModelLoadError(
            "this process was forked from one that has used llama.cpp, whose threads don't exist here, so it would "
            "wait forever; start it in another way, as with multiprocessing.get_context('spawn')"
        )
    log.redirect()
    log.logger.info("llama.cpp's kernels for the processor: %s", log.cpu_variant())
    llama_cpp.llama_backend_init()
    if settings.numa:
        llama_cpp.llama_numa_init(_NUMA[settings.numa])


def is_on_gpu(settings: Settings) -> bool:
    """Return whether layers are put on a GPU."""
    return settings.n_gpu_layers != 0 and settings.device != "none" and bool(llama_cpp.llama_supports_gpu_offload())


class _BufferOverride(ctypes.Structure):
    """`llama_model_tensor_buft_override`."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def model_params(settings: Settings) -> Any:
    """Return the `llama_model_params` of the settings. Raises `SettingsError`, which names the option."""
    if (ignored := settings.given(_GPU_OPTIONS)) and not llama_cpp.llama_supports_gpu_offload():
        names = ", ".join("--" + name.replace("_", "-") for name in ignored)
        log.logger.warning("llama.cpp has no GPU here, so this has no effect: %s", names)
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = settings.n_gpu_layers
    params.split_mode = _SPLIT_MODES[settings.split_mode]
    params.main_gpu = settings.main_gpu
    params.load_mode = _load_mode(settings)
    params.objects = objects = []  # the structure points to these; without this list Python would free them
    if settings.device is not None:
        objects.append(chosen := _devices(settings.device))
        params.devices = ctypes.addressof(chosen)
    if settings.tensor_split is not None:
        params.tensor_split = _shares(settings.tensor_split)
    if rows := list(tensor_placements(settings)):
        objects.append(
            table := (_BufferOverride * (len(rows) + 1))(*(_BufferOverride(*each) for each in rows), _BufferOverride())
        )
        params.tensor_buft_overrides = ctypes.addressof(table)
    if settings.override_kv is not None:
        overrides = [_override(each) for each in _split(settings.override_kv)]
        params.kv_overrides = (llama_cpp.llama_model_kv_override * (len(overrides) + 1))(*overrides)
    return params


def overridden_keys(settings: Settings) -> list[str]:
    """Return the keys of `--override-kv`."""
    return [each.partition("=")[0] for each in _split(settings.override_kv or "")]


def context_params(settings: Settings) -> Any:
    """Return a `llama_context_params` with the settings that all contexts have in common."""
    params = llama_cpp.llama_context_default_params()
    if settings.rope_scaling:
        params.rope_scaling_type = _ROPE_SCALING[settings.rope_scaling]
    if settings.rope_scale:
        params.rope_freq_scale = 1 / settings.rope_scale
    for name in _ROPE_OPTIONS:
        if (value := getattr(settings, name)) is not None:
            setattr(params, name, value)
    params.offload_kqv = settings.kv_offload
    params.swa_full = settings.swa_full
    params.no_perf = True
    return params


def engine_params(model: Any, settings: Settings, layout: Layout, *, n_outputs: int) -> Any:
    """Return the `llama_context_params` of a `Context`."""
    params = context_params(settings)
    has_scratch = layout.is_unified or settings.reproducible
    params.n_seq_max = layout.n_seqs + has_scratch  # `Context` and `ReproducibleStreams` need one of their own
    params.n_ctx = round_up(layout.n_cells) * (1 if layout.is_unified else params.n_seq_max)
    params.n_batch = settings.batch_size + settings.parallel
    # With a window, llama.cpp 0.3.36 first looks for the cells of all ubatches of a decode. For a later ubatch it may
    # drop cells that have left the window, but that an earlier ubatch still needs.
    has_window = llama_cpp.llama_model_n_swa(model) > 0
    params.n_ubatch = params.n_batch if has_window else ubatch_size(settings, layout.flash_attn)
    # llama.cpp's default is an output for each token of a batch. With fewer outputs than sequences it ends the process.
    params.n_outputs_max = max(n_outputs, params.n_seq_max)
    params.n_threads = settings.threads or physical_cores()
    params.n_threads_batch = settings.threads_batch or params.n_threads
    params.flash_attn_type = _FLASH_ATTN[layout.flash_attn]
    params.type_k = _ggml_type(settings.cache_type_k)
    params.type_v = _ggml_type(settings.cache_type_v)
    params.kv_unified = layout.is_unified
    return params


def ubatch_size(settings: Settings, flash_attn: str) -> int:
    """Return the most tokens of a ubatch in a context with this kind of attention."""
    is_chosen = flash_attn == "off" != settings.flash_attn
    if is_chosen and not settings.mmproj:  # an image may have to fit into one ubatch
        return min(settings.ubatch_size, _UBATCH_WITHOUT_FLASH)
    return settings.ubatch_size


def round_up(n_cells: int) -> int:
    """Round a number of cells up to a multiple of 256, as llama.cpp does."""
    return n_cells + -n_cells % _CELLS_STEP


def _load_mode(settings: Settings) -> int:
    if settings.mlock:
        return int(llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK if settings.mmap else llama_cpp.LLAMA_LOAD_MODE_MLOCK)
    return int(llama_cpp.LLAMA_LOAD_MODE_AUTO if settings.mmap else llama_cpp.LLAMA_LOAD_MODE_NONE)


def device_names(text: str) -> list[str]:
    """Return the names of the devices in `--device`."""
    return [] if text == "none" else _split(text)


def _devices(text: str) -> Any:
    """Return the table of the devices that an option names, with NULL at its end. Raises `SettingsError`."""
    there = {each.name: each.address for each in devices() if not each.is_cpu}
    names = device_names(text)
    for name in names:
        if name not in there:
            raise SettingsError(f"--device: there is no {name!r}; there are none{''.join(f', {x}' for x in there)}")
    return (ctypes.c_void_p * (len(names) + 1))(*(there[name] for name in names), None)


def _shares(text: str) -> Any:
    most = llama_cpp.llama_max_devices()
    parts = re.split("[,/]+", text)
    try:
        shares = [float(part) for part in parts]
    except ValueError:
        shares = [-1.0]
    if not all(0 <= share < float("inf") for share in shares):
        raise SettingsError(f"--tensor-split takes numbers with commas between, as in 3,1; got {text!r}")
    if len(shares) > most:
        raise SettingsError(f"--tensor-split has {len(shares)} shares, and llama.cpp takes up to {most} devices")
    return (ctypes.c_float * most)(*shares)


def tensor_placements(settings: Settings) -> Iterator[tuple[bytes, int]]:
    """Yield patterns of tensor names with the buffer type for each. The first pattern that matches a name counts.

    Raises `SettingsError`.
    """
    buffers = dict(each.buffer_type for each in devices())
    for each in _split(settings.override_tensor or ""):
        pattern, equals, name = each.rpartition("=")
        if not equals or name not in buffers:
            raise SettingsError(
                f"--override-tensor takes PATTERN=BUFFER with a buffer of {', '.join(buffers)}; got {each!r}"
            )
        yield pattern.encode(), buffers[name]
    cpu = next(each for each in devices() if each.is_cpu).buffer_type[1]
    if settings.cpu_moe:
        yield _EXPERTS.encode(), cpu
    for layer in range(settings.n_cpu_moe):
        yield rf"blk\.{layer}{_EXPERTS}".encode(), cpu


def _override(text: str) -> Any:
    key, _, typed = text.partition("=")
    kind, colon, value = typed.partition(":")
    result: Any = llama_cpp.llama_model_kv_override()
    try:
        result.key = key.encode()
        result.tag, field, convert = _OVERRIDES[kind]
        setattr(result.value, field, convert(value))
    except (KeyError, ValueError):
        colon = ""
    if not (key and colon) or max(len(key.encode()), len(value.encode())) > _KEY_BYTES:
        raise SettingsError(
            "--override-kv takes KEY=TYPE:VALUE, with TYPE int, float, bool (true or false) or str, and up to "
            f"{_KEY_BYTES} bytes of key and value; got {text!r}"
        )
    return result


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _ggml_type(name: str | None) -> int:
    """Return the number of a ggml type; f16 without a name. llama_cpp 0.3.36 lacks BF16; its 30 is from ggml.h."""
    name = name or "f16"
    return 30 if name == "bf16" else int(getattr(llama_cpp, f"GGML_TYPE_{name.upper()}"))


def physical_cores() -> int:
    """Return how many physical cores this process may use. Two threads on one core only slow each other down."""
    if sys.platform == "darwin":  # all threads wait for the slowest, so only the fast cores of an Apple chip count
        return int(sysctl("hw.perflevel0.physicalcpu") or sysctl("hw.physicalcpu") or os.cpu_count() or 1)
    try:
        topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        return len({Path(topology.format(cpu)).read_text() for cpu in os.sched_getaffinity(0)})
    except (AttributeError, OSError):
        return os.cpu_count() or 1
