"""A request that was interrupted anywhere goes on as if it hadn't been."""

from typing import Any

import pytest
from driver import check_order, run, stops, texts, tokens_of
from fake_backend import FakeBackend
from hypothesis import given
from hypothesis import strategies as st
from memory_store import MemoryStore, StoredEntry

from srb.engine.backend import State
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event, StreamEvent
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.resume import resume
from srb.engine.sampling_params import SamplingParams
from srb.errors import ContextSizeError, InvalidRequestError


def steps(engine: Engine, request: CompletionRequest) -> list[list[Event]]:
    """Return the events of each step, to the end."""
    engine.add_request(request)
    said = []
    while engine.has_work:
        said.append(engine.step())
    return said


def begins(events: list[Event], whole: list[Event]) -> None:
    """Checks the texts, the tokens and how each alternative ended."""
    assert texts(events) == texts(whole)
    assert stops(events) == stops(whole)
    for index in texts(whole):
        ours, theirs = (
            [event for event in each if isinstance(event, StreamEvent) and event.index == index]
            for each in (events, whole)
        )
        assert tokens_of(events, index) == tokens_of(whole, index)
        assert [event.token for event in ours] == [event.token for event in theirs]


@given(
    prompts=st.lists(st.sampled_from(["p" * 20, "p" * 20 + "q", "r"]), min_size=1, max_size=2),
    n=st.integers(1, 4),
    stop=st.sampled_from([(), ("ab",), ("a", "\x00\x01")]),
    max_tokens=st.integers(0, 25),
    distinct=st.booleans(),
    echo=st.booleans(),
    logprobs=st.sampled_from([None, None, 0, 2]),
    window=st.sampled_from([None, 0, 5]),
    lasts=st.booleans(),
    cuts=st.lists(st.integers(0, 40), min_size=1, max_size=3),
)
def test_it_says_what_it_would_have_said(
    prompts: list[str],
    n: int,
    stop: tuple[str, ...],
    max_tokens: int,
    distinct: bool,
    echo: bool,
    logprobs: int | None,
    window: int | None,
    lasts: bool,
    cuts: list[int],
) -> None:
    request = CompletionRequest(
        tuple(tuple(text.encode()) for text in prompts),
        SamplingParams(seed=0, stop=stop, max_tokens=max_tokens).alternatives(n),
        distinct=distinct,
        echo=echo,
        logprobs=logprobs,
    )

    stored: dict[str, StoredEntry] = {}

    def engine(backend: FakeBackend | None = None) -> Engine:
        backend = backend or FakeBackend(n_cells=300, window=window)
        store = MemoryStore(stored) if lasts else None
        return Engine(backend, cache_bytes=0 if lasts else 5000, store=store, clock=lambda: 0.0)

    whole = [event for said in steps(engine(), request) for event in said]
    events: list[Event] = []
    living: CompletionRequest | None = request
    for cut in cuts:  # the number of steps of each engine
        assert living
        events += [event for step in steps(engine(), living)[:cut] for event in step]
        try:
            living = resume(request, events)
        except InvalidRequestError:
            return  # its prompt was being scored
        if living is None:
            break
    if living:
        backend = FakeBackend(n_cells=300, window=window)
        rest = run(last := engine(backend), living)
        events += rest
        check_order(events, request, is_resumed=True)
        assert (last.stats().cells, backend.cells, backend.open_samplers, backend.open_compiled) == (0, 0, 0, 0)
        done, undisturbed = events[-1], whole[-1]
        assert isinstance(done, DoneEvent)
        assert isinstance(undisturbed, DoneEvent)
        assert done.usage.completion_tokens == undisturbed.usage.completion_tokens
        assert done.usage.prompt_tokens == undisturbed.usage.prompt_tokens
    begins(events, whole)


def test_a_prompt_that_is_still_being_scored_is_not_lost_when_another_one_has_tokens() -> None:
    request = CompletionRequest(
        (tuple(b"p" * 20), tuple(b"r")),
        SamplingParams(seed=0, max_tokens=1).alternatives(1),
        echo=True,
        logprobs=0,
    )
    said = steps(Engine(FakeBackend(n_cells=300)), request)
    before = next(k for k, events in enumerate(said) if any(getattr(each, "sampled", ()) for each in events))
    events = [event for step in said[: before + 1] for event in step]
    assert 0 not in texts(events)
    with pytest.raises(InvalidRequestError) as raised:
        resume(request, events)
    assert raised.value.param == "echo"


def test_all_begin_at_once_although_each_is_a_prompt_of_its_own() -> None:
    branches = SamplingParams(seed=0, ignore_eos=True, max_tokens=20).alternatives(8)
    resumed = tuple(Resumed(tuple([k] * 10)) for k in range(8))
    # 100 + 8 * 19 cells, and not 8 * 119
    engine = Engine(FakeBackend(n_cells=260))
    engine.add_request(CompletionRequest((tuple(b"p" * 100),), branches, resumed=resumed))
    engine.step()
    assert engine.stats().sequences == 8
    assert engine.stats().cells <= 260
    run(engine)
    assert engine.stats().prompt_tokens_evaluated == 100 + 8 * 10


@pytest.mark.parametrize("n_cached", [0, 40], ids=["whole", "in-two-pieces"])
def test_a_cached_prompt_is_restored_once_and_shared(n_cached: int) -> None:
    branches = SamplingParams(seed=0, ignore_eos=True, max_tokens=11).alternatives(8)
    request = CompletionRequest((tuple(b"p" * 100),), branches)
    restored: list[tuple[int, int]] = []

    class Noting(FakeBackend):
        def restore(self, state: State, seq_id: int, start: int, end: int) -> bool:
            restored.append((start, end))
            return super().restore(state, seq_id, start, end)

    backend = Noting(n_cells=340, script=lambda params, tokens: params.seed)
    engine = Engine(backend, cache_bytes=100_000, clock=lambda: 0.0)  # else it may seem to take too long to cache
    if n_cached:
        run(engine, CompletionRequest((request.prompts[0][:n_cached],), branches[:1]))
    run(engine, request)
    before = engine.stats().prompt_tokens_evaluated
    restored.clear()
    longer = SamplingParams(seed=0, ignore_eos=True, max_tokens=30).alternatives(8)
    resumed = tuple(Resumed(tuple([k] * 11)) for k in range(8))
    run(engine, CompletionRequest(request.prompts, longer, resumed=resumed))
    assert engine.stats().prompt_tokens_evaluated - before == 8  # the last token of each: it wasn't evaluated before
    trunk = [(0, 40), (40, 100)] if n_cached else [(0, 100)]
    assert sorted(restored) == sorted([*trunk, *[(100, 110)] * 8])


@pytest.mark.parametrize("resumed", [(Resumed(),), (Resumed((), 0.0, 0),) * 2])
def test_each_alternative_has_an_entry_and_one_of_them_goes_on(resumed: tuple[Resumed, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="entry for each of the 2 alternatives"):
        CompletionRequest(((112,),), SamplingParams().alternatives(2), resumed=resumed)


def test_tokens_that_the_model_does_not_have_are_refused() -> None:
    request = CompletionRequest(((112,),), SamplingParams().alternatives(1), resumed=(Resumed((999,)),))
    with pytest.raises(InvalidRequestError, match="resumed has the token id 999"):
        Engine(FakeBackend()).add_request(request)


@pytest.mark.parametrize("params", [{}, {"guidance_scale": 2.0}, {"guidance_scale": 2.0, "negative_prompt": (1,) * 20}])
@pytest.mark.parametrize("max_tokens", [-1, None])
def test_what_the_context_has_no_room_for_any_more_is_refused(max_tokens: int | None, params: dict[str, Any]) -> None:
    branches = SamplingParams(max_tokens=max_tokens, **params).alternatives(2)
    room = 63 if not params else 62 // 2 if len(params) == 1 else (63 - 20) // 2

    def said(n: int) -> CompletionRequest:
        return CompletionRequest(((112,),), branches, resumed=(Resumed((65,) * n), Resumed((66,))))

    with pytest.raises(ContextSizeError):
        Engine(FakeBackend(n_cells=64)).add_request(said(room + 1))
    each = said(room)
    check_order(run(Engine(FakeBackend(n_cells=64), default_max_tokens=-1), each), each)
