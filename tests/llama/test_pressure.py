"""Random traffic in a cache that is much too small, while the layout changes: each text is that of its request alone.

Sequences are preempted all the time, and swapped in again or computed again. `bench/checks/pressure.py` looks for
longer, and shrinks what it finds.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from alone import KINDS, Model, failure, report, tiny_adapter, tiny_model
from traffic import press, shrink

pytestmark = pytest.mark.llama

PROGRAMS = {"full": 8, "window": 4, "recurrent": 4, "hybrid": 4}
SHRINK_SECONDS = 60


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Without what llama.cpp says about each of the many contexts."""
    caplog.set_level(logging.ERROR)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Model]]:
    """The tiny model of each kind."""
    folder = tmp_path_factory.mktemp("models")
    models: dict[str, Model] = {}

    def make(kind: str) -> Model:
        if kind not in models:
            models[kind] = Model(tiny_model(kind, folder), adapter=tiny_adapter(kind, folder))
        return models[kind]

    yield make
    for each in models.values():
        each.close()


def look(model: Model, seeds: range) -> Counter[str]:
    """Runs random programs; fails with a small one. Returns how many preemptions and changes of the layout there were.

    Every fourth program has another budget than the others, among them none for states that are swapped out.
    """
    n = Counter[str]()
    for seed in seeds:
        program = press(seed)
        try:
            stats = model.check(program)
        except Exception:
            program = shrink(program, lambda smaller: failure(model, smaller) is not None, SHRINK_SECONDS)
            pytest.fail(f"seed {seed}: {report(program, failure(model, program))}", pytrace=False)
        n += Counter(preemptions=stats.preemptions, changes=stats.layout_changes)
    return n


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_preempted_and_moved_says_what_it_says_alone(model: Callable[[str], Model], kind: str) -> None:
    n = look(model(kind), range(PROGRAMS[kind]))
    assert n["preemptions"] > 0
    assert (n["changes"] > 0) == (kind == "full")
