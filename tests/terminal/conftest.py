from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from fake_backend import FakeBackend, babble

from srb.cli import main


class Run:
    """The command line, on the fake backend. out, err: what the last command has printed."""

    out = err = ""
    is_in_terminal = False

    def __init__(self, backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
        self._backend, self._capsys, self._is_closed = backend, capsys, False

    def __call__(self, *arguments: str | Path) -> int:
        if self._is_closed:  # an engine closes its backend
            self._backend.__post_init__()
        self._is_closed = True
        self._capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            for stream in ("stdin", "stdout") if self.is_in_terminal else ():
                patch.setattr(f"sys.{stream}.isatty", lambda: True)
            code = main([str(argument) for argument in arguments])
        self.out, self.err = self._capsys.readouterr()
        return code


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
def write_stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what commands read from stdin."""
    return lambda text: monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text.encode())))


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has reports without plots, for tests that look at their words: to draw them takes half a second."""
    monkeypatch.setattr("srb.terminal.comparison.report.plot", lambda _found: "")


@pytest.fixture
def srb(backend: FakeBackend, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(backend, capsys)


@pytest.fixture
def in_terminal(srb: Run) -> None:
    """Has commands that seem to be read and written in a terminal."""
    srb.is_in_terminal = True
