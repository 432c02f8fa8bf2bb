"""Adapters on the real llama.cpp, judged by models that have them merged into their weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
from driver import run, texts
from tiny_lora import write_merged, write_tiny_lora

from srb.engine.engine import Engine
from srb.engine.events import StreamEvent
from srb.engine.lora import Asked
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import ModelLoadError, SettingsError
from srb.llama.backend import LlamaBackend

Load = Callable[..., LlamaBackend]
PROMPT = tuple(b"It was a dark and stormy night; the rain fell in torrents.")
N = 12


@pytest.fixture
def adapters(tmp_path: Path) -> str:
    return ",".join(str(write_tiny_lora(tmp_path / f"{name}.gguf", seed)) for seed, name in enumerate("ab"))


def asked(*settings: Asked | None) -> CompletionRequest:
    branches = [SamplingParams(temperature=0, max_tokens=N, ignore_eos=True, lora=lora) for lora in settings]
    return CompletionRequest((PROMPT,), tuple(branches), logprobs=1)


def logprobs(backend: LlamaBackend, *settings: Asked | None) -> list[list[tuple[int, float]]]:
    """The tokens of each alternative, and their log-probabilities."""
    found: list[list[tuple[int, float]]] = [[] for _ in settings]
    for event in run(Engine(backend), asked(*settings)):
        if isinstance(event, StreamEvent) and event.token and event.token.logprob is not None:
            found[event.index].append((event.token.id, event.token.logprob))
    return found


def test_each_is_as_the_model_with_its_adapter_merged(load: Load, tmp_path: Path, adapters: str) -> None:
    batched = logprobs(
        load(lora=adapters, flash_attn="off"), (), ((0, 1.0),), (("b", 1.0),), ((0, 0.5), (1, 2.0)), ((1, -1.0),)
    )
    merged = [{}, {0: 1.0}, {1: 1.0}, {0: 0.5, 1: 2.0}, {1: -1.0}]
    for k, (said, scales) in enumerate(zip(batched, merged, strict=True)):
        alone = load(model=write_merged(tmp_path / f"{k}.gguf", scales), flash_attn="off")
        (expected,) = logprobs(alone, None)
        assert len(said) == N
        assert [token for token, _ in said] == [token for token, _ in expected]
        assert [value for _, value in said] == pytest.approx([value for _, value in expected], abs=2e-3)
    assert len({tuple(said) for said in batched}) == len(merged)


def test_a_scale_after_the_file_applies_until_another_is_set(load: Load, tmp_path: Path, adapters: str) -> None:
    a, b = adapters.split(",")
    engine = Engine(backend := load(lora=f"{a}:0.5,{b}:0"))
    assert [(each.name, each.scale) for each in backend.adapters] == [("a", 0.5), ("b", 0.0)]
    said = texts(run(engine, asked(None, ((0, 0.5),), ())))
    assert said[0] == said[1] != said[2]
    engine.adapters.set_scales(())
    assert texts(run(engine, asked(None)))[0] == said[2]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"arch": "gemma3"}, "model arch and LoRA arch mismatch"),
        ({"size": 32}, "incorrect shape"),
        ({"aloud": True}, "only after certain tokens"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    load: Load, tmp_path: Path, made: dict[str, object], message: str
) -> None:
    path = write_tiny_lora(tmp_path / "other.gguf", **made)  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match=f"--lora .*other.gguf can't be .*{message}"):
        load(lora=str(path))


def test_a_file_that_is_not_there(load: Load, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--lora: there is no file"):
        load(lora=str(tmp_path / "no.gguf:0.5"))
    (tmp_path / "text.gguf").write_text("no adapter")
    with pytest.raises(ModelLoadError, match="can't be loaded"):
        load(lora=str(tmp_path / "text.gguf"))


def test_contexts_that_are_made_anew_have_them(load: Load, adapters: str) -> None:
    backend = load(lora=adapters)
    engine = Engine(backend)
    said = texts(run(engine, asked(((0, 1.0),))))
    backend.reset()
    backend.prepare(backend.layout)
    assert texts(run(engine, asked(((0, 1.0),)))) == said
