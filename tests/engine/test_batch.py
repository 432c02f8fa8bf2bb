"""What goes into a batch, on a clock that goes by the costs: no request waits for too long."""

import dataclasses
import itertools
import random

import pytest
from driver import few, request, seeds
from fake_backend import FakeBackend

from srb.engine.backend import Batch, Costs
from srb.engine.engine import Engine
from srb.engine.events import StreamEvent
from srb.engine.request import CompletionRequest

SLOW = Costs(step=0.01, row=0.005, prompt_token=0.0035, row_cell=1e-6, prompt_cell=1e-6, in_turn=True)
FAST = Costs(step=0.01, row=0.003, prompt_token=0.0012, row_cell=1e-6, prompt_cell=1e-6, in_turn=True)
LARGE = Costs(step=0.3, row=0.05, prompt_token=0.04, row_cell=0, prompt_cell=0)
WALKS = Costs(0.015, row=0.001, prompt_token=0.001, row_cell=1e-6, prompt_cell=2e-6, in_turn=True, walks_all=True)
GPU = Costs(step=0.005, row=1e-4, prompt_token=1e-4, row_cell=0, prompt_cell=0)


class Timeline:
    """An engine on a backend whose decodes take what they cost; when each request was sent, and had its tokens."""

    def __init__(self, costs: Costs, n_parallel: int = 80, n_cells: int = 30_000) -> None:
        self.now = 0.0
        self.batches: list[tuple[int, int]] = []  # rows and tokens of prompts in each
        self.sent: dict[str, float] = {}
        self.tokens: dict[tuple[str, int], list[float]] = {}
        self.backend = FakeBackend(
            n_cells=n_cells, n_parallel=n_parallel, n_batch=512, costs=costs, script=lambda _params, _tokens: 65
        )
        decode = self.backend.decode

        def timed(batch: Batch, interrupted: object) -> bool:
            self.now += self._seconds(batch)
            return decode(batch, None)

        self.backend.decode = timed  # type: ignore[method-assign]
        self.engine = Engine(self.backend, clock=lambda: self.now)

    def _seconds(self, batch: Batch) -> float:
        costs = self.backend.costs.among(self.backend.cells if self.backend.costs.walks_all else 0)
        lengths: list[int] = []
        chunks: list[tuple[int, int]] = []
        for _, rows in itertools.groupby(range(len(batch)), key=lambda row: batch.seq_ids[row]):
            places = list(rows)
            if all(batch.logits[place] for place in places):  # a sequence, perhaps with draft tokens
                lengths += [batch.positions[place] for place in places]
            else:
                chunks.append((len(places), batch.positions[places[0]]))
        self.batches.append((len(lengths), sum(n for n, _ in chunks)))
        return costs.of_rows(lengths) + sum(of_chunk(costs, n, before) for n, before in chunks)

    def send(self, each: CompletionRequest) -> str:
        self.sent[each.id] = self.now
        self.engine.add_request(each)
        return each.id

    def step(self) -> None:
        for event in self.engine.step():
            if isinstance(event, StreamEvent):
                self.tokens.setdefault((event.request_id, event.index), []).append(self.now)

    def run(self, until: str | None = None) -> None:
        """Steps until a request has its first token; without one, until nothing is left to do."""
        while self.engine.has_work and (until, 0) not in self.tokens:
            self.step()

    def wait(self, each: str) -> float:
        """Seconds from the sending of a request to its first token."""
        return self.tokens[each, 0][0] - self.sent[each]

    @property
    def pauses(self) -> list[float]:
        """Between two tokens of an alternative, the shortest first."""
        return sorted(after - before for times in self.tokens.values() for before, after in itertools.pairwise(times))

    def stream(self, n: int) -> None:
        """Has n alternatives run for a long time."""
        self.send(request("r", n, max_tokens=200, ignore_eos=True))
        while not self.engine.stats().tokens_generated:
            self.step()


def of_chunk(costs: Costs, n_tokens: int, before: int) -> float:
    """What a chunk takes, besides the step."""
    return sum(costs.of_prompt_token(before + k) for k in range(n_tokens))


def alone(costs: Costs, *lengths: int) -> float:
    """What prompts of these lengths take, one after another, with nobody beside them."""
    chunks = (
        costs.step + of_chunk(costs, min(512, length - start), start)
        for length in lengths
        for start in range(0, length, 512)
    )
    return sum(chunks)


@pytest.mark.parametrize(
    ("costs", "n"), [(SLOW, 4), (FAST, 4), pytest.param(FAST, 32, marks=pytest.mark.nightly), (GPU, 64)]
)
def test_tokens_go_on_with_a_long_prompt_that_takes_little_longer_than_alone(costs: Costs, n: int) -> None:
    timeline = Timeline(costs)
    timeline.stream(n)
    long = timeline.send(request("p" * 6000, max_tokens=1))
    timeline.run(until=long)
    pauses = timeline.pauses
    assert pauses[len(pauses) * 99 // 100] < 0.3
    assert pauses[-1] < 0.4  # a small rest of a prompt is computed with the chunk before it
    assert timeline.wait(long) < 2.5 * alone(costs, 6000)


@pytest.mark.parametrize("costs", [SLOW, LARGE])
def test_where_rows_alone_take_longer_than_the_pause_prompts_have_half_of_the_time(costs: Costs) -> None:
    timeline = Timeline(costs)
    timeline.stream(60)
    long = timeline.send(request("p" * 600, max_tokens=1))
    timeline.run(until=long)
    assert timeline.pauses[-1] < 2.2 * costs.of_rows([200] * 60)
    assert timeline.wait(long) < 2.5 * alone(costs, 600)


def test_what_others_have_in_the_cells_counts_where_it_is_walked_through() -> None:
    timeline = Timeline(WALKS)
    timeline.stream(4)
    for letter in "abcdefgh":
        timeline.send(request(letter * 2000, max_tokens=100, ignore_eos=True))
    timeline.run()
    assert timeline.pauses[-1] < 1.0  # 3.2 where a token of a prompt counts with what is before it alone


def test_chunks_take_turns_with_the_rows_and_none_is_small() -> None:
    timeline = Timeline(FAST)
    timeline.stream(4)
    timeline.batches.clear()
    long = timeline.send(request("p" * 2000, max_tokens=1))
    timeline.run(until=long)
    chunks = [(rows, tokens) for rows, tokens in timeline.batches if tokens]
    assert all(rows == 0 for rows, _ in chunks)
    assert min(tokens for _, tokens in chunks) > 50  # no small rest is left, which would be computed in another way
    places = [k for k, batch in enumerate(timeline.batches) if batch[1]]
    assert all(after - before == 2 for before, after in itertools.pairwise(places))


def test_where_rows_are_nearly_free_a_prompt_joins_them_in_large_batches() -> None:
    timeline = Timeline(GPU)
    timeline.stream(8)
    timeline.batches.clear()
    timeline.send(request("p" * 1200, max_tokens=1))
    timeline.run()
    assert [batch for batch in timeline.batches if batch[1]] == [(8, 400)] * 3


def test_costs_of_nothing_make_large_batches() -> None:
    timeline = Timeline(Costs(step=0, row=0, prompt_token=0, row_cell=0, prompt_cell=0))
    timeline.stream(8)
    timeline.batches.clear()
    timeline.send(request("p" * 1200, max_tokens=1))
    timeline.run()
    assert [tokens for _, tokens in timeline.batches if tokens] == [400] * 3


def test_the_last_of_several_prompts_has_as_large_chunks_as_the_others() -> None:
    timeline = Timeline(FAST)
    timeline.stream(28)
    last = [timeline.send(request(letter * 500, max_tokens=1)) for letter in "pqrs"][-1]
    timeline.run(until=last)
    chunks = [tokens for _, tokens in timeline.batches[2:] if tokens]
    assert min(chunks) == max(chunks) == 500
    assert 0.3 < timeline.pauses[-1] < 1
    timeline.step()
    lone = timeline.send(request("t" * 500, max_tokens=1))
    start = len(timeline.batches)
    timeline.run(until=lone)
    assert max(tokens for _, tokens in timeline.batches[start:]) < 250


def test_endless_short_prompts_do_not_starve_a_long_one() -> None:
    timeline = Timeline(FAST)
    timeline.stream(4)
    long = timeline.send(request("p" * 6000, max_tokens=1))
    shorts = [timeline.send(request("q" + chr(k) * 90, max_tokens=1)) for k in range(2)]
    while (long, 0) not in timeline.tokens:
        if (shorts[-2], 0) in timeline.tokens:
            shorts.append(timeline.send(request("q" + chr(len(shorts) % 100) + "s" * len(shorts), max_tokens=1)))
        timeline.step()
    assert timeline.wait(long) < 2.5 * alone(FAST, 6000)
    assert len(shorts) > 20


@pytest.mark.parametrize("costs", few(FAST, GPU, many=[SLOW, LARGE]))
@pytest.mark.parametrize("seed", seeds(3, first=1))
def test_in_random_traffic_no_request_waits_much_longer_than_alone_after_the_same_work(costs: Costs, seed: int) -> None:
    rng = random.Random(seed)
    timeline = Timeline(dataclasses.replace(costs, row_cell=0, prompt_cell=0))
    timeline.stream(8)
    lengths: dict[str, int] = {}
    before: dict[str, list[int]] = {}
    for number in range(25):
        text = "".join(chr(rng.randrange(33, 127)) for _ in range(rng.choice([20, 100, 500, 1500])))
        unfinished = [each for each in lengths if (each, 0) not in timeline.tokens]
        each = timeline.send(request(f"{number} {text}", rng.choice([1, 2]), max_tokens=8))
        before[each] = [lengths[other] for other in unfinished]
        lengths[each] = len(text)
        for _ in range(rng.randrange(8)):
            timeline.step()
    timeline.run()
    slack = 2 * timeline.backend.costs.of_rows([1] * 20) + 0.3  # the batch that runs when it comes, and its own rows
    for each, length in lengths.items():
        assert timeline.wait(each) < 2.5 * alone(costs, *before[each], length) + slack


def test_small_requests_have_their_share_of_the_rows_with_a_large_one() -> None:
    timeline = Timeline(FAST, n_parallel=32)
    large = timeline.send(request("a long story", 32, max_tokens=60, ignore_eos=True))
    while not timeline.tokens:
        timeline.step()
    step = FAST.of_rows([50] * 32)
    small = [timeline.send(request(f"question {k}", max_tokens=40, ignore_eos=True)) for k in range(4)]
    timeline.run()
    assert max(map(timeline.wait, small)) < 3 * step
    assert max(rows for rows, _ in timeline.batches) == 32
    for each in small:
        times = timeline.tokens[each, 0]
        assert times[-1] - times[0] < 40 * step  # it has a row in each step
    ends = [timeline.tokens[large, k][-1] for k in range(32)]
    assert max(ends) - timeline.sent[large] < (60 * 32 + 4 * 40) / 32 * 1.1 * step  # no row is left empty meanwhile
    assert max(ends) - min(ends) < 3 * step  # its alternatives come equally far


def test_a_request_that_runs_in_part_leaves_others_their_share() -> None:
    timeline = Timeline(FAST, n_parallel=8)
    large = timeline.send(request("a long story", 40, max_tokens=100, ignore_eos=True))
    while timeline.now < 10:
        timeline.step()
    small = timeline.send(request("a question", max_tokens=20, ignore_eos=True))
    timeline.run()
    assert timeline.wait(small) < 3 * FAST.of_rows([100] * 8)
    assert max(timeline.pauses) < 3 * FAST.of_rows([100] * 8)
    assert len([index for each, index in timeline.tokens if each == large]) == 40


def test_a_request_that_runs_in_part_lets_others_have_what_its_siblings_can_not_use() -> None:
    timeline = Timeline(FAST, n_cells=800)
    large = timeline.send(request("a long story", 8, max_tokens=360, ignore_eos=True))  # two at a time, 5 s each
    while timeline.now < 2.4:
        timeline.step()
    small = timeline.send(request("a question", max_tokens=20, ignore_eos=True))
    timeline.run()
    assert timeline.wait(small) < 0.1  # 16 s if it waits until the last two have begun
    assert len([index for each, index in timeline.tokens if each == large]) == 8


def test_siblings_take_turns_with_the_requests_that_came_after_them() -> None:
    timeline = Timeline(FAST, n_cells=800)
    large = timeline.send(request("a long story", 8, max_tokens=360, ignore_eos=True))
    while timeline.now < 2.4:
        timeline.step()
    middle = timeline.send(request("m" * 240, max_tokens=20, ignore_eos=True))
    too_large = timeline.send(request("t" * 770, max_tokens=20, ignore_eos=True))  # doesn't fit beside the story
    timeline.run()
    assert timeline.wait(middle) < 2 * 6  # the second two come before it; 22 s if all do
    firsts = [times[0] for (each, _), times in timeline.tokens.items() if each == large]
    assert len(firsts) == 8
    assert timeline.tokens[too_large, 0][0] > max(firsts)


def test_joint_alternatives_have_their_rows_in_the_same_steps() -> None:
    timeline = Timeline(FAST, n_parallel=8)
    joint = timeline.send(request("a story", 8, max_tokens=50, ignore_eos=True, diversity=1.0))
    timeline.send(request("another one", 8, max_tokens=50, ignore_eos=True))
    timeline.run()
    assert len({tuple(times) for (each, _), times in timeline.tokens.items() if each == joint}) == 1
