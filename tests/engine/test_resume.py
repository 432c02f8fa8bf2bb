"""A request that was interrupted anywhere goes on as if it hadn't been."""

import pytest
from driver import check_order, run, stops, texts
from fake_backend import FakeBackend, says
from hypothesis import given, settings
from hypothesis import strategies as st

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event, StreamEvent
from srb.engine.request import CompletionRequest, Resumed, SamplingParams
from srb.engine.resume import resume
from srb.errors import InvalidRequestError


def steps(engine: Engine, request: CompletionRequest) -> list[list[Event]]:
    """What each step says, to the end."""
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
        assert [token for event in ours for token in event.drawn] == [
            token for event in theirs for token in event.drawn
        ]
        assert [event.token for event in ours] == [event.token for event in theirs]


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.lists(st.sampled_from(["p" * 20, "p" * 20 + "q", "r"]), min_size=1, max_size=2),
    n=st.integers(1, 4),
    stop=st.sampled_from([(), ("ab",), ("a", "\x00\x01")]),
    max_tokens=st.integers(0, 25),
    distinct=st.booleans(),
    echo=st.booleans(),
    logprobs=st.sampled_from([None, None, 0, 2]),
    window=st.sampled_from([None, 0, 5]),
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
    cuts: list[int],
) -> None:
    request = CompletionRequest(
        tuple(tuple(text.encode()) for text in prompts),
        SamplingParams(seed=0, stop=stop, max_tokens=max_tokens).alternatives(n),
        distinct=distinct,
        echo=echo,
        logprobs=logprobs,
    )

    def engine() -> Engine:
        return Engine(FakeBackend(n_cells=300, window=window), cache_bytes=5000)

    whole = [event for said in steps(engine(), request) for event in said]
    events: list[Event] = []
    living: CompletionRequest | None = request
    for cut in cuts:  # each engine is gone after so many steps
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
        rest = run(last := Engine(backend), living)
        events += rest
        check_order(events, request)
        assert (last.stats().cells, backend.cells, backend.open_samplers, backend.open_compiled) == (0, 0, 0, 0)
        done, undisturbed = events[-1], whole[-1]
        assert isinstance(done, DoneEvent)
        assert isinstance(undisturbed, DoneEvent)
        assert done.usage.completion_tokens == undisturbed.usage.completion_tokens
        assert done.usage.prompt_tokens == undisturbed.usage.prompt_tokens
    begins(events, whole)


def test_what_was_held_back_comes_with_what_follows() -> None:
    text = "abcé".encode()
    request = CompletionRequest(((112,),), SamplingParams(seed=0, stop=("abx", "cz")).alternatives(1))
    said = steps(Engine(FakeBackend(script=says(text))), request)
    whole = [event for step in said for event in step]
    streamed = [event for event in whole if isinstance(event, StreamEvent)]
    assert [(event.text, len(event.drawn)) for event in streamed] == [("ab", 3), ("cé", 2)]
    # What was drawn after the last event isn't known to be, and is drawn again.
    living = resume(request, whole[:2])
    assert living
    assert living.resumed == (Resumed(tuple(b"abc")),)
    rest = run(Engine(FakeBackend(script=says(text))), living)
    assert [event.text for event in rest if isinstance(event, StreamEvent)] == ["cé"]


def test_what_resumed_alternatives_share_is_evaluated_once() -> None:
    request = CompletionRequest(
        (tuple(b"p" * 60),), SamplingParams(seed=0, ignore_eos=True, max_tokens=40).alternatives(4)
    )
    begun = tuple(Resumed(tuple([k] * 10)) for k in range(4))
    engine = Engine(FakeBackend(n_cells=400))
    run(engine, CompletionRequest(request.prompts, request.branches, resumed=begun))
    assert engine.stats().prompt_tokens_evaluated == 60 + 4 * 10


def test_one_that_has_all_its_tokens_ends() -> None:
    request = CompletionRequest(
        ((112,),),
        SamplingParams(seed=0, max_tokens=2).alternatives(2),
        resumed=(Resumed((1, 2)), Resumed((3,), 0.0, 1)),
    )
    events = run(Engine(FakeBackend()), request)
    assert {index: (stop.length, stop.finish_reason) for index, stop in stops(events).items()} == {0: (2, "length")}


@pytest.mark.parametrize("resumed", [(Resumed(),), (Resumed((), 0.0, 0),) * 2])
def test_each_alternative_has_an_entry_and_one_of_them_goes_on(resumed: tuple[Resumed, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="entry for each of the 2 alternatives"):
        CompletionRequest(((112,),), SamplingParams().alternatives(2), resumed=resumed)


def test_tokens_that_the_model_does_not_have_are_refused() -> None:
    request = CompletionRequest(((112,),), SamplingParams().alternatives(1), resumed=(Resumed((999,)),))
    with pytest.raises(InvalidRequestError, match="resumed has the token id 999"):
        Engine(FakeBackend()).add_request(request)
