"""Measure the cost of banned strings: a text of 2,000 tokens with up to 50 rewinds, and one without.

usage: python bench/overhead/banned_strings.py [MODEL.gguf [REPEATS [KIND...]]]    (- is the default model)

Both texts are written REPEATS times (3), alternating, always with the same tokens in each step. The minimum time of
each step counts, because other programs disturb it least. For each kind of sampling, the program prints the time of
both texts, and the rows and the time of a rewind.
"""

import sys
import time
from pathlib import Path
from typing import Any

from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings
from srb.engine.events import StopEvent

N_TOKENS = 2000
PROMPT = "This is the story of a girl who lived by the sea, and of her brother, who was a fisherman.\n\n"
PHRASES = (" the", " and", " a", " to", " of", " in")
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "xtc": {"xtc_probability": 0.5},
    "mirostat": {"mirostat": 2},
    "dry": {"dry_multiplier": 0.8, "dry_penalty_last_n": -1},
}


def main() -> None:
    """Print a line for each kind of sampling."""
    model = Path(sys.argv[1]) if sys.argv[1:] and sys.argv[1] != "-" else None
    repeats = int(sys.argv[2]) if sys.argv[2:] else 3
    with LlamaBackend(Settings(model=model, draft_max=0)) as backend:
        engine = Engine(backend)
        for name in sys.argv[3:] or KINDS:
            runs: dict[tuple[str, ...], list[tuple[list[float], StopEvent]]] = {(): [], PHRASES: []}
            for _ in range(repeats):
                for phrases, found in runs.items():
                    found.append(_run(engine, banned_strings=phrases, **KINDS[name]))
            plain, rewinding = (
                [min(each) for each in zip(*(seconds for seconds, _ in runs[of]), strict=True)] for of in runs
            )
            stop = runs[PHRASES][0][1]
            more = sum(rewinding) - sum(plain)
            print(
                f"{name:10}{sum(plain):6.2f} s, with {stop.rewinds} rewinds {sum(rewinding):6.2f} s "
                f"({more / sum(plain):+.1%}); {stop.rewound_tokens} tokens taken back, "
                f"{len(rewinding)} steps, not {len(plain)}; "
                f"{more / stop.rewinds * 1000 if stop.rewinds else 0:.1f} ms a rewind",
                flush=True,
            )


def _run(engine: Engine, **options: Any) -> tuple[list[float], StopEvent]:
    """Return the seconds of each step, and the end of the text."""
    params = SamplingParams(seed=1, max_tokens=N_TOKENS, ignore_eos=True, **options)
    engine.add_request(CompletionRequest((engine.tokenize(PROMPT),), (params,), cache_prompt=False))
    seconds: list[float] = []
    stop = None
    while engine.has_work:
        start = time.perf_counter()
        events = engine.step()
        seconds.append(time.perf_counter() - start)
        stop = next((event for event in events if isinstance(event, StopEvent)), stop)
    assert stop
    return seconds, stop


if __name__ == "__main__":
    main()
