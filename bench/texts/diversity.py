"""Measure what `diversity` and `avoid` do to texts, and plot it.

usage: python bench/texts/diversity.py FOLDER [--plot docs/figures/diversity.svg]

First the program runs `srb compare bench/texts/diversity.toml`, with its results in FOLDER: self-BLEU, distinct-2 and
perplexity of eight alternatives, for twelve prompts of three genres and two seeds each. It prints and plots the means
of each genre, and how much they change. Then it requests eight alternatives of each prompt five times, without `avoid`
and with all texts so far in it, and counts how many of the 40 have different openings. The model is srb's default
model; variables such as SRB_MODEL set another.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from srb.engine.constraints.banned_strings import opening_of
from srb.engine.engine import Engine
from srb.engine.events import StopEvent, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings
from srb.terminal.comparison.measures import Result, distinct, measure
from srb.terminal.comparison.results import read_results
from srb.terminal.comparison.spec import Spec, read_spec

SPEC = Path(__file__).with_name("diversity.toml")
ROUNDS = 5

Cell = dict[str, float]


def read_measures(folder: Path, spec: Spec) -> dict[str, dict[float, Cell]]:
    """Return the means by genre and diversity. Each measured group is the n alternatives of a seed."""
    groups: dict[tuple[str, float], dict[tuple[str, int], list[Result]]] = {}
    for each in read_results(folder):
        seed = max(seed for seed in spec.seeds if seed <= each.seed)
        cell = groups.setdefault((each.prompt.split("-")[0], float(each.setting)), {})
        cell.setdefault((each.prompt, seed), []).append(each)
    genres: dict[str, dict[float, Cell]] = {}
    for (genre, diversity), cell in groups.items():
        measured = [measure(results) for results in cell.values()]
        whole = measure([each for results in cell.values() for each in results])
        genres.setdefault(genre, {})[diversity] = {
            "self-BLEU": mean(each.values["self_bleu"] or 0 for each in measured),
            "perplexity": whole.values["perplexity"] or 0,
            "distinct-2": mean(each.values["distinct_2"] or 0 for each in measured),
            "tokens": whole.values["length"] or 0,
            "loops": sum((distinct([each.text], 2) or 0) < 0.5 for results in cell.values() for each in results),
        }
    return genres


def show(genres: dict[str, dict[float, Cell]]) -> None:
    """Print a Markdown table. A text counts as a loop if less than half of its word pairs are distinct."""
    print("| genre | diversity | self-BLEU | perplexity | distinct-2 | tokens | loops |\n|---|---|---|---|---|---|---|")
    for genre, cells in genres.items():
        for diversity, cell in cells.items():
            bleu, perplexity = (change(cells, diversity, name) for name in ("self-BLEU", "perplexity"))
            print(
                f"| {genre} | {diversity:g} | {cell['self-BLEU']:.1f} ({bleu:+.0%}) | {cell['perplexity']:.2f} "
                f"({perplexity:+.0%}) | {cell['distinct-2']:.3f} | {cell['tokens']:.0f} | "
                f"{cell['loops']:g} |"
            )


def change(cells: dict[float, Cell], diversity: float, name: str) -> float:
    """Return the change of a measure against its value without diversity, as a fraction of that value."""
    return cells[diversity][name] / cells[0][name] - 1


def plot(genres: dict[str, dict[float, Cell]], path: Path) -> None:
    """Plot the changes against diversity, with the goals as lines."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "srb"}):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        goals = {"self-BLEU": -100 / 3, "perplexity": 10, "distinct-2": None}
        for panel, (name, goal) in zip(figure.subplots(1, 3), goals.items(), strict=True):
            for genre, cells in genres.items():
                panel.plot(list(cells), [100 * change(cells, each, name) for each in cells], marker="o", label=genre)
            if goal is not None:
                panel.axhline(goal, color="gray", linestyle="--", linewidth=1)
            panel.set_title(f"{name}, change in %", fontsize=10)
            panel.set_xlabel("diversity")
            panel.grid(alpha=0.3)
            panel.legend(fontsize=8)
        figure.savefig(path, format="svg", metadata={"Date": None})


def eight_more(engine: Engine, spec: Spec, observe: Callable[[str, int, int, int], object]) -> None:
    """Request eight alternatives of each prompt several times: without `avoid`, and with all earlier texts in it.

    Args:
        observe: gets a prompt's name, how many openings differ without and with `avoid`, and how many tokens were
            discarded.
    """
    for name, each in spec.prompts.items():
        prompt = engine.tokenize(each.text)
        different, thrown = [], 0
        for avoids in (False, True):
            texts: list[str] = []
            for k in range(ROUNDS):
                avoid = tuple(texts) if avoids else None
                params = SamplingParams(seed=1000 * k, max_tokens=20, avoid=avoid)
                request = CompletionRequest((prompt,), params.alternatives(spec.n))
                engine.add_request(request)
                said = [""] * spec.n
                while engine.has_work:
                    for event in engine.step():
                        if isinstance(event, StreamEvent):
                            said[event.index] += event.text
                        elif isinstance(event, StopEvent):
                            thrown += event.rewound_tokens or 0
                texts += said
            different.append(len({opening_of(each, engine.model.tokenizer) for each in texts}))
        observe(name, different[0], different[1], thrown)


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    subprocess.run([sys.executable, "-m", "srb", "compare", str(SPEC), "--out", str(arguments.folder)], check=True)
    settings = Settings()
    spec = read_spec(SPEC, settings)
    genres = read_measures(arguments.folder, spec)
    show(genres)
    if arguments.plot:
        plot(genres, arguments.plot)
    print(f"\n| prompt | of {ROUNDS * spec.n} openings differ | with `avoid` | tokens thrown away |\n|---|---|---|---|")
    backend = LlamaBackend(settings)
    try:
        eight_more(Engine(backend), spec, lambda *values: print("|", " | ".join(map(str, values)), "|", flush=True))
    finally:
        backend.close()


if __name__ == "__main__":
    main()
