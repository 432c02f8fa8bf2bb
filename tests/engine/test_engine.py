"""The engine on the scripted backend: what a request costs, says and gives back."""

import dataclasses

import pytest
from driver import check_idle, check_order, own, request, run, stops, texts
from fake_backend import FakeBackend, babble, says

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, ErrorEvent, Event, ProgressEvent, StartEvent, StopEvent, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError, ModelLoadError, SrbError, UnavailableError


def test_the_events_of_a_request() -> None:
    backend = FakeBackend(script=says(b"ab", b"c"))
    each = request(n=2)
    events = run(Engine(backend), each)
    assert events[:-1] == [
        StartEvent(each.id, 2, 1, 0, 128, (0, 1), (None, None)),
        StreamEvent(each.id, 0, "a"),
        StreamEvent(each.id, 1, "c"),
        StreamEvent(each.id, 0, "b"),
        StopEvent(each.id, 1, 2, "stop", None),
        StopEvent(each.id, 0, 3, "stop", None),
    ]
    done = events[-1]
    assert isinstance(done, DoneEvent)
    assert (done.count, done.usage.prompt_tokens, done.usage.completion_tokens) == (2, 1, 5)
    assert (done.timings.prompt_n, done.timings.predicted_n) == (1, 5)


def test_its_times_are_those_of_the_clock() -> None:
    now = 1000.0
    engine = Engine(backend := FakeBackend(n_batch=8), clock=lambda: now)

    def decode() -> None:
        nonlocal now
        now += 0.0625

    backend.on_decode = decode
    done = run(engine, request("p" * 20, max_tokens=5, ignore_eos=True))[-1]
    assert isinstance(done, DoneEvent)
    times = done.timings
    assert (times.queued_ms, times.prompt_ms, times.predicted_ms) == (0, 3 * 62.5, 4 * 62.5)


def test_distinct_alternatives_begin_with_different_tokens() -> None:
    backend = FakeBackend(script=lambda params, tokens: 65 if len(tokens) < 3 else 256)
    alike = request(["a", "b"], n=3)
    events = run(Engine(backend), CompletionRequest(alike.prompts, alike.branches, distinct=True))
    assert texts(events) == {0: "AA", 1: "BA", 2: "CA", 3: "AA", 4: "BA", 5: "CA"}


@pytest.mark.parametrize(
    ("prompt_tokens", "n", "max_tokens", "expected"),
    [
        (100, 2, -1, 157),  # until the context is full, and the last token needs no cell
        (256, 2, -1, 1),
        (100, 2, None, 40),  # the engine's default
        (230, 4, None, 27),  # less, where the context has less room for one
        (256, 8, None, 1),
        (100, 2, 0, 0),
        (100, 4, 40, 40),  # 100 + 4 * 39 cells: an exact fit
    ],
)
def test_max_tokens(prompt_tokens: int, n: int, max_tokens: int | None, expected: int) -> None:
    engine = Engine(backend := FakeBackend(), default_max_tokens=40)
    events = run(engine, request("p" * prompt_tokens, n, max_tokens=max_tokens, ignore_eos=True))
    assert isinstance(events[0], StartEvent)
    assert events[0].max_tokens == expected
    assert {(stop.length, stop.finish_reason) for stop in stops(events).values()} == {(expected, "length")}
    check_idle(engine, backend)


@pytest.mark.parametrize(
    ("bad", "param", "message"),
    [
        (request("p" * 257), "prompt", "257 tokens, more than the 256 cells"),
        (request("p" * 100, 4, max_tokens=158), "max_tokens", r"prompt_tokens = 100 and 158 new tokens .* 256"),
        (CompletionRequest(((1, 257),), (SamplingParams(),)), "prompt", "257; the model's ids go from 0 to 256"),
        (CompletionRequest(((-1,),), (SamplingParams(),)), "prompt", "-1"),
    ],
)
def test_what_can_never_run_is_refused(bad: CompletionRequest, param: str, message: str) -> None:
    engine = Engine(FakeBackend())
    with pytest.raises(InvalidRequestError, match=message) as caught:
        engine.add_request(bad)
    assert caught.value.param == param
    assert not engine.has_work


@pytest.mark.parametrize(("text", "message"), [("", "empty"), ("a\ud800", "character 1"), ("p" * 257, "at least 257")])
def test_what_cannot_be_tokenized_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Engine(FakeBackend()).tokenize(text)


def test_what_needs_no_decode_is_reported_before_one_begins() -> None:
    engine = Engine(backend := FakeBackend())
    engine.add_request(each := request())
    assert [type(event) for event in engine.step()] == [StartEvent]
    engine.abort(each.id)
    assert [type(event) for event in engine.step()] == [StopEvent, DoneEvent]
    assert backend.decodes == 0


def started(events: list[Event]) -> list[str]:
    return [event.request_id for event in events if isinstance(event, StartEvent)]


def stops_of(events: list[Event], each: CompletionRequest) -> list[StopEvent]:
    return [event for event in events if isinstance(event, StopEvent) and event.request_id == each.id]


def test_a_request_waits_for_the_cells_of_its_prompt() -> None:
    for first, second, n_parallel in (
        (request("p" * 100, max_tokens=101, ignore_eos=True), request("q" * 150, max_tokens=2), 8),
        (request(max_tokens=9, ignore_eos=True), request(max_tokens=2), 1),
    ):
        engine = Engine(backend := FakeBackend(n_parallel=n_parallel))
        engine.add_request(first)
        engine.add_request(second)
        assert started(engine.step()) == [first.id]
        events = run(engine)
        assert [event.request_id for event in events if isinstance(event, (StartEvent, DoneEvent))] == [
            *(first.id, second.id, second.id)
        ]
        check_idle(engine, backend)


def test_a_small_request_passes_a_large_one_but_not_for_long() -> None:
    now = 1000.0  # a clock begins anywhere
    engine = Engine(backend := FakeBackend(), clock=lambda: now)
    running, large = request("p" * 100, max_tokens=90, ignore_eos=True), request("q" * 150, max_tokens=2)
    small, late = (request(max_tokens=1, seed=seed) for seed in (1, 2))
    for each in (running, large, small):
        engine.add_request(each)
    assert started(engine.step()) == [running.id, small.id]
    now += 6.0
    engine.add_request(late)
    events = run(engine)
    assert started(events) == [large.id, late.id]
    waited = {event.request_id: event.timings.queued_ms for event in events if isinstance(event, DoneEvent)}
    assert waited == {running.id: 0.0, small.id: 0.0, large.id: 6000.0, late.id: 0.0}
    check_idle(engine, backend)


def test_prompts_that_share_a_beginning_evaluate_it_once() -> None:
    text = "x" * 60
    joined = [request(text, max_tokens=2 + k, seed=k, ignore_eos=True) for k in range(4)]
    engine = Engine(backend := FakeBackend(n_cells=1000))
    events = run(engine, *joined, listed := request([text + "a", text + "b"], n=2, max_tokens=3, ignore_eos=True))
    assert engine.stats().prompt_tokens_evaluated == 60 + 2
    assert engine.stats().prompt_tokens_cached == 3 * 60 + 2 * 60
    assert engine.stats().forks == 5 + 2  # of prompts, and of the first alternatives of the last two
    cached = [event.cached_tokens for event in events if isinstance(event, StartEvent)]
    assert cached == [0, 60, 60, 60, 120]
    for each in (*joined, listed):
        alone = run(Engine(FakeBackend()), each)
        assert texts(own(events, each)) == texts(alone)
    check_idle(engine, backend)


def test_a_running_alternative_may_be_forked_in_the_middle() -> None:
    engine = Engine(backend := FakeBackend(script=lambda params, tokens: 65))
    engine.add_request(request("p" * 20, n=2, max_tokens=40))
    while engine.stats().tokens_generated < 60:
        engine.step()
    before = engine.stats().cells
    assert before in (20 + 2 * 29, 20 + 2 * 30)
    engine.add_request(request("p" * 20 + "A" * 15 + "x", max_tokens=10))
    engine.step()
    assert engine.stats().cells == before + 1 + 1  # of the prompt, and of its alternative
    run(engine)
    assert engine.stats().prompt_tokens_evaluated == 20 + 1
    check_idle(engine, backend)


def test_the_progress_of_a_prompt_is_reported() -> None:
    engine = Engine(FakeBackend(n_batch=40))
    first, second = request("x" * 100, max_tokens=1), request("x" * 50 + "y" * 30, max_tokens=1)
    events = run(engine, first, dataclasses.replace(second, return_progress=True))
    progress = [(e.evaluated, e.cached, e.total) for e in events if isinstance(e, ProgressEvent)]
    assert progress == [(0, 0, 80), (30, 50, 80)]


def test_alternatives_aborted_while_the_request_waits_stop_after_its_start() -> None:
    engine = Engine(backend := FakeBackend(n_parallel=1))
    first, second, third = request(max_tokens=5), request(n=2, max_tokens=3, ignore_eos=True), request(n=2)
    for each in (first, second, third):
        engine.add_request(each)
    events = engine.step()
    engine.abort(second.id, 0)
    engine.abort(second.id, 2)  # there is none
    engine.abort(third.id, 0)
    engine.abort(third.id, 1)  # that was all of it
    events += run(engine)
    check_order(events, second)
    check_order(events, third, started=False)
    found = own(events, second)
    assert [(stop.finish_reason, stop.length) for stop in stops(found).values()] == [("abort", 0), ("length", 3)]
    check_idle(engine, backend)


def test_computing_a_prompt_that_is_no_longer_wanted_is_interrupted() -> None:
    engine = Engine(backend := FakeBackend(n_batch=200))
    engine.add_request(each := request("p" * 200))
    backend.on_decode = lambda: engine.abort(each.id)
    events = [*engine.step(), *engine.step()]
    assert backend.decodes == 1
    assert engine.stats().prompt_tokens_evaluated == 0
    events += run(engine)
    check_order(events, each)
    check_idle(engine, backend)


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("window", [None, 8])
def test_the_sequence_that_makes_a_decode_fail_ends_alone(names: bool, window: int | None) -> None:
    script = says(b"abc", b"ab!c", b"abcd", b"abcde")
    engine = Engine(backend := FakeBackend(script=script, poison="!?", names_poisoned=names, window=window))
    first, second, third = request(n=3), request(n=2, seed=2), request("?", n=2)
    events = run(engine, first, second, third)
    ends = {}
    for each in (first, second, third):
        in_order = sorted(stops_of(events, each), key=lambda stop: stop.index)
        ends[each.id] = [stop.finish_reason for stop in in_order]
    assert ends == {first.id: ["stop", "error", "stop"], second.id: ["stop", "stop"], third.id: ["error", "error"]}
    errors = {event.request_id: (event.index, event.error.message) for event in events if isinstance(event, ErrorEvent)}
    message = "llama_decode failed with code -3"
    assert errors == {first.id: (1, message), third.id: (None, message)}
    assert texts(own(events, first)) == {0: "abc", 1: "ab!", 2: "abcd"}
    assert engine.stats().last_error == message
    check_idle(engine, backend)


def test_the_time_between_tokens_counts_from_when_the_first_was_sampled() -> None:
    now = 0.0
    seen: list[tuple[str, float]] = []
    engine = Engine(
        backend := FakeBackend(),
        cache_bytes=10_000,
        observe=lambda measure, seconds: seen.append((measure, seconds)),
        clock=lambda: now,
    )
    run(engine, request("p" * 20, max_tokens=2))
    now = 600.0  # idle for ten minutes; what comes then needs no evaluation
    engine.add_request(request("p" * 20, max_tokens=3, ignore_eos=True))
    decodes = backend.decodes
    while engine.has_work:
        now += 0.01
        engine.step()
    assert backend.decodes == decodes + 2
    assert max(seconds for measure, seconds in seen if measure == "next_token") < 1


def test_an_abandoned_engine_frees_what_its_requests_hold_and_takes_no_more() -> None:
    class BugError(Exception):
        pass

    def fail() -> None:
        raise BugError

    backend = FakeBackend(n_parallel=2)
    engine = Engine(backend)
    engine.add_request(request(n=2, max_tokens=100))
    engine.add_request(request(n=2, max_tokens=30))
    engine.add_request(request(n=8, max_tokens=30))  # it waits for rows
    engine.step()
    engine.step()
    assert backend.open_samplers == 4
    backend.on_decode = fail
    with pytest.raises(BugError):
        engine.step()
    engine.add_request(request(n=2))
    assert engine.abandon(SrbError("the engine has failed")) is None
    assert (backend.open_samplers, backend.open_compiled) == (0, 0)
    with pytest.raises(SrbError, match="the engine has failed"):
        engine.add_request(request())


def test_an_id_is_used_once_at_a_time() -> None:
    engine = Engine(backend := FakeBackend())
    engine.add_request(each := request(n=2))
    for _ in range(2):  # before a step has taken it, and after that
        with pytest.raises(InvalidRequestError, match="is in use"):
            engine.add_request(each)
        engine.step()
    check_order(run(engine), each, started=False)
    assert texts(run(engine, each)).keys() == {0, 1}
    check_idle(engine, backend)


def test_a_fault_in_a_question_is_its_askers() -> None:
    engine = Engine(FakeBackend(script=says(b"text")))
    answer = engine.ask(0, lambda _slots: 1 // 0)
    assert texts(run(engine, request())) == {0: "text"}
    with pytest.raises(ZeroDivisionError):
        answer.result()


def test_a_backend_that_cannot_be_prepared_ends_waiting_requests_and_the_next_one_tries_again() -> None:
    def fail() -> None:
        raise ModelLoadError("there is no memory")

    engine = Engine(backend := FakeBackend(script=says(b"text"), on_prepare=fail))
    guided, beams = request("p" * 20, n=2, negative_prompt=(1, 2)), dataclasses.replace(request(), search="beam")
    for each in (requests := [guided, request("p" * 20, n=300), beams, request(max_tokens=0)]):
        engine.add_request(each)
    for _ in range(2):
        events = run(engine)
        for each in requests:
            check_order(events, each, started=False)
        errors = [event.error for event in events if isinstance(event, ErrorEvent)]
        assert len(errors) == len(requests)
        assert all(isinstance(error, UnavailableError) and "no memory" in error.message for error in errors)
        assert engine.stats().last_error == "there is no memory"
        check_idle(engine, backend)
        engine.add_request(again := request())
        requests = [again]
    backend.on_prepare = lambda: None
    assert texts(run(engine)) == {0: "text"}
    check_idle(engine, backend)


def test_an_abandoned_engine_names_the_request_that_it_was_working_for() -> None:
    def broken(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        if params.label == "bad":
            raise ZeroDivisionError
        return babble(params, tokens)

    engine = Engine(backend := FakeBackend(script=broken))
    for each in (request(n=2), bad := request(n=2, label="bad")):
        engine.add_request(each)
    with pytest.raises(ZeroDivisionError):
        run(engine)
    assert engine.abandon(SrbError("the engine has failed")) == bad.id
    assert (backend.open_samplers, backend.open_compiled) == (0, 0)
