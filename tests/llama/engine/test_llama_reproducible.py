"""`--reproducible` on the real llama.cpp: log-probabilities are the same to the last bit. Takes 10 s."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driver import request, run, stops
from tiny_lora import write_tiny_lora
from tiny_model import write_tiny_model
from tiny_projector import has_mtmd, png, write_tiny_projector

from srb.engine.engine import Engine
from srb.engine.events import Event, StartEvent, StopEvent, StreamEvent
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError, ModelLoadError, SettingsError
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings

STORY = (
    "Once upon a time, there was a little dragon who lived in a castle by the sea. He liked to read about knights. " * 2
)


WINDOW = 128
"""Tokens. Prompts are shorter, and longer: llama.cpp saves no more of a sequence."""


@pytest.fixture(scope="module", params=["all tokens", "a window"])
def backend(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaBackend]:
    if request.param == "all tokens":
        used = settings(tiny_model)
    else:
        model = write_tiny_model(tmp_path_factory.mktemp("sliding") / "tiny.gguf", arch="gemma3", window=WINDOW)
        used = settings(model, cache_type_k="bf16", cache_type_v="bf16")
    with LlamaBackend(used) as backend:
        yield backend


def settings(model: Path, **options: Any) -> Settings:
    defaults: dict[str, Any] = {"reproducible": True, "ctx_size": 8 * 512, "parallel": 8, "batch_size": 64}
    return Settings(model=model, **(defaults | options))


def ask(text: str, n: int, **options: Any) -> CompletionRequest:
    return replace(request(text, n, **{"max_tokens": 16, "ignore_eos": True} | options), logprobs=2)


def bits(events: Iterable[Event], each: CompletionRequest) -> dict[int, str]:
    """By index, all tokens with their log-probabilities, and those of a suffix, to the last bit."""
    said: dict[int, list[Any]] = {index: [] for index in range(each.count)}
    for event in events:
        if isinstance(event, StreamEvent) and event.request_id == each.id and event.token:
            said[event.index].append((event.text, event.token))
        elif isinstance(event, StopEvent) and event.request_id == each.id:
            said[event.index].append((event.suffix_logprob, event.rank, event.length))
    return {index: repr(tokens) for index, tokens in said.items()}


def alone(backend: LlamaBackend, each: CompletionRequest) -> dict[int, str]:
    return bits(run(Engine(backend), each), each)


@pytest.mark.skipif(not has_mtmd(), reason="this llama-cpp-python was built without mtmd")
def test_adapters_and_images_keep_the_bits(load: Callable[..., LlamaBackend], tmp_path: Path) -> None:
    lora = ",".join(str(write_tiny_lora(tmp_path / f"{seed}.gguf", seed)) for seed in (0, 1))
    projector = write_tiny_projector(tmp_path / "mmproj.gguf")
    backend = load(reproducible=True, ubatch_size=64, ctx_size=8 * 512, lora=lora, mmproj=projector)

    def asked(text: str, image: int, *lora: tuple[int, float]) -> CompletionRequest:
        tokens, media = Engine(backend).tokenize_parts((STORY[:80], png(image), text))
        each = ask(text, 2, lora=lora)
        return replace(each, prompts=(tokens,), media=media, id=f"{text} {image} {lora}")

    sent = [asked("Who?", 1), asked("Who?", 2), asked("Who?", 1, (0, 1.0)), asked("Why?", 1, (0, 0.5), (1, 2.0))]
    engine, events = Engine(backend, cache_bytes=50_000_000), list[Event]()
    for each in sent:
        engine.add_request(each)
        events += [event for _ in range(3) for event in engine.step()]
    events += run(engine)
    found = [bits(events, each) for each in sent]
    assert len({*map(str, found)}) == len(sent)
    assert found == [alone(backend, each) for each in sent]


def test_a_server_for_one_alternative_computes_no_padding(tiny_model: Path) -> None:
    """And its answer is the same after a prompt that was scored, whose last token was decoded with others."""
    with LlamaBackend(settings(tiny_model, parallel=1, ctx_size=512)) as backend:
        each = ask(STORY[:128], 1, seed=5)
        expected = alone(backend, each)
        engine = Engine(backend, cache_bytes=50_000_000)
        run(engine, replace(ask(STORY[:128], 1, max_tokens=4), echo=True), ask("x", 1))
        assert bits(run(engine, each), each) == expected
        assert engine.stats().prompt_tokens_cached > 0
    with LlamaBackend(settings(tiny_model)) as backend:
        assert alone(backend, each) != expected, "one row alone has other bits than several"


def test_the_same_bits_have_the_same_fingerprint(tiny_model: Path, backend: LlamaBackend) -> None:
    (start,) = (event for event in run(Engine(backend), ask("x", 1)) if isinstance(event, StartEvent))
    assert start.fingerprint == backend.fingerprint != ""
    with LlamaBackend(settings(tiny_model, cache_type_k="f32", cache_type_v="f32")) as other:
        assert other.fingerprint not in ("", backend.fingerprint)
    with LlamaBackend(settings(tiny_model, reproducible=False)) as usual:
        assert usual.fingerprint == ""


def test_each_alternative_has_its_cells_from_the_start(backend: LlamaBackend) -> None:
    assert backend.n_cells == 511
    ends = stops(run(Engine(backend), replace(ask("x" * 500, 4, max_tokens=-1), logprobs=None)))
    assert {each.length for each in ends.values()} == {12}


def test_what_would_not_be_exact_is_refused(
    load: Callable[..., LlamaBackend], backend: LlamaBackend, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError, match="--reproducible"):
        Engine(backend).add_request(replace(ask("x", 1, max_tokens=-1), context_shift=True))
    for options, message in (
        ({"flash_attn": "on"}, "--flash-attn on"),
        ({"batch_size": 32}, "--batch-size below 64"),
        ({"ubatch_size": 63}, "--ubatch-size below 64"),
        ({"ubatch_size": 64, "parallel": 64}, "--ubatch-size below 67"),
        ({"context_shift": True}, "--context-shift"),
        ({"swa_full": False}, "--no-swa-full"),
    ):
        with pytest.raises(SettingsError, match=f"--reproducible excludes .*{message}"):
            settings(tmp_path, **options)


@pytest.mark.parametrize("arch", ["mamba", "jamba"])
def test_a_model_with_a_recurrent_state_is_refused(arch: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="--reproducible can't be used: this model has a recurrent state"):
        LlamaBackend(settings(write_tiny_model(tmp_path / "forgets.gguf", arch=arch)))
