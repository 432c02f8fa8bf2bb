"""Constraints (logits processors): what changes how an alternative is sampled. Each is a `Constraint` (`base.py`).

| module | fields of a request | what it does |
|---|---|---|
| `distinct.py` | `distinct` | siblings begin with different tokens |
| `diversity.py` | `diversity` | siblings go on with different words |
| `guidance.py` | `negative_prompt`, `guidance_scale` | classifier-free guidance away from a negative prompt |
| `banned_strings.py` | `banned_strings`, `bad_words`, `avoid` | takes banned strings and known openings back |

To add one: write a module with a `Constraint` and a function `build`, which gives the constraint to those alternatives
of a request that want it, and add the function to `BUILDERS`.
"""

from collections.abc import Callable

from srb.engine.constraints import banned_strings, distinct, diversity, guidance
from srb.engine.constraints.base import ConstraintSetup

BUILDERS: tuple[Callable[[ConstraintSetup], None], ...] = (
    distinct.build,
    diversity.build,
    guidance.build,
    banned_strings.build,
)
"""In the order in which the constraints of an alternative are called."""


def add_constraints(setup: ConstraintSetup) -> None:
    """Give each alternative of a request its constraints."""
    for build in BUILDERS:
        build(setup)
    setup.active.constraints = [constraint for seq in setup.active.sequences for constraint in seq.constraints]
