"""Ends a comparison as soon as it has found its differences (`--until`)."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from srb.errors import SettingsError
from srb.terminal.comparison.measures import Interval, Paired, Place, Result, group_means, groups_of
from srb.terminal.comparison.results import Results

ROUND = 4
"""The number of groups that are generated between two looks, so that a batch has some rows."""

RESAMPLES = 9_999


def sequential_test(
    differences: Sequence[float], planned: int, error: float, resamples: int = RESAMPLES
) -> tuple[int, float]:
    """Test paired differences after each one, in their order, and stop at the first look that decides.

    It is the sign-flip test of `measures.p_value`, made sequential: the sums of the differences so far are compared
    with sums under random signs, and after each difference at most the share `allowed` of the random paths may have
    been farther from 0 than the others (alpha spending, Lan and DeMets 1983). Without a difference, the observed path
    is one of these if differences are symmetric about 0, so the chance that any look decides is at most `error`, below
    1.

    Returns the number of differences used, of all that are planned, and p: the share of the paths that were decided
    before, or are as far from 0 (the stagewise order of Tsiatis, Rosner and Mehta 1984). The test has decided if p is
    at most `allowed`.
    """
    found = 0, 1.0
    for looks, p, is_decided in _looks(differences, 0.0, _signs(differences, planned, resamples), error):
        found = looks, p
        if is_decided:
            break
    return found


def allowed(looks: int, planned: int, error: float) -> float:
    """Return the largest p with which a `sequential_test` decides after this many of the planned differences.

    It is the power family of Kim and DeMets 1987 with the exponent 3. With 1, skewed differences were found to differ
    far more often than in a test of all of them: few have no rare value yet, so their mean is off.
    """
    return error * (looks / planned) ** 3


def sequential_interval(
    differences: Sequence[float], planned: int, error: float, resamples: int = RESAMPLES
) -> Interval | None:
    """Compute an interval of the mean difference that holds although the test chooses when to stop.

    It has the shifts of the differences that the test's last look can't tell from none. The intervals of all looks hold
    together with probability 1 - error, and so does that of the last one (Jennison and Turnbull 1989). As in the test,
    differences are assumed to be symmetric about their mean. They are those that the test used: 0 is outside the
    interval if it has decided. None for equal differences, and while there are too few to exclude any shift.
    """
    signs = _signs(differences, planned, resamples)

    def is_excluded(shift: float) -> bool:
        *_, (_, _, is_decided) = _looks(differences, shift, signs, error)
        return is_decided

    low, high = min(differences, default=0.0), max(differences, default=0.0)
    ends = []
    for outer in (2 * low - high, 2 * high - low):
        if low == high or not is_excluded(outer):
            return None
        inner, middle = math.fsum(differences) / len(differences), 0.0  # 0 first, so that it is told from what it is
        for _ in range(_HALVINGS):
            if not min(inner, outer) < middle < max(inner, outer):
                middle = (inner + outer) / 2
            inner, outer = (inner, middle) if is_excluded(middle) else (middle, outer)
        ends.append(inner)
    return ends[0], ends[1]


_HALVINGS = 20
"""How often the distance to an end of the interval is halved, for six digits."""


def _signs(differences: Sequence[float], planned: int, resamples: int) -> Any:
    """Return the signs of the random paths, `[planned, path]`. Those of the first path, the observed one, are 1."""
    import numpy as np  # slow to import

    # The signs may depend on the size of the differences, which a random sign doesn't change. So other differences get
    # other signs, and the same ones are always decided alike.
    size = np.abs(np.array(differences[:1])).view(np.uint32)
    signs = np.random.default_rng(size).choice(np.array([-1.0, 1.0]), size=(planned, resamples + 1))
    signs[:, 0] = 1
    return signs


def _looks(differences: Sequence[float], shift: float, signs: Any, error: float) -> Iterator[tuple[int, float, bool]]:
    """Test after each difference whether their mean is `shift`: yield their number, p, and whether that decides."""
    import numpy as np

    planned, n_paths = signs.shape
    sums, decided, scale = np.zeros(n_paths), np.zeros(n_paths, dtype=bool), 0.0
    for looks, (difference, row) in enumerate(zip(differences, signs, strict=False), 1):
        sums += (difference - shift) * row
        scale += abs(difference - shift)
        # Rounded, since sums that are equal but for the order of their terms differ in the last digits.
        distances = np.where(decided, np.inf, np.round(np.abs(sums) / (scale or 1), 12))
        n_allowed = int(allowed(looks, planned, error) * n_paths)
        decided = distances > np.partition(distances, -n_allowed - 1)[-n_allowed - 1]
        yield looks, float(np.mean(distances >= distances[0])), bool(decided[0])
        decided[0] = False  # later looks are about all paths that aren't decided


@dataclass(frozen=True)
class Decision:
    """What `--until` has found about two settings, as in until.json.

    Attributes:
        one, other: The names of the settings.
        measure: The measure that was tested.
        groups, planned: The number of groups that the test used, and of those of the spec.
        error: The probability of a difference that isn't there, and of a difference outside the interval.
        difference: The mean of other - one.
        low, high: `sequential_interval`, or None.
        p: The p of `sequential_test`.
        allowed: The largest p that decides after these groups.
    """

    one: str
    other: str
    measure: str
    groups: int
    planned: int
    error: float
    difference: float
    low: float | None
    high: float | None
    p: float
    allowed: float

    def __str__(self) -> str:
        found = "differs" if self.p <= self.allowed else "isn't found to differ"
        text = (
            f"{self.other} {found} from {self.one} in {self.measure}: {self.groups} of {self.planned} groups, "
            f"p = {self.p:.2g}, and at most {self.allowed:.2g} is allowed after these"
        )
        if self.low is None:
            return f"{text}."
        return f"{text}. The difference is {self.low:.3g} to {self.high:.3g} ({100 - 100 * self.error:.3g}% interval)."

    def test(self) -> Paired:
        """Return its row of the report."""
        sizes = self.groups, self.difference, self.low, self.high
        level = f"{100 - 100 * self.error:.3g}%"
        return Paired(self.one, self.other, self.measure, *sizes, self.p, f"--until, {level} interval")


def write_decisions(folder: Path, decisions: Sequence[Decision]) -> None:
    """Write until.json, for later reports. Without decisions it is removed."""
    path = folder / "until.json"
    if decisions:
        path.write_text(json.dumps([asdict(each) for each in decisions], indent=1) + "\n", encoding="utf-8")
    else:
        path.unlink(missing_ok=True)


def read_decisions(folder: Path) -> list[Decision]:
    """Read until.json, if the run in this folder ended with `--until`. Raises `SettingsError`."""
    path = folder / "until.json"
    try:
        return [Decision(**each) for each in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        raise SettingsError(
            f"{path} isn't what srb compare --until has written; run it again with --until, or delete this file"
        ) from None


def notes_of(decisions: Sequence[str]) -> list[str]:
    """Return the paragraphs of decisions, for the report and the terminal."""
    return [*decisions, _ASSUMES] if decisions else []


_ASSUMES = (
    "These p and intervals allow for the looks of --until; others don't. They assume differences that are symmetric "
    "about their mean. Where a few texts have very different scores, more is found by chance: at 0.05, 6% to 23% in "
    "simulations with 48 groups, where a test of all groups finds 5% to 15%; with fewer groups more."
)


class Sequential:
    """A comparison that ends when each setting is found to differ from the first one, or with the spec's last group.

    The tests of a look use one measure, and share the error equally (Bonferroni).

    Attributes:
        measure: The measure that is tested.
        planned: The number of groups of the spec, which `rounds` counts.
        looks: For each setting but the first: the differences used, and p.
    """

    def __init__(self, results: Results, error: float) -> None:
        spec = results.spec
        scorers = [
            name for name in (*spec.scorers.functions, *spec.scorers.judges) if name not in spec.scorers.relative
        ]
        self.measure = spec.decides or (scorers[0] if scorers else "mean_logprob")
        self.looks: dict[str, tuple[list[float], float]] = {}
        self._results = results
        self._first, *self._others = spec.settings
        self.planned = 0
        self._until, self._error = error, error / max(1, len(self._others))
        if len(spec.models) > 1 or not self._others:
            raise SettingsError(
                f"--until compares the settings of one model; the spec has {len(spec.models)} models and "
                f"{len(spec.settings)} settings"
            )
        if self.measure in spec.scorers.relative:
            raise SettingsError(
                f"--until: {self.measure} can't decide, because each new text changes all of its scores"
            )
        if judges := sorted({each.model for each in spec.scorers.judges.values()} - {*spec.models}):
            raise SettingsError(f"--until needs judges that use the model of the spec, got {', '.join(judges)}")

    @property
    def decisions(self) -> list[Decision]:
        """What the last look has found."""
        found = []
        for setting, (used, p) in self.looks.items():
            low, high = sequential_interval(used, self.planned, self._error) or (None, None)
            difference = math.fsum(used) / max(1, len(used))
            sizes = len(used), self.planned, self._error
            bound = allowed(len(used), self.planned, self._error)
            found.append(Decision(self._first, setting, self.measure, *sizes, difference, low, high, p, bound))
        return found

    def rounds(self, missing: Sequence[Result]) -> Iterator[list[Result]]:
        """Yield the missing alternatives of the next groups, and look at the results after each round.

        Raises `SettingsError`.
        """
        groups = groups_of(self._results.asked.values())
        planned: dict[object, list[Place]] = {}
        for place, group in groups.items():
            planned.setdefault(group, []).append(place)
        self.planned = len(planned)
        if 2 / 2**self.planned > self._error:
            raise SettingsError(
                f"--until {self._until:g}: {self.planned} group{'' if self.planned == 1 else 's'} can't tell "
                f"{1 + len(self._others)} settings apart, because p is at least 2 / 2 ** {self.planned}; add seeds to "
                "a spec with one prompt, or prompts to one with several"
            )
        order, found = [*planned], list[Result]()
        for first in range(0, self.planned, ROUND):
            places = {place for group in order[first : first + ROUND] for place in planned[group]}
            yield [each for each in missing if (each.prompt, each.seed) in places]
            found += self._results.scored(places)
            means = {
                setting: group_means([each for each in found if each.setting == setting], self.measure, groups)
                for setting in (self._first, *self._others)
            }
            one = means[self._first]
            for setting in self._others:
                differences = [means[setting][group] - one[group] for group in one if group in means[setting]]
                looks, p = sequential_test(differences, self.planned, self._error)
                self.looks[setting] = differences[:looks], p
            if all(p <= allowed(len(used), self.planned, self._error) for used, p in self.looks.values()):
                return
