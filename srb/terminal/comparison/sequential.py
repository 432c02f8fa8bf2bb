"""Ends a comparison as soon as it has found its differences (`--until`)."""

from collections.abc import Iterator, Sequence

from srb.errors import SettingsError
from srb.terminal.comparison.measures import Place, Result, group_means
from srb.terminal.comparison.results import Alternative, Results

ROUND = 4
"""The number of groups that are generated between two looks, so that a batch has some rows."""

RESAMPLES = 9_999


def sequential_test(
    differences: Sequence[float], planned: int, error: float, resamples: int = RESAMPLES
) -> tuple[int, float]:
    """Test paired differences after each one, in their order, and stop at the first look that decides.

    It is the sign-flip test of `measures.p_value`, made sequential: the sums of the differences so far are compared
    with sums under random signs, and after k of the planned differences at most error * k / planned of the random paths
    may have been farther from 0 than the others (alpha spending, Lan and DeMets 1983; linear, Kim and DeMets 1987).
    Without a difference the observed path is one of these, so the chance that any look decides is at most `error`.

    Args:
        differences: The differences so far, one for each group.
        planned: The number of differences at which the test ends.
        error: The probability of a decision if there is no difference, below 1.
        resamples: The number of random paths.

    Returns:
        The number of differences used, and p: the share of the paths that were decided before, or are as far from 0
        (the stagewise order of Tsiatis, Rosner and Mehta 1984). The test has decided if p <= error * number / planned.
    """
    import numpy as np  # slow to import

    if not differences:
        return 0, 1.0
    # The signs may depend on the size of the differences, which a random sign doesn't change. So other differences get
    # other signs, and the same ones are always decided alike.
    size = np.abs(np.array(differences[:1])).view(np.uint32)
    signs = np.random.default_rng(size).choice(np.array([-1.0, 1.0]), size=(planned, resamples + 1))
    signs[:, 0] = 1  # the observed path
    sums, decided, p = np.zeros(resamples + 1), np.zeros(resamples + 1, dtype=bool), 1.0
    for looks, (difference, row) in enumerate(zip(differences, signs, strict=False), 1):
        sums += difference * row
        distances = np.where(decided, np.inf, np.round(np.abs(sums), 9))
        p = float(np.mean(distances >= distances[0]))
        allowed = int(error * looks / planned * len(sums))
        decided = distances > np.partition(distances, -allowed - 1)[-allowed - 1]
        if decided[0]:
            return looks, p
    return len(differences), p


class Sequential:
    """A comparison that ends when each setting is found to differ from the first one, or with the spec's last group.

    The tests of a look use one measure, and share the error equally (Bonferroni).

    Attributes:
        measure: The measure that is tested.
        planned: The number of groups of the spec, after `rounds` has begun.
        looks: For each setting but the first: the number of groups used, and p.
    """

    def __init__(self, results: Results, error: float) -> None:
        spec = results.spec
        scorers = [
            name for name in (*spec.scorers.functions, *spec.scorers.judges) if name not in spec.scorers.relative
        ]
        self.measure = spec.decides or (scorers[0] if scorers else "mean_logprob")
        self.looks: dict[str, tuple[int, float]] = {}
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
    def p_values(self) -> dict[tuple[str, str], float]:
        """The p of each setting and measure that was tested."""
        return {(setting, self.measure): p for setting, (_, p) in self.looks.items()}

    def rounds(self, missing: Sequence[Alternative]) -> Iterator[list[Alternative]]:
        """Yield the missing alternatives of the next groups, and look at the results after each round.

        Raises:
            SettingsError: The spec has too few groups to find anything.
        """
        groups = self._results.groups()
        planned: dict[object, list[Place]] = {}
        for place, group in groups.items():
            planned.setdefault(group, []).append(place)
        self.planned = len(planned)
        if 2 / 2**self.planned > self._error:
            raise SettingsError(
                f"--until {self._until:g}: {self.planned} groups can't decide {len(self._others)} tests, because p is "
                f"at least 2 / 2 ** {self.planned}; add seeds to a spec with one prompt, or prompts to one with several"
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
                self.looks[setting] = sequential_test(differences, self.planned, self._error)
            if all(self._is_decided(*each) for each in self.looks.values()):
                return

    def _is_decided(self, looks: int, p: float) -> bool:
        return p <= self._error * looks / self.planned

    def notes(self) -> list[str]:
        """Return what was decided, for the report and the terminal."""
        notes = list[str]()
        for setting, (looks, p) in self.looks.items():
            found = "differs" if self._is_decided(looks, p) else "isn't found to differ"
            notes.append(
                f"{setting} {found} from {self._first} in {self.measure}: {looks} of {self.planned} groups, "
                f"p = {p:.2g}, and at most {self._error:.2g} is allowed."
            )
        if notes:
            notes.append("These p allow for the looks of --until. Other p and all intervals don't.")
        return notes
