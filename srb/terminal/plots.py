"""The measures of a comparison as one picture, in SVG."""

import io
import warnings

from srb.terminal.results import Cells

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


def plot(cells: Cells) -> str:
    """An `<svg>` with a panel for each measure: the settings from left to right, a line for each prompt."""
    import matplotlib  # here, because it takes its time, and belongs to an extra
    from matplotlib.figure import Figure

    prompts = list(dict.fromkeys(prompt for prompt, _ in cells))
    settings = list(dict.fromkeys(setting for _, setting in cells))
    rows = -(-(len(PANELS) + 1) // COLUMNS)
    # Names are text and not formulas; letters stay letters, for the browser's own font.
    style = matplotlib.rc_context(
        {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "srb", "axes.unicode_minus": False}
    )
    with style, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # matplotlib only measures with its own font
        figure = Figure(figsize=(COLUMNS * PANEL_INCHES[0], rows * PANEL_INCHES[1]), layout="constrained")
        axes = list(figure.subplots(rows, COLUMNS).flat)
        lines = []
        for (name, title), panel in zip(PANELS.items(), axes, strict=False):
            lines = [
                panel.plot(
                    range(len(settings)),
                    [_number(getattr(cells[prompt, setting], name)) for setting in settings],
                    marker="o",
                )[0]
                for prompt in prompts
            ]
            panel.set_title(title, fontsize=10)
            panel.set_xticks(range(len(settings)), [_short(name) for name in settings], rotation=30, ha="right")
            panel.margins(x=0.15)
            panel.grid(alpha=0.3)
        legend = axes[len(PANELS)]
        legend.axis("off")
        if len(prompts) > 1:
            legend.legend(lines, [_short(name) for name in prompts], loc="center", title="prompts", fontsize=8)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return "<svg" + out.getvalue().partition("<svg")[2]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _short(name: str) -> str:
    # A legend leaves out names that begin with an underscore.
    return (" " if name.startswith("_") else "") + (name if len(name) <= 24 else f"{name[:23]}…")
