"""Exploring on the fake backend, compared with all continuations."""

import heapq
import math
from collections.abc import Iterator

import pytest
from driver import check_order, request, run
from fake_backend import END, N_VOCAB, FakeBackend, Scores, entropy, scores
from hypothesis import given
from hypothesis import strategies as st

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, ErrorEvent, Event, NodeEvent, StopEvent
from srb.engine.request import CompletionRequest, Explore
from srb.engine.resume import resume
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError

Path = tuple[int, ...]


def exploring(prompt: str = "p", **fields: object) -> CompletionRequest:
    return CompletionRequest.exploring(tuple(prompt.encode()), Explore(**fields))  # type: ignore[arg-type]


def paths(events: list[Event], reported: tuple[Path, ...] = ()) -> dict[Path, NodeEvent]:
    """The nodes by their texts, in their order."""
    known = list(reported)
    nodes = {}
    for event in events:
        if isinstance(event, NodeEvent):
            assert event.id == len(known) + 1
            known.append((known[event.parent - 1] if event.parent else ()) + event.tokens)
            nodes[known[-1]] = event
    return nodes


def all_nodes(prompt: Path, explore: Explore) -> Iterator[tuple[Path, float]]:
    """Each node there is with its log-probability, found by looking at all of them."""

    def below(path: Path, logprob: float, depth: int) -> Iterator[tuple[Path, float]]:
        hesitates = entropy(prompt + path) >= explore.min_entropy
        all_scores = scores(prompt + path)
        top = sorted(range(N_VOCAB), key=lambda each: -all_scores[each])
        for token in top[: explore.top_k if hesitates else 1]:
            if hesitates and math.exp(all_scores[token]) < explore.min_probability:
                continue
            text, total = (*path, token), logprob + all_scores[token]
            while text[-1] != END and len(text) < explore.max_path and entropy(prompt + text) < explore.min_entropy:
                own = scores(prompt + text)
                best = max(range(N_VOCAB), key=own.__getitem__)
                text, total = (*text, best), total + own[best]
            yield text, total
            if text[-1] != END and depth < explore.depth and len(text) < explore.max_path:
                yield from below(text, total, depth + 1)

    return below((), 0.0, 1)


def check(nodes: dict[Path, NodeEvent], prompt: Path, explore: Explore) -> None:
    """They are the most probable ones, in their order."""
    every = dict(all_nodes(prompt, explore))
    expected = heapq.nsmallest(explore.max_nodes, every, key=lambda path: (-every[path], path))
    assert list(nodes) == expected
    for path, node in nodes.items():
        assert node.cumulative_logprob == pytest.approx(every[path])
        parent = path[: len(path) - len(node.tokens)]
        assert node.logprob == pytest.approx(every[path] - every.get(parent, 0.0))


@given(
    st.sampled_from("pqrs"),
    st.builds(
        Explore,
        depth=st.integers(1, 4),
        top_k=st.integers(1, 4),
        min_probability=st.sampled_from([0, 0.3, 0.9]),
        max_nodes=st.integers(1, 400),
        min_entropy=st.sampled_from([0, 0, 4.15, 4.25, 4.35]),
    ),
    st.integers(1, 12),
)
def test_nodes_are_the_likeliest_of_all_in_their_order(prompt: str, explore: Explore, n_parallel: int) -> None:
    engine = Engine(backend := FakeBackend(n_parallel=n_parallel, n_cells=1024))
    asked = CompletionRequest.exploring(tuple(prompt.encode()), explore)
    events = run(engine, asked)
    check_order(events, asked)
    check(paths(events), tuple(prompt.encode()), explore)
    (stop,) = [event for event in events if isinstance(event, StopEvent)]
    every = sum(1 for _ in all_nodes(tuple(prompt.encode()), explore))
    assert stop.finish_reason == ("stop" if every <= explore.max_nodes else "length")
    assert backend.cells == 0


def test_shared_beginnings_are_evaluated_once() -> None:
    engine = Engine(backend := FakeBackend(n_parallel=32))
    events = run(engine, exploring("prompt", depth=3, top_k=3, max_nodes=39, min_probability=0))
    assert len(paths(events)) == 3 + 9 + 27
    assert backend.rows == len("prompt") + 3 + 9, "the last ones needn't be evaluated"


def test_rows_are_few_where_there_are_fewer_sequences_than_texts() -> None:
    engine = Engine(backend := FakeBackend(n_parallel=16))
    events = run(engine, exploring(depth=6, top_k=3, max_nodes=200, min_probability=0))
    n_parents = len({node.parent for node in paths(events).values()})
    assert n_parents > 60, "or all texts would have a sequence"
    assert backend.rows < 2.5 * n_parents


def backend_with(scores: Scores) -> FakeBackend:
    """A model with these logits, for which every entropy is 1."""
    return FakeBackend(scores=scores, entropy_of=lambda _context: 1.0)


def test_the_end_token_ends_a_branch() -> None:
    def ends_after_b(context: Path, token: int) -> float:
        return 0.0 if token == (END if context[-1] == ord("b") else ord("b")) else -5.0 - token

    def all_scores(context: Path) -> list[float]:
        return [ends_after_b(context, token) for token in range(N_VOCAB)]

    nodes = paths(run(Engine(backend_with(all_scores)), exploring(top_k=1)))
    assert [(node.text, node.finish_reason) for node in nodes.values()] == [("b", None), ("", "stop")]
    assert list(nodes) == [(ord("b"),), (ord("b"), END)]
    run_on = paths(run(Engine(backend_with(all_scores)), exploring(top_k=1, min_entropy=2)))
    assert [(node.text, node.tokens, node.entropy) for node in run_on.values()] == [("b", (ord("b"), END), None)]


def test_a_character_is_said_by_the_node_that_completes_it() -> None:
    says = "né€!".encode()

    def all_scores(context: Path) -> list[float]:
        said = len(context) - 1
        top = {says[said]: -0.1, ord("x"): -3.0} if said < len(says) else {END: -0.1}
        return [top.get(token, -50.0) for token in range(N_VOCAB)]

    nodes = paths(run(Engine(backend_with(all_scores)), exploring(depth=9, top_k=2)))
    top = [nodes[tuple(says[: k + 1])].text for k in range(len(says))]
    assert top == ["n", "", "é", "", "", "€", "!"]
    assert nodes[(*says[:2], ord("x"))].text == "\ufffdx", "it never becomes a character"
    half = CompletionRequest.exploring(tuple("é".encode()[:1]), Explore(depth=1, top_k=1))
    second_half = backend_with(lambda _context: [-(token != 0xA9) for token in range(N_VOCAB)])
    (node,) = paths(run(Engine(second_half), half)).values()
    assert node.text == "é", "the prompt's half of a character counts"


def test_all_nodes_may_be_reported_before_the_rest_of_a_failed_decode() -> None:
    prompt, explore = tuple(b"a prompt of some tokens"), Explore(depth=2, top_k=8, max_nodes=1, min_probability=0)
    backend = FakeBackend(n_parallel=32, fail_decodes={2})
    engine = Engine(backend, cache_bytes=10_000)
    check(paths(run(engine, CompletionRequest.exploring(prompt, explore))), prompt, explore)
    assert backend.saved == [(0, len(prompt))], "only the prompt is cached"


@pytest.mark.parametrize("names", [True, False])
def test_what_can_never_be_evaluated_ends_it_once(names: bool) -> None:
    (top,) = paths(run(Engine(FakeBackend()), exploring(depth=1, top_k=1)))
    asked, other = exploring(depth=3), request("q", n=3, max_tokens=5)
    backend = FakeBackend(poison=chr(top[0]), names_poisoned=names, script=lambda *_: ord("z"))
    assert top != (ord("z"),)
    events = run(engine := Engine(backend), asked, other)
    check_order(events, asked)
    check_order(events, other)
    (error,) = [event for event in events if isinstance(event, ErrorEvent)]
    assert (error.request_id, error.index) == (asked.id, None)
    assert (backend.cells, engine.stats().cells, engine.stats().sequences) == (0, 0, 0)


@given(st.integers(0, 30), st.sampled_from([0.0, 4.25]))
def test_one_that_was_interrupted_goes_on_where_it_was(n_reported: int, min_entropy: float) -> None:
    explore = Explore(depth=3, top_k=4, max_nodes=40, min_entropy=min_entropy)
    asked = CompletionRequest.exploring(tuple(b"p"), explore)
    whole = run(Engine(FakeBackend()), asked)
    before = whole[: 1 + n_reported]
    rest = resume(asked, before)
    assert rest
    after = run(Engine(FakeBackend()), rest)
    assert [*before, *after[1:]][:-1] == whole[:-1]  # without its second start
    assert isinstance(after[-1], DoneEvent)
    assert isinstance(whole[-1], DoneEvent)
    assert after[-1].usage.completion_tokens == whole[-1].usage.completion_tokens
    assert after[-1].timings
    assert after[-1].timings.predicted_n == sum(len(each.tokens) for each in after if isinstance(each, NodeEvent))


def test_what_is_refused() -> None:
    for fields in ({"depth": 0}, {"top_k": 101}, {"min_probability": 1.5}, {"max_nodes": 0}, {"min_entropy": math.nan}):
        with pytest.raises(InvalidRequestError, match=f"{next(iter(fields))} must be from"):
            exploring(**fields)
    for other in (SamplingParams(), SamplingParams(max_tokens=1), SamplingParams(max_tokens=4, guidance_scale=2.0)):
        with pytest.raises(InvalidRequestError, match="a max_tokens of 4 and nothing else"):
            CompletionRequest(((1,),), (other,), explore=Explore(depth=4))
    with pytest.raises(InvalidRequestError, match="a recurrent state"):
        Engine(FakeBackend(window=0)).add_request(exploring())
