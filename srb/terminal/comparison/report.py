"""Writes the report of a comparison: one HTML file that needs no other files. Its template is report.html."""

import json
import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from srb import __version__
from srb.terminal.comparison.measures import Findings, Kind, Result, groups_of, repeats
from srb.terminal.comparison.plots import MAX_BARS, panels_of, plot
from srb.terminal.comparison.rating import Rating, strengths
from srb.terminal.show import harmless

FEW = 6
"""With fewer groups p can't be below 0.05."""


def write_report(path: Path, found: Findings, *, notes: list[str], date: str, ratings: Sequence[Rating] = ()) -> None:
    """Writes the report. notes: paragraphs for its top. date: the date of the report, in words."""
    path.write_text(render(found, notes=notes, date=date, ratings=ratings), encoding="utf-8")


def render(found: Findings, *, notes: list[str], date: str, ratings: Sequence[Rating] = ()) -> str:
    """The HTML of the report."""
    prompts = {each.prompt: each.prompt_text for each in found.results}
    models = dict.fromkeys(each.model for each in found.results)
    # Ratings of kinds that the results no longer have count for the other kinds, but such kinds have no name to show.
    known = {kind: each for kind, each in strengths(ratings, groups_of(found.results)).items() if kind in found.names}
    pooled = {("all prompts", kind): each for kind, each in found.pooled.items()}
    html: str = _template().render(
        title=f"{_count(len(prompts), 'prompt')}, {_count(len(found.kinds), 'kind')} of texts, {', '.join(models)}",
        version=__version__,
        date=date,
        seeds=_ranges(sorted({each.seed for each in found.results})),
        notes=notes,
        picture=plot(found),
        found=found,
        names=found.names,
        panels=panels_of(found),
        pooled=pooled,
        together=(pooled if len(prompts) > 1 else {}) | found.cells,
        prompts=prompts,
        first={each.kind: each for each in reversed(found.results)},
        strengths=known,
        max_bars=MAX_BARS,
        few=FEW,
        aligned=partial(_aligned, found),
        shaded=_shaded,
    )
    return html


@cache
def _template() -> Any:
    import jinja2  # imported here, because only reports need it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else harmless(str(value)),
        keep_trailing_newline=True,
    )
    dump = partial(json.dumps, ensure_ascii=False)
    environment.filters |= {"number": _number, "number_of": _count, "json": dump}
    return environment.get_template("report.html")


def _aligned(found: Findings, prompt: str) -> tuple[list[Kind], Iterator[tuple[int, list[tuple[Any, ...] | None]]]]:
    """A column for each kind that a prompt has texts of, and a row for each seed.

    What a row has for a kind: the text, how often the kind has it, and the seed with which it had it first.
    """
    results = [each for each in found.results if each.prompt == prompt]
    kinds = [kind for kind in found.kinds if any(each.kind == kind for each in results)]
    by_place = {(each.kind, each.seed): each for each in results}
    whole = [each for each in results if each.is_whole]
    counts = {kind: dict(repeats([each.text for each in whole if each.kind == kind])) for kind in kinds}
    shown: dict[tuple[Kind, str], int] = {}

    def cell(kind: Kind, seed: int) -> tuple[Any, ...] | None:
        each = by_place.get((kind, seed))
        if each is None:
            return None
        text = each.text.strip()
        return (each, counts[kind][text], shown.setdefault((kind, text), seed)) if each.is_whole else (each, 1, seed)

    seeds = sorted({each.seed for each in results})
    return kinds, ((seed, [cell(kind, seed) for kind in kinds]) for seed in seeds)


def _shaded(each: Result) -> Iterator[tuple[str, str, int]]:
    """The tokens of a text: each with what was likeliest at its place, and a shade that shows how unlikely it was."""
    if "".join(token[0] for token in each.tokens) != each.text:  # a stop string was cut off, for example
        yield each.text, "", 0
        return
    for text, logprob, likeliest in each.tokens:
        if logprob is None:
            yield text, "", 0
        else:
            others = "  ".join(f"{_percent(p)} {other!r}" for other, p in likeliest)
            yield text, f"{_percent(logprob)} {text!r}; likeliest: {others}", round(70 * (1 - math.exp(logprob)))


def _percent(logprob: float) -> str:
    return f"{math.exp(logprob):.0%}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _ranges(seeds: list[int]) -> str:
    """Seeds as ranges, such as `0 to 3, 100 to 103`."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in runs) or "none"


def _number(value: float | None) -> str:
    if value is None:
        return "\N{EN DASH}"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
