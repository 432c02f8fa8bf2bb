"""Writes a model of about 1 MB with random weights and a byte vocabulary.

Its text is noise, and this is useful: random bytes are the hardest UTF-8 stream there is. The real llama.cpp evaluates
the model in well under a millisecond per row.

Token ids 0 to 255 are the bytes; `EOS` ends generation; `CONTROL` is a control token, written `<|control|>` in text.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

EOS = 256
CONTROL = 257
N_VOCAB = 258
WINDOW = 32


def _byte_to_unicode() -> list[str]:
    """GPT-2's printable stand-in for each byte, in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {byte: chr(byte) for byte in printable}
    spare = iter(range(256, 512))
    return [names.get(byte) or chr(next(spare)) for byte in range(256)]


def write_tiny_model(
    path: Path,
    *,
    arch: str = "llama",
    pre: str = "gpt-2",
    n_ctx_train: int = 4096,
    window: int = WINDOW,
    n_vocab: int = N_VOCAB,
    prefix: str = "t",
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int | None = None,
    n_ff: int = 128,
    weight_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    scale: float = 0.3,
    seed: int = 0,
    chat_template: str | None = None,
    add_bos: bool = False,
    layers_alike: bool = False,
    is_tied: bool = False,
    rank_template: str | None = None,
    added: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the model to `path`, and returns the path. With larger sizes, the model isn't tiny.

    arch: llama; qwen3; gemma3, whose every other layer has a sliding window of `window` tokens; mamba, which is
        recurrent; or jamba, a hybrid, whose every other layer is recurrent; qwen2vl (M-RoPE).
    pre: the pre-tokenizer's name (GGUF `tokenizer.ggml.pre`). n_vocab: tokens past `CONTROL` are texts of their own,
        which begin with `prefix`.
    n_head_kv: the number of heads for keys and values, which several other heads share (llama alone); left out:
        `n_head`.
    scale: of the weights. With 0.3, the logits of a large model are so far apart that the smallest difference changes
        the whole text.
    add_bos: prompts begin with `CONTROL`.
    added: by name, values that are added to the weights with this name (F32 alone). Without such weights, the values
        become a tensor of their own.
    rank_template: makes a model that ranks texts which are written like this (qwen3 alone), by the first two numbers of
        a text's embedding.
    layers_alike: all weights with the same shape and scale are the same, so that a large model is made in seconds.
    is_tied: the weights of the input are those of the output, too.
    """
    rng = np.random.default_rng(seed)
    is_recurrent = [arch == "mamba" or (arch == "jamba" and i % 2 == 0) for i in range(n_layer)]
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_name("tiny")
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    n_embd_kv = n_embd // n_head * (n_head_kv or n_head)
    if n_head_kv:
        writer.add_head_count_kv(n_head_kv)
    if arch == "jamba":
        writer.add_head_count_kv([0 if is_recurrent[i] else n_head for i in range(n_layer)])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // n_head)
    if arch == "qwen2vl":
        writer.add_rope_dimension_sections([4, 2, 2, 0])
    if arch == "gemma3":
        writer.add_sliding_window(window)
        writer.add_sliding_window_pattern([i % 2 == 0 for i in range(n_layer)])
    if arch in ("gemma3", "qwen3"):
        writer.add_key_length(n_embd // n_head)
        writer.add_value_length(n_embd // n_head)
    if any(is_recurrent):
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * n_embd)
        writer.add_ssm_state_size(16)
        writer.add_ssm_time_step_rank(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    more = range(N_VOCAB, n_vocab)
    writer.add_token_list(
        [*_byte_to_unicode(), "<|endoftext|>", "<|control|>", *(f"{prefix}{token}" for token in more)]
    )
    types = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 2
    writer.add_token_types([*types, *(gguf.TokenType.NORMAL for _ in more)])
    writer.add_token_merges(["Ā Ā"])  # llama.cpp needs one merge; two NUL bytes don't occur in text
    writer.add_eos_token_id(EOS)
    writer.add_bos_token_id(CONTROL)
    writer.add_add_bos_token(add_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    if rank_template is not None:
        writer.add_string("tokenizer.chat_template.rerank", rank_template)
        writer.add_classifier_output_labels(["yes", "no"])
        writer.add_tensor("cls.output.weight", np.eye(2, n_embd, dtype=np.float32))

    def sampled(shape: tuple[int, ...], scale: float) -> Any:
        return gguf.quants.quantize(rng.standard_normal(shape, np.float32) * np.float32(scale), weight_type)

    draw = cache(sampled) if layers_alike else sampled

    more_tensors = dict(added or {})

    def weight(name: str, *shape: int, scale: float = scale) -> None:
        values = draw(shape, scale)
        if name in more_tensors:
            values = values + np.float32(1) * more_tensors.pop(name)
        writer.add_tensor(name, values, raw_dtype=weight_type)

    def ones(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, np.float32))

    weight("token_embd.weight", n_vocab, n_embd, scale=1.0)
    if not is_tied:
        weight("output.weight", n_vocab, n_embd)
    ones("output_norm.weight", n_embd)
    for i in range(n_layer):
        ones(f"blk.{i}.attn_norm.weight", n_embd)
        if is_recurrent[i]:
            weight(f"blk.{i}.ssm_in.weight", 4 * n_embd, n_embd)
            weight(f"blk.{i}.ssm_conv1d.weight", 2 * n_embd, 4)
            ones(f"blk.{i}.ssm_conv1d.bias", 2 * n_embd)
            weight(f"blk.{i}.ssm_x.weight", 4 + 2 * 16, 2 * n_embd)
            weight(f"blk.{i}.ssm_dt.weight", 2 * n_embd, 4)
            ones(f"blk.{i}.ssm_dt.bias", 2 * n_embd)
            # Some numbers of the state forget a token at once, others remember it for a hundred tokens.
            forgetting = -np.geomspace(1, 1 / 64, 16, dtype=np.float32)
            writer.add_tensor(f"blk.{i}.ssm_a", np.tile(forgetting, (2 * n_embd, 1)))
            ones(f"blk.{i}.ssm_d", 2 * n_embd)
            weight(f"blk.{i}.ssm_out.weight", n_embd, 2 * n_embd)
            if arch == "mamba":
                continue
            for name, size in (("dt", 4), ("b", 16), ("c", 16)):
                ones(f"blk.{i}.ssm_{name}_norm.weight", size)
        else:
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                weight(f"blk.{i}.{name}.weight", n_embd_kv if name in ("attn_k", "attn_v") else n_embd, n_embd)
        ones(f"blk.{i}.ffn_norm.weight", n_embd)
        if arch == "gemma3":
            for name in ("post_attention_norm", "post_ffw_norm"):
                ones(f"blk.{i}.{name}.weight", n_embd)
        if arch in ("gemma3", "qwen3"):
            for name in ("attn_q_norm", "attn_k_norm"):
                ones(f"blk.{i}.{name}.weight", n_embd // n_head)
        weight(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
        weight(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        weight(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
    for name, values in more_tensors.items():
        writer.add_tensor(name, values)
    return finish(writer, path)


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Writes what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
