"""Measure what `heal` does to a prompt that ends with a space.

usage: python bench/texts/healing.py [MODEL.gguf]

The program samples 2,000 first tokens of each prompt, with all samplers off: without the space, with the space, and
with the space and `heal`. It prints how many of them begin with a digit. It also compares the healed tokens with the
model's probabilities after the prompt without its space, over all tokens that begin with a space, and prints the
chi-square statistic. z is this statistic as a deviation of the normal distribution (Wilson and Hilferty): from -3 to 3
is chance.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings, StreamEvent
from srb.engine.backend import Batch

PROMPTS = (
    "She opened the door and saw",
    "The old lighthouse keeper said",
    "Once upon a time there was",
    "In the middle of the garden stood",
)
N = 2000


def first_tokens(engine: Engine, prompt: str, *, heal: bool) -> list[int]:
    """Return the first tokens of N alternatives."""
    branches = SamplingParams(samplers=(), temperature=1.0, max_tokens=1, seed=0).alternatives(N)
    engine.add_request(CompletionRequest((engine.tokenize(prompt),), branches, heal=heal, return_tokens=True))
    tokens = []
    while engine.has_work:
        tokens += [event.sampled[0] for event in engine.step() if isinstance(event, StreamEvent)]
    return tokens


def z_of(backend: LlamaBackend, tokens: list[int], prompt: str) -> tuple[float, int, float]:
    """Return the chi-square statistic of these tokens, its degrees of freedom, and z."""
    batch = Batch()
    row = batch.add(backend.tokenizer.tokenize(prompt), 0, 0, outputs=1)
    backend.decode(batch, None)
    ids = backend.tokenizer.beginning_with(b" ")
    logits = backend.logits(row)[ids].astype(np.float64)
    backend.remove(0)
    expected = np.exp(logits - logits.max())
    expected *= len(tokens) / expected.sum()
    counts = Counter(tokens)
    observed = np.array([counts[token] for token in ids])
    rare = expected < 10
    expected = np.append(expected[~rare], expected[rare].sum())
    observed = np.append(observed[~rare], observed[rare].sum())
    chi2, df = float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1
    return chi2, df, ((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / (2 / (9 * df)) ** 0.5


def main() -> None:
    """Print the table."""
    with LlamaBackend(Settings(model=Path(sys.argv[1]) if len(sys.argv) > 1 else None, ctx_size=4096)) as backend:
        engine = Engine(backend)

        def digits(tokens: list[int]) -> str:
            n = sum(backend.tokenizer.piece(token).strip()[:1].isdigit() for token in tokens)
            return f"{n / len(tokens):.1%}"

        print(f"{backend.path.name}\n")
        print("| prompt | digits without the space | with it | with it, healed | chi-square (df) | z |")
        print("|---|---|---|---|---|---|")
        for prompt in PROMPTS:
            plain = first_tokens(engine, prompt, heal=False)
            spoilt = first_tokens(engine, prompt + " ", heal=False)
            healed = first_tokens(engine, prompt + " ", heal=True)
            chi2, df, z = z_of(backend, healed, prompt)
            shares = " | ".join(map(digits, (plain, spoilt, healed)))
            print(f"| {prompt} | {shares} | {chi2:.1f} ({df}) | {z:+.1f} |", flush=True)


if __name__ == "__main__":
    main()
