"""Measure how much texts differ, and how probable they are, against temperature and with `directions`, and plot it.

usage: python bench/texts/directions.py FOLDER [--plot directions.svg] [--plot-temperature temperature.svg]
           [--wordings NAMES]

First the program runs `srb compare bench/texts/directions.toml`, with its results in FOLDER: eight alternatives of each
of 16 prompts and each seed, at temperatures from 0.4 to 1.6, and with eight directions at three of them. It measures

- the mean log-probability of a token under the prompt without directions, at temperature 1;
- self-BLEU and distinct-2 of each eight;
- conditional surprise: how unexpected a text is after four others, in bits per byte (`siblings = 4`).

It prints means over the prompts with 95% intervals, and for each setting with directions how much it differs from
temperature alone at the same log-probability (interpolated; the interval is a bootstrap over prompts).

`--wordings` measures other ways to put a line into a prompt, with one seed: all of `WORDINGS`, or some of them. Chats
are compared with the same chat without a line.

What is done is stored in FOLDER, so a run that was interrupted continues. The model is srb's default model.
"""

import argparse
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import srb
from srb.engine.engine import Engine
from srb.engine.events import ErrorEvent, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams, author_note
from srb.engine.score_table import to_tokens
from srb.llama.backend import LlamaBackend
from srb.llm import LLM
from srb.options.settings import Settings
from srb.terminal.comparison.measures import Result, distinct, margin, self_bleu
from srb.terminal.comparison.results import read_results
from srb.terminal.comparison.scorers import Surprise
from srb.terminal.comparison.spec import Spec, read_spec

SPEC = Path(__file__).with_name("directions.toml")
SIBLINGS = 4
RESAMPLES = 10_000
UNITS = {
    "self-BLEU": "self-BLEU (0 to 100; lower: more diverse)",
    "distinct-2": "distinct-2 (0 to 1; higher: more diverse)",
    "conditional surprise": "conditional surprise (bits per byte)",
}
LIKELIHOOD = "log-probability"

Values = dict[str, float]
Setting = dict[str, list[Values]]
"""The measures of each prompt's groups of eight, by the name of the prompt."""


@dataclass(frozen=True)
class Eight:
    """The alternatives of one prompt and seed.

    Attributes:
        plain: The prompt without directions.
        likelihood, surprise: The mean log-probability and conditional surprise, if they are known.
    """

    setting: str
    prompt: str
    plain: str
    texts: tuple[str, ...]
    likelihood: float | None = None
    surprise: float | None = None


# The measures


class Measured:
    """Measures groups of texts, and stores what a model computes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else ()
        self._known: dict[str, float] = {each["key"]: each["value"] for each in map(json.loads, lines)}

    def __call__(self, eights: Iterable[Eight]) -> dict[str, Setting]:
        """Return the measures of each setting."""
        found: dict[str, Setting] = {}
        for each in eights:
            texts = [text for text in each.texts if text]
            values = {
                LIKELIHOOD: self._once(likelihood, each) if each.likelihood is None else each.likelihood,
                "self-BLEU": self_bleu(texts) or 0,
                "distinct-2": distinct(texts, 2) or 0,
                "conditional surprise": self._once(surprise, each) if each.surprise is None else each.surprise,
            }
            found.setdefault(each.setting, {}).setdefault(each.prompt, []).append(values)
        return found

    def _once(self, compute: Callable[[str, list[str]], float], each: Eight) -> float:
        key = hashlib.sha256(json.dumps([compute.__name__, each.plain, each.texts]).encode()).hexdigest()[:16]
        if key not in self._known:
            self._known[key] = compute(each.plain, [text for text in each.texts if text])
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "value": self._known[key]}) + "\n")
        return self._known[key]


def likelihood(plain: str, texts: list[str]) -> float:
    """Return the mean log-probability of a token after a prompt."""
    return fmean(each.logprob / len(each.tokens) for each in srb.score(plain, texts))


def surprise(plain: str, texts: list[str]) -> float:
    """Return the mean conditional surprise, as `srb compare` does."""
    contexts = Surprise(SIBLINGS, "").contexts(
        Result("", "", seed, text, prompt_text=plain, key=text) for seed, text in enumerate(texts)
    )
    found = []
    for context in dict.fromkeys(contexts.values()):
        own = [text for text in texts if contexts[text] == context]
        scores = srb.score(context, own)
        found += [-each.logprob / math.log(2) / len(text.encode()) for each, text in zip(scores, own, strict=True)]
    return fmean(found)


def means(setting: Setting, name: str, prompts: Iterable[str]) -> Any:
    """Return the mean of a measure for each prompt."""
    return np.array([fmean(each[name] for each in setting[prompt]) for prompt in prompts])


def mean_with_margin(setting: Setting, name: str) -> tuple[float, float]:
    """Return the mean over prompts and half the width of its interval."""
    values = means(setting, name, setting)
    return float(values.mean()), float(margin(values))


def gain(curve: list[Setting], setting: Setting, name: str) -> tuple[float, float, float]:
    """Return how much more a setting has of a measure than a curve at the same log-probability, with its interval.

    The curve is interpolated between its settings. NaN beyond its ends.
    """
    prompts = [*setting]
    x, y = (np.array([means(each, key, prompts) for each in curve]) for key in (LIKELIHOOD, name))
    own_x, own_y = (means(setting, key, prompts) for key in (LIKELIHOOD, name))
    chosen = np.random.default_rng(0).integers(len(prompts), size=(RESAMPLES, len(prompts)))
    chosen[0] = range(len(prompts))
    differences = []
    for some in chosen:
        xs, ys = x[:, some].mean(axis=1), y[:, some].mean(axis=1)
        order = np.argsort(xs)
        at = np.interp(own_x[some].mean(), xs[order], ys[order], left=np.nan, right=np.nan)
        differences.append(own_y[some].mean() - at)
    low, high = np.nanpercentile(differences, [2.5, 97.5]) if np.isfinite(differences[0]) else (np.nan, np.nan)
    return float(differences[0]), float(low), float(high)


# Other wordings


def _chat(head: str) -> str:
    """Return the beginning of a chat that asks for the rest of a story, in the template of the default model."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nContinue this story:\n\n{head.strip()}"


_ANSWER = "<|im_end|>\n<|im_start|>assistant\n"

Wording = Callable[[str, str, str], tuple[str, str, str]]
WORDINGS: dict[str, Wording] = {
    "note first": lambda head, last, line: ("", f"{author_note(line)}\n\n", head + last),
    "note three times": lambda head, last, line: (head, f"{author_note(line)}\n" * 3, last),
    "passage": lambda head, last, line: (head, f"The following passage is about this: {line}.\n\n", last),
    "chat, plain": lambda head, last, line: (_chat(head), "", _ANSWER + last),
    "chat, note": lambda head, last, line: (_chat(head), f"\n\n{author_note(line)}", _ANSWER + last),
    "chat, must": lambda head, last, line: (
        _chat(head),
        f"\n\nYour answer must be about this: {line}.",
        _ANSWER + last,
    ),
    "chat, next part": lambda head, last, line: (
        _chat(head),
        f"\n\nIn the next part of the story: {line}. Write about that.",
        _ANSWER + last,
    ),
    "chat, system": lambda head, last, line: (
        "",
        f"<|im_start|>system\nYou continue stories. In the next part of the story: {line}.<|im_end|>\n",
        f"<|im_start|>user\nContinue this story:\n\n{head.strip()}{_ANSWER}{last}",
    ),
}
"""How each wording divides a prompt: what is before the line, the line, and what is after it.

A prompt is its paragraphs before the last one, and its last one, which isn't complete.
"""


def sampled(spec: Spec, names: list[str], temperatures: list[float], path: Path) -> list[Eight]:
    """Return texts for each wording, prompt and temperature, with the first seed. Texts in the file are reused."""
    known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    lines = next(each["directions"] for each in spec.settings.values() if "directions" in each)
    backend = LlamaBackend(Settings())
    eights = []
    try:
        engine = Engine(backend)
        for name in names:
            for temperature in temperatures:
                setting = f"{name} {temperature}"
                requests = {}
                for prompt, each in spec.prompts.items():
                    key = f"{setting} {prompt}"
                    if key not in known:
                        parts = [WORDINGS[name](*divided(each.text), line) for line in lines]
                        requests[key] = request_of(engine, parts, temperature, spec)
                known |= texts_of(engine, requests)
                path.write_text(json.dumps(known))
                for prompt, each in spec.prompts.items():
                    texts = tuple(known[f"{setting} {prompt}"])
                    plain = each.text
                    if name.startswith("chat"):
                        plain = "".join(WORDINGS["chat, plain"](*divided(each.text), ""))
                    eights.append(Eight(setting, prompt, plain, texts))
    finally:
        backend.close()
    return eights


def divided(prompt: str) -> tuple[str, str]:
    """Return what is before the last line of a prompt, and its last line."""
    place = prompt.rfind("\n") + 1
    return prompt[:place], prompt[place:]


def request_of(engine: Engine, parts: list[tuple[str, str, str]], temperature: float, spec: Spec) -> CompletionRequest:
    """Return a request with a direction for each alternative, at any place."""
    before, _, after = parts[0]
    shared = tuple(to_tokens(before, engine.tokenize, is_prompt=True)) if before else ()
    prompt = shared + tuple(to_tokens(after, engine.tokenize, is_prompt=False))
    max_tokens = spec.most_tokens(next(iter(spec.settings)))
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=spec.seeds[0])
    branches = [
        replace(each, direction=tuple(to_tokens(line, engine.tokenize, is_prompt=False)) if line else None)
        for each, (_, line, _) in zip(params.alternatives(len(parts)), parts, strict=True)
    ]
    return CompletionRequest((prompt,), tuple(branches), direction_at=len(shared))


def texts_of(engine: Engine, requests: Mapping[str, CompletionRequest]) -> dict[str, list[str]]:
    """Return the texts of each request."""
    keys = {each.id: key for key, each in requests.items()}
    texts = {key: [""] * each.count for key, each in requests.items()}
    for event in LLM(engine).run(*requests.values()):
        if isinstance(event, ErrorEvent):
            raise event.error
        if isinstance(event, StreamEvent):
            texts[keys[event.request_id]][event.index] += event.text
    return texts


# What is shown


def show(settings: dict[str, Setting], curves: dict[str, list[Setting]]) -> None:
    """Print a Markdown table: the measures of each setting, and its gains over the curve that its name begins with."""
    print("| setting |", " | ".join([LIKELIHOOD, *UNITS]), "|")
    print("|---" * (len(UNITS) + 2) + "|")
    for setting, values in settings.items():
        cells = []
        for name in (LIKELIHOOD, *UNITS):
            value, half = mean_with_margin(values, name)
            digits = 1 if name == "self-BLEU" else 3
            cell = f"{value:.{digits}f} ± {half:.{digits}f}"
            curve = next((each for start, each in curves.items() if setting.startswith(start)), [])
            if name != LIKELIHOOD and values not in curve:
                more, low, high = gain(curve, values, name)
                cell += f" ({more:+.{digits}f}: {low:+.{digits}f} to {high:+.{digits}f})"
            cells.append(cell)
        print(f"| {setting} |", " | ".join(cells), "|", flush=True)


def draw(path: Path, panels: int, fill: Callable[[Any], None]) -> None:
    """Write a figure with some panels, on a white ground, so that it is readable on dark pages, too."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "srb", "font.size": 8}):
        figure = Figure(figsize=(3.4 * panels, 3.0), layout="constrained")
        fill(figure.subplots(1, panels))
        figure.savefig(path, format="svg", metadata={"Date": None})


def plot(lines: dict[str, dict[str, Setting]], path: Path) -> None:
    """Plot each measure against the log-probability: a line for temperatures, and one for directions."""

    def fill(panels: Any) -> None:
        for panel, (name, title) in zip(panels, UNITS.items(), strict=True):
            for label, settings in lines.items():
                points = [[mean_with_margin(each, key) for key in (LIKELIHOOD, name)] for each in settings.values()]
                (x, dx), (y, dy) = (np.array(list(column)).T for column in zip(*points, strict=True))
                panel.errorbar(x, y, dy, dx, marker="o", markersize=3, linewidth=1, elinewidth=0.5, label=label)
                for setting, *place in zip(settings, x, y, strict=True):
                    panel.annotate(setting.split()[-1], place, fontsize=7, xytext=(3, 3), textcoords="offset points")
            panel.set(xlabel="log-probability of a token (nats)", ylabel=title)
            panel.grid(alpha=0.3)
            panel.legend(fontsize=7)

    draw(path, len(UNITS), fill)


def plot_temperature(settings: dict[str, Setting], path: Path) -> None:
    """Plot self-BLEU and conditional surprise against temperature, with the log-probability on the right."""

    def fill(panels: Any) -> None:
        temperatures = [float(setting.split()[-1]) for setting in settings]
        for panel, name in zip(panels, ("self-BLEU", "conditional surprise"), strict=True):
            likelihood = panel.twinx()
            for axis, key, color, marker in ((panel, name, "C0", "o"), (likelihood, LIKELIHOOD, "C1", "s")):
                values, halves = zip(*(mean_with_margin(each, key) for each in settings.values()), strict=True)
                axis.errorbar(temperatures, values, halves, color=color, marker=marker, markersize=3, linewidth=1)
                axis.tick_params(axis="y", colors=color)
            panel.set_xlabel("temperature")
            panel.set_xticks(temperatures)
            panel.set_ylabel(UNITS[name], color="C0")
            likelihood.set_ylabel("log-probability of a token (nats)", color="C1")
            panel.grid(alpha=0.3)

    draw(path, 2, fill)


def main() -> None:
    """Run the comparison, and print its measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--plot-temperature", type=Path)
    parser.add_argument("--wordings", nargs="*", choices=WORDINGS)
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    subprocess.run([sys.executable, "-m", "srb", "compare", str(SPEC), "--out", str(folder)], check=True)
    spec = read_spec(SPEC, Settings())
    groups: dict[tuple[str, str, int], list[Result]] = {}
    for each in read_results(folder):
        seed = max(seed for seed in spec.seeds if seed <= each.seed)
        groups.setdefault((each.setting, each.prompt, seed), []).append(each)
    eights = [eight_of(results) for results in groups.values()]
    measure = Measured(folder / "measures.jsonl")
    settings = measure(eights)
    plain = {key: each for key, each in settings.items() if key.startswith("temperature")}
    led = {key: each for key, each in settings.items() if key not in plain}
    show(settings, {"": [*plain.values()]})
    if arguments.plot:
        plot({"temperature": plain, "directions": led}, arguments.plot)
    if arguments.plot_temperature:
        plot_temperature(plain, arguments.plot_temperature)
    if arguments.wordings is not None:
        others(folder, spec, arguments.wordings or [*WORDINGS], measure, [*plain.values()])


def eight_of(results: list[Result]) -> Eight:
    """Return a group of results of `srb compare`. Their log-probabilities are those given their own prompts."""
    first = results[0]
    own = None if first.direction else fmean(each.mean_logprob or 0 for each in results if each.text)
    surprises = [each.scores["surprise"] for each in results]
    known = fmean(each for each in surprises if each is not None)
    return Eight(first.setting, first.prompt, first.prompt_text, tuple(each.text for each in results), own, known)


def others(folder: Path, spec: Spec, names: list[str], measure: Measured, curve: list[Setting]) -> None:
    """Measure other wordings, and print their measures."""
    path, temperatures = folder / "wordings.json", [0.7, 1.0, 1.3]
    known = measure(sampled(spec, ["chat, plain"], temperatures, path))
    chats = [*known.values()]
    known |= measure(sampled(spec, [each for each in names if each != "chat, plain"], [1.0], path))
    print()
    show(known, {"chat": chats, "": curve})


if __name__ == "__main__":
    main()
