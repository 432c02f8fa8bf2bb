"""What changes the draws of an alternative. Each feature is a `Constraint` of `srb.engine.ports`.

| file | fields of a request | what it does |
|---|---|---|
| `distinct.py` | `distinct` | siblings begin with different tokens |
| `diversity.py` | `diversity` | siblings go on with different words |
| `guidance.py` | `negative_prompt`, `guidance_scale` | keeps away from what would follow a negative prompt |
| `banned.py`, `opening.py` | `banned_strings`, `avoid` | goes back where a phrase or an opening must not come |

A module has a function `give`, which gives the rule to those alternatives of a request that want it. `BUILDERS` has
these functions in the order in which the rules are asked; whoever adds a rule adds a line there.
"""

from collections.abc import Callable

from srb.engine.constraints import banned_strings as banned
from srb.engine.constraints import distinct, diversity, guidance
from srb.engine.constraints.setup import ConstraintSetup

BUILDERS: tuple[Callable[[ConstraintSetup], None], ...] = (distinct.give, diversity.give, guidance.give, banned.give)


def add_constraints(setup: ConstraintSetup) -> None:
    """Gives each alternative of a request its rules."""
    for give in BUILDERS:
        give(setup)
    setup.active.constraints = [constraint for seq in setup.active.sequences for constraint in seq.constraints]
