"""Writes adapters for the tiny model, and the tiny model with adapters merged into its weights, for comparison."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tiny_model import finish, write_tiny_model

_RANK = 2
_NAMES = tuple(f"blk.{i}.{name}.weight" for i in range(2) for name in ("attn_q", "attn_output"))
_SIZE = 64


def _pairs(seed: int) -> Mapping[str, tuple[Any, Any]]:
    rng = np.random.default_rng(100 + seed)
    return {
        name: (
            rng.standard_normal((_RANK, _SIZE), np.float32) * np.float32(0.3),
            rng.standard_normal((_SIZE, _RANK), np.float32) * np.float32(0.3),
        )
        for name in _NAMES
    }


def write_tiny_lora(path: Path, seed: int = 0, *, arch: str = "llama", size: int = _SIZE, aloud: bool = False) -> Path:
    """Writes an adapter, a different one for each seed. size: the length of its rows; only 64 fits the tiny model.

    aloud: whether it is one that is used only behind some tokens (aLoRA).
    """
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(_RANK))
    if aloud:
        writer.add_key_value(
            "adapter.alora.invocation_tokens", [1, 2], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32
        )
    for name, (a, b) in _pairs(seed).items():
        writer.add_tensor(f"{name}.lora_a", np.resize(a, (_RANK, size)))
        writer.add_tensor(f"{name}.lora_b", np.resize(b, (size, _RANK)))
    return finish(writer, path)


def write_merged(path: Path, scales: Mapping[int, float]) -> Path:
    """Writes the tiny model with the adapters of these seeds added to its weights, each times its scale."""
    added = {
        name: sum(scale * (b @ a) for scale, (a, b) in ((scale, _pairs(seed)[name]) for seed, scale in scales.items()))
        for name in _NAMES
    }
    return write_tiny_model(path, added=added)
