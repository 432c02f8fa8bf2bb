"""Keeps blind ratings of a comparison's texts, two at a time, and computes how strong each kind of text is."""

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srb.errors import SettingsError
from srb.terminal.measures import Kind, Result
from srb.terminal.statistics import SEED

MEAN_ELO = 1_000
RESAMPLES = 1_000
ITERATIONS = 500


@dataclass(frozen=True)
class Pair:
    """Two texts with the same prompt and seed, of different kinds, in the order in which they are shown."""

    left: Result
    right: Result

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the pair. It is the same if left and right are exchanged."""
        return self.left.prompt, self.left.seed, *sorted((self.left.kind, self.right.kind))


@dataclass(frozen=True)
class Rating:
    """How a person rated a pair of texts. winner: 0 for the first kind, 1 for the second, 0.5 for neither."""

    prompt: str
    seed: int
    kinds: tuple[Kind, Kind]
    winner: float

    @property
    def key(self) -> tuple[Any, ...]:
        """Equals the key of the pair."""
        return self.prompt, self.seed, *sorted(self.kinds)


class Ratings:
    """The ratings in a results folder, in ratings.jsonl, and the pairs that aren't rated yet."""

    def __init__(self, folder: Path, results: Sequence[Result]) -> None:
        self._path = folder / "ratings.jsonl"
        self.given = read_ratings(folder)
        rated = {each.key for each in self.given}
        self._left = [pair for pair in pairs_of(results) if pair.key not in rated]
        self._rated: list[Pair] = []

    @property
    def next(self) -> Pair | None:
        """The pair to rate now."""
        return self._left[0] if self._left else None

    @property
    def left(self) -> int:
        """How many pairs aren't rated yet."""
        return len(self._left)

    def rate(self, winner: float) -> None:
        """Keeps the rating of the next pair: 0 for its left text, 1 for its right one, 0.5 for neither."""
        pair = self._left.pop(0)
        self._rated.append(pair)
        self.given.append(Rating(pair.left.prompt, pair.left.seed, (pair.left.kind, pair.right.kind), winner))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_line(self.given[-1])) + "\n")

    def undo(self) -> None:
        """Takes back the last rating that this object has taken, if there is one."""
        if self._rated:
            self._left.insert(0, self._rated.pop())
            self.given.pop()
            self._path.write_text("".join(json.dumps(_line(each)) + "\n" for each in self.given), encoding="utf-8")


def read_ratings(folder: Path) -> list[Rating]:
    """The ratings that a folder has. Raises `SettingsError`."""
    path = folder / "ratings.jsonl"
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            saved = json.loads(line)
            one, other = (tuple(kind) for kind in saved["kinds"])
            found.append(Rating(saved["prompt"], saved["seed"], (one, other), float(saved["winner"])))
        except (ValueError, TypeError, KeyError):
            raise SettingsError(f"{path}, line {number}, is no rating; delete that line") from None
    return found


def _line(each: Rating) -> dict[str, Any]:
    return {"prompt": each.prompt, "seed": each.seed, "kinds": each.kinds, "winner": each.winner}


def pairs_of(results: Sequence[Result]) -> list[Pair]:
    """All pairs of different texts with the same prompt and seed. Their order, and their sides, are random."""
    by_place: dict[tuple[str, int], list[Result]] = {}
    for each in results:
        if each.is_whole:
            by_place.setdefault((each.prompt, each.seed), []).append(each)
    chance = random.Random(SEED)
    found = [
        Pair(*chance.sample(two, 2))
        for group in by_place.values()
        for two in itertools.combinations(group, 2)
        if two[0].text.strip() != two[1].text.strip()
    ]
    chance.shuffle(found)
    return found


@dataclass(frozen=True)
class Strength:
    """How strong a kind is: its Elo rating, with a 95% interval, and how many ratings it has had."""

    elo: float
    low: float
    high: float
    count: int


def strengths(ratings: Sequence[Rating]) -> dict[Kind, Strength]:
    """The strength of each kind, by the model of Bradley and Terry 1952, on Elo's scale; the strongest first.

    A kind with 400 points more than another is 10 times as likely to win. A rating of neither is half a win for both.
    Each kind also gets half a win and half a defeat against an opponent of 1,000 points, so that a kind that has always
    won isn't infinitely strong. Intervals are percentiles of 1,000 bootstrap samples of the ratings.
    """
    import numpy as np  # imported here, because it takes a while

    if not ratings:
        return {}
    kinds = list(dict.fromkeys(kind for each in ratings for kind in each.kinds))
    sides = np.array([[kinds.index(kind) for kind in each.kinds] for each in ratings])
    winners = np.array([each.winner for each in ratings])
    drawn = np.random.default_rng(SEED).integers(len(ratings), size=(RESAMPLES, len(ratings)))
    samples = np.vstack([np.arange(len(ratings)), drawn])  # the first one is the ratings themselves
    wins = np.zeros((len(samples), len(kinds), len(kinds)))
    rows = np.arange(len(samples))
    for column in samples.T:
        one, other = sides[column].T
        wins[rows, one, other] += 1 - winners[column]
        wins[rows, other, one] += winners[column]
    elo = MEAN_ELO + 400 * np.log10(_bradley_terry(wins))
    lows, highs = np.percentile(elo[1:], [2.5, 97.5], axis=0)
    counts = np.bincount(sides.ravel(), minlength=len(kinds))
    found = {
        kind: Strength(float(elo[0, k]), float(lows[k]), float(highs[k]), int(counts[k]))
        for k, kind in enumerate(kinds)
    }
    return dict(sorted(found.items(), key=lambda item: -item[1].elo))


def _bradley_terry(wins: Any) -> Any:
    """The strengths of samples of wins, `[sample, winner, loser]`, by Hunter's MM algorithm (2004, section 2)."""
    import numpy as np

    games = wins + wins.swapaxes(1, 2)
    won = wins.sum(axis=2) + 0.5
    found = np.ones(won.shape)
    for _ in range(ITERATIONS):
        before = found
        expected = (games / (found[:, :, None] + found[:, None, :])).sum(axis=2) + 1 / (found + 1)
        found = won / expected
        if np.abs(np.log(found / before)).max() < 1e-9:
            break
    return found
