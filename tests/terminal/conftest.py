import itertools
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from fake_backend import FakeBackend, babble

from srb.cli import main

Run = Callable[..., int]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeBackend:
    """What runs in place of a model; and an empty folder to be in."""
    backend = FakeBackend(n_cells=4096, script=babble)
    monkeypatch.setattr("srb.serving.async_engine.load_backend", lambda _settings, _progress: backend)
    monkeypatch.setattr("srb.terminal.source.find_model", lambda path: path or Path("fake.gguf"))
    monkeypatch.setattr("srb.terminal.source.sampling_defaults", lambda _settings: {})
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return backend


@pytest.fixture
def in_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has commands that seem to be read and written in a terminal."""
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)


@pytest.fixture
def write_stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what commands read from stdin."""
    return lambda text: monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text.encode())))


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has reports without plots, for tests that look at their words: to draw them takes half a second."""
    monkeypatch.setattr("srb.terminal.comparison.report.plot", lambda _found: "")


@pytest.fixture
def srb(backend: FakeBackend) -> Run:
    """The command line, on the fake backend."""
    count = itertools.count()

    def run(*arguments: str | Path) -> int:
        if next(count):  # an engine closes its backend
            backend.__post_init__()
        return main([str(argument) for argument in arguments])

    return run
