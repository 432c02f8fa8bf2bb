"""Writes a llama model of about 1 MB with random weights and a byte vocabulary.

The text it makes is noise, and that is its use: random bytes are the hardest UTF-8 stream there is,
and the real llama.cpp evaluates it in well under a millisecond per row.

Token ids 0 to 255 are the bytes; `EOS` ends generation; `CONTROL` is a control token, written `<|control|>` in text.
"""

from pathlib import Path

import gguf
import numpy as np

EOS = 256
CONTROL = 257
N_VOCAB = 258
N_LAYER, N_EMBD, N_HEAD, N_FF = 2, 64, 4, 128


def _byte_to_unicode() -> list[str]:
    """GPT-2's printable stand-in for each byte, in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {byte: chr(byte) for byte in printable}
    spare = iter(range(256, 512))
    return [names.get(byte) or chr(next(spare)) for byte in range(256)]


def write_tiny_model(path: Path, *, pre: str = "gpt-2", n_ctx_train: int = 4096, seed: int = 0) -> Path:
    """Writes the model to `path` and returns it. `pre` names the pre-tokenizer (GGUF `tokenizer.ggml.pre`)."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*_byte_to_unicode(), "<|endoftext|>", "<|control|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(["Ā Ā"])  # llama.cpp wants one; two NUL bytes don't occur in text
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)

    def weight(name: str, *shape: int, scale: float = 0.3) -> None:
        writer.add_tensor(name, rng.normal(0, scale, shape).astype(np.float32))

    weight("token_embd.weight", N_VOCAB, N_EMBD, scale=1.0)
    weight("output.weight", N_VOCAB, N_EMBD)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    for i in range(N_LAYER):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(N_EMBD, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weight(f"blk.{i}.{name}.weight", N_EMBD, N_EMBD)
        weight(f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD)
        weight(f"blk.{i}.ffn_up.weight", N_FF, N_EMBD)
        weight(f"blk.{i}.ffn_down.weight", N_EMBD, N_FF)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
