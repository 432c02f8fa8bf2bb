"""Diversity: siblings' tokens after the same tokens become less probable, in whatever order they are sampled."""

import dataclasses
from collections.abc import Collection, Mapping

import pytest
from driver import run, texts
from fake_backend import END, Context, FakeBackend, FakeSampler
from hypothesis import given
from hypothesis import strategies as st

from srb.engine.constraints.diversity import CONTEXT, Diversity
from srb.engine.engine import Engine
from srb.engine.events import Event, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.resume import resume
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError

LETTERS = b"abc"


class ScoringSampler(FakeSampler):
    """Samples the letter with the highest score, and stores the biases that the engine adds to the scores."""

    def sample(self, logits: Context, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        assert isinstance(self.backend, ScoringBackend)
        self.backend.biases[self.params.seed, tuple(logits)] = dict(biases or {})
        first = self.backend.script(self.params, logits)
        added = biases or {}
        order = [first, *(letter for letter in LETTERS if letter != first)]
        token = max(order, key=lambda letter: added.get(letter, 0))  # the first of the highest ones
        self.seen.append(token)
        return token


@dataclasses.dataclass
class ScoringBackend(FakeBackend):
    biases: dict[tuple[int, tuple[int, ...]], dict[int, float]] = dataclasses.field(default_factory=dict)

    sampler_type = ScoringSampler


def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
    """Each alternative would say the same, but for what it begins with."""
    return LETTERS[(params.seed + len(tokens)) % 3] if len(tokens) == 3 else LETTERS[len(tokens) % 3]


def expected(said: dict[int, list[int]], own: int, strength: float) -> dict[int, float]:
    """Count the penalties without an index. said: the prompt's tokens and its own, of each alternative."""
    counts: dict[int, float] = {}
    for index, tokens in said.items():
        after = {tokens[k] for k in range(3, len(tokens)) if tokens[k - CONTEXT : k] == said[own][-CONTEXT:]}
        for token in after if index != own else ():
            counts[token] = counts.get(token, 0) - strength
    return counts


@given(
    strengths=st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=1, max_size=5),
    starts=st.lists(st.integers(0, 2), min_size=5, max_size=5),
)
def test_what_siblings_said_before_the_step_is_counted(strengths: list[float], starts: list[int]) -> None:
    branches = tuple(
        SamplingParams(seed=start + 3 * k, diversity=strength, max_tokens=12)
        for k, (strength, start) in enumerate(zip(strengths, starts, strict=False))
    )
    engine = Engine(backend := ScoringBackend(script=script))
    events = run(engine, CompletionRequest(((112, 97, 98),), branches))
    final = {index: [112, 97, 98, *text.encode()] for index, text in texts(events).items()}
    for length in range(12):  # all alternatives have the same length at a step
        said = {index: tokens[: 3 + length] for index, tokens in final.items()}
        for index, params in enumerate(branches):
            biases = backend.biases[params.seed, tuple(said[index])]
            assert biases == (expected(said, index, params.diversity) if params.diversity else {})


def test_a_sibling_counts_once_however_often_it_says_the_same() -> None:
    diversity = Diversity((1, 2, 3))
    said = [5, 6, 7, 8] * 3
    diversity.add(0, said)
    diversity.add(300, said[:4])
    assert diversity.counts(1, (6, 7)) == {8: 2}
    assert diversity.counts(0, (6, 7)) == {8: 1}
    assert diversity.counts(1, (2, 3)) == {5: 2}
    assert diversity.counts(1, (7, 6)) == {}


def test_tokens_that_may_be_taken_back_are_not_counted() -> None:
    """One has "xca", which will be dropped, when the other one has "xc"."""
    said = {0: b"xxcat", 1: b"xxxc"}

    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        text = said[params.seed]
        return text[len(tokens) - 1] if len(tokens) - 1 < len(text) else END

    branches = tuple(SamplingParams(seed=k, diversity=1, banned_strings=("cat",), max_tokens=8) for k in (0, 1))
    backend = Recording(script=script)
    run(Engine(backend), CompletionRequest(((112,),), branches))
    added = {token for biases in backend.seen for token, bias in biases.items() if bias > -float("inf")}
    assert ord("x") in added
    assert ord("a") not in added


class RecordingSampler(FakeSampler):
    def sample(self, logits: Context, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        assert isinstance(self.backend, Recording)
        self.backend.seen.append(dict(biases or {}))
        bans = {token: bias for token, bias in (biases or {}).items() if bias == -float("inf")}
        return super().sample(logits, excluded, bans)


@dataclasses.dataclass
class Recording(FakeBackend):
    seen: list[dict[int, float]] = dataclasses.field(default_factory=list)
    sampler_type = RecordingSampler


def test_those_that_go_on_after_an_interruption_know_what_all_have_said() -> None:
    branches = SamplingParams(seed=0, diversity=1, max_tokens=9).alternatives(3)
    branches = (*branches[:2], dataclasses.replace(branches[2], max_tokens=3))  # one ends early
    each = CompletionRequest(((112, 113),), branches)
    whole = run(Engine(ScoringBackend(script=script)), each)
    engine = Engine(ScoringBackend(script=script))
    engine.add_request(each)
    events: list[Event] = []
    while sum(isinstance(event, StreamEvent) for event in events) < 15:
        events += engine.step()
    rest = resume(each, events)
    assert rest
    events += run(Engine(ScoringBackend(script=script)), rest)
    assert texts(events) == texts(whole)


def test_the_limits() -> None:
    SamplingParams(diversity=10)
    for diversity in (-0.1, 10.1):
        with pytest.raises(InvalidRequestError, match="diversity must be from 0 to 10"):
            SamplingParams(diversity=diversity)
