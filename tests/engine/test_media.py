"""An image is computed once, whole, and shared like any other part of a prompt."""

from collections.abc import Sequence

import pytest
from driver import check_order, few, own, run, run_interrupted, texts
from fake_backend import FakeBackend, FakeReader
from hypothesis import given
from hypothesis import strategies as st

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent
from srb.engine.kv_cache.radix import PrefixTree, pack
from srb.engine.media import Media, PromptPart, placed, whole, words
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import ContextSizeError, InvalidRequestError

CAT, DOG = b"\x89cat" * 10, b"\x89dog" * 10
BEFORE, AFTER = "What is in this picture, in a few words?", "Be brief."


def backend_of(**options: object) -> FakeBackend:
    return FakeBackend(n_cells=1000, n_parallel=16, media=FakeReader(), **options)  # type: ignore[arg-type]


def ask(engine: Engine, *parts: PromptPart, n: int = 1, seed: int = 0, **options: object) -> CompletionRequest:
    tokens, media = engine.tokenize_parts(parts)
    branches = SamplingParams(max_tokens=5, seed=seed, ignore_eos=True).alternatives(n)
    return CompletionRequest((tokens,), branches, media=media, **options)  # type: ignore[arg-type]


def waiting(backend: FakeBackend, n: int) -> FakeReader:
    """Its reader, that has an image ready when it was asked for it more often than that."""
    assert isinstance(backend.media, FakeReader)
    backend.media.n_wait = n
    return backend.media


def encoded(engine: Engine) -> int:
    return engine.stats().media_encoded


def test_an_image_is_computed_once_for_all_alternatives_and_not_at_all_for_the_next_request() -> None:
    engine = Engine(backend_of(), cache_bytes=1_000_000)
    first = ask(engine, BEFORE, CAT, AFTER, n=8)
    check_order(run(engine, first), first)
    assert encoded(engine) == 1
    again = run(engine, ask(engine, BEFORE, CAT, "And now?", n=8))
    assert len(texts(again)) == 8
    assert encoded(engine) == 1
    assert engine.stats().prompt_tokens_cached >= len(BEFORE) + 1 + len(CAT)


def test_no_other_waits_for_an_image_that_is_being_encoded() -> None:
    backend = backend_of()
    reader = waiting(backend, 6)
    engine = Engine(backend)
    looking = ask(engine, BEFORE, CAT, AFTER)
    engine.add_request(looking)
    story = ask(engine, "Once upon a time", n=2)
    events = run(engine, story)
    ends = [event.request_id for event in events if isinstance(event, DoneEvent)]
    assert ends == [story.id, looking.id]
    assert (reader.n_waited, reader.n_encoded) == (0, 1)
    assert texts(own(events, looking)) == texts(run(Engine(backend_of()), looking))


def test_an_image_is_waited_for_where_there_is_nothing_else_to_do() -> None:
    backend = backend_of()
    reader = waiting(backend, 10**9)
    engine = Engine(backend)
    assert len(texts(run(engine, ask(engine, "x", CAT, "y", n=2), steps=20))) == 2
    assert reader.n_waited == 1


def test_an_image_of_few_cells_is_distinguished_by_the_hash_of_its_contents() -> None:
    engine = Engine(backend_of(), cache_bytes=1_000_000)
    (small, *_) = ask(engine, "x", b"ab", "y").media
    twin = Media("another", small.tokens, b"ba")  # as if their few placeholders were the same
    run(engine, ask(engine, BEFORE, b"ab", AFTER))
    tokens = ask(engine, BEFORE, b"ab", AFTER).prompts
    run(engine, CompletionRequest(tokens, SamplingParams(max_tokens=1).alternatives(1), media=(twin,)))
    assert encoded(engine) == 2


@pytest.mark.parametrize("window", [None, 0, 20])
@pytest.mark.parametrize("cut", few(0, 3, 5, many=[1, 2, 4, 6, 7]))
def test_an_interrupted_request_goes_on(window: int | None, cut: int) -> None:
    def make() -> Engine:
        return Engine(backend_of(window=window), cache_bytes=100_000)

    each = ask(make(), BEFORE, CAT, AFTER, n=3)
    assert texts(run_interrupted(make, each, [cut, cut])) == texts(run(make(), each))


def test_files_after_a_full_context_arent_read() -> None:
    """Reading takes up to a second for each, and a body has room for hundreds."""
    engine = Engine(backend_of())
    with pytest.raises(ContextSizeError, match="at least 1008 tokens"):
        engine.tokenize_parts([CAT] * 24 + [b"bad", "?"])
    with pytest.raises(InvalidRequestError, match="no image"):
        engine.tokenize_parts([CAT] * 22 + [b"bad", "?"])


def test_what_has_no_meaning_with_an_image_is_refused() -> None:
    engine = Engine(backend_of())
    with pytest.raises(InvalidRequestError, match="echo"):
        ask(engine, "x", CAT, "y", echo=True)
    tokens, media = engine.tokenize_parts(["x", CAT])
    with pytest.raises(InvalidRequestError, match="add a text"):  # without what this model has behind an image
        run(engine, CompletionRequest((tokens[:-1],), SamplingParams().alternatives(1), media=media))


def test_a_placeholder_that_stands_for_nothing_is_refused() -> None:
    engine = Engine(backend_of())
    tokens, _ = engine.tokenize_parts(["x", CAT, "y"])
    for media in ((), engine.tokenize_parts([DOG])[1]):
        with pytest.raises(InvalidRequestError, match="prompt"):
            run(engine, CompletionRequest((tokens,), SamplingParams().alternatives(1), media=media))
    for wrong in (tokens[:10], (*tokens[:10], *tokens[11:])):  # a part of an image
        with pytest.raises(InvalidRequestError, match="stands for"):
            run(engine, CompletionRequest((wrong,), SamplingParams().alternatives(1), media=ask(engine, CAT).media))


def test_a_model_without_a_projector_takes_no_images() -> None:
    with pytest.raises(InvalidRequestError, match="--mmproj"):
        Engine(FakeBackend()).tokenize_parts(["x", CAT])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=6), st.data())
def test_a_tree_never_leads_into_the_middle_of_an_image(images: list[tuple[int, int]], data: st.DataObject) -> None:
    def prompt(images: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], list[Media]]:
        media = [Media.of(f"{name}", size, None) for name, size in images]
        return tuple(token for k, each in enumerate(media) for token in (k, *each.tokens)), media

    tokens, media = prompt(images)
    other, _ = prompt(data.draw(st.permutations(images)))
    tree: PrefixTree[str] = PrefixTree()
    tree.add("other", pack(other))
    n_common = tree.find(pack(tokens)).n_tokens
    assert tokens[:n_common] == other[:n_common]
    ends = {0}
    for k, each in placed(tokens, media).items():
        ends |= {k, k + len(each.tokens)}
        assert whole(tokens, k + len(each.tokens) // 2) in (k, k + len(each.tokens))
    assert n_common in ends
    assert words(tokens) == tuple(range(len(images)))


def test_a_prompt_whose_last_token_stands_after_an_image_is_left_whole() -> None:
    """Healing takes the last token back, but there are no logits behind an image to draw the first token from."""
    backend = backend_of()
    engine = Engine(backend)
    each = ask(engine, BEFORE, CAT, n=2, heal=True)
    assert each.token_ids[0][-2] < 0
    backend.tokenizer.beginning_with = lambda text: [text[0], 0]  # type: ignore[method-assign]
    events = run(engine, each)
    check_order(events, each)
    assert texts(events) == texts(run(Engine(backend_of()), ask(engine, BEFORE, CAT, n=2)))
