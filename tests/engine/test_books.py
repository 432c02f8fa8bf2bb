"""After any sequence of requests, cancels and faults every cell and seq_id is back, and every event has come.

The fake backend checks along the way that positions have no gaps and that admission never promised too much.
"""

from driver import check_order, request
from fake_backend import FakeBackend
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from srb.engine.engine import Engine
from srb.engine.events import Event, StartEvent
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError


class Books(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.backend = FakeBackend(n_cells=60, n_seqs=5, n_batch=16)
        self.engine = Engine(self.backend, default_max_tokens=12)
        self.requests: list[CompletionRequest] = []
        self.events: list[Event] = []

    @rule(
        lengths=st.lists(st.integers(1, 50), min_size=1, max_size=3),
        n=st.integers(1, 5),
        max_tokens=st.sampled_from([None, -1, 0, 1, 2, 5, 20]),
        ignore_eos=st.booleans(),
        seed=st.integers(0, 100),
    )
    def add(self, lengths: list[int], n: int, max_tokens: int | None, ignore_eos: bool, seed: int) -> None:
        prompts = ["p" * length for length in lengths]
        each = request(prompts, n, max_tokens=max_tokens, ignore_eos=ignore_eos, seed=seed, stop=("\x00\x01",))
        try:
            self.engine.add_request(each)
        except InvalidRequestError:
            return
        self.requests.append(each)

    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.events += self.engine.step()

    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data: st.DataObject, whole: bool) -> None:
        if self.requests:
            each = data.draw(st.sampled_from(self.requests))
            index = None if whole else data.draw(st.integers(0, each.count - 1))
            self.engine.abort(each.id, index)

    @rule(data=st.data())
    def abort_during_a_decode(self, data: st.DataObject) -> None:
        if self.requests:
            each = data.draw(st.sampled_from(self.requests))
            self.backend.on_decode = lambda: self.engine.abort(each.id)
            self.events += self.engine.step()
            self.backend.on_decode = lambda: None

    @rule()
    def fail_the_next_decode(self) -> None:
        self.backend.fail_decodes.add(self.backend.decodes + 1)

    @invariant()
    def no_more_is_held_than_is_leased(self) -> None:
        stats = self.engine.stats()
        assert self.backend.cells <= stats.cells <= self.backend.n_cells
        assert sum(bool(cells) for cells in self.backend.sequences.values()) <= stats.sequences
        assert self.backend.open_samplers <= stats.sequences

    def teardown(self) -> None:
        for _ in range(10_000):
            if not self.engine.has_work:
                break
            self.events += self.engine.step()
        assert not self.engine.has_work, "a request starves"
        stats = self.engine.stats()
        assert (stats.sequences, stats.cells, self.backend.cells) == (0, 0, 0)
        assert (self.backend.open_samplers, self.backend.open_compiled) == (0, 0)
        started = {event.request_id for event in self.events if isinstance(event, StartEvent)}
        for each in self.requests:
            check_order(self.events, each, started=each.id in started)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
