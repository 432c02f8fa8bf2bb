from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_tiny_model

from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a random-weight model."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def load(tiny_model: Path) -> Iterator[Callable[..., LlamaBackend]]:
    """Loads the tiny model with some settings."""
    backends: list[LlamaBackend] = []

    def make(kind: type[LlamaBackend] = LlamaBackend, **options: Any) -> LlamaBackend:
        defaults: dict[str, Any] = {
            "model": tiny_model,
            "ctx_size": 1024,
            "batch_size": 64,
            "ubatch_size": 32,
            "parallel": 8,
        }
        backends.append(kind(Settings(**(defaults | options))))
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()
