"""The kernels that compute on the processor: those of libllama, or the variant that ggml has chosen."""

import re
from pathlib import Path

import llama_cpp
import pytest

from srb.errors import ModelLoadError
from srb.llama.native import library

FOLDER = Path(llama_cpp.__file__).parent / "lib"


def test_cpu_variant_names_the_kernels_in_this_process() -> None:
    library.cpu_variant()
    loaded = set(re.findall(r"libggml-cpu-(\S+)\.so$", Path("/proc/self/maps").read_text(), re.MULTILINE))
    assert {library.cpu_variant()} == (loaded or {library.NATIVE})
    assert bool(loaded) is any(FOLDER.glob("libggml-cpu-*.so"))


def test_a_build_is_named_by_its_version_and_its_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build with all kernels in libllama is named by its version alone, as before there were others."""
    names = []
    for variant in (library.NATIVE, "zen4", "haswell"):
        monkeypatch.setattr(library, "cpu_variant", lambda variant=variant: variant)
        names.append(library.build())
    version = llama_cpp.__version__
    assert names == [version, f"{version} zen4", f"{version} haswell"]


def test_kernels_that_do_not_run_here_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libggml-cpu-power10.so").write_text("not a library of this processor")
    monkeypatch.setattr(llama_cpp.llama_cpp, "_base_path", tmp_path)
    with pytest.raises(ModelLoadError, match="has kernels for power10, and this processor runs none of them"):
        library.cpu_variant.__wrapped__()
