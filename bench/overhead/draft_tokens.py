"""Measure what speculative decoding saves: the time of three texts with draft tokens and without.

usage: python bench/overhead/draft_tokens.py [MODEL [N [DRAFT]]]

MODEL and DRAFT are model files; - is the default model, and `wide` a wider one, which is generated
(serving/models.py). With a DRAFT model, each text is also written with it.

`json` is an object with 12 names, `rewriting` a passage with another name in it, and `story` a text without
repetitions. Each is written five times with each proposer, in turn, and the fastest of the five counts, because other
programs can only slow it down.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "serving"))

from models import WIDE, random_model

from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings
from srb.engine.events import DoneEvent, StreamEvent
from srb.llama.model.model_file import find_model

REPEATS = 5
MAX_DRAFT_TOKENS = 16

NAMES = "first_name last_name email_address street_address city_name country_code preferred_language date_of_birth"
NUMBERS = "number_of_children account_balance"
FLAGS = "is_active_member has_newsletter_subscription"
FIELDS: dict[str, Any] = {
    **{name: {"type": "string", "maxLength": 12} for name in NAMES.split()},
    **{name: {"type": "integer", "minimum": 0, "maximum": 9999} for name in NUMBERS.split()},
    **{name: {"type": "boolean"} for name in FLAGS.split()},
}
SCHEMA = json.dumps({"type": "object", "properties": FIELDS, "required": list(FIELDS)})

PASSAGE = (
    "Anna Keller lived in a small house by the harbour. Every morning Anna walked down to the quay, bought two rolls "
    "and a newspaper, and sat on the same bench until the ferry came in. The captain, an old man with a white beard, "
    "greeted Anna by her name and asked whether she had finished her book. Anna always said that she had not, because "
    "she wanted him to ask again. In the evening, when the lamps were lit, Anna went home and cooked a soup of leeks."
)

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "json": (
        f"A customer of a shop as a JSON object with {', '.join(FIELDS)}:\n",
        {"json_schema": SCHEMA, "max_tokens": 300},
    ),
    "rewriting": (
        f"This is the text:\n\n{PASSAGE}\n\nThis is the same text, with the name Maria in place of Anna:\n\nMaria",
        {"temperature": 0.0, "max_tokens": 110},
    ),
    "story": ("Once upon a time, in a village near the sea,", {"ignore_eos": True, "max_tokens": 110}),
}


def main() -> None:
    """Print a line for each task and proposer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=_file, default="-")
    parser.add_argument("n", nargs="?", type=int, default=1)
    parser.add_argument("draft", nargs="?", type=_file)
    given = parser.parse_args()
    with LlamaBackend(Settings(model=given.model, model_draft=given.draft)) as backend:
        engine, drafter = Engine(backend), backend.drafter
        proposers = {"without": (0, None), "n-gram": (MAX_DRAFT_TOKENS, None)} | (
            {"draft": (MAX_DRAFT_TOKENS, drafter)} if drafter else {}
        )
        for name, (prompt, options) in TASKS.items():
            branches = SamplingParams(seed=1, **options).alternatives(given.n)
            request = CompletionRequest((engine.tokenize(prompt),), branches, cache_prompt=False)
            runs: dict[str, list[tuple[list[float], DoneEvent]]] = {proposer: [] for proposer in proposers}
            for _ in range(REPEATS):
                for proposer, found in runs.items():
                    backend.draft_max, backend.drafter = proposers[proposer]
                    found.append(_run(engine, request))
            for proposer, found in runs.items():
                print(name.ljust(10), proposer.ljust(8), _line(found), flush=True)


def _file(name: str) -> Path:
    return find_model(None) if name == "-" else random_model(WIDE) if name == WIDE else Path(name)


def _run(engine: Engine, request: CompletionRequest) -> tuple[list[float], DoneEvent]:
    """Return the seconds of each step after the one with the first text, and the last event."""
    engine.add_request(request)
    seconds: list[float] = []
    has_started = False
    while True:
        start = time.perf_counter()
        events = engine.step()
        if has_started:
            seconds.append(time.perf_counter() - start)
        has_started |= any(isinstance(event, StreamEvent) for event in events)
        if events and isinstance(events[-1], DoneEvent):
            return seconds, events[-1]


def _line(found: list[tuple[list[float], DoneEvent]]) -> str:
    steps, done = min(found, key=lambda run: sum(run[0]))
    n_tokens, timings = done.usage.completion_tokens, done.timings
    accepted = f", {timings.n_accepted} of {timings.n_drafted} draft tokens accepted" if timings.n_drafted else ""
    return f"{n_tokens} tokens in {len(steps)} steps, {n_tokens / sum(steps):.1f} a second{accepted}"


if __name__ == "__main__":
    main()
