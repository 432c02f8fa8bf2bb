"""Collects blind pairwise ratings of texts on a web page, and computes Elo ratings of their kinds."""

import asyncio
import itertools
import json
import math
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from srb.errors import SettingsError
from srb.terminal.comparison.measures import SEED, Interval, Kind, Result, groups_of, margin

MEAN_ELO = 1_000
ITERATIONS = 500


@dataclass(frozen=True)
class Pair:
    """Two texts with the same prompt and seed but different kinds, in the order in which they are shown.

    Its number identifies the pair to the page, which doesn't know the kinds.
    """

    number: int
    left: Result
    right: Result

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the pair, in either order."""
        return self.left.prompt, self.left.seed, *sorted((self.left.kind, self.right.kind))


@dataclass(frozen=True)
class Rating:
    """A rating of a pair of texts. The winner is 0 for the first kind, 1 for the second, 0.5 for neither."""

    prompt: str
    seed: int
    kinds: tuple[Kind, Kind]
    winner: float

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of the pair."""
        return self.prompt, self.seed, *sorted(self.kinds)


class Ratings:
    """The ratings of a folder, stored in ratings.jsonl, others that are stored elsewhere, and the pairs without one."""

    def __init__(self, folder: Path, results: Sequence[Result], others: Sequence[Rating] = ()) -> None:
        self._path = folder / "ratings.jsonl"
        self._others = len(others)
        self.given = [*others, *read_ratings(folder)]
        rated = {each.key for each in self.given}
        self._left = [pair for pair in pairs_of(results) if pair.key not in rated]
        self._rated: list[Pair] = []

    @property
    def next(self) -> Pair | None:
        """The pair to rate now."""
        return self._left[0] if self._left else None

    @property
    def left(self) -> int:
        """The number of pairs without a rating."""
        return len(self._left)

    def rate(self, winner: float) -> None:
        """Store the rating of the next pair: 0 for its left text, 1 for its right one, 0.5 for neither."""
        pair = self._left.pop(0)
        self._rated.append(pair)
        self.given.append(Rating(pair.left.prompt, pair.left.seed, (pair.left.kind, pair.right.kind), winner))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_line(self.given[-1])) + "\n")

    def undo(self) -> None:
        """Undo the last rating of this session, if there is one."""
        if self._rated:
            self._left.insert(0, self._rated.pop())
            self.given.pop()
            own = self.given[self._others :]
            self._path.write_text("".join(json.dumps(_line(each)) + "\n" for each in own), encoding="utf-8")


def read_ratings(folder: Path, run: str = "") -> list[Rating]:
    """Read the ratings of a folder, whose name in reports is `run`. Raises `SettingsError`."""
    path = folder / "ratings.jsonl"
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            saved = json.loads(line)
            one, other = ((run or own, model, setting) for own, model, setting in saved["kinds"])
            found.append(Rating(saved["prompt"], saved["seed"], (one, other), float(saved["winner"])))
        except (ValueError, TypeError, KeyError):
            raise SettingsError(f"{path}, line {number}, is not a rating; delete that line") from None
    return found


def _line(each: Rating) -> dict[str, Any]:
    return {"prompt": each.prompt, "seed": each.seed, "kinds": each.kinds, "winner": each.winner}


def pairs_of(results: Sequence[Result]) -> list[Pair]:
    """Return all pairs of different texts with the same prompt and seed, in random order, on random sides.

    Prompts of several runs may have the same name and different texts. Those aren't the same prompt.
    """
    by_place: dict[tuple[str, str, int], list[Result]] = {}
    for each in results:
        by_place.setdefault((each.prompt, each.prompt_text, each.seed), []).append(each)
    chance = random.Random(SEED)
    found = [
        chance.sample(two, 2)
        for group in by_place.values()
        for two in itertools.combinations(group, 2)
        if two[0].text.strip() != two[1].text.strip()
    ]
    chance.shuffle(found)
    return [Pair(number, *two) for number, two in enumerate(found)]


@dataclass(frozen=True)
class Strength:
    """The Elo rating of a kind, its 95% interval if there is one, and the number of its ratings."""

    elo: float
    interval: Interval | None
    count: int


def strengths(ratings: Sequence[Rating], results: Sequence[Result]) -> dict[Kind, Strength]:
    """Compute the Elo rating of each kind of result, by the model of Bradley and Terry 1952, the strongest first.

    A kind with 400 points more than another is 10 times as likely to win. A rating of neither is half a win for both.
    Each kind also gets half a win and half a defeat against an opponent of 1,000 points, so that a kind that always won
    has a finite rating.

    Intervals are Student's t intervals of the jackknife over the groups (Tukey 1958), within which ratings depend on
    each other. There is none for fewer than two groups, or if no group changes the rating.
    """
    import numpy as np  # imported here, because it takes a while

    if not ratings:
        return {}
    kinds = list(dict.fromkeys(kind for each in ratings for kind in each.kinds))
    sides = np.array([[kinds.index(kind) for kind in each.kinds] for each in ratings])
    winners = np.array([each.winner for each in ratings])
    # Ratings of texts that are no longer among the results still count.
    groups, known = groups_of(results), {each.kind for each in results}
    of_each = [groups.get((each.prompt, each.seed), (each.prompt, each.seed)) for each in ratings]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(of_each))}
    of_group = np.zeros((len(numbers), len(kinds), len(kinds)))
    rows, (one, other) = [numbers[group] for group in of_each], sides.T
    np.add.at(of_group, (rows, one, other), 1 - winners)
    np.add.at(of_group, (rows, other, one), winners)
    wins = of_group.sum(axis=0)
    whole, without = np.split(MEAN_ELO + 400 * np.log10(_bradley_terry(np.stack([wins, *(wins - of_group)]))), [1])
    halves = margin((len(numbers) * whole - (len(numbers) - 1) * without).T)
    counts = np.bincount(sides.ravel(), minlength=len(kinds))
    found = {}
    for k, kind in enumerate(kinds):
        elo, half = float(whole[0, k]), float(halves[k])
        if kind in known:
            found[kind] = Strength(elo, (elo - half, elo + half) if math.isfinite(half) else None, int(counts[k]))
    return dict(sorted(found.items(), key=lambda item: -item[1].elo))


def _bradley_terry(wins: Any) -> Any:
    """Compute strengths from wins, `[sample, winner, loser]`, by Hunter's MM algorithm (2004, section 2)."""
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


PAGE = Path(__file__).with_name("rate.html")

RATINGS = web.AppKey("ratings", Ratings)


def create_app(ratings: Ratings, secret: str) -> web.Application:
    """Create the application that serves the page and its requests at `/SECRET/`, a path unknown to other sites."""
    app = web.Application()
    app[RATINGS] = ratings
    app.router.add_get(f"/{secret}/", _page)
    app.router.add_get(f"/{secret}/pair", _pair)
    app.router.add_post(f"/{secret}/pair", _rate)
    return app


async def rate(ratings: Ratings) -> None:
    """Serve the page on this machine until the task is cancelled."""
    secret = secrets.token_urlsafe(16)
    runner = web.AppRunner(create_app(ratings, secret), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        print(f"rate {ratings.left} pairs at http://{host}:{port}/{secret}/ and then press Ctrl-C", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def _page(_request: web.Request) -> web.Response:
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:"
    )
    headers = {
        "Content-Security-Policy": f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    text = PAGE.read_text("utf-8").replace("NONCE", nonce)
    return web.Response(text=text, content_type="text/html", headers=headers)


async def _pair(request: web.Request) -> web.Response:
    return web.json_response(_state(request.app[RATINGS]))


async def _rate(request: web.Request) -> web.Response:
    """Store a rating of the given pair, unless another tab has already rated it."""
    ratings = request.app[RATINGS]
    try:
        body = json.loads(await request.read())
        number, winner = body["number"], body["winner"]
    except (ValueError, TypeError, KeyError):
        number = winner = None
    if winner not in (0, 0.5, 1, "undo"):
        raise web.HTTPBadRequest(text='a rating needs the number of its pair, and a winner of 0, 0.5, 1 or "undo"')
    if number != (ratings.next and ratings.next.number):
        return web.json_response(_state(ratings), status=409)
    if winner == "undo":
        ratings.undo()
    elif ratings.next:
        ratings.rate(winner)
    return web.json_response(_state(ratings))


def _state(ratings: Ratings) -> dict[str, Any]:
    """Return the state of the page, without the kinds of the texts, to keep the rating blind."""
    pair = ratings.next
    texts = pair and [pair.left.text, pair.right.text]
    shown = pair and {"number": pair.number, "prompt": pair.left.prompt_text, "texts": texts}
    return {"pair": shown, "left": ratings.left, "rated": len(ratings.given)}
