"""Guidance: a negative sequence continues the negative prompt with the same tokens."""

import dataclasses

import pytest
from driver import check_idle, check_order, request, run, run_interrupted, stops, texts
from fake_backend import END, FakeBackend
from mixed import ascii_babble

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, StartEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError

PROMPT, NEGATIVE = b"The weather today is", b"It rains and"


def guided(n: int = 1, negative: bytes | None = NEGATIVE, **params: object) -> CompletionRequest:
    tokens = None if negative is None else tuple(negative)
    return request(PROMPT.decode(), n, **{"guidance_scale": 2.0, "negative_prompt": tokens, "max_tokens": 12} | params)


def reference(params: SamplingParams, negative: bytes) -> str:
    """Return the text of the scripted model that sees both prompts."""
    tokens: list[int] = []
    while len(tokens) < 12:
        token = ascii_babble(params, (*negative, *tokens, *PROMPT, *tokens))
        if token == END:
            break
        tokens.append(token)
    return bytes(tokens).decode()


@pytest.mark.parametrize("negative", [NEGATIVE, None])
def test_every_token_is_sampled_from_both_prompts(negative: bytes | None) -> None:
    backend = FakeBackend(script=ascii_babble)
    engine = Engine(backend)
    events = run(engine, each := guided(3, negative))
    check_order(events, each)
    assert texts(events) == {
        k: text for k in range(3) if (text := reference(each.branches[k], negative or PROMPT[-1:]))
    }
    assert set(backend.scales) == {2.0}
    start = next(event for event in events if isinstance(event, StartEvent))
    assert start.guided == (0, 1, 2)
    done = next(event for event in events if isinstance(event, DoneEvent))
    assert done.usage.prompt_tokens == len(PROMPT)
    check_idle(engine, backend)


def test_the_negative_prompt_is_evaluated_once_and_only_those_that_have_one_take_two_rows() -> None:
    backend = FakeBackend()
    plain = SamplingParams(seed=1, max_tokens=5, ignore_eos=True)
    aside = dataclasses.replace(plain, guidance_scale=1.5, negative_prompt=tuple(NEGATIVE))
    each = CompletionRequest((tuple(PROMPT),), (plain, aside, dataclasses.replace(aside, seed=2)))
    start = next(event for event in run(Engine(backend), each) if isinstance(event, StartEvent))
    assert start.guided == (1, 2)
    assert backend.rows == len(PROMPT) + len(NEGATIVE) + 4 * (1 + 2 + 2)


@pytest.mark.parametrize("lengths", [(60, 0), (60, 60, 0), (0, 60, 0), (60, 10)])
@pytest.mark.parametrize("window", [None, 0, 5])
def test_an_alternative_without_one_doesnt_wait_for_the_negative_prompts_of_its_siblings(
    lengths: tuple[int, ...], window: int | None
) -> None:
    """The last of the others does, since it takes the seq_id that they are forked off: there is none to spare."""

    def asked() -> CompletionRequest:
        plain = SamplingParams(max_tokens=5, ignore_eos=True, guidance_scale=2.0)
        branches = [
            dataclasses.replace(
                plain, seed=k, negative_prompt=tuple(b"n" * n) if n else None, guidance_scale=1 + (n > 0)
            )
            for k, n in enumerate(lengths)
        ]
        return CompletionRequest((tuple(PROMPT),), tuple(branches))

    n_seqs = len(lengths) + sum(map(bool, lengths))
    backend = FakeBackend(n_batch=16, script=ascii_babble, window=window, max_seqs=n_seqs, n_parallel=n_seqs)
    engine = Engine(backend)
    events = run(engine, each := asked())
    check_order(events, each)
    assert texts(events) == texts(run(Engine(FakeBackend(script=ascii_babble)), asked()))
    check_idle(engine, backend)


def test_a_scale_of_1_is_off() -> None:
    backend = FakeBackend()
    start = run(Engine(backend), guided(2, guidance_scale=1.0))[0]
    assert isinstance(start, StartEvent)
    assert (start.guided, backend.scales) == ((), [])


def test_with_max_tokens_of_minus_1_both_have_half_of_the_room() -> None:
    backend = FakeBackend(n_cells=100)
    events = run(Engine(backend), guided(max_tokens=-1, ignore_eos=True))
    room = 100 - len(PROMPT) - len(NEGATIVE)
    assert stops(events)[0].length == room // 2 + 1


def test_what_can_never_run_is_refused() -> None:
    engine = Engine(FakeBackend(n_cells=60))
    with pytest.raises(InvalidRequestError, match="prompt_tokens = 20 and 16 new tokens, and the same after 12 tokens"):
        engine.add_request(guided(max_tokens=16))
    with pytest.raises(InvalidRequestError, match="negative_prompt has the token id 999"):
        engine.add_request(request(guidance_scale=2.0, negative_prompt=(999,)))
    with pytest.raises(InvalidRequestError, match="larger --parallel"):
        Engine(FakeBackend(n_parallel=1)).add_request(guided())
    with pytest.raises(InvalidRequestError, match="at least one token"):
        guided(negative=b"")
    with pytest.raises(InvalidRequestError, match="guidance_scale must be from 0 to 100"):
        guided(guidance_scale=-1.0)


@pytest.mark.parametrize("window", [None, 0])
def test_it_goes_on_after_an_interruption_as_if_there_had_been_none(window: int | None) -> None:
    each = guided(2, ignore_eos=True)
    after = run_interrupted(lambda: Engine(FakeBackend(window=window)), each, [5])
    assert texts(after) == texts(run(Engine(FakeBackend()), each))


def test_what_may_go_back_is_preempted_with_its_negative_sequence() -> None:
    each = guided(2, ignore_eos=True, max_tokens=30, banned_strings=("/.{9}~~~/",))
    engine = Engine(FakeBackend(n_cells=110, window=0, script=ascii_babble))
    said = texts(run(engine, each))
    assert engine.stats().preemptions > 0
    assert said == texts(run(Engine(FakeBackend(n_cells=1000, script=ascii_babble)), each))


@pytest.mark.parametrize("poisoned", [PROMPT, NEGATIVE])
def test_when_one_of_both_prompts_fails_the_other_reports_nothing(poisoned: bytes) -> None:
    backend = FakeBackend(poison="!")
    prompt, negative = (text + b"!" * (text is poisoned) for text in (PROMPT, NEGATIVE))
    params = SamplingParams(guidance_scale=2.0, negative_prompt=tuple(negative), max_tokens=3)
    each = CompletionRequest((tuple(prompt),), (params,), return_progress=True)
    check_order(run(Engine(backend), each), each)
    assert backend.cells == 0


def test_echo_with_logprobs_shows_the_prompt_and_not_the_negative_one() -> None:
    each = dataclasses.replace(guided(2), echo=True)
    scored = dataclasses.replace(each, logprobs=0)
    assert texts(run(Engine(FakeBackend(script=ascii_babble)), scored)) == texts(
        run(Engine(FakeBackend(script=ascii_babble)), each)
    )


def test_the_time_of_guides_rows_is_that_of_generated_tokens() -> None:
    now = 0.0

    def tick() -> None:
        nonlocal now
        now += 1.0

    engine = Engine(FakeBackend(on_decode=tick), clock=lambda: now)
    run(engine, guided(ignore_eos=True))
    assert (engine.stats().prompt_seconds, engine.stats().predicted_seconds) == (1.0, 11.0)
