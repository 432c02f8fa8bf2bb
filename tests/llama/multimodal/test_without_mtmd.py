"""A llama-cpp-python that was compiled without mtmd, or without Pillow, gives an error that says what to do."""

import sys
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest

from srb.errors import ModelLoadError
from srb.llama.backend import LlamaBackend


@pytest.mark.parametrize(("module", "hint"), [("llama_cpp.mtmd_cpp", "LLAVA_BUILD=ON"), ("PIL.Image", "[media]")])
def test_what_is_missing(
    load: Callable[..., LlamaBackend], tiny_model: Path, monkeypatch: pytest.MonkeyPatch, module: str, hint: str
) -> None:
    monkeypatch.delattr(llama_cpp, "mtmd_cpp", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(LlamaBackend.__init__.__globals__, "load_model", None)  # may take minutes, and comes later
    with pytest.raises(ModelLoadError) as refusal:
        load(mmproj=tiny_model)
    assert hint in refusal.value.message
