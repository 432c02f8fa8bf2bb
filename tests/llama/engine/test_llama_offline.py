"""Results without events: texts, and how likely texts are."""

from collections.abc import Callable

import pytest

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.events import StreamEvent
from srb.engine.lora import Asked
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError, NotSupportedError
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
