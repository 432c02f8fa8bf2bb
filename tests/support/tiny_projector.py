"""Writes projectors with random weights for the tiny model, as small as the format allows, and images and sounds."""

import io
import os
import wave
from pathlib import Path

import gguf
import numpy as np
from PIL import Image
from tiny_model import finish

SIDE = 12
PATCH = 4
N_CELLS = (SIDE // PATCH) ** 2
N_SOUND_CELLS = 15
"""The cells of each 30 seconds of a sound; a shorter rest has as many."""

_STACKED = 3000 // 2 // N_SOUND_CELLS
_N_MEL = 8
_N_EMBD = 16
_N_FF = 32


def has_mtmd() -> bool:
    """Whether llama-cpp-python has mtmd. With LLAMA_SRB_NEEDS_MTMD set, its tests fail instead of being skipped."""
    if os.environ.get("LLAMA_SRB_NEEDS_MTMD"):
        return True
    try:
        import llama_cpp.mtmd_cpp  # noqa: F401
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def write_tiny_projector(path: Path, *, kind: str = "mlp", n_embd: int = 64, seed: int = 0) -> Path:
    """Writes a projector.

    kind: mlp is LLaVA's; with gemma3's, each cell of an image attends to all others; qwen2vl_merger's images have a
        cell for each 8 by 8 pixels, and as many positions as there are cells along the longer side.
    n_embd: that of the model which the projector is for; the tiny one has 64.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_string("clip.projector_type", kind)
    writer.add_bool("clip.has_vision_encoder", True)
    for key, value in (
        ("embedding_length", _N_EMBD),
        ("feed_forward_length", _N_FF),
        ("block_count", 2),
        ("projection_dim", n_embd),
        ("attention.head_count", 2),
        ("image_size", SIDE),
        ("patch_size", PATCH),
    ):
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])

    def weight(name: str, *shape: int, scale: float = 0.3) -> None:
        writer.add_tensor(name, rng.standard_normal(shape, np.float32) * np.float32(scale))

    weight("v.patch_embd.weight", _N_EMBD, 3, PATCH, PATCH)
    if kind == "qwen2vl_merger":
        weight("v.patch_embd.weight.1", _N_EMBD, 3, PATCH, PATCH)
    else:
        weight("v.position_embd.weight", N_CELLS, _N_EMBD)
    for i in range(2):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            weight(f"v.blk.{i}.{name}.weight", _N_EMBD, _N_EMBD)
            writer.add_tensor(f"v.blk.{i}.{name}.bias", np.zeros(_N_EMBD, np.float32))
        for name in ("ln1", "ln2"):
            writer.add_tensor(f"v.blk.{i}.{name}.weight", np.ones(_N_EMBD, np.float32))
            writer.add_tensor(f"v.blk.{i}.{name}.bias", np.zeros(_N_EMBD, np.float32))
        weight(f"v.blk.{i}.ffn_up.weight", _N_FF, _N_EMBD)
        weight(f"v.blk.{i}.ffn_down.weight", _N_EMBD, _N_FF)
    if kind == "gemma3":
        writer.add_uint32("clip.vision.projector.scale_factor", 1)
        weight("mm.input_projection.weight", _N_EMBD, n_embd)
        writer.add_tensor("mm.soft_emb_norm.weight", np.ones(_N_EMBD, np.float32))
    else:
        n_in = 4 * _N_EMBD if kind == "qwen2vl_merger" else _N_EMBD
        weight("mm.0.weight", _N_FF, n_in, scale=1.0)
        weight("mm.0.bias", _N_FF)
        weight("mm.2.weight", n_embd, _N_FF)
        weight("mm.2.bias", n_embd)
    return finish(writer, path)


def write_tiny_ear(path: Path, *, n_embd: int = 64, seed: int = 0) -> Path:
    """Writes a projector for sounds, of Ultravox's kind, which has Whisper's encoder."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_string("clip.projector_type", "ultravox")
    writer.add_bool("clip.has_audio_encoder", True)
    for key, value in (
        ("embedding_length", _N_EMBD),
        ("feed_forward_length", _N_FF),
        ("block_count", 1),
        ("projection_dim", n_embd),
        ("attention.head_count", 2),
        ("num_mel_bins", _N_MEL),
        ("projector.stack_factor", _STACKED),
    ):
        writer.add_uint32(f"clip.audio.{key}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)

    def weight(name: str, *shape: int, scale: float = 0.3) -> None:
        writer.add_tensor(name, rng.standard_normal(shape, np.float32) * np.float32(scale))

    weight("a.conv1d.1.weight", _N_EMBD, _N_MEL, 3)
    weight("a.conv1d.1.bias", _N_EMBD, 1)
    weight("a.conv1d.2.weight", _N_EMBD, _N_EMBD, 3)
    weight("a.conv1d.2.bias", _N_EMBD, 1)
    weight("a.position_embd.weight", 1500, _N_EMBD)
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        weight(f"a.blk.0.{name}.weight", _N_EMBD, _N_EMBD)
    for name in ("ln1", "ln2"):
        writer.add_tensor(f"a.blk.0.{name}.weight", np.ones(_N_EMBD, np.float32))
    for name, size in (("ln1", _N_EMBD), ("ln2", _N_EMBD), ("attn_q", _N_EMBD), ("attn_v", _N_EMBD)):
        writer.add_tensor(f"a.blk.0.{name}.bias", np.zeros(size, np.float32))
    weight("a.blk.0.ffn_up.weight", _N_FF, _N_EMBD)
    weight("a.blk.0.ffn_down.weight", _N_EMBD, _N_FF)
    writer.add_tensor("mm.a.norm_pre.weight", np.ones(_STACKED * _N_EMBD, np.float32))
    weight("mm.a.mlp.1.weight", 2 * _N_FF, _STACKED * _N_EMBD)
    writer.add_tensor("mm.a.norm_mid.weight", np.ones(_N_FF, np.float32))
    weight("mm.a.mlp.2.weight", n_embd, _N_FF)
    return finish(writer, path)


def png(seed: int, width: int = SIDE, height: int = SIDE, *, form: str = "PNG") -> bytes:
    """The bytes of an image file, with noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def wav(seed: int, seconds: float = 1.0, *, rate: int = 16_000, channels: int = 1) -> bytes:
    """The bytes of a WAV file, with noise."""
    samples = np.random.default_rng(seed).integers(-20_000, 20_000, (int(rate * seconds), channels), np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.tobytes())
    return file.getvalue()
