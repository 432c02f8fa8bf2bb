import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The tests compare log-probabilities to the last digits, and so they compute on the processor: what a card computes
# depends on what else is in the batch. `CUDA_VISIBLE_DEVICES=0 pytest` tries a card all the same.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# An example may take as long as it does: no test is about time.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=500)  # pytest --hypothesis-profile thorough
settings.load_profile("quick")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache is an empty folder: what was tuned or converted on this machine changes no text of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
