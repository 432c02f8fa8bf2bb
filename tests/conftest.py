import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Tests compare log-probabilities to the last digits, and those of a GPU depend on the rest of the batch, so tests run
# on the CPU. `CUDA_VISIBLE_DEVICES=0 pytest` uses a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# What needs llama-cpp-python, and the mark that all of it has. The quick layer neither has nor needs it.
NEEDS_LLAMA = {"e2e": "e2e", "llama": "llama", "web": "web", "test_api.py": "llama", "test_reference.py": "e2e"}
if importlib.util.find_spec("llama_cpp") is None:
    collect_ignore = [*NEEDS_LLAMA]

# Each worker of pytest-xdist, and each server that it starts, has its own CPU, so that llama.cpp uses one thread. Two
# workers with two threads each would wait for each other.
if sys.platform == "linux" and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(worker.removeprefix("gw")) % len(cpus)]})

# No deadline: a slow example is not a failure.
settings.register_profile("usual", deadline=None, max_examples=25)
settings.register_profile("quick", deadline=None, max_examples=6)
settings.register_profile("thorough", deadline=None, max_examples=500)  # pytest --hypothesis-profile thorough
settings.load_profile("usual")

gc.disable()  # nearly all that is imported and collected stays until the end


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test the mark of its folder."""
    if mark := NEEDS_LLAMA.get(item.path.relative_to(Path(__file__).parent).parts[0]):
        item.add_marker(mark)


def pytest_collection_finish() -> None:
    """Exclude the objects of the collection from garbage collection, and collect less often."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Replace the user's cache with an empty folder, so that tuned settings don't affect tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
