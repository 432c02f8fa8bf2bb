"""Writes the report of a comparison: one HTML file that needs no other files."""

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from srb import __version__
from srb.terminal.comparison.measures import Cells, Findings, Measures, Result, groups_of, repeats
from srb.terminal.comparison.plots import MAX_BARS, panels_of, plot
from srb.terminal.comparison.rating import Rating, strengths
from srb.terminal.comparison.statistics import Interval
from srb.terminal.show import harmless

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 90rem; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
.plots { background: #fff; overflow-x: auto; padding: .5rem; border-radius: .5rem; }
.plots svg { width: 100%; min-width: 48rem; max-width: 72rem; height: auto; }
.prompt, .text { white-space: pre-wrap; overflow-wrap: anywhere; }
.prompt { border-left: .25rem solid #888; padding-left: .75rem; max-height: 20rem; overflow-y: auto; }
.text { border: 1px solid #8884; border-radius: .5rem; padding: .5rem .75rem; margin: .5rem 0; }
.cut { border-style: dashed; }
.count { font-weight: bold; color: #c60; }
.more, .interval { color: light-dark(#666, #999); font-size: .85rem; }
.interval { white-space: nowrap; }
.row { grid-column: 1 / -1; color: light-dark(#666, #999); font-size: .85rem; }
body:has(#shade:checked) .t { background: rgb(230 110 0 / calc(var(--s) * 1%)); }
body:has(#shade:checked) .t:hover { outline: 1px solid; }
.aligned { display: grid; grid-template-columns: repeat(var(--kinds), minmax(16rem, 1fr)); }
.aligned { gap: 0 1rem; overflow-x: auto; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

NOTES = """A mean is that of groups of texts that don't depend on each other. Over all prompts a group is a prompt; in
the row of one prompt it is a seed, or a request. Intervals are 95%, by Student's t over the groups. p is that of a test
which changes the signs of the groups' differences, and adjusted for all tests here by Benjamini and Hochberg. There is
no interval for one group, nor for groups that are all the same: these don't tell how far others would be. Groups that a
kind has no value of are left out of all kinds; if none is left, all count, and nothing is tested. Texts that were cut
off count in no measure."""

FEW = 6
"""With fewer groups p can't be below 0.05."""


def write_report(path: Path, found: Findings, *, notes: list[str], date: str, ratings: Sequence[Rating] = ()) -> None:
    """Writes the report. notes: paragraphs for its top. date: the date of the report, in words."""
    path.write_text(render(found, notes=notes, date=date, ratings=ratings), encoding="utf-8")


def render(found: Findings, *, notes: list[str], date: str, ratings: Sequence[Rating] = ()) -> str:
    """The HTML of the report."""
    prompts = {each.prompt: each.prompt_text for each in found.results}
    models = list(dict.fromkeys(each.model for each in found.results))
    seeds = sorted({each.seed for each in found.results})
    title = f"{_count(len(prompts), 'prompt')}, {_count(len(found.kinds), 'kind')} of texts, {', '.join(models)}"
    picture = plot(found)
    parts = [
        f"<h1>{_text(title)}</h1>",
        f"<p>srb {__version__} · {_text(date)} · seeds {_text(_ranges(seeds))}</p>",
        *(f"<p>{_text(note)}</p>" for note in notes),
        f"<div class=plots>{picture}</div>" if picture else "",
        _measures(found),
        _tests(found),
        _ratings(found, ratings),
        f"<p class=more>{_text(NOTES)}</p>",
        _settings(found),
        "<p><label><input type=checkbox id=shade> Shade what was unlikely; pointing at it tells what was likelier"
        "</label></p>",
    ]
    for prompt, text in prompts.items():
        own = [each for each in found.results if each.prompt == prompt]
        parts.append(f"<h2>{_text(prompt)}</h2><div class=prompt>{_text(text)}</div>{_aligned(found, own)}")
    head = (
        f'<meta charset=utf-8><meta http-equiv=Content-Security-Policy content="{POLICY}">'
        f"<meta name=viewport content='width=device-width'><title>{_text(title)}</title><style>{STYLE}</style>"
    )
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _measures(found: Findings) -> str:
    panels = panels_of(found)
    titles = "".join(f"<th class=number>{_text(title)}</th>" for title in panels.values())
    head = f"<tr><th>prompt</th><th>texts of</th><th class=number>count</th>{titles}</tr>"

    def table(cells: Cells) -> str:
        rows = [head]
        for (prompt, kind), each in cells.items():
            columns = "".join(f"<td class=number>{_measured(each, name)}</td>" for name in panels)
            columns = f"<td>{_text(found.names[kind])}</td><td class=number>{each.count}</td>{columns}"
            rows.append(f"<tr><td>{_text(prompt)}</td>{columns}</tr>")
        return f"<div class=wide><table>{''.join(rows)}</table></div>"

    pooled = {("all prompts", kind): each for kind, each in found.pooled.items()}
    n_prompts = len({prompt for prompt, _ in found.cells})
    if n_prompts > MAX_BARS:
        each = f"<details><summary>Measures of each prompt</summary>{table(found.cells)}</details>"
        return f"<h2>Measures</h2>{table(pooled)}{each}"
    return f"<h2>Measures</h2>{table((pooled if n_prompts > 1 else {}) | found.cells)}"


def _measured(measures: Measures, name: str) -> str:
    ends = measures.intervals.get(name)
    shown = f" <span class=interval>{_interval(*ends)}</span>" if ends else ""
    return _number(measures.value(name)) + shown


def _tests(found: Findings) -> str:
    if len(found.kinds) < 2:
        return ""
    heading = f"<h2>Differences</h2><p>{_text(_about(found))}</p>"
    if not found.tests:
        return heading
    titles = panels_of(found)
    numbers = "".join(f"<th class=number>{title}</th>" for title in ("groups", "difference", "p", "adjusted"))
    rows = [f"<tr><th>texts of</th><th>against</th><th>measure</th>{numbers}</tr>"]
    for each in found.tests:
        ends = f"<span class=interval>{_interval(each.low, each.high)}</span>"
        rows.append(
            f"<tr><td>{_text(each.other)}</td><td>{_text(each.one)}</td><td>{_text(titles[each.measure])}</td>"
            f"<td class=number>{each.groups}</td><td class=number>{_number(each.difference)} {ends}</td>"
            f"<td class=number>{_number(each.p)}</td><td class=number>{_number(each.adjusted)}</td></tr>"
        )
    return f"{heading}<div class=wide><table>{''.join(rows)}</table></div>"


def _about(found: Findings) -> str:
    """What the tests are about, and how much that is."""
    n_prompts = len({each.prompt for each in found.results})
    if n_prompts > 1:
        text = (
            f"The tests are about prompts like these {n_prompts}: a group is a prompt, and more seeds don't make more "
            "groups."
        )
    else:
        text = (
            f"The tests are about this prompt alone, and not about others. Its texts are "
            f"{_count(found.groups, 'group')}: a group is a seed, or the seeds of a request whose alternatives depend "
            "on each other (diversity, avoid)."
        )
    if found.groups < 2:
        return f"{text} That is too few for a test."
    if found.groups < FEW:
        return f"{text} With so few, p is at least {_number(2 / 2**found.groups)}, whatever the difference."
    return text


def _ratings(found: Findings, ratings: Sequence[Rating]) -> str:
    # Ratings of kinds that the results no longer have count for the other kinds, but such kinds have no name to show.
    found_strengths = strengths(ratings, groups_of(found.results))
    known = {kind: each for kind, each in found_strengths.items() if kind in found.names}
    if not known:
        return ""

    def ends(interval: Interval | None) -> str:
        return "{:.0f} to {:.0f}".format(*interval) if interval else ""

    rows = "".join(
        f"<tr><td>{_text(found.names[kind])}</td><td class=number>{each.elo:.0f} "
        f"<span class=interval>{ends(each.interval)}</span></td><td class=number>{each.count}</td></tr>"
        for kind, each in known.items()
    )
    head = "<tr><th>texts of</th><th class=number>Elo</th><th class=number>ratings</th></tr>"
    return f"<h2>Blind ratings</h2><div class=wide><table>{head}{rows}</table></div>"


def _settings(found: Findings) -> str:
    first = {each.kind: each for each in reversed(found.results)}
    rows = "".join(
        f"<tr><td>{_text(found.names[kind])}</td><td>{_text(first[kind].model)}</td>"
        f"<td><code>{_text(json.dumps(first[kind].settings, ensure_ascii=False))}</code></td></tr>"
        for kind in found.kinds
    )
    return (
        f"<h2>Settings</h2><div class=wide><table><tr><th>texts of</th><th>model</th><th></th></tr>{rows}</table></div>"
    )


def _aligned(found: Findings, results: list[Result]) -> str:
    """A column for each kind, and a row for each seed. A text that a kind has had already is only referred to."""
    kinds = [kind for kind in found.kinds if any(each.kind == kind for each in results)]
    by_place = {(each.kind, each.seed): each for each in results}
    whole = [each for each in results if each.is_whole]
    counts = {kind: dict(repeats([each.text for each in whole if each.kind == kind])) for kind in kinds}
    parts = [f"<h3>{_text(found.names[kind])}</h3>" for kind in kinds]
    shown: dict[tuple[Any, str], int] = {}
    for seed in sorted({each.seed for each in results}):
        parts.append(f"<div class=row>seed {seed}</div>")
        for kind in kinds:
            each = by_place.get((kind, seed))
            if each is None:
                parts.append("<div></div>")
                continue
            if each.is_whole:
                same = shown.setdefault((kind, each.text.strip()), seed)
                parts.append(_alternative(each, counts[kind][each.text.strip()], same))
            else:
                parts.append(_alternative(each, 1, seed))
    return f"<div class=aligned style='--kinds: {len(kinds)}'>{''.join(parts)}</div>"


def _alternative(each: Result, count: int, first_seed: int) -> str:
    times = f"<span class=count>&times; {count}</span> " if count > 1 else ""
    if first_seed != each.seed:
        return f"<div class=text>{times}<span class=more>the same as with seed {first_seed}</span></div>"
    scores = "".join(f" · {_text(name)} {_number(score)}" for name, score in each.scores.items())
    ended = each.finish_reason if each.is_whole else "cut off"
    details = f"{each.length} tokens · {ended} · log-probability {_number(each.mean_logprob)}{scores}"
    kind = "text" if each.is_whole else "text cut"
    return f"<div class='{kind}'>{times}{_tokens(each)}<div class=more>{details}</div></div>"


def _tokens(each: Result) -> str:
    """The text, each token with a shade that shows how unlikely it was, and with the likeliest tokens in its title."""
    if "".join(token[0] for token in each.tokens) != each.text:  # a stop string was cut off, for example
        return _text(each.text)
    parts = []
    for text, logprob, likeliest in each.tokens:
        if logprob is None:
            parts.append(_text(text))
            continue
        others = "  ".join(f"{_percent(p)} {other!r}" for other, p in likeliest)
        shade = round(70 * (1 - math.exp(logprob)))
        title = escape(harmless(f"{_percent(logprob)} {text!r}; likeliest: {others}"), quote=True)
        parts.append(f'<span class=t style="--s:{shade}" title="{title}">{_text(text)}</span>')
    return "".join(parts)


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


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None else f"{_number(low)} to {_number(high)}"


def _number(value: float | None) -> str:
    if value is None:
        return "&ndash;"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def _text(value: Any) -> str:
    return escape(harmless(str(value)))
