"""A caller's own function on the logits: what it gets, what it may do, and that its errors are its own."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from driver import check_order, request, run, run_interrupted, stops, texts, tokens_of
from tiny_model import N_VOCAB

from srb.engine.engine import Engine
from srb.engine.events import ErrorEvent, Event, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import LogitsProcessor
from srb.errors import LogitsProcessorError
from srb.llama.backend import LlamaBackend

PROMPT = "the cat and the dog"
A, B = ord("a"), ord("b")


def asked(*processors: LogitsProcessor | None, **fields: Any) -> CompletionRequest:
    """A request with an alternative for each function, which differ in nothing else."""
    defaults = {"max_tokens": 24, "ignore_eos": True, "temperature": 1.0}
    each = request(PROMPT, **defaults | fields)
    branches = tuple(dataclasses.replace(each.branches[0], logits_processor=function) for function in processors)
    return dataclasses.replace(each, branches=branches)


def said(events: list[Event]) -> list[StreamEvent]:
    return [event for event in events if isinstance(event, StreamEvent)]


class Listener:
    """Changes nothing, and records its arguments."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []
        self.rows: list[np.ndarray[Any, np.dtype[np.float32]]] = []

    def __call__(self, tokens: Any, logits: Any) -> None:
        assert (tokens.dtype, logits.dtype, logits.shape) == (np.int32, np.float32, (N_VOCAB,))
        assert not tokens.flags.writeable
        self.tokens.append(tokens.tolist())
        self.rows.append(logits)


def test_it_gets_the_prompt_with_the_tokens_so_far_and_the_models_logits(load: Callable[..., LlamaBackend]) -> None:
    listener = Listener()
    each = dataclasses.replace(asked(listener, None, logit_bias=((A, 5.0),)), logprobs=3)
    events = run(Engine(load()), each)
    tokens = [*PROMPT.encode(), *tokens_of(events, 0)]
    assert listener.tokens == [tokens[:k] for k in range(len(PROMPT), len(PROMPT) + 24)]
    assert tokens_of(events, 0) == tokens_of(events, 1), "it has changed something"
    for row, event in zip(listener.rows, (each for each in said(events) if each.index == 0), strict=True):
        assert event.token
        assert event.token.logprob
        total = np.log(np.exp(row.astype(np.float64)).sum())
        assert event.token.logprob == pytest.approx(row[event.token.id] - total, abs=1e-5)


@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 0}, {"mirostat": 2}, {"top_k": 2, "presence_penalty": 0.3}, {"grammar": "root ::= [a-e ]*"}],
    ids=["sampled", "greedy", "mirostat", "narrowed", "grammar"],
)
def test_what_it_adds_is_as_a_logit_bias(load: Callable[..., LlamaBackend], fields: dict[str, Any]) -> None:
    biases = ((A, 2.5), (B, -math.inf))

    def add(tokens: Any, logits: Any) -> None:
        for token, bias in biases:
            logits[token] += bias

    engine = Engine(load())
    expected = tokens_of(run(engine, asked(None, logit_bias=biases, **fields)), 0)
    assert tokens_of(run(engine, asked(add, **fields)), 0) == expected
    assert tokens_of(run(engine, asked(None, **fields)), 0) != expected


def test_reported_probabilities_are_the_models_own_unless_those_of_the_samplers_are_asked_for(
    load: Callable[..., LlamaBackend],
) -> None:
    def force(tokens: Any, logits: Any) -> None:
        logits[:] = -np.inf
        logits[A] = 0

    engine = Engine(load())
    each = dataclasses.replace(asked(force, max_tokens=4), logprobs=1)
    for event in said(run(engine, each)):
        assert event.text == "a"
        assert event.token
        assert event.token.logprob
        assert event.token.logprob < -1
    each = dataclasses.replace(asked(force, max_tokens=4), logprobs=1, post_sampling_probs=True)
    assert [event.token.logprob for event in said(run(engine, each)) if event.token] == [0.0] * 4


def raises(tokens: Any, logits: Any) -> None:
    raise ValueError("no such token")


def returns(tokens: Any, logits: Any) -> None:
    return logits  # type: ignore[no-any-return]


def writes_tokens(tokens: Any, logits: Any) -> None:
    tokens[0] = 0


def sets(value: float, places: Any = slice(None)) -> LogitsProcessor:
    def processor(tokens: Any, logits: Any) -> None:
        logits[places] = value

    return processor


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (raises, "^logits_processor raised ValueError: no such token$"),
        (returns, "return None, got ndarray$"),
        (writes_tokens, "raised ValueError: .*read-only"),
        (sets(math.nan, 7), "one finite logit, .* the largest logit is nan$"),
        (sets(math.inf, 7), "the largest logit is inf$"),
        (sets(-math.inf), "the largest logit is -inf$"),
    ],
)
def test_its_errors_end_that_alternative_alone(
    load: Callable[..., LlamaBackend], fault: LogitsProcessor, message: str
) -> None:
    def later(tokens: Any, logits: Any) -> Any:
        return fault(tokens, logits) if len(tokens) == len(PROMPT) + 5 else None

    backend = load()
    engine = Engine(backend)
    each = asked(None, later)
    events = run(engine, each)
    check_order(events, each)
    (error,) = (event for event in events if isinstance(event, ErrorEvent))
    assert error.index == 1
    assert isinstance(error.error, LogitsProcessorError)
    with pytest.raises(LogitsProcessorError, match=message):
        raise error.error
    assert isinstance(error.error.__cause__, ValueError) == (fault in (raises, writes_tokens))
    assert {index: (stop.finish_reason, stop.length) for index, stop in stops(events).items()} == {
        0: ("length", 24),
        1: ("error", 5),
    }
    assert (engine.stats().cells, backend.used_seq_ids()) == (0, [])


def test_the_shape_of_the_logits_is_not_its_own(load: Callable[..., LlamaBackend]) -> None:
    def reshape(tokens: Any, logits: Any) -> None:
        logits.shape = (1, -1)

    events = run(Engine(load()), asked(reshape, None))
    assert tokens_of(events, 0) == tokens_of(events, 1)


def test_where_tokens_were_taken_back_it_sees_those_that_stayed(load: Callable[..., LlamaBackend]) -> None:
    engine = Engine(load())
    banned = tuple({text[2:4] for text in texts(run(engine, asked(None))).values()})
    listener = Listener()
    events = run(engine, asked(listener, None, banned_strings=banned))
    assert (stops(events)[0].rewinds or 0) > 0
    assert tokens_of(events, 0) == tokens_of(events, 1)
    tokens = [*PROMPT.encode(), *tokens_of(events, 0)]
    assert len(listener.tokens) > 24
    assert all(tokens[:k] in listener.tokens for k in range(len(PROMPT), len(tokens)))


def test_a_request_goes_on_with_it_after_an_interruption(load: Callable[..., LlamaBackend]) -> None:
    def ban_the_last(tokens: Any, logits: Any) -> None:
        logits[tokens[-1]] = -np.inf

    backend = load()

    def make() -> Engine:
        for seq_id in backend.used_seq_ids():
            backend.remove(seq_id)
        return Engine(backend)

    each = asked(ban_the_last, None)
    whole = run(make(), each)
    text = texts(whole)[0]
    assert not any(first == second for first, second in zip(tokens_of(whole, 0), tokens_of(whole, 0)[1:], strict=False))
    assert texts(run_interrupted(make, each, [6, 5]))[0][:12] == text[:12]
