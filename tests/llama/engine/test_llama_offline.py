"""Results without events: texts, and how likely texts are."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_lora import write_tiny_lora

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.events import StreamEvent
from srb.engine.lora import Asked
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import Table, pair_tokens
from srb.errors import InvalidRequestError, LogitsProcessorError, NotSupportedError
from srb.llama.backend import LlamaBackend
from srb.llm import LLM
from srb.serving.async_engine import AsyncEngine

PROMPT = "the beginning of all of them, which is evaluated once,"
ENDS: list[str | tuple[int, ...]] = [" and one", " or another that is longer", "x", (60, 61, 256)]

Load = Callable[..., LlamaBackend]


def echoed(engine: Engine, tokens: tuple[int, ...], lora: Asked | None = None) -> list[float | None]:
    """The log-probabilities of a prompt's own tokens."""
    asked = CompletionRequest((tokens,), (SamplingParams(max_tokens=0, lora=lora),), echo=True, logprobs=0)
    events = [event for event in LLM(engine).run(asked) if isinstance(event, StreamEvent)]
    return [event.token.logprob for event in events if event.token]


def test_scores_are_those_of_whole_texts_and_their_beginning_is_evaluated_once(load: Load) -> None:
    rows = 0

    class Counting(LlamaBackend):
        def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
            nonlocal rows
            rows += len(batch)
            return super().decode(batch, interrupted)

    engine = Engine(load(Counting, parallel=2, cache_type_k="f32", cache_type_v="f32"))
    scores = LLM(engine).score(PROMPT, ENDS)
    prompt = engine.tokenize(PROMPT)
    assert rows == len(prompt) + sum(len(score.tokens) - 1 for score in scores)
    for score, end in zip(scores, ENDS, strict=True):
        assert score.tokens == (end if isinstance(end, tuple) else engine.tokenize(end, is_prompt=False))
        expected = echoed(engine, prompt + score.tokens)[len(prompt) :]
        assert score.logprobs == pytest.approx(expected, abs=0.01)
        assert score.logprob == pytest.approx(sum(score.logprobs))


def test_texts(load: Load) -> None:
    engine = Engine(load())
    params = SamplingParams(seed=3, max_tokens=5)
    written = LLM(engine).generate_texts(PROMPT, 3, params)
    asked = CompletionRequest((engine.tokenize(PROMPT),), params.alternatives(3))
    texts = ["", "", ""]
    for event in LLM(engine).run(asked):
        if isinstance(event, StreamEvent):
            texts[event.index] += event.text
    assert written == texts
    assert len(LLM(engine).generate_texts(PROMPT, params=dataclasses.replace(params, max_tokens=1))) == 1
    engine.add_request(asked)
    with pytest.raises(RuntimeError, match="for an engine that has no other work"):
        LLM(engine).generate_texts(PROMPT)
    while engine.has_work:
        engine.step()

    def unlucky(_tokens: object, _logits: object) -> None:
        raise ValueError("no luck")

    with pytest.raises(LogitsProcessorError, match="no luck"):
        LLM(engine).generate_texts(PROMPT, params=SamplingParams(logits_processor=unlucky))


def test_a_table_has_the_numbers_of_its_rows_one_by_one(load: Load, tmp_path: Path) -> None:
    """To 1e-4, since the weights are F32; also with adapters, and whatever is cached."""
    lora = str(write_tiny_lora(tmp_path / "a.gguf", 1))
    exact = {"lora": f"{lora}:0", "cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off"}
    engine, alone = Engine(load(**exact), cache_bytes=10_000_000), Engine(load(**exact))
    contexts = [PROMPT + " " * (k % 2) + "x" * k for k in range(12)]
    ends: list[str | tuple[int, ...]] = [" and one", "or another", (60, 61)]
    branches = [SamplingParams(seed=0), SamplingParams(seed=0, lora=((0, 1.0),))]
    table = Table.of(contexts, ends, branches)
    for _ in range(2):  # the second time much of it is known
        rows = list(LLM(engine).score_table(table))
        assert len(rows) == 12 * 3 * 2
        for row in rows:
            context, end, _ = pair_tokens(contexts[row.context], ends[row.continuation], alone.tokenize)
            expected = echoed(alone, context + end, branches[row.branch].lora)[len(context) :]
            assert row.score
            assert row.score.logprobs == pytest.approx(expected, abs=1e-4)
    by_branch = [[row.score and row.score.logprob for row in rows if row.branch == branch] for branch in (0, 1)]
    assert by_branch[0] != by_branch[1]


async def test_the_same_with_asyncio(load: Load) -> None:
    engine = Engine(load())
    params = SamplingParams(seed=3, max_tokens=5)
    texts, scores = LLM(engine).generate_texts(PROMPT, 2, params), LLM(engine).score(PROMPT, ENDS)
    async with AsyncEngine(lambda _progress: load()) as other:
        assert await other.generate_texts(PROMPT, 2, params) == texts
        assert await other.score(PROMPT, ENDS) == scores
        table = await other.score([PROMPT, PROMPT + "x"], [ENDS, ENDS[:1]])
        assert [[score.tokens for score in each] for each in table] == [
            [score.tokens for score in scores],
            [scores[0].tokens],
        ]
        assert table[0][1].logprobs == pytest.approx(scores[1].logprobs, abs=0.01)
        (first,) = await other.score(other.tokenize(PROMPT), ENDS[:1])
        assert first.logprobs == pytest.approx(scores[0].logprobs, abs=0.01)


async def test_embeddings(load: Load) -> None:
    engine = Engine(backend := load(embeddings=True, pooling="mean"))
    first, again, other = LLM(engine).embed(["a text", tuple(b"a text"), "another one"])
    assert first == again != other
    assert sum(value * value for value in first) == pytest.approx(1)
    assert backend.embedder
    (raw,) = backend.embedder.embed(tuple(b"a text"))
    assert first[0] / first[1] == pytest.approx(raw[0] / raw[1])
    with pytest.raises(InvalidRequestError, match=r"texts\[1\] has 33 tokens; the limit is 32"):
        LLM(engine).embed(["x", "x" * 33])
    with pytest.raises(InvalidRequestError, match=r"write .* around it"):
        LLM(engine).embed("a text")
    for settings, advice in (({}, "embeddings=True"), ({"embeddings": True}, "pooling=")):
        with pytest.raises(NotSupportedError, match=advice):
            LLM(Engine(load(**settings))).embed(["a text"])
    async with AsyncEngine(lambda _progress: load(embeddings=True, pooling="mean")) as client:
        assert await client.embed(["a text"]) == [first]
