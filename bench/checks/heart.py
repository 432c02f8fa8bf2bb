"""Counts the heart of the engine: its files, its lines, and the conditions that name an optional feature.

The heart is what a plain request passes through: one prompt, n texts that are drawn. A condition is what an `if`, a
`while` or a filter in a comprehension asks. It names a feature if one of its names has a word of `FEATURES` in it:
`prompt.outputs_from` does, because only scored prompts have any. Features reach the heart by `srb/engine/ports.py`, so
the share of such conditions says how much of a feature is left in the heart.

    python bench/checks/heart.py
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ENGINE = Path(__file__).parents[2] / "srb" / "engine"

ROOT = sorted(ENGINE.glob("*.py"))
"""The files at the engine's root: all of them belong to the heart."""

PASSED = [
    *(ENGINE / "kv" / f"{name}.py" for name in ("cells", "kv_cache", "needs")),
    *sorted((ENGINE / "planning").glob("*.py")),
    ENGINE / "telling" / "outbox.py",
    ENGINE / "ways" / "sampling.py",
]
"""The files in its rooms that a plain request passes through, too."""

_WORDS = """
adapters lora setting  atom atoms image media  beam beams  explore exploring nodes  store checkpoints
slot slots question questions  mark marks forgets window  shift shifts slides moves drop dropped
score scores scored scoring outputs_from logprobs echo echoes report  companion companions leader beside guidance
guided negative  grammar compiled  banned avoid diversity distinct joint  heal healed repeated  given ahead
resumed begins_anew  wants_rest  block blocks
"""

FEATURES = frozenset(_WORDS.split())
"""The words of what a plain request doesn't use."""


def conditions(path: Path) -> Iterator[ast.expr]:
    """What a file asks."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs


def features_in(condition: ast.expr) -> set[str]:
    """The names in a condition that name a feature."""
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(condition)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    return {name for name in names if FEATURES & {name.strip("_"), *name.split("_")}}


def main() -> None:
    """Prints the counts, and each condition that names a feature."""
    asked = [(path, each) for path in (*ROOT, *PASSED) for each in conditions(path)]
    named = [(path, each, found) for path, each in asked if (found := features_in(each))]
    for path, each, found in named:
        place = f"{path.relative_to(ENGINE.parents[1])}:{each.lineno}"
        print(f"{place}: {ast.unparse(each)} names {', '.join(sorted(found))}")
    lines = sum(len(path.read_text().splitlines()) for path in ROOT)
    print(f"{len(named)} of {len(asked)} conditions name a feature; the root has {len(ROOT)} files, {lines} lines")


if __name__ == "__main__":
    main()
