import gc
import importlib.util
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The tests compare log-probabilities to the last digits. The results of a GPU depend on what else is in the batch, so
# the tests compute on the processor. `CUDA_VISIBLE_DEVICES=0 pytest` uses a GPU all the same.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# `./build.sh quick` needs no compiler, so llama-cpp-python may be missing. These folders need it.
if importlib.util.find_spec("llama_cpp") is None:
    collect_ignore = ["e2e", "llama", "web", "test_programs.py", "test_reference.py"]

# Each worker of pytest-xdist, and each server that it starts, has a processor of its own, so that llama.cpp takes one
# thread. Two workers with two threads each would wait for one another.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(worker.removeprefix("gw")) % len(cpus)]})

# No test may fail because an example takes long.
settings.register_profile("usual", deadline=None, max_examples=25)
settings.register_profile("quick", deadline=None, max_examples=6)
settings.register_profile("thorough", deadline=None, max_examples=500)  # pytest --hypothesis-profile thorough
settings.load_profile("usual")


def pytest_collection_finish() -> None:
    """What is there now stays until the end, so the garbage collector needn't walk it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Makes the user's cache an empty folder, so that what was tuned or converted on this machine changes no test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
