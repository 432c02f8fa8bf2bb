"""What a model's file says about the model."""

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from tiny_model import CONTROL, EOS, N_VOCAB, finish, write_tiny_model

from srb.engine.engine import Engine
from srb.llama.backend import LlamaBackend
from srb.llama.model.metadata import read_metadata, read_model_info
from srb.llama.vocabulary import Vocabulary
from srb.options.settings import Settings


def test_a_model(tmp_path: Path, load: Callable[..., LlamaBackend]) -> None:
    path = write_tiny_model(tmp_path / "named.gguf", chat_template="{{ messages }}", add_bos=True)
    info = Engine(load(model=path)).model_info
    assert (info.name, info.architecture, info.n_trained, info.n_vocab) == ("tiny", "llama", 4096, N_VOCAB)
    assert (info.n_bytes, info.n_bytes_gpu) == (path.stat().st_size, 0)
    assert re.fullmatch("[0-9a-f]{64}", info.digest)
    assert read_model_info(path, gpu_layers=-1).n_bytes_gpu == info.n_bytes
    assert 0 < read_model_info(path, gpu_layers=1).n_bytes_gpu < info.n_bytes
    tensors = gguf.GGUFReader(path).tensors
    assert info.n_params == sum(int(np.prod(tensor.shape)) for tensor in tensors)
    assert info.chat_template == "{{ messages }}"
    assert info.special_tokens == {"eos": (EOS, "<|endoftext|>"), "bos": (CONTROL, "<|control|>")}
    assert len(info.metadata["tokenizer.ggml.tokens"]) == N_VOCAB
    assert "metadata" not in repr(info)
    vocabulary = Vocabulary(Settings(model=path))
    assert vocabulary.model_info == info
    vocabulary.close()


def test_every_type_of_value(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "types.gguf"), "llama")
    values = {
        "u8": (writer.add_uint8, 200),
        "i8": (writer.add_int8, -100),
        "u16": (writer.add_uint16, 60_000),
        "i16": (writer.add_int16, -30_000),
        "u32": (writer.add_uint32, 4_000_000_000),
        "i32": (writer.add_int32, -2_000_000_000),
        "f32": (writer.add_float32, 0.5),
        "bool": (writer.add_bool, True),
        "u64": (writer.add_uint64, 1 << 63),
        "i64": (writer.add_int64, -(1 << 62)),
        "f64": (writer.add_float64, 1e300),
        "text": (writer.add_string, "ä€"),
        "texts": (writer.add_array, ["a", "", "ä"]),
        "numbers": (writer.add_array, [1, -2, 3]),
        "bools": (writer.add_array, [True, False]),
    }
    for key, (add, value) in values.items():
        add(key, value)  # type: ignore[operator]
    found = read_metadata(finish(writer, tmp_path / "types.gguf"))
    assert {key: found[key] for key in values} == {key: value for key, (_, value) in values.items()}
    assert found["general.architecture"] == "llama"
