"""Blind ratings: which pairs are shown, what is kept, and how strong each kind is by it."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal.conftest import Run

from srb.errors import SettingsError
from srb.terminal.comparison.measures import Findings, Kind, Result
from srb.terminal.comparison.rating import Rating, Ratings, Strength, create_app, pairs_of, read_ratings, strengths
from srb.terminal.comparison.report import render

A, B, C = kinds = [("", "m", name) for name in "abc"]


def result(kind: Kind, seed: int, text: str, prompt: str = "p") -> Result:
    run, model, setting = kind
    return Result(prompt, setting, seed, text, 3, "stop", None, -1.0, model=model, prompt_text="Once", run=run)


RESULTS = [result(kind, seed, f"{kind[2]}{seed}") for kind in kinds for seed in (1, 2)]


def rated(one: Kind, other: Kind, winner: float, seed: int = 1) -> Rating:
    return Rating("p", seed, (one, other), winner)


def test_pairs_have_the_same_prompt_and_seed_and_different_texts() -> None:
    results = [*RESULTS, result(A, 3, "x"), result(B, 3, " x "), result(A, 4, "y", "q"), result(C, 4, "z")]
    pairs = pairs_of(results)
    assert len(pairs) == len({pair.key for pair in pairs}) == 6
    assert [pair.number for pair in pairs] == [*range(6)]
    assert all(pair.left.seed == pair.right.seed and pair.left.kind != pair.right.kind for pair in pairs)
    assert {pair.left.kind < pair.right.kind for pair in pairs} == {True, False}, "the side tells nothing"
    assert pairs == pairs_of(results)


def test_ratings_are_kept_and_can_be_taken_back(tmp_path: Path) -> None:
    ratings = Ratings(tmp_path, RESULTS)
    ratings.undo()
    first = ratings.next
    assert first
    ratings.rate(1)
    ratings.rate(0.5)
    second = Ratings(tmp_path, RESULTS)
    assert second.given == ratings.given
    assert second.left == ratings.left == 4
    ratings.undo()
    ratings.undo()
    ratings.undo()
    assert ratings.next == first
    assert read_ratings(tmp_path) == []
    ratings.rate(0)
    assert read_ratings(tmp_path) == [Rating("p", first.left.seed, (first.left.kind, first.right.kind), 0)]
    (tmp_path / "ratings.jsonl").write_text("[]\n")
    with pytest.raises(SettingsError, match=r"ratings\.jsonl, line 1, is not a rating"):
        read_ratings(tmp_path)


def test_a_pair_has_the_same_prompt_in_all_runs() -> None:
    """Else one of the two texts is shown after a prompt that it wasn't written for."""
    other = Result("p", "b", 1, "text", 3, "stop", None, -1.0, prompt_text="Twice", run="later")
    assert pairs_of([RESULTS[0], other]) == []
    assert len(pairs_of([RESULTS[0], replace(other, prompt_text="Once")])) == 1


@pytest.mark.usefixtures("no_plots")
def test_texts_of_several_runs_are_rated_against_each_other(srb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for run, kinds in (("old", "a"), ("new", "ab")):
        rows = [replace(result(("", "m", kind), seed, f"{run} {kind}"), run="") for kind in kinds for seed in (1, 2)]
        Path(run).mkdir()
        lines = [json.dumps(asdict(each) | {"key": f"{each.setting}{each.seed}"}) for each in rows]
        Path(run, "results.jsonl").write_text("\n".join(lines) + "\n")
    own = {"prompt": "p", "seed": 1, "kinds": [["", "m", "a"], ["", "m", "b"]], "winner": 0.5}
    Path("new/ratings.jsonl").write_text(json.dumps(own) + "\n")

    async def prefer_new(ratings: Ratings) -> None:
        ratings.rate(0)
        ratings.undo()  # it leaves the ratings of the runs alone
        while pair := ratings.next:
            ratings.rate(0.5 if pair.left.run == pair.right.run else float(pair.right.run == "new"))

    monkeypatch.setattr("srb.terminal.comparison.compare.rate", prefer_new)
    assert srb("compare", "--rate", "old", "new") == 0
    *elos, last = srb.out.splitlines()
    assert last == "6 ratings; see old-new/report.html"
    assert elos[-1].endswith(" old · a")
    found = read_ratings(Path("old-new"))
    assert len(found) == 5, "the pair that was rated in its own folder isn't shown again"
    assert {run for each in found for run, _, _ in each.kinds} == {"old", "new"}
    assert read_ratings(Path("new")) == [Rating("p", 1, (A, B), 0.5)]
    table = Path("old-new/report.html").read_text().partition("<h2>Blind ratings</h2>")[2].partition("</table>")[0]
    assert srb("compare", "--report", "old", "new") == 0
    again = Path("old-new/report.html").read_text().partition("<h2>Blind ratings</h2>")[2].partition("</table>")[0]
    assert again == table, "a report keeps the ratings between its runs"
    assert "old · a" in table

    for option in ("--rate", "--report"):
        assert srb("compare", option, "old", "new", "--out", "new") == 2
        assert f"{option} takes another folder for --out, got new" in srb.err


@settings(max_examples=8)
@given(
    st.lists(st.tuples(st.sampled_from([(A, B), (B, A), (A, C), (B, C)]), st.sampled_from([0.0, 0.5, 1.0])), min_size=1)
)
def test_strengths_are_the_likeliest_ones(given: list[tuple[tuple[Kind, Kind], float]]) -> None:
    """Each kind wins as often as its strength says, counting the game against 1,000 points that each is given."""
    ratings = [rated(*pair, winner) for pair, winner in given]
    found = strengths(ratings, RESULTS)
    elos = {kind: each.elo for kind, each in found.items()}

    def wins(one: float, other: float) -> float:
        return float(1 / (1 + math.pow(10, (other - one) / 400)))

    for kind, elo in elos.items():
        own = [each for each in ratings if kind in each.kinds]
        won = math.fsum(each.winner if each.kinds[1] == kind else 1 - each.winner for each in own) + 0.5
        others = [elos[each.kinds[0] if each.kinds[1] == kind else each.kinds[1]] for each in own]
        assert won == pytest.approx(math.fsum(wins(elo, other) for other in [*others, 1000]), abs=1e-3)
        assert found[kind].count == len(own)
    assert sorted(elos.values(), reverse=True) == list(elos.values())


def test_who_wins_is_stronger_and_more_ratings_make_it_surer() -> None:
    few = strengths([rated(A, B, (seed - 1) // 2, seed) for seed in (1, 2, 3)], RESULTS)
    many = strengths([rated(A, B, seed % 3 // 2, seed) for seed in range(90)], RESULTS)

    def ends(found: dict[Kind, Strength], kind: Kind) -> tuple[float, float]:
        interval = found[kind].interval
        assert interval
        return interval

    for found in (few, many):
        assert list(found) == [A, B]
        assert ends(found, A)[0] <= found[A].elo <= ends(found, A)[1]
    assert ends(many, A)[1] - ends(many, A)[0] < ends(few, A)[1] - ends(few, A)[0]
    # With many ratings the odds are those of the wins, 2 to 1.
    assert many[A].elo - many[B].elo == pytest.approx(400 * math.log10(2), abs=5)
    assert ends(many, A)[0] > ends(many, B)[1]
    assert strengths([], RESULTS) == {}
    assert [*strengths([rated(A, B, 0)], RESULTS[:2])] == [A], "kinds that have no results any more only count"


@pytest.mark.usefixtures("no_plots")
def test_ratings_of_one_prompt_among_several_say_nothing_of_others() -> None:
    results = [result(kind, seed, f"{kind[2]}{seed}", prompt) for kind in kinds for seed in range(9) for prompt in "pq"]
    ratings = [rated(A, B, seed % 3 // 2, seed) for seed in range(9)]
    assert strengths(ratings, results)[A].interval is None
    assert strengths(ratings, [each for each in results if each.prompt == "p"])[A].interval is not None
    page = render(Findings.of(results), ratings=ratings)
    assert "<h2>Blind ratings</h2>" in page


async def test_the_page_isnt_told_what_the_texts_are_of(aiohttp_client: Any, tmp_path: Path) -> None:
    ratings = Ratings(tmp_path, RESULTS)
    client = await aiohttp_client(create_app(ratings, "secret"))
    assert (await client.get("/")).status == 404
    page = await client.get("/secret/")
    assert "script-src 'nonce-" in page.headers["Content-Security-Policy"]
    reply = await (await client.get("/secret/pair")).json()
    pair = ratings.next
    assert pair
    shown = {"number": 0, "prompt": "Once", "texts": [pair.left.text, pair.right.text]}
    assert reply == {"pair": shown, "left": 6, "rated": 0}

    async def say(winner: object) -> Any:
        number = ratings.next and ratings.next.number
        return await client.post("/secret/pair", data=json.dumps({"number": number, "winner": winner}))

    assert (await (await say(1)).json())["rated"] == 1
    assert ratings.given == [Rating("p", pair.left.seed, (pair.left.kind, pair.right.kind), 1)]
    assert (await (await say("undo")).json()) == reply
    wrong: list[object] = [2, "1", None, []]
    assert [(await say(each)).status for each in wrong] == [400] * 4
    assert (await client.post("/secret/pair", data='{"winner": 1}')).status == 400
    for _ in range(7):
        reply = await (await say(0.5)).json()
    assert reply == {"pair": None, "left": 0, "rated": 6}
    assert (await (await say("undo")).json())["left"] == 1


async def test_two_tabs_rate_only_what_they_show(aiohttp_client: Any, tmp_path: Path) -> None:
    ratings = Ratings(tmp_path, RESULTS)
    client = await aiohttp_client(create_app(ratings, "secret"))
    tabs = [(await (await client.get("/secret/pair")).json())["pair"] for _ in range(2)]

    async def say(shown: Any, winner: object) -> Any:
        return await client.post("/secret/pair", data=json.dumps({"number": shown["number"], "winner": winner}))

    tabs[0] = (await (await say(tabs[0], 0)).json())["pair"]
    late = await say(tabs[1], 1)  # it still shows the first pair
    assert late.status == 409
    assert (await late.json()) == {"pair": tabs[0], "left": 5, "rated": 1}
    assert (await say(tabs[1], "undo")).status == 409, "what it takes back isn't what it has seen"
    assert [each.winner for each in ratings.given] == [each.winner for each in read_ratings(tmp_path)] == [0]
    assert (await say(tabs[0], 1)).status == 200
