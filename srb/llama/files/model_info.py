"""Reads what a model file says of its model, such as its name and its special tokens."""

import math
import re
from pathlib import Path

from srb.engine.asking.model import ModelInfo
from srb.llama.files.model_file import files_of
from srb.llama.files.tensors import read_metadata, read_tensors


def read_model_info(path: Path) -> ModelInfo:
    """What a model's file says of it. Takes some tenths of a second for a large vocabulary.

    Raises `ModelLoadError` and `OSError`.
    """
    files = files_of(path)
    metadata = read_metadata(files[0])
    architecture = metadata["general.architecture"]
    pieces = metadata.get("tokenizer.ggml.tokens", [])
    special = {}
    for key, token in metadata.items():
        if (name := re.fullmatch(r"tokenizer\.ggml\.(\w+)_token_id", key)) and 0 <= token < len(pieces):
            special[name[1]] = (token, pieces[token])
    return ModelInfo(
        name=metadata.get("general.name") or path.stem,
        architecture=architecture,
        n_bytes=sum(file.stat().st_size for file in files),
        n_params=sum(math.prod(tensor.shape) for file in files for tensor in read_tensors(file)),
        n_trained=metadata.get(f"{architecture}.context_length"),
        n_vocab=len(pieces),
        chat_template=metadata.get("tokenizer.chat_template"),
        special_tokens=special,
        metadata=metadata,
    )
