"""Draws the measures of a comparison as one picture, in SVG."""

import io
import math
import warnings
from typing import Any

from srb.terminal.comparison.measures import Findings, Kind, Measures

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
"""If there are more prompts than this, the bars are for all prompts together."""

Group = dict[Kind, Measures]


def panels_of(found: Findings) -> dict[str, str]:
    """The names of all measures and scores, with the titles of their panels."""
    return PANELS | {name: name for name in found.scores}


def plot(found: Findings) -> str:
    """An `<svg>` with a panel for each measure: the kinds from left to right, a bar for each prompt, with its interval.

    A measure that is the same everywhere has no panel. Returns an empty text if there are no panels.
    """
    groups = _groups(found)
    panels = {name: title for name, title in panels_of(found).items() if _differs(groups, name)}
    if not panels:
        return ""
    import matplotlib  # imported here, because it takes a while, and belongs to an extra
    from matplotlib.figure import Figure

    rows = -(-(len(panels) + 1) // COLUMNS)
    names = found.names
    # Names are shown as text, and not as formulas. Letters aren't turned into curves: the browser has fonts.
    style = matplotlib.rc_context(
        {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "srb", "axes.unicode_minus": False}
    )
    with style, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser has the characters that this font lacks
        figure = Figure(figsize=(COLUMNS * PANEL_INCHES[0], rows * PANEL_INCHES[1]), layout="constrained")
        axes = list(figure.subplots(rows, COLUMNS).flat)
        bars: list[Any] = []
        width = 0.8 / len(groups)
        for (name, title), panel in zip(panels.items(), axes, strict=False):
            bars = []
            for place, group in enumerate(groups.values()):
                heights = [_number(group.get(kind), name) for kind in found.kinds]
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
    """The measures of each prompt, or of all together if there are more than `MAX_BARS`."""
    groups: dict[str, Group] = {}
    for (prompt, kind), measures in found.cells.items():
        groups.setdefault(prompt, {})[kind] = measures
    return groups if len(groups) <= MAX_BARS else {"all prompts": found.pooled}


def _differs(groups: dict[str, Group], name: str) -> bool:
    found = {measures.value(name) for group in groups.values() for measures in group.values()} - {None}
    return len(found) > 1


def _number(measures: Measures | None, name: str) -> float:
    value = None if measures is None else measures.value(name)
    return math.nan if value is None or math.isinf(value) else value


def _error(measures: Measures | None, name: str) -> tuple[float, float]:
    """How far the interval reaches below and above the value."""
    ends, value = (measures.intervals.get(name) if measures else None), _number(measures, name)
    if ends is None or not all(map(math.isfinite, (*ends, value))):
        return math.nan, math.nan
    return max(0.0, value - ends[0]), max(0.0, ends[1] - value)


def _short(name: str) -> str:
    # A legend leaves out names that begin with an underscore.
    return (" " if name.startswith("_") else "") + (name if len(name) <= 24 else f"{name[:23]}…")
