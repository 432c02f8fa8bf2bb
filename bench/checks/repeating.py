"""Count how often a repeated request gives the same text: alone, and while others run.

usage: python bench/checks/repeating.py [MODEL.gguf [WEIGHTS]]

10 prompts of 20 to 200 tokens are continued by 48 tokens each, with a seed. `one of four` has three more alternatives.
`after others` starts while three streams run, so that its cells follow theirs; `before others` starts before them.
"""

import sys
from pathlib import Path

from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings, StopEvent, StreamEvent

N, LENGTH = 10, 48
TEXT = "The old lighthouse keeper said that nobody had seen the ship for many years, but he still lit the lamp. "


def main() -> None:
    model = Path(sys.argv[1]) if sys.argv[1:] else None
    weights = sys.argv[2] if sys.argv[2:] else None
    for flash_attn in ("on", "off"):
        with LlamaBackend(Settings(model=model, weights=weights, flash_attn=flash_attn)) as backend:
            prompts = [Engine(backend).tokenize(f"Chapter {k}. " + TEXT * (k + 1))[: 20 * (k + 1)] for k in range(N)]
            first = [_text(Engine(backend), prompt) for prompt in prompts]
            ways = {"alone": {}, "one of four": {"n": 4}, "after others": {"before": 3}, "before others": {"after": 3}}
            for name, way in ways.items():
                again = [_text(Engine(backend), prompt, **way) for prompt in prompts]
                alike = sum(one == other for one, other in zip(first, again, strict=True))
                print(f"flash attention {flash_attn:3}, {name:13}: {alike} of {N} texts are the same", flush=True)


def _text(engine: Engine, prompt: tuple[int, ...], *, n: int = 1, before: int = 0, after: int = 0) -> str:
    """Return the first of n texts of a request. before, after: streams that start before it, and some tokens later."""
    params = SamplingParams(max_tokens=LENGTH, seed=1, ignore_eos=True)
    asked = CompletionRequest((prompt,), params.alternatives(n), id="asked")
    others = [_other(engine, k) for k in range(before)]
    while engine.stats().tokens_generated < 4 * before:
        engine.step()
    engine.add_request(asked)
    text, length = "", None
    while length is None:
        for event in engine.step():
            if event.request_id == asked.id and isinstance(event, (StreamEvent, StopEvent)) and event.index == 0:
                if isinstance(event, StopEvent):
                    length = event.length
                else:
                    text += event.text
        if engine.stats().tokens_generated >= 4 and len(others) < after:
            others += [_other(engine, k) for k in range(after)]
    for each in (*others, asked.id):
        engine.abort(each)
    while engine.has_work:
        engine.step()
    return text


def _other(engine: Engine, k: int) -> str:
    """Start a stream, and return its id."""
    prompt = engine.tokenize(f"Another story, number {k}: once upon a time")
    params = SamplingParams(max_tokens=4 * LENGTH, seed=k, ignore_eos=True)
    engine.add_request(other := CompletionRequest((prompt,), (params,)))
    return other.id


if __name__ == "__main__":
    main()
