"""Log-probabilities of prompts and of candidates, with prefix caching."""

import dataclasses
import random
from typing import Any

import pytest
from driver import few, own, request, run, run_interrupted, seeds, stops, tokens_of
from fake_backend import FakeBackend, scores
from memory_store import MemoryStore
from mixed import COSTS

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event, PromptLogprobsEvent, StreamEvent, Token
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError

CONTEXTS = ["The capital of France is", "The largest city of Italy is"]
ENDS = [" Rome", " Paris", " a city", " so far away"]
TABLE = [context + end for context in CONTEXTS for end in ENDS]
IDEAL = sum(map(len, CONTEXTS)) + len(CONTEXTS) * sum(map(len, ENDS))


def scoring(prompt: str | list[str], n: int = 1, *, logprobs: int = 1, **params: Any) -> CompletionRequest:
    """Asks for the log-probabilities of prompts, as lm-eval does."""
    return dataclasses.replace(request(prompt, n, **{"max_tokens": 1} | params), echo=True, logprobs=logprobs)


def prompt_scoring(prompt: str | list[str], n: int = 1, **params: Any) -> CompletionRequest:
    """Asks for the log-probabilities of prompts, as vLLM's clients do."""
    return dataclasses.replace(request(prompt, n, **{"max_tokens": 1} | params), prompt_logprobs=1)


def make(cache_bytes: int = 1_000_000, **options: Any) -> tuple[Engine, FakeBackend]:
    backend = FakeBackend(**{"n_cells": 1000, "n_parallel": 16, "n_batch": 128, "n_outputs": 128} | options)
    return Engine(backend, cache_bytes=cache_bytes), backend


def check_tokens(said: list[Token], before: tuple[int, ...], top: int) -> None:
    """Check tokens that follow others: each has the log-probability, and the most probable tokens, of its place."""
    for token in said:
        logits = scores(before)
        assert token.logprob == (logits[token.id] if before else None)
        top_tokens = sorted(range(len(logits)), key=logits.__getitem__, reverse=True)[: top if before else 0]
        assert [(each.id, each.logprob) for each in token.top_logprobs] == [(each, logits[each]) for each in top_tokens]
        before += (token.id,)


def check(each: CompletionRequest, events: list[Event]) -> None:
    """Checks what was reported of the prompts of a request that has ended."""
    for index, stop in stops(events).items():
        prompt = each.token_ids[index // len(each.branches)]
        if each.prompt_logprobs is not None:
            reports = [event for event in events if isinstance(event, PromptLogprobsEvent) and index in event.indices]
            scored = [token for event in reports for token in event.tokens]
            is_whole = stop.finish_reason in ("length", "stop")
            assert tuple(token.id for token in scored) == (prompt if is_whole else prompt[: len(scored)])
            check_tokens(scored, (), each.prompt_logprobs)
            for place, token in enumerate(scored[1:], 1):
                logits = scores(prompt[:place])
                assert token.rank == sum(logit >= logits[token.id] for logit in logits)
        if not each.echo:
            continue
        own = [event.token for event in events if isinstance(event, StreamEvent) and event.index == index]
        said = [token for token in own if token]
        is_whole = stop.finish_reason in ("length", "stop")
        assert tuple(token.id for token in said[: len(prompt)]) == (prompt if is_whole else prompt[: len(said)])
        check_tokens(said, (), each.logprobs or 0)


def evaluated(engine: Engine, *requests: CompletionRequest) -> int:
    """Runs requests, checks what they report, and returns how many tokens of prompts were evaluated."""
    before = engine.stats().prompt_tokens_evaluated
    events = run(engine, *requests)
    for each in requests:
        check(each, own(events, each))
    return engine.stats().prompt_tokens_evaluated - before


@pytest.mark.parametrize("window", [None, 0, 8])
@pytest.mark.parametrize("n_outputs", few(7, many=[128]))
def test_a_context_is_scored_once_for_all_that_go_on_with_it(window: int | None, n_outputs: int) -> None:
    engine, backend = make(window=window, n_outputs=n_outputs)
    assert evaluated(engine, scoring(TABLE)) == IDEAL
    assert n_outputs < 128 or backend.decodes == 2
    assert evaluated(engine, scoring(TABLE)) == 0
    assert evaluated(engine, *map(scoring, reversed(TABLE))) == 0


def test_a_later_text_begins_where_the_last_known_log_probability_is() -> None:
    engine, _ = make()
    assert evaluated(engine, scoring(TABLE[0])) == len(TABLE[0])
    assert evaluated(engine, scoring(TABLE[1])) == len(ENDS[1])  # the logits after the space are lost
    assert evaluated(engine, scoring(TABLE[0] + "s")) == 2
    assert evaluated(engine, scoring(TABLE[0][:-3])) == 1  # so are those after its last token
    assert evaluated(engine, scoring(TABLE[0], 3, max_tokens=4)) == 0


@pytest.mark.parametrize("window", [0, 8])
def test_a_model_that_forgets_keeps_the_state_in_which_texts_part(window: int) -> None:
    engine, _ = make(window=window)
    for end in ENDS[:2]:
        assert evaluated(engine, scoring(CONTEXTS[0] + end)) == len(CONTEXTS[0] + end)
    assert evaluated(engine, scoring(CONTEXTS[0] + ENDS[2])) == len(ENDS[2])


def test_likeliest_tokens_are_known_if_as_many_were_asked_for() -> None:
    engine, _ = make()
    text = TABLE[0]
    assert evaluated(engine, scoring(text, logprobs=2)) == len(text)
    assert evaluated(engine, scoring(text, logprobs=0), scoring(text, logprobs=2)) == 0
    assert evaluated(engine, scoring(text, logprobs=5)) == len(text)
    assert evaluated(engine, scoring(text, logprobs=3)) == 0


def test_log_probabilities_are_not_taken_from_a_running_text_that_has_fewer_likeliest_tokens() -> None:
    engine, _ = make()
    evaluated(engine, scoring(TABLE[0], logprobs=2))
    engine.add_request(scoring(TABLE[0] + " and more", logprobs=0, max_tokens=20, ignore_eos=True))
    while engine.stats().tokens_generated < 5:
        engine.step()
    assert evaluated(engine, scoring(TABLE[0] + " and so on", logprobs=2)) == len("e and so on")


def test_what_was_not_scored_has_no_log_probabilities_and_gets_them_with_the_first_request() -> None:
    engine, _ = make()
    text = TABLE[0]
    run(engine, request(text, max_tokens=3))
    assert evaluated(engine, scoring(text)) == len(text)
    size = engine.stats().retained_bytes
    assert evaluated(engine, scoring(text)) == 0
    assert engine.stats().retained_bytes == size
    run(engine, request(text + "!", max_tokens=3))
    assert engine.stats().prompt_tokens_evaluated == 2 * len(text) + 1  # and others begin with what was scored


def test_log_probabilities_are_cached_in_memory_only() -> None:
    _, backend = make()
    engine = Engine(backend, cache_bytes=1_000_000, store=MemoryStore({}))
    assert evaluated(engine, scoring(TABLE[0])) == len(TABLE[0])
    assert evaluated(engine, scoring(TABLE[0])) == 0
    for k in range(4):
        run(engine, request(f"{k}" * 900, max_tokens=1))
    small = Engine(backend, cache_bytes=100, store=MemoryStore({}))
    for _ in range(2):
        assert evaluated(small, scoring(TABLE[0])) == len(TABLE[0])


def test_without_the_cache_nothing_is_shared_and_each_text_is_first_in_a_batch_of_its_own() -> None:
    engine, backend = make()
    each = dataclasses.replace(scoring(TABLE), cache_prompt=False)
    for _ in range(2):
        assert evaluated(engine, each) == len("".join(TABLE))
    assert backend.decodes == 2 * len(TABLE)


@pytest.mark.parametrize("seed", seeds(60, first=6))
def test_whatever_is_shared_each_token_has_its_own_log_probability(seed: int) -> None:
    """Texts that begin alike, scored or not, with aborts and little room; the fake model knows what is right."""
    pick, rng = random.Random(seed).choice, random.Random(-seed)
    window = pick([None, None, 0, 5, 20])
    engine, backend = make(
        pick([0, 2000, 20_000, 1_000_000]),
        window=window,
        n_cells=pick([200, 400, 1000]),
        n_parallel=pick([2, 5, 16]),
        n_batch=pick([16, 64]),
        n_outputs=pick([5, 16, 64]),
        costs=pick(COSTS),
    )
    requests: dict[str, CompletionRequest] = {}
    events: list[Event] = []
    for _ in range(rng.randint(3, 12)):
        prompts = [
            "".join(rng.choices(["a" * 17, "b" * 20, "c" * 3], k=rng.randint(1, 5))) for _ in range(pick([1, 3]))
        ]
        kind = pick([scoring, scoring, prompt_scoring, request])
        each = kind(prompts, rng.choice([1, 2]), max_tokens=rng.choice([0, 1, 4]), seed=rng.randint(0, 9))
        if kind is prompt_scoring:
            each = dataclasses.replace(each, prompt_logprobs=pick([0, 1, 2]), cache_prompt=rng.random() < 0.9)
            if rng.random() < 0.3:
                each = dataclasses.replace(each, echo=True, logprobs=pick([0, 1]))
        if kind is scoring:
            each = dataclasses.replace(each, logprobs=pick([0, 1, 2]), cache_prompt=rng.random() < 0.9)
        requests[each.id] = each
        engine.add_request(each)
        for _ in range(pick([0, 0, 1, 2, 10])):
            events += engine.step()
        if rng.random() < 0.3:
            engine.abort(pick([*requests]), pick([None, 0, 1]))
    events += run(engine)
    for each in requests.values():
        found = own(events, each)
        assert isinstance(found[-1], DoneEvent)
        if each.scored_top is not None:
            check(each, found)
    assert (backend.cells, engine.stats().cells) == (0, 0)
    assert engine.stats().retained_bytes <= engine.stats().max_retained_bytes


def candidates(prompt: str, *texts: str) -> CompletionRequest:
    return CompletionRequest.scoring(tuple(prompt.encode()), [tuple(text.encode()) for text in texts])


@pytest.mark.parametrize("window", [None, 0, 8])
@pytest.mark.parametrize(("n_outputs", "n_decodes"), [(128, 2), (7, 4)])
def test_candidates_are_evaluated_in_one_batch_and_not_sampled(
    window: int | None, n_outputs: int, n_decodes: int
) -> None:
    engine, backend = make(window=window, n_outputs=n_outputs)
    before = tuple(CONTEXTS[0].encode())
    each = candidates(CONTEXTS[0], *ENDS)
    events = run(engine, each)
    for index, end in enumerate(ENDS):
        own = [event.token for event in events if isinstance(event, StreamEvent) and event.index == index]
        said = [token for token in own if token]
        assert bytes(token.id for token in said) == end.encode() == bytes(tokens_of(events, index))
        check_tokens(said, before, 0)
        assert stops(events)[index].length == len(end)
    assert backend.rows == len(before) + sum(len(end) - 1 for end in ENDS)
    assert backend.decodes == n_decodes
    assert (backend.cells, backend.open_samplers) == (0, 0)
    again = run(engine, dataclasses.replace(each, id="again"))
    assert len(again) == len(events)
    assert engine.stats().prompt_tokens_evaluated == len(before)


def test_candidates_go_on_after_a_fault_and_after_an_interruption() -> None:
    engine, backend = make(n_outputs=7)
    backend.fail_decodes = {2, 4}
    events = run(engine, each := candidates(CONTEXTS[0], *ENDS))
    assert [bytes(tokens_of(events, index)).decode() for index in range(4)] == ENDS
    events = run_interrupted(lambda: make(n_outputs=7)[0], dataclasses.replace(each, id="b"), [3, 3])
    assert [bytes(tokens_of(events, index)).decode() for index in range(4)] == ENDS


def test_candidates_that_were_preempted_without_memory_are_computed_again() -> None:
    engine, _ = make(cache_bytes=0, n_outputs=7, n_cells=80)
    each = dataclasses.replace(candidates(CONTEXTS[0], *ENDS), priority=1)
    engine.add_request(each)
    events = engine.step() + engine.step() + engine.step()
    engine.add_request(request("u" * 70, max_tokens=1))
    events += run(engine)
    assert engine.stats().preemptions
    assert [bytes(tokens_of(events, index)).decode() for index in range(4)] == ENDS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"candidates": ((1,),)}, "candidates must have one for each of the 2 alternatives, got 1"),
        ({"candidates": ((1,), ())}, "candidates must have at least one token"),
        ({"candidates": ((1,), "b")}, "candidates takes tuples of token ids, got 'b'"),
        ({"candidates": ((1,), (1, 2, 3))}, "the branch of a candidate of 3 tokens has a max_tokens of at least 3"),
        ({"branches": (SamplingParams(max_tokens=1, top_k=3),) * 2}, "and nothing else"),
    ],
)
def test_what_does_not_go_with_candidates(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        dataclasses.replace(candidates("a", "b", "c"), **given)


def test_log_probabilities_are_known_only_within_the_name_that_they_are_shared_within() -> None:
    engine, _ = make()
    text = TABLE[0]
    run(engine, request(text, max_tokens=3))  # its state is for all, without log-probabilities
    within = dataclasses.replace(scoring(text), shared_within="a")
    assert evaluated(engine, within) == len(text)
    assert evaluated(engine, dataclasses.replace(within, id="again")) == 0
    assert evaluated(engine, dataclasses.replace(within, id="b", shared_within="b")) == len(text)
    assert evaluated(engine, scoring(text)) == len(text)
    assert evaluated(engine, dataclasses.replace(within, id="c", shared_within="c")) == 0
