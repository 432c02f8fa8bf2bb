"""The report of a comparison: one HTML file that needs nothing else."""

import json
from html import escape
from pathlib import Path
from typing import Any

from srb.terminal.measures import Result, repeats
from srb.terminal.plots import PANELS, plot
from srb.terminal.results import Cells
from srb.terminal.show import harmless
from srb.terminal.spec import Spec

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 90rem; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.plots { background: #fff; overflow-x: auto; padding: .5rem; border-radius: .5rem; }
.plots svg { max-width: 100%; height: auto; }
.cells { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(16rem, 1fr); gap: 1rem; overflow-x: auto; }
.prompt, .text { white-space: pre-wrap; overflow-wrap: anywhere; }
.prompt { border-left: .25rem solid #888; padding-left: .75rem; max-height: 20rem; overflow-y: auto; }
.text { border: 1px solid #8884; border-radius: .5rem; padding: .5rem .75rem; margin: .5rem 0; }
.count { font-weight: bold; color: #c60; }
.more { color: #888; font-size: .85rem; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def write_report(path: Path, spec: Spec, results: list[Result], cells: Cells, *, model: str, usage: str) -> None:
    """Writes the report of what there is. usage: what the last run has cost, in words."""
    path.write_text(render(spec, results, cells, model=model, usage=usage), encoding="utf-8")


def render(spec: Spec, results: list[Result], cells: Cells, *, model: str, usage: str) -> str:
    """The report as a page."""
    title = f"{len(spec.prompts)} prompts, {len(spec.settings)} settings, {model}"
    each = len(spec.all_seeds)
    parts = [
        f"<h1>{_text(title)}</h1>",
        f"<p>{len(results)} of {len(cells) * each} alternatives, {each} of each kind. Last run: {_text(usage)}.</p>",
        f"<div class=plots>{plot(cells)}</div>",
        _measures(cells),
        _settings(spec),
    ]
    for prompt, text in spec.prompts.items():
        parts.append(f"<h2>{_text(prompt)}</h2><div class=prompt>{_text(text)}</div><div class=cells>")
        for setting in spec.settings:
            own = [each for each in results if (each.prompt, each.setting) == (prompt, setting)]
            parts.append(f"<section><h3>{_text(setting)}</h3>{_alternatives(own)}</section>")
        parts.append("</div>")
    head = (
        f'<meta charset=utf-8><meta http-equiv=Content-Security-Policy content="{POLICY}">'
        f"<meta name=viewport content='width=device-width'><title>{_text(title)}</title><style>{STYLE}</style>"
    )
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _measures(cells: Cells) -> str:
    names = "".join(f"<th>{_text(title)}</th>" for title in PANELS.values())
    rows = [f"<tr><th>prompt</th><th>setting</th><th>texts</th>{names}</tr>"]
    for (prompt, setting), measures in cells.items():
        numbers = [measures.count, *(getattr(measures, name) for name in PANELS)]
        columns = "".join(f"<td class=number>{_number(number)}</td>" for number in numbers)
        rows.append(f"<tr><td>{_text(prompt)}</td><td>{_text(setting)}</td>{columns}</tr>")
    return f"<h2>Measures</h2><table>{''.join(rows)}</table>"


def _settings(spec: Spec) -> str:
    rows = (
        f"<tr><td>{_text(name)}</td><td><code>{_text(json.dumps(fields, ensure_ascii=False))}</code></td></tr>"
        for name, fields in spec.settings.items()
    )
    return f"<h2>Settings</h2><table>{''.join(rows)}</table>"


def _alternatives(results: list[Result]) -> str:
    """The different texts of a cell, those that came more than once with their count."""
    parts = []
    for text, count in repeats([each.text for each in results]):
        same = [each for each in results if each.text.strip() == text]
        times = f"<span class=count>&times; {count}</span> " if count > 1 else ""
        seeds = ", ".join(str(each.seed) for each in same)
        first = same[0]
        details = f"seed {seeds} · {first.length} tokens · {first.finish_reason} · {_number(first.mean_logprob)}"
        parts.append(f"<div class=text>{times}{_text(first.text)}<div class=more>{details}</div></div>")
    return "".join(parts)


def _number(value: float | None) -> str:
    if value is None:
        return "&ndash;"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def _text(value: Any) -> str:
    return escape(harmless(str(value)))
