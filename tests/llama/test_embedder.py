"""Embeddings, on the tiny model."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from tiny_model import write_tiny_model

from srb.errors import BackendError, ModelLoadError, UnavailableError
from srb.llama.backend import LlamaBackend
from srb.llama.native.params import physical_cores
from srb.llama.native.threads import ThreadWaiting

Load = Callable[..., LlamaBackend]
TEXT = tuple(b"a text")


def test_a_text_has_a_vector_that_depends_on_it_alone(load: Load) -> None:
    embedder = load(embeddings=True, pooling="last").embedder
    assert embedder
    assert (embedder.pools, embedder.max_tokens) == (True, 32)
    (vector,) = embedder.embed(TEXT)
    assert len(vector) == 64
    assert embedder.embed(tuple(b"another")) != [vector]
    assert embedder.embed(TEXT) == [vector]
    assert len(embedder.embed(tuple(b"x" * 32))) == 1


def test_its_threads_are_those_of_the_engine_and_their_waiting_is_watched(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a busy program four threads that spun on two cores took minutes."""
    watched: list[ThreadWaiting] = []

    def watch(waiting: ThreadWaiting) -> nullcontext[None]:
        watched.append(waiting)
        return nullcontext()

    monkeypatch.setattr(ThreadWaiting, "watched", watch)
    init = llama_cpp.llama_init_from_model
    threads: list[int] = []

    def note(model: Any, params: Any) -> Any:
        threads.append(params.n_threads_batch)
        return init(model, params)

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", note)
    embedder = load(embeddings=True).embedder
    assert embedder
    embedder.embed(TEXT)
    assert len(watched) == 1
    assert len(threads) > 1
    assert set(threads) == {physical_cores()}


def test_pooling(load: Load) -> None:
    each = load(embeddings=True).embedder  # the model has none, as models that generate do
    last, mean = (load(embeddings=True, pooling=pooling).embedder for pooling in ("last", "mean"))
    assert each
    assert last
    assert mean
    assert not each.pools
    vectors = each.embed(TEXT)
    assert len(vectors) == len(TEXT)
    assert last.embed(TEXT)[0] == pytest.approx(vectors[-1], abs=1e-4)
    means = [sum(column) / len(TEXT) for column in zip(*vectors, strict=True)]
    assert mean.embed(TEXT)[0] == pytest.approx(means, abs=1e-4)


def test_what_cannot_be_embedded(load: Load) -> None:
    backend = load(embeddings=True)
    assert backend.embedder
    for tokens in ((), tuple(b"x" * 33)):
        with pytest.raises(BackendError, match="1 to 32 tokens"):
            backend.embedder.embed(tokens)
    backend.close()
    with pytest.raises(UnavailableError):
        backend.embedder.embed(TEXT)


def test_there_is_none_unless_it_is_wanted(load: Load) -> None:
    assert load().embedder is None


def test_a_model_that_ranks(load: Load, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "ranks.gguf", arch="qwen3", rank_template="Q: {query} D: {document}")
    ranks, embeds = load(model=model, reranking=True).embedder, load(model=model, embeddings=True).embedder
    assert ranks
    assert embeds
    assert (ranks.rank_template, embeds.rank_template) == ("Q: {query} D: {document}", None)
    for text in (TEXT, tuple(b"another text")):
        (scores,), last = ranks.embed(text), embeds.embed(text)[-1]
        yes, no = math.exp(last[0]), math.exp(last[1])  # its head takes these two
        assert scores == pytest.approx([yes / (yes + no), no / (yes + no)], rel=1e-3)


def test_models_that_do_not(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"--reranking: the model .* has no classification head"):
        load(reranking=True)
    model = write_tiny_model(tmp_path / "mute.gguf", arch="qwen3", rank_template="")
    with pytest.raises(ModelLoadError, match="doesn't say how to write a query"):
        load(model=model, reranking=True)
