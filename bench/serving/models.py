"""Write models in the shapes of common models, once, to the user's cache. Most have random weights."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

from srb.files.download import cache_folder
from srb.llama.model.model_file import find_model
from srb.llama.native import library as log

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))

K_QUANTS = "k-quants"
"""16 layers of 1,024 in Q4_K_M, the format of most files. K-quants need rows whose length is a multiple of 256."""

LARGE_VOCABULARY = "large-vocabulary"
"""18 layers of 640 in Q8_0 with 262,144 tokens: as large as Gemma 3 270M."""


LARGE = "large"
"""32 layers of 4,096 in Q8_0 with 128,256 tokens, 8 GB: as large as Llama 3 8B, for a GPU."""

WIDE = "wide"
"""The default model with feed-forward layers 12 times as wide, in Q8_0, 1.1 GB. The new weights are random, and change
the probabilities a little. So as a draft model, the default model is about as accurate as a small model is for a large
one of its family."""

_TIMES_AS_WIDE = 12
_NOISE = 0.005  # the scale of the new output weights of a layer


def random_model(name: str) -> Path:
    """Return the file of one of these models, after `srb tune` has measured it on this machine."""
    path = written(name)
    command = [sys.executable, "-m", "srb", "tune", "--model", str(path), "--once", "--budget", "40"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return path


def written(name: str) -> Path:
    """Return the file of one of these models, and write it if it doesn't exist."""
    folder = cache_folder() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        _WRITERS[name](part)
        part.rename(path)
    return path


def _write_k_quants(path: Path) -> None:
    from tiny_model import write_tiny_model

    f16 = gguf.GGMLQuantizationType.F16
    whole = path.with_suffix(".f16")
    write_tiny_model(
        whole,
        n_vocab=32_000,
        n_layer=16,
        n_embd=1024,
        n_head=16,
        n_ff=2816,
        n_ctx_train=8192,
        weight_type=f16,
        scale=0.03,
    )
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    log.redirect()
    if llama_cpp.llama_model_quantize(os.fsencode(whole), os.fsencode(path), ctypes.byref(params)):
        raise RuntimeError("llama.cpp can't quantize the model")
    whole.unlink()


def _write_large_vocabulary(path: Path) -> None:
    from tiny_model import write_tiny_model

    q8 = gguf.GGMLQuantizationType.Q8_0
    write_tiny_model(
        path, n_vocab=262_144, n_layer=18, n_embd=640, n_head=4, n_ff=2048, n_ctx_train=8192, weight_type=q8, scale=0.03
    )


def _write_large(path: Path) -> None:
    from tiny_model import write_tiny_model

    write_tiny_model(
        path,
        n_vocab=128_256,
        n_layer=32,
        n_embd=4096,
        n_head=32,
        n_head_kv=8,
        n_ff=14_336,
        n_ctx_train=8192,
        weight_type=gguf.GGMLQuantizationType.Q8_0,
        scale=0.02,
        layers_alike=True,
    )


def _write_wide(path: Path) -> None:
    from tiny_model import finish

    reader = gguf.GGUFReader(find_model(None))
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, each in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            value = each.contents()
            if name.endswith(".feed_forward_length"):
                value *= _TIMES_AS_WIDE
            writer.add_key_value(name, value, each.types[0], each.types[-1] if len(each.types) > 1 else None)
    random = np.random.default_rng(0)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if any(part in tensor.name for part in ("ffn_gate", "ffn_up", "ffn_down")):
            own, kind = gguf.dequantize(data, kind), gguf.GGMLQuantizationType.Q8_0
            leads_out = "ffn_down" in tensor.name
            times = (1, _TIMES_AS_WIDE) if leads_out else (_TIMES_AS_WIDE, 1)
            whole = random.standard_normal(np.multiply(own.shape, times), np.float32)
            whole *= _NOISE if leads_out else own.std()
            whole[: own.shape[0], : own.shape[1]] = own
            data = gguf.quantize(whole, kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    finish(writer, path)


_WRITERS = {
    K_QUANTS: _write_k_quants,
    LARGE_VOCABULARY: _write_large_vocabulary,
    LARGE: _write_large,
    WIDE: _write_wide,
}
