"""Count the rows that could be saved if alternatives with identical tokens shared one row.

usage: python bench/overhead/same_rows.py [MODEL.gguf]

In each step, an alternative has a row for its newest token. Alternatives of one prompt with the same tokens so far
compute the same row: each samples from the same logits, with its own seed. For each kind of request, the program prints
the number of rows, and how many of them the alternatives could share. `without draft tokens` leaves out accepted draft
tokens, because these were decoded in the same batch as the token before them.

`compare` has the prompts, settings and seeds of examples/compare.toml, all alternatives of a prompt in one request.
"""

import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings, StreamEvent

ROOT = Path(__file__).parents[2]
TALES = ("Once upon a time,", "The capital of France is", "Dear Sir or Madam,", "def fibonacci(n):")
SCHEMA = """{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"},
"city": {"type": "string", "maxLength": 20}, "is_member": {"type": "boolean"}},
"required": ["name", "age", "city", "is_member"]}"""
PEOPLE = tuple(f"A {who} as a JSON object:\n" for who in ("customer of a shop", "sailor", "girl in a story", "teacher"))

Said = list[tuple[int, bool]]
"""The tokens of an alternative, each with whether it was an accepted draft token."""


def main() -> None:
    """Print a line for each kind of request."""
    with LlamaBackend(Settings(model=Path(sys.argv[1]) if sys.argv[1:] else None)) as backend:
        engine = Engine(backend)
        for name, requests in _kinds(engine):
            counts = [0] * 4
            for request in requests:
                counts = [sum(both) for both in zip(counts, _count(_run(engine, request)), strict=True)]
            rows, shared, left, left_shared = counts
            print(
                f"{name:18}{rows:6} rows, {shared / rows:4.0%} shared; "
                f"without draft tokens {left:6} rows, {left_shared / left:4.0%} shared",
                flush=True,
            )


def _kinds(engine: Engine) -> Iterator[tuple[str, list[CompletionRequest]]]:
    def of(prompts: tuple[str, ...], branches: tuple[SamplingParams, ...]) -> list[CompletionRequest]:
        return [CompletionRequest((engine.tokenize(prompt),), branches) for prompt in prompts]

    spec = tomllib.loads((ROOT / "examples/compare.toml").read_text())
    settings: list[dict[str, Any]] = list(spec["settings"].values())
    seeds = [seed + k for seed in spec["seeds"] for k in range(spec["n"])]
    compared = [SamplingParams(seed=seed, max_tokens=spec["max_tokens"], **each) for each in settings for seed in seeds]
    yield "compare", of(tuple(spec["prompts"].values()), tuple(compared))
    schema = SamplingParams(seed=1, max_tokens=100, json_schema=SCHEMA)
    yield "json_schema", of(PEOPLE, schema.alternatives(8))
    yield "temperature 0.3", of(TALES, SamplingParams(seed=1, max_tokens=64, temperature=0.3).alternatives(8))
    yield "defaults", of(TALES, SamplingParams(seed=1, max_tokens=64).alternatives(8))


def _run(engine: Engine, request: CompletionRequest) -> list[Said]:
    """Return the tokens of each alternative."""
    engine.add_request(request)
    said: dict[int, Said] = defaultdict(list)
    while engine.has_work:
        sampled: dict[int, list[int]] = defaultdict(list)
        for event in engine.step():
            if isinstance(event, StreamEvent):
                sampled[event.index] += event.sampled
        for index, tokens in sampled.items():  # the next step evaluates only the last token
            said[index] += [(token, k < len(tokens) - 1) for k, token in enumerate(tokens)]
    return list(said.values())


def _count(alternatives: list[Said]) -> list[int]:
    """Return the rows of all alternatives, and how many are shared; then both without accepted draft tokens."""
    rows = left = 0
    distinct: set[tuple[int, ...]] = set()
    left_distinct: set[tuple[int, ...]] = set()
    for said in alternatives:
        tokens = tuple(token for token, _ in said)
        for k, (_, was_drafted) in enumerate(said[:-1]):  # the last token is never decoded
            rows += 1
            distinct.add(tokens[: k + 1])
            if not was_drafted:
                left += 1
                left_distinct.add(tokens[: k + 1])
    return [rows, rows - len(distinct), left, left - len(left_distinct)]


if __name__ == "__main__":
    main()
