"""A model that is loaded before the engine is there."""

import signal
import threading
import time

import pytest
from fake_backend import FakeBackend

from srb.engine.backend import Backend
from srb.errors import ModelLoadError, SettingsError
from srb.serving.early_loading import EarlyLoading, Progress


def test_it_loads_before_it_is_called_and_reports_progress_after_that() -> None:
    started, told = threading.Event(), list[float]()
    backend = FakeBackend()

    def load(progress: Progress) -> Backend:
        started.set()
        while progress(0.5):
            time.sleep(0.001)
        return backend

    def listen(fraction: float) -> bool:
        told.append(fraction)
        return False

    with EarlyLoading(load) as early:
        assert started.wait(10)
        assert early(listen) is backend
    assert told == [0.5]
    assert not backend.closed


def test_a_model_that_nobody_asks_for_is_loaded_no_further_and_closed() -> None:
    backend = FakeBackend()

    def load(progress: Progress) -> Backend:
        while progress(0.5):
            time.sleep(0.001)
        return backend

    with pytest.raises(SettingsError), EarlyLoading(load):
        raise SettingsError("there is no such folder")
    assert backend.closed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int) -> None:
    """As an exception within an import, it could leave a lock for which the thread waits for ever."""
    before, left = signal.getsignal(number), list[int]()
    monkeypatch.setattr("os._exit", left.append)
    with EarlyLoading(lambda _progress: FakeBackend()):
        signal.raise_signal(number)
    assert left == [code]
    assert signal.getsignal(number) == before


def test_the_caller_gets_the_error() -> None:
    def load(_progress: Progress) -> Backend:
        raise ModelLoadError("no such model")

    with EarlyLoading(load) as early, pytest.raises(ModelLoadError, match="no such model"):
        early(lambda _fraction: True)
    with EarlyLoading(load):
        pass
