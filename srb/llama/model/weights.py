"""Converts the weights of a model file to another format, once, and stores them in the user's cache folder.

llama.cpp decodes batches several times faster if its kernels for this processor are made for the format. The conversion
runs in a process of its own, because an assertion in C ends the process, and so that it can be stopped.
"""

import ctypes
import math
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp

from srb.errors import ModelLoadError
from srb.files.download import cache_folder, locked
from srb.llama.model.metadata import Tensor, read_tensors
from srb.llama.model.model_file import fingerprint
from srb.llama.native import library as log

CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Return how many bytes of memory are free for this process, as far as the system reports it.

    This is the least of what the machine, the container and `ulimit -v` leave. The file cache counts as free. Where
    Linux's files are missing, as on macOS, all of the machine's memory counts as free.
    """
    return min(_of_machine(), _of_container(), _of_process())


def _of_machine() -> int:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        return int(found[1]) << 10 if found else sys.maxsize
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_container() -> int:
    try:
        limit, used, stat = ((CGROUP / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
        cached = sum(int(each) for each in re.findall(r"^(?:in)?active_file (\d+)$", stat, re.MULTILINE))
        return sys.maxsize if limit.strip() == "max" else max(0, int(limit) - int(used) + cached)
    except (OSError, ValueError):
        return sys.maxsize


def _of_process() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        used = 0
    return max(0, limit - used)


FILE = "file"
"""The name of the weights as they are in the file."""


class _Format(NamedTuple):
    """llama_ftype, ggml_type, and bytes for a weight."""

    file_type: int
    tensor_type: int
    bytes_per_weight: float


_FORMATS = {
    "f16": _Format(llama_cpp.LLAMA_FTYPE_MOSTLY_F16, 1, 2),
    "bf16": _Format(llama_cpp.LLAMA_FTYPE_MOSTLY_BF16, 30, 2),
    "q8_0": _Format(llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, 8, 34 / 32),
}
FORMATS = tuple(_FORMATS)
"""The formats that are precise enough for weights of any type."""

_MARGIN_BYTES = 64 << 20  # room for the file's metadata, and so that the disk doesn't become full


def mixed(kind: str, target: str) -> str:
    """Return the name of a format in which only tensors of type `kind` are converted: for example `q4_1-as-q8_0`."""
    return f"{kind}-as-{target}"


def identity(path: Path) -> str:
    """Return a short hash of a model file."""
    return fingerprint(path)[:12]


def converted_path(path: Path, weights: str) -> Path:
    """Return where the file of these weights is, or would be."""
    return cache_folder() / "tuned" / f"{path.stem}-{identity(path)}-{weights}.gguf"


def converted_bytes(tensors: list[Tensor], weights: str) -> int:
    """Estimate the size of the file of these weights, in bytes."""
    kind, target = _parse(weights)
    per_weight = _FORMATS[target].bytes_per_weight
    return sum(
        int(math.prod(each.shape) * per_weight) if each.is_matrix and kind in (None, each.type) else each.n_bytes
        for each in tensors
    )


def reason_not_to_convert(path: Path, weights: str) -> str | None:
    """Return why these weights can't be made here, such as too little memory; None if they can.

    Raises `ModelLoadError` and `OSError`.
    """
    size, memory = path.stat().st_size, available_memory()
    if re.search(r"-\d{5}-of-\d{5}$", path.stem):
        return "the model is split into several files"
    if size > memory // 2:
        return f"the model has {_mib(size)}, more than half of the free memory of {_mib(memory)}"
    needed = converted_bytes(read_tensors(path), weights)
    if needed > memory // 2:
        return f"it would take {_mib(needed)}, more than half of the free memory of {_mib(memory)}"
    folder = next(each for each in converted_path(path, weights).parents if each.is_dir())
    disk = shutil.disk_usage(folder).free
    if needed + _MARGIN_BYTES > disk:
        return f"it would take {_mib(needed)}, and {_mib(disk)} of the disk are free in {folder}"
    return None


def convert(path: Path, weights: str) -> Path:
    """Return the file of the model's weights in another format. It is made unless it exists. Raises `ModelLoadError`.

    Args:
        weights: one of `FORMATS`, or a `mixed` format.
    """
    target = converted_path(path, weights)
    if target.exists():
        return target
    what = f"the weights of {path.name} can't be converted to {weights}"
    try:
        if reason := reason_not_to_convert(path, weights):
            raise ModelLoadError(f"{what}: {reason}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.with_suffix(".lock")):
            if not target.exists():  # another process may have made it while this one waited for the lock
                part = target.with_suffix(".part")
                _run(path, part, weights, what)
                part.rename(target)
    except OSError as error:
        raise ModelLoadError(f"{what}: {error}") from None
    return target


def _run(path: Path, part: Path, weights: str, what: str) -> None:
    """Convert in a process of its own. After a failure, no partial file is left."""
    command = [sys.executable, "-m", "srb.llama.model.weights", str(path), str(part), weights]
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
            raise ModelLoadError(f"{what}: {said[-1]}")
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _main(source: str, target: str, weights: str) -> int:
    """Convert the weights. This runs in the other process."""
    log.redirect()
    kind, name = _parse(weights)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _FORMATS[name].file_type
    params.allow_requantize = True
    params.pure = True  # otherwise llama.cpp gives some tensors other types
    if kind is not None:
        params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0  # llama.cpp reads `tt_overrides` only for quantized types
        params.tt_overrides = overrides = _overrides(read_tensors(Path(source)), kind, name)
    with log.collected() as messages:
        code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    if kind is not None:
        del overrides
    if code:
        print(messages.reason, file=sys.stderr)
        return 1
    with open(target, "rb+") as file:
        os.fsync(file)  # otherwise a power cut may leave a file of zeros under the final name
    return 0


def _overrides(tensors: list[Tensor], kind: str, target: str) -> Any:
    """Return llama.cpp's table of the type that each tensor gets, with an empty row at the end."""
    rows = [
        (f"^{re.escape(each.name)}$".encode(), _FORMATS[target].tensor_type if each.type == kind else each.type_number)
        for each in tensors
        if each.is_matrix
    ]
    row = llama_cpp.llama_model_tensor_override
    return (row * (len(rows) + 1))(*(row(*each) for each in rows), row(None, 0))


def _parse(weights: str) -> tuple[str | None, str]:
    """Return the type that is converted, or None for all, and its target. Raises `ModelLoadError`."""
    kind, _, target = weights.rpartition("-as-")
    if target not in FORMATS:
        raise ModelLoadError(f"unknown weights {weights!r}; srb knows {', '.join(FORMATS)}")
    return kind or None, target


def _mib(n_bytes: int) -> str:
    return f"{n_bytes >> 20:,} MiB"


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
