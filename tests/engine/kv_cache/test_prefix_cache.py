"""Prefix caching with models that forget: a sliding window has the last tokens, a recurrent state is of the end alone.

The fake backend asserts that no fork and no row needs what isn't there any more.
"""

from collections.abc import Callable

import pytest
from driver import own, request, run, texts
from fake_backend import FakeBackend

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event
from srb.engine.request import CompletionRequest

N_CELLS = 6000
STORY = "".join(chr(97 + i * i % 26) for i in range(200))
BOOK = "".join(chr(97 + (i * i + i // 7) % 26) for i in range(5000))


@pytest.fixture(params=[0, 8], ids=["recurrent", "window"])
def window(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def make(window: int | None, cache_bytes: int = 100_000, **options: object) -> tuple[Engine, FakeBackend]:
    backend = FakeBackend(n_cells=N_CELLS, window=window, **options)  # type: ignore[arg-type]
    return Engine(backend, cache_bytes=cache_bytes), backend


def evaluated(engine: Engine, *requests: CompletionRequest) -> int:
    """As `driver.evaluated`, of texts that are those of an engine without a cache."""
    before = engine.stats().prompt_tokens_evaluated
    for each in requests:
        said = texts(run(engine, each))
        assert said == texts(run(Engine(FakeBackend(n_cells=N_CELLS)), each))
    return engine.stats().prompt_tokens_evaluated - before


def test_where_prompts_part_a_state_is_cached_for_the_third(window: int) -> None:
    engine, _ = make(window)
    prompts = [STORY[:100] + text * 30 for text in ("one", "two", "three")]
    assert [evaluated(engine, request(prompt, max_tokens=3)) for prompt in prompts] == [190, 190, 150]


@pytest.mark.parametrize(("window", "n_evaluated", "n_forks"), [(None, 151, 1), (0, 201, 3), (8, 201, 3)])
def test_a_prompt_that_will_begin_with_a_state_is_shared_before_its_end_if_the_model_remembers(
    window: int | None, n_evaluated: int, n_forks: int
) -> None:
    engine, _ = make(window)
    parting = request([STORY[:150], STORY[:50] + "x"], max_tokens=3)
    assert evaluated(engine, request(STORY[:100], max_tokens=3), parting) == n_evaluated
    assert engine.stats().forks == n_forks  # where models forget, each alternative is one


def test_along_a_long_prompt_states_are_cached_at_regular_points(window: int) -> None:
    engine, backend = make(window, 10_000_000)
    assert evaluated(engine, request(BOOK[:2800], max_tokens=3)) == 2800
    assert backend.saved[:5] == [(0, 512), (512, 1024), (1024, 1536), (1536, 2048), (2048, 2560)]
    assert evaluated(engine, request(BOOK[:2100] + "another end", max_tokens=3)) == 2100 + 11 - 2048
    engine, backend = make(window, 10_000_000)
    assert evaluated(engine, request(BOOK, max_tokens=3)) == 5000
    assert backend.saved[:4] == [(0, 1024), (1024, 2048), (2048, 3072), (3072, 4096)]


def test_logits_that_lack_after_a_cached_text_are_cached_when_they_are_computed(window: int) -> None:
    engine, _ = make(window, 10_000_000)
    for end in ("one", "two"):
        run(engine, request(BOOK[:2600] + end * 30, max_tokens=3))  # a state is cached where they part, without logits
    whole = request(BOOK[:2600], max_tokens=3)
    assert [evaluated(engine, whole) for _ in range(2)] == [2600 - 2560, 0]


def test_a_running_answer_is_forked_at_its_end_and_not_after(window: int) -> None:
    backend = FakeBackend(n_cells=3000, window=window, script=lambda params, tokens: 65)
    engine = Engine(backend)
    engine.add_request(request(STORY, n=2, max_tokens=60))
    while engine.stats().tokens_generated < 60:
        engine.step()
    at_end, in_middle = request(STORY + "A" * 30, max_tokens=2), request(STORY + "A" * 10 + "B", max_tokens=2)
    before = engine.stats().prompt_tokens_evaluated
    run(engine, at_end)
    # 30 tokens were sampled, 29 computed, and the first alternative moved on by one meanwhile.
    assert engine.stats().prompt_tokens_evaluated - before in (1, 30)
    before = engine.stats().prompt_tokens_evaluated
    run(engine, in_middle)
    assert engine.stats().prompt_tokens_evaluated - before == 211


def test_a_prompt_that_others_continue_is_shared_where_they_have_gone_on(window: int) -> None:
    """The alternatives have more of the text, but can't be continued there any more; their prompt can at its end."""
    engine = Engine(FakeBackend(n_cells=1000, window=window, script=lambda params, tokens: 97))
    engine.add_request(request("x" * 60, 2, max_tokens=50, ignore_eos=True))
    while engine.stats().tokens_generated < 50:
        engine.step()
    run(engine, request("x" * 60 + "a" * 10 + "line", max_tokens=1))
    assert engine.stats().prompt_tokens_cached == 60


def test_what_is_computed_again_is_not_shared_before() -> None:
    """Then it would be in the cells twice, and counted once."""
    engine = Engine(backend := FakeBackend(n_cells=3000, window=100, script=lambda params, tokens: 97))
    engine.add_request(request(STORY[:40], max_tokens=80, banned_strings=("aaab",)))
    while engine.stats().tokens_generated < 30:
        engine.step()
    engine.add_request(request(STORY[:40] + "a" * 20 + "x", max_tokens=60))
    while engine.has_work:
        engine.step()
        assert backend.cells <= engine.stats().cells
    assert engine.stats().prompt_tokens_cached == 40
    assert engine.stats().rows > 80 + 60  # some of them again


def test_sequences_have_consecutive_seq_ids_also_if_they_may_go_back() -> None:
    """llama.cpp has a decode for each of those that haven't, where a state is recurrent."""
    seq_ids: list[list[int]] = []

    class Noting(FakeBackend):
        def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
            seq_ids.append(batch.seq_ids)
            return super().decode(batch, interrupted)

    engine = Engine(Noting(n_cells=3000, window=0))
    run(engine, request(n=4, max_tokens=3, ignore_eos=True, banned_strings=("\x00",)))
    assert seq_ids[1] == list(range(seq_ids[1][0], seq_ids[1][0] + 4))


@pytest.mark.parametrize("window", [None, 0, 8])
def test_the_work_of_a_prompt_that_was_aborted_is_taken_over(window: int | None) -> None:
    engine, _ = make(window, n_batch=16)
    first = request(STORY, max_tokens=3)
    others = [request(STORY[:length] + "x", max_tokens=3, ignore_eos=True) for length in (150, 180)]
    for each in (first, *others):
        engine.add_request(each)
    events: list[Event] = []
    while engine.stats().prompt_tokens_evaluated < 64:
        events += engine.step()
    engine.abort(first.id)
    events += run(engine)
    assert engine.stats().prompt_tokens_evaluated == 181 + 1
    assert sum(isinstance(event, DoneEvent) for event in events) == 3
    for each in others:
        assert texts(own(events, each)) == texts(run(Engine(FakeBackend(n_cells=N_CELLS)), each))
