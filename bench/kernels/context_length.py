"""Print the longest text for the models in docs/running/models.md, calculated by srb from their shapes.

    .venv/bin/python bench/kernels/context_length.py      # needs the extra bench

The model files have the names, types and shapes of tensors, but no data, because nothing reads the data. Everything
counts as GPU memory, including what llama.cpp has in main memory.
"""

import dataclasses
import tempfile
from pathlib import Path
from unittest.mock import patch

import gguf
import numpy as np

from srb.llama.model import fit
from srb.llama.model.fit import fitted
from srb.llama.model.metadata import read_tensors
from srb.llama.native.params import start
from srb.llama.tune.result import Choice
from srb.options.settings import Settings

FREE = 0.95
"""The share of GPU memory that srb can use. The driver and a screen take the rest."""

ALTERNATIVES = 8 * 250  # tokens
WORD = 4 / 3
"""Tokens per English word."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a model and its file."""

    name: str
    arch: str
    card: int
    file_bytes: int
    layers: int
    embedding: int
    feed_forward: int
    heads: int
    heads_kv: int
    head: int
    vocabulary: int
    context: int


# The published sizes of the models, and the sizes of the files.
SHAPES = (
    Shape("gemma-3-4b-it-Q4_K_M", "gemma3", 8, 2_489_757_856, 34, 2560, 10240, 8, 4, 256, 262_208, 131_072),
    Shape(
        "Mistral-Nemo-Instruct-2407-Q4_K_M", "llama", 16, 7_477_208_192, 40, 5120, 14336, 32, 8, 128, 131_072, 131_072
    ),
    Shape("Mistral-Small-3.2-24B-Q4_K_M", "llama", 24, 14_333_915_904, 40, 5120, 32768, 32, 8, 128, 131_072, 131_072),
)


def write_hollow(path: Path, shape: Shape) -> None:
    """Write a model's file without tensor data."""
    is_gemma = shape.arch == "gemma3"
    writer = gguf.GGUFWriter(path, shape.arch)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embedding)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads_kv)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("none")
    if is_gemma:
        writer.add_sliding_window(1024)

    def vector(name: str, size: int) -> None:
        writer.add_tensor_info(f"{name}.weight", (size,), np.dtype(np.float32), 4 * size)

    def matrix(name: str, rows: int, columns: int) -> None:
        kind = gguf.GGMLQuantizationType.Q4_K
        block, size = gguf.GGML_QUANT_SIZES[kind]
        shape_in_bytes = (rows, columns // block * size)
        writer.add_tensor_info(f"{name}.weight", shape_in_bytes, np.dtype(np.uint8), rows * shape_in_bytes[1], kind)

    matrix("token_embd", shape.vocabulary, shape.embedding)
    vector("output_norm", shape.embedding)
    if not is_gemma:
        matrix("output", shape.vocabulary, shape.embedding)
    for i in range(shape.layers):
        for name in ("attn_norm", "ffn_norm", *(("post_attention_norm", "post_ffw_norm") if is_gemma else ())):
            vector(f"blk.{i}.{name}", shape.embedding)
        for name in ("attn_q_norm", "attn_k_norm") if is_gemma else ():
            vector(f"blk.{i}.{name}", shape.head)
        matrix(f"blk.{i}.attn_q", shape.heads * shape.head, shape.embedding)
        matrix(f"blk.{i}.attn_k", shape.heads_kv * shape.head, shape.embedding)
        matrix(f"blk.{i}.attn_v", shape.heads_kv * shape.head, shape.embedding)
        matrix(f"blk.{i}.attn_output", shape.embedding, shape.heads * shape.head)
        matrix(f"blk.{i}.ffn_gate", shape.feed_forward, shape.embedding)
        matrix(f"blk.{i}.ffn_up", shape.feed_forward, shape.embedding)
        matrix(f"blk.{i}.ffn_down", shape.embedding, shape.feed_forward)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    n_bytes = sum(tensor.nbytes for tensors in writer.tensors for tensor in tensors.values())
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + n_bytes + (1 << 20))  # one MiB more, for the alignment of the tensors


def context_length(shape: Shape, folder: Path) -> int:
    """Return the tokens of `--ctx-size auto` minus those of the alternatives."""
    path = folder / "hollow.gguf"
    write_hollow(path, shape)
    # A real file is larger, because some tensors have larger types. The difference needs memory, too.
    missing = shape.file_bytes - sum(tensor.n_bytes for tensor in read_tensors(path))
    free = int(shape.card * FREE * (1 << 30)) - missing
    settings = Settings(model=path, ctx_size=-1, cache_ram=0, flash_attn="on")
    with patch.object(fit, "available_memory", lambda: free):
        return fitted(Choice(settings, path, None, None)).settings.ctx_size - ALTERNATIVES


if __name__ == "__main__":
    start(Settings())
    print("memory   model                               a token   longest text")
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            tokens = context_length(shape, Path(folder))
        cell = 2 * 2 * shape.layers * shape.heads_kv * shape.head
        print(f"{shape.card:3} GB   {shape.name:34} {cell >> 10:4} KiB   {tokens:,} tokens, {tokens / WORD:,.0f} words")
