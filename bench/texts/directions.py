"""Measure what `directions` do to the diversity of texts, against temperature, and plot it.

usage: python bench/texts/directions.py FOLDER [--plot FILE.svg]

The program runs `srb compare bench/texts/directions.toml`, with its results in FOLDER. For each setting it prints
self-BLEU and distinct-2 of the eight alternatives of a prompt (means over the prompts), and the mean log-probability of
a token of all texts under the prompt without directions, at temperature 1: `srb.score` computes it. For each setting
with directions it also prints the self-BLEU that temperature alone has at the same log-probability, interpolated. The
model is srb's default model.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import mean

import numpy as np

import srb
from srb.terminal.comparison.measures import Result, distinct, self_bleu
from srb.terminal.comparison.results import read_results

SPEC = Path(__file__).with_name("directions.toml")

Cell = dict[str, float]


def read_measures(folder: Path) -> dict[str, Cell]:
    """Return the measures of each setting."""
    groups: dict[str, dict[str, list[Result]]] = {}
    for each in read_results(folder):
        groups.setdefault(each.setting, {}).setdefault(each.prompt_text, []).append(each)
    return {setting: measured(of_prompts) for setting, of_prompts in groups.items()}


def measured(of_prompts: dict[str, list[Result]]) -> Cell:
    """Return the means over prompts."""
    texts = [[each.text for each in results] for results in of_prompts.values()]
    scores = srb.score(list(of_prompts), [[text for text in some if text] for some in texts])
    return {
        "self-BLEU": mean(self_bleu(some) or 0 for some in texts),
        "distinct-2": mean(distinct(some, 2) or 0 for some in texts),
        "log-probability": mean(each.logprob / len(each.tokens) for some in scores for each in some),
    }


def at_same_likelihood(cells: dict[str, Cell], setting: str, name: str) -> float:
    """Return a measure that temperature alone has at the log-probability of a setting, interpolated; NaN beyond."""
    plain = sorted((each["log-probability"], each[name]) for key, each in cells.items() if key.startswith("temp"))
    likelihoods, values = zip(*plain, strict=True)
    return float(np.interp(cells[setting]["log-probability"], likelihoods, values, left=np.nan, right=np.nan))


def show(cells: dict[str, Cell]) -> None:
    """Print a Markdown table."""
    print("| setting | log-probability | self-BLEU | temperature alone | distinct-2 | temperature alone |")
    print("|---|---|---|---|---|---|")
    for setting, cell in cells.items():
        alone = [at_same_likelihood(cells, setting, name) for name in ("self-BLEU", "distinct-2")]
        bleu, two = (f"{value:.3g}" for value in alone) if setting.startswith("directions") else ("", "")
        print(
            f"| {setting} | {cell['log-probability']:.2f} | {cell['self-BLEU']:.1f} | {bleu} | "
            f"{cell['distinct-2']:.3f} | {two} |"
        )


def plot(cells: dict[str, Cell], path: Path) -> None:
    """Plot both measures against the log-probability."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "srb"}):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        for panel, name in zip(figure.subplots(1, 2), ("self-BLEU", "distinct-2"), strict=True):
            for kind in ("temperature", "directions"):
                some = {key.split()[1]: each for key, each in cells.items() if key.startswith(kind)}
                places = [(each["log-probability"], each[name]) for each in some.values()]
                panel.plot(*zip(*places, strict=True), marker="o", label=kind)
                for label, place in zip(some, places, strict=True):
                    panel.annotate(label, place, fontsize=7, xytext=(4, 4), textcoords="offset points")
            panel.set_title(name, fontsize=10)
            panel.set_xlabel("mean log-probability of a token")
            panel.grid(alpha=0.3)
            panel.legend(fontsize=8)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Run the comparison, and print its measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    subprocess.run([sys.executable, "-m", "srb", "compare", str(SPEC), "--out", str(arguments.folder)], check=True)
    cells = read_measures(arguments.folder)
    show(cells)
    if arguments.plot:
        plot(cells, arguments.plot)


if __name__ == "__main__":
    main()
