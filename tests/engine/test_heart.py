"""How large the heart of the engine is, and how much of its features is in it. Takes a tenth of a second."""

import importlib.util
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "bench" / "checks" / "heart.py"
spec = importlib.util.spec_from_file_location("heart", PROGRAM)
assert spec
assert spec.loader
heart = importlib.util.module_from_spec(spec)
spec.loader.exec_module(heart)


def test_at_most_one_condition_in_twenty_names_a_feature() -> None:
    asked = [(path.name, each) for path in (*heart.ROOT, *heart.PASSED) for each in heart.conditions(path)]
    named = [(name, each.lineno, found) for name, each in asked if (found := heart.features_in(each))]
    assert len(asked) > 100
    assert len(named) * 20 <= len(asked), named
