"""Which formats of the weights `srb tune` tries."""

import math
from pathlib import Path

import llama_cpp

from srb.llama.files.tensors import read_tensors
from srb.llama.files.weights import FORMATS, mixed

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
