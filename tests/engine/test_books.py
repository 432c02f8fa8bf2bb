"""After any sequence of requests, cancels and faults every cell and seq_id is back, and every event has come.

The fake backend checks along the way that positions have no gaps and that admission never promised too much. It draws
tokens from all that a sequence's cells hold, so a cell that is shared by mistake shows in the text.
"""

import dataclasses

from driver import check_order, request, run, stops, texts
from fake_backend import FakeBackend, FakeReader
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from mixed import ASCII, BANNED, COSTS, TEXTS, ascii_babble

from srb.engine.asking.request import CompletionRequest
from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.costs import Costs
from srb.engine.engine import Engine
from srb.engine.prompts.media import PromptPart
from srb.engine.telling.events import Event, StartEvent
from srb.errors import InvalidRequestError


class Books(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[CompletionRequest] = []
        self.events: list[Event] = []
        self.now = 0.0

    @initialize(
        window=st.sampled_from([None, None, 0, 1, 5, 20]),
        max_seqs=st.sampled_from([6, 8]),
        cache_bytes=st.sampled_from([0, 600, 5000]),
        chunk=st.integers(0, 3),
        costs=st.sampled_from(COSTS),
    )
    def start(self, window: int | None, max_seqs: int, cache_bytes: int, chunk: int, costs: Costs) -> None:
        self.backend = FakeBackend(
            n_cells=60, n_parallel=4, n_batch=16, window=window, max_seqs=max_seqs, script=ascii_babble, costs=costs
        )
        self.backend.media = FakeReader()
        self.backend.shifts = True
        self.engine = Engine(
            self.backend,
            default_max_tokens=12,
            prefill_chunk=chunk,
            cache_bytes=cache_bytes,
            clock=lambda: self.now,
        )

    @rule(
        prompts=st.lists(st.tuples(st.sampled_from(TEXTS), st.integers(1, 50)), min_size=1, max_size=3),
        n=st.integers(1, 6),
        max_tokens=st.sampled_from([None, -1, 0, 1, 2, 5, 20]),
        longer=st.sampled_from([None, None, (200, 0, 0), (100, 7, 0), (100, -1, 3), (300, 2, 40)]),
        ignore_eos=st.booleans(),
        seed=st.integers(0, 100),
        banned=st.sampled_from([(), (), BANNED]),
        avoid=st.sampled_from([None, None, (), ("ab",)]),
        diversity=st.sampled_from([0.0, 0.0, 1.0]),
        search=st.sampled_from(["sample", "sample", "beam", "stochastic_beam"]),
        scale=st.sampled_from([1.0, 1.0, 2.0]),
        negative=st.sampled_from([None, tuple(b"p" * 10), tuple(b"n" * 20)]),
    )
    def add(
        self,
        prompts: list[tuple[str, int]],
        n: int,
        max_tokens: int | None,
        longer: tuple[int, int, int] | None,
        ignore_eos: bool,
        seed: int,
        banned: tuple[str, ...],
        avoid: tuple[str, ...] | None,
        diversity: float,
        search: str,
        scale: float,
        negative: tuple[int, ...] | None,
    ) -> None:
        if longer:  # than the context
            most, n_keep, n_discard = longer
            each = request(prompts[0][0][: prompts[0][1]] * 3, n, max_tokens=most, ignore_eos=ignore_eos, seed=seed)
            self.submit(dataclasses.replace(each, context_shift=True, n_keep=n_keep, n_discard=n_discard))
            return
        is_search = search != "sample"
        each = request(
            [text[:length] for text, length in prompts],
            n,
            max_tokens=None if is_search and max_tokens == -1 else max_tokens,
            ignore_eos=ignore_eos,
            seed=seed,
            stop=("\x00\x01",),
            # On a model that forgets, what is held from the beginning on is evaluated again each time: too often here.
            banned_strings=() if is_search or (self.backend.window is not None and avoid is not None) else banned,
            avoid=None if is_search else avoid,
            diversity=0.0 if is_search else diversity,
            guidance_scale=1.0 if is_search else scale,
            negative_prompt=None if is_search else negative,
            logit_bias=ASCII if is_search else (),
        )
        self.submit(dataclasses.replace(each, search=search))

    @rule(data=st.data(), seed=st.integers(0, 3), length=st.integers(1, 50), line=st.sampled_from(["", "line"]))
    def go_on(self, data: st.DataObject, seed: int, length: int, line: str) -> None:
        """A request that continues what another has generated, or a part of it."""
        if self.requests and not (each := data.draw(st.sampled_from(self.requests))).media:
            own = [event for event in self.events if event.request_id == each.id]
            text = bytes(each.token_ids[0]).decode() + texts(own).get(0, "")
            self.submit(request(text[:length] + line, 2, max_tokens=5, seed=seed))

    @rule(length=st.integers(0, 20), n=st.integers(1, 4), sizes=st.lists(st.integers(1, 15), min_size=1, max_size=3))
    def look(self, length: int, n: int, sizes: list[int]) -> None:
        """A request with images of some sizes."""
        parts: list[PromptPart] = [TEXTS[0][:length], *(b"i" * size for size in sizes), "?"]
        try:
            tokens, media = self.engine.tokenize_parts(parts)
        except InvalidRequestError:  # they don't fit into the context
            return
        branches = SamplingParams(max_tokens=4, seed=0).alternatives(n)
        self.submit(CompletionRequest((tokens,), branches, media=media))

    def submit(self, each: CompletionRequest) -> None:
        try:
            self.engine.add_request(each)
        except InvalidRequestError:
            return
        self.requests.append(each)

    @rule(steps=st.integers(1, 8), seconds=st.sampled_from([0.01, 3.0]))
    def step(self, steps: int, seconds: float) -> None:
        for _ in range(steps):
            self.now += seconds
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

    @rule(times=st.integers(1, 2))
    def fail_the_next_decode(self, times: int) -> None:
        self.backend.fail_decodes |= {self.backend.decodes + 1, self.backend.decodes + times}

    @invariant()
    def no_more_is_held_than_is_leased(self) -> None:
        stats = self.engine.stats()
        assert self.backend.cells <= stats.cells <= self.backend.n_cells
        seqs_each = 2 if self.backend.window is None else 3  # the prompt's, its own, and what it goes back to
        # A prompt and its companion outlast their sequences by a step when the last of these waits and is aborted.
        assert sum(bool(cells) for cells in self.backend.sequences.values()) <= seqs_each * stats.sequences + 2
        assert self.backend.open_samplers <= stats.sequences <= self.backend.n_seqs
        assert stats.retained_bytes <= stats.max_retained_bytes

    def teardown(self) -> None:
        for _ in range(10_000):
            if not self.engine.has_work:
                break
            self.now += 0.01
            self.events += self.engine.step()
        assert not self.engine.has_work, "a request starves"
        stats = self.engine.stats()
        assert (stats.sequences, stats.cells, self.backend.cells) == (0, 0, 0)
        assert (self.backend.open_samplers, self.backend.open_compiled) == (0, 0)
        started = {event.request_id for event in self.events if isinstance(event, StartEvent)}
        for each in self.requests:
            own = [event for event in self.events if event.request_id == each.id]
            check_order(own, each, started=each.id in started)
            if not each.is_joint:  # what such alternatives say depends on who runs at the same time
                self.check_texts(own, each)

    def check_texts(self, events: list[Event], each: CompletionRequest) -> None:
        """The texts are those that the request gives alone, as far as they got."""
        if each.n_beams and each.branches[0].max_tokens is None:
            return  # a search that has less room may come to other texts
        if any(stop.truncated for stop in stops(events).values()):
            return  # what is left out depends on the room
        backend = FakeBackend(n_cells=1000, n_parallel=36, script=ascii_babble, media=FakeReader())
        alone = run(Engine(backend, default_max_tokens=12), each)
        expected, ends, said = texts(alone), stops(alone), texts(events)
        n_held = 1 if each.branches[0].banned_strings else 0  # what is held back is said at an end
        for index, stop in stops(events).items():
            if stop.finish_reason == "stop" and ends[index].finish_reason == "stop":
                assert (said.get(index), stop) == (expected.get(index), ends[index])
            else:
                text = said.get(index, "")
                assert expected.get(index, "").startswith(text[: max(0, len(text) - n_held)])


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
