"""The simplest way to avoid banned strings, for comparison: each step looks at the whole text again."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from driver import texts

from srb.engine.events import Event
from srb.engine.sampling_params import SamplingParams

SamplingInput = Callable[[tuple[int, ...], Collection[int]], int]
"""Returns the next token after the generated ones, but none of the tokens in the second argument."""


def loved(most: int, events: list[Event]) -> tuple[str, ...]:
    """The groups of three characters that come most often, so many of them at most."""
    counts = Counter(text[k : k + 3] for text in texts(events).values() for k in range(len(text) - 2))
    return tuple(text for text, _ in counts.most_common(most))


Notes = dict[tuple[int, ...], tuple[Any, dict[int, float]]]
"""After each prefix, the logits that its last token was sampled from, and what was added to them."""


class Noting:
    """A sampler that takes notes."""

    def __init__(self, sampler: Any, seen: tuple[int, ...], notes: Notes) -> None:
        self._sampler, self._seen, self._notes = sampler, seen, notes
        self.logprobs, self.forced, self.close = sampler.logprobs, sampler.forced, sampler.close
        self.hold = sampler.hold

    def go_back(self, n_tokens: int) -> None:
        self._sampler.go_back(n_tokens)
        self._seen = self._seen[:-n_tokens]

    def sample(self, logits: Any, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        token: int = self._sampler.sample(logits, excluded, biases)
        self._notes[self._seen] = logits.copy(), dict(biases or {})
        self._seen = (*self._seen, token)
        return token


def noted(backend: Any, patch: pytest.MonkeyPatch) -> dict[int, Notes]:
    """Lets a backend make samplers that take notes. Returns the notes, by seed."""
    notes: dict[int, Notes] = {}
    sampler = backend.sampler

    def make(params: SamplingParams, compiled: Any, prompt: Any, resumed_tokens: tuple[int, ...], healed: bytes) -> Any:
        made = sampler(params, compiled, prompt, resumed_tokens, healed)
        return Noting(made, resumed_tokens, notes.setdefault(params.seed, {}))

    patch.setattr(backend, "sampler", make)
    return notes


def lower(text: str) -> str:
    return "".join(char.lower()[0] for char in text)


def has(text: str, phrase: str) -> bool:
    return lower(phrase[4:]) in lower(text) if phrase.startswith("(?i)") else phrase in text


def refusing(draw: SamplingInput, params: SamplingParams, end: int) -> tuple[str, list[int], str | None]:
    """The text, tokens and stop reason of an alternative. Each token is one character."""
    tokens: list[int] = []
    n_said = 0
    refused: dict[tuple[int, ...], set[int]] = {}  # by the tokens before them
    while True:
        token = draw(tuple(tokens), refused.get(tuple(tokens), ()))
        tokens.append(token)
        text = bytes(tokens[:-1] if token == end else tokens).decode()
        if token == end:
            return text, tokens, None
        ends = [len(each.removeprefix("(?i)")) for each in params.banned_strings]
        found = [
            n for each, n in zip(params.banned_strings, ends, strict=True) if len(text) >= n and has(text[-n:], each)
        ]
        stop = next((each for each in sorted(params.stop, key=len, reverse=True) if text.endswith(each)), None)
        if found:
            place = max(n_said, len(text) - max(found))
            tokens = tokens[:place]
            refused.setdefault(tuple(tokens), set()).add(ord(text[place]))
            continue
        resumed_tokens = [
            k
            for each in params.banned_strings
            for k in range(1, len(each.removeprefix("(?i)")))
            if has(text[-k:], each[: k + len(each) - len(each.removeprefix("(?i)"))]) and k <= len(text)
        ]
        n_said = max(n_said, len(text) - max(resumed_tokens, default=0))
        if stop or len(tokens) == params.max_tokens:
            return text.removesuffix(stop or ""), tokens, stop
