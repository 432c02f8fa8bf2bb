"""`Turns`: which running sequences have a row in the next step, when there are more of them than rows."""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import chain, zip_longest

from srb.engine.ports import Row
from srb.engine.sequence import ActiveRequest, Prompt


@dataclass(slots=True)
class Unit:
    """Rows that are in one step together: those of a sequence, of a search, or of alternatives that are joint.

    name: is the same in each step.
    """

    name: Hashable
    rows: list[tuple[Prompt, Row]]

    @property
    def n_rows(self) -> int:
        """How many rows of a batch they take."""
        return sum(len(row.together) for _, row in self.rows)


class Turns:
    """Divides the rows of a step fairly between the requests.

    The requests choose one after the other, and each chooses one row at a time, until no row is left. Who was left out
    last goes first. Example: of 32 rows, a request with 32 sequences gets 28 when four other requests have one sequence
    each, and each of the 32 is left out once in eight steps.

    most: how many rows there are in a step.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._n_steps = 0
        self._left_out: dict[Hashable, int] = {}  # in which step each unit was left out last

    def next(self, prompts: list[Prompt]) -> list[Unit]:
        """The units that have their rows in the next step. Call `took` when they have had these."""
        rows = [(prompt, row) for prompt in prompts for row in prompt.way.rows]
        if sum(len(row.together) for _, row in rows) <= self._most:
            return [Unit(None, rows)]
        units = _units(rows)
        requests: dict[ActiveRequest, list[Unit]] = {}
        for unit in sorted(units, key=lambda unit: -self._left_out.get(unit.name, 0)):
            requests.setdefault(unit.rows[0][0].active, []).append(unit)
        chosen, left = set(), self._most
        for each in chain.from_iterable(zip_longest(*requests.values())):
            if each and each.n_rows <= left:
                chosen.add(each.name)
                left -= each.n_rows
        self._left_out = {unit.name: self._left_out.get(unit.name, 0) for unit in units}
        return [unit for unit in units if unit.name in chosen]

    def took(self, units: list[Unit]) -> None:
        """Counts a step in which these units have had their rows."""
        self._n_steps += 1
        names = {unit.name for unit in units}
        for name in () if None in names else self._left_out:
            if name not in names:
                self._left_out[name] = self._n_steps


def _units(rows: list[tuple[Prompt, Row]]) -> list[Unit]:
    units: dict[Hashable, Unit] = {}
    for prompt, row in rows:
        name = prompt.way.unit(row)
        units.setdefault(name, Unit(name, [])).rows.append((prompt, row))
    return list(units.values())


def tokens_ahead(running: list[Row], most: int) -> dict[Row, int]:
    """How many tokens ahead are evaluated of each row, `most` in all."""
    ahead: dict[Row, int] = {}
    for row in running:
        n = len(row.together)  # each of these has a row for the token, too
        ahead[row] = min(len(row.ahead), most // n)
        most -= ahead[row] * n
    return ahead
