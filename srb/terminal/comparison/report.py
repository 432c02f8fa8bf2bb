"""Writes the report of a comparison, a single HTML file. Its template is report.html."""

import io
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from srb import __version__
from srb.terminal.comparison.measures import Findings, Kind, Measures, Result, repeats
from srb.terminal.comparison.rating import Rating, strengths
from srb.terminal.show import harmless

PANELS = {
    "mean_logprob": "mean log-probability",
    "perplexity": "perplexity",
    "length": "tokens",
    "different": "different texts",
    "distinct_1": "distinct-1",
    "distinct_2": "distinct-2",
    "self_bleu": "self-BLEU",
}

PANEL_INCHES = (2.8, 2.2)
COLUMNS = 4
MAX_BARS = 8
"""With more prompts than this, bars show the measures over all prompts."""

Group = dict[Kind, Measures]


def panels_of(found: Findings) -> dict[str, str]:
    """Return the names of all measures and scores, with the titles of their panels."""
    return PANELS | {name: name for name in found.scores}


def plot(found: Findings) -> str:
    """Plot the measures, with a panel for each: kinds from left to right, and a bar with its interval for each prompt.

    Measures with a single value have no panel. Returns an `<svg>`, or an empty text if there are no panels.
    """
    groups = _groups(found)
    panels = {name: title for name, title in panels_of(found).items() if _differs(groups, name)}
    if not panels:
        return ""
    import matplotlib  # imported here: it is slow to import, and belongs to an extra
    from matplotlib.figure import Figure

    rows = -(-(len(panels) + 1) // COLUMNS)
    names = found.names
    # Show names as text, not as formulas, and leave fonts to the browser.
    style = matplotlib.rc_context(
        {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "srb", "axes.unicode_minus": False}
    )
    with style, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser has other fonts
        figure = Figure(figsize=(COLUMNS * PANEL_INCHES[0], rows * PANEL_INCHES[1]), layout="constrained")
        axes = list(figure.subplots(rows, COLUMNS).flat)
        bars: list[Any] = []
        width = 0.8 / len(groups)
        for (name, title), panel in zip(panels.items(), axes, strict=False):
            bars = []
            for place, group in enumerate(groups.values()):
                heights = [_height(group.get(kind), name) for kind in found.kinds]
                middles = [k + (place + 0.5) * width - 0.4 for k in range(len(found.kinds))]
                errors = [_error(group.get(kind), name) for kind in found.kinds]
                bars.append(panel.bar(middles, heights, width, yerr=[*zip(*errors, strict=True)], capsize=2))
            panel.set_title(title, fontsize=10)
            panel.set_xticks(
                range(len(found.kinds)), [_short(names[kind]) for kind in found.kinds], rotation=30, ha="right"
            )
            panel.grid(axis="y", alpha=0.3)
        for rest in axes[len(panels) :]:
            rest.axis("off")
        if len(groups) > 1:
            axes[len(panels)].legend(bars, [_short(each) for each in groups], loc="center", title="prompts", fontsize=8)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return "<svg" + out.getvalue().partition("<svg")[2]


def _groups(found: Findings) -> dict[str, Group]:
    """Return the measures of each prompt, or those of all prompts if there are more than `MAX_BARS`."""
    groups: dict[str, Group] = {}
    for (prompt, kind), measures in found.cells.items():
        groups.setdefault(prompt, {})[kind] = measures
    return groups if len(groups) <= MAX_BARS else {"all prompts": found.pooled}


def _differs(groups: dict[str, Group], name: str) -> bool:
    found = {measures.values.get(name) for group in groups.values() for measures in group.values()} - {None}
    return len(found) > 1


def _height(measures: Measures | None, name: str) -> float:
    value = None if measures is None else measures.values.get(name)
    return math.nan if value is None or math.isinf(value) else value


def _error(measures: Measures | None, name: str) -> tuple[float, float]:
    """How far the interval reaches below and above the value."""
    ends, value = (measures.intervals.get(name) if measures else None), _height(measures, name)
    if ends is None or not all(map(math.isfinite, (*ends, value))):
        return math.nan, math.nan
    return max(0.0, value - ends[0]), max(0.0, ends[1] - value)


def _short(name: str) -> str:
    # A legend leaves out names that begin with an underscore.
    return (" " if name.startswith("_") else "") + (name if len(name) <= 24 else f"{name[:23]}…")


MIN_GROUPS = 6
"""With fewer groups, p can't be below 0.05."""


def render(found: Findings, notes: Sequence[str] = (), ratings: Sequence[Rating] = ()) -> str:
    """Return the HTML of the report."""
    prompts = {each.prompt: each.prompt_text for each in found.results}
    models = dict.fromkeys(each.model for each in found.results)
    pooled = {("all prompts", kind): each for kind, each in found.pooled.items()}
    html: str = _template().render(
        title=f"{_count(len(prompts), 'prompt')}, {_count(len(found.kinds), 'kind')} of texts, {', '.join(models)}",
        version=__version__,
        date=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        seeds={each.seed for each in found.results},
        notes=notes,
        picture=plot(found),
        found=found,
        names=found.names,
        panels=panels_of(found),
        pooled=pooled,
        pooled_and_each=(pooled if len(prompts) > 1 else {}) | found.cells,
        prompts=prompts,
        first={each.kind: each for each in reversed(found.results)},
        strengths=strengths(ratings, found.results),
        max_bars=MAX_BARS,
        min_groups=MIN_GROUPS,
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
    """Return the kinds with texts of a prompt, and a row for each seed.

    A row has, for each kind: the text, how often the kind has it, and the first seed with it.
    """
    results = [each for each in found.results if each.prompt == prompt]
    kinds = [kind for kind in found.kinds if any(each.kind == kind for each in results)]
    by_place = {(each.kind, each.seed): each for each in results}
    counts = {kind: dict(repeats([each.text for each in results if each.kind == kind])) for kind in kinds}
    shown: dict[tuple[Kind, str], int] = {}

    def cell(kind: Kind, seed: int) -> tuple[Any, ...] | None:
        each = by_place.get((kind, seed))
        if each is None:
            return None
        text = each.text.strip()
        return each, counts[kind][text], shown.setdefault((kind, text), seed)

    seeds = sorted({each.seed for each in results})
    return kinds, ((seed, [cell(kind, seed) for kind in kinds]) for seed in seeds)


def _shaded(each: Result) -> Iterator[tuple[str, str, int]]:
    """Yield the tokens of a text, each with a title of its top tokens, and a shade that shows how unlikely it was."""
    if "".join(token[0] for token in each.tokens) != each.text:  # a stop string was removed, for example
        yield each.text, "", 0
        return
    for text, logprob, top in each.tokens:
        if logprob is None:
            yield text, "", 0
        else:
            others = "  ".join(f"{_percent(p)} {other!r}" for other, p in top)
            yield text, f"{_percent(logprob)} {text!r}; top tokens: {others}", round(70 * (1 - math.exp(logprob)))


def _percent(logprob: float) -> str:
    return f"{math.exp(logprob):.0%}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _number(value: float | None) -> str:
    if value is None:
        return "\N{EN DASH}"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
