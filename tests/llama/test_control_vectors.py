"""Control vectors on the real llama.cpp, judged by models that have them as a bias of a layer's output."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from driver import run, texts
from tiny_model import finish, write_tiny_model

from srb.engine.engine import Engine
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import ModelLoadError, SettingsError
from srb.llama.backend import LlamaBackend

Load = Callable[..., LlamaBackend]
REQUEST = CompletionRequest(
    (tuple(b"It was a dark and stormy night."),),
    (SamplingParams(temperature=0, max_tokens=16, ignore_eos=True),),
)
N_LAYER = 3
SIZE = 64


def direction(seed: int, size: int = SIZE) -> Any:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def write_directions(path: Path, tensors: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(str(path), "controlvector")
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    return finish(writer, path)


def said(backend: LlamaBackend) -> dict[int, str]:
    return texts(run(Engine(backend), REQUEST))


def test_it_is_as_a_bias_of_the_layers_output(load: Load, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model.gguf", n_layer=N_LAYER)
    first = write_directions(tmp_path / "a.gguf", {"direction.1": direction(1), "direction.2": direction(2)})
    second = write_directions(tmp_path / "b.gguf", {"direction.2": direction(3)})
    with_vectors = load(model=model, flash_attn="off", control_vector=f"{first},{second}:-0.5")
    bias = {"blk.1.ffn_down.bias": direction(1), "blk.2.ffn_down.bias": direction(2) - direction(3) / 2}
    merged = load(
        model=write_tiny_model(tmp_path / "merged.gguf", n_layer=N_LAYER, added=bias), flash_attn="off", ctx_size=512
    )
    plain = load(model=model, flash_attn="off")
    assert said(with_vectors) == said(merged) != said(plain)
    assert with_vectors.identity != plain.identity
    assert with_vectors.identity != load(model=model, flash_attn="off", control_vector=str(first)).identity
    # A request may have another context be made, with flash attention or without.
    with_vectors.reset()
    with_vectors.prepare(with_vectors.layout)
    assert said(with_vectors) == said(merged)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"direction.1": direction(1, 32)}, "direction.1 isn't 64 numbers of type f32"),
        ({"direction.1": direction(1).astype(np.float16)}, "direction.1 isn't 64 numbers of type f32"),
        ({"direction.1": np.ones((2, SIZE), np.float32)}, "direction.1 isn't 64 numbers of type f32"),
        ({"direction.2": direction(1)}, "direction for layer 2, and this model takes directions for layers 1 to 1"),
        ({"direction.0": direction(1)}, "has a tensor 'direction.0'"),
        ({"blk.0.attn_q.weight": direction(1)}, "isn't a control vector"),
    ],
)
def test_one_of_another_model_is_refused(load: Load, tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    path = write_directions(tmp_path / "other.gguf", tensors)
    with pytest.raises(ModelLoadError, match=f"--control-vector .*other.gguf can't be used: .*{message}"):
        load(control_vector=str(path))


def test_a_file_that_is_none(load: Load, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--control-vector: there is no file"):
        load(control_vector=str(tmp_path / "no.gguf:0.5"))
    (tmp_path / "text.gguf").write_text("no vectors")
    with pytest.raises(ModelLoadError, match=r"--control-vector .*text\.gguf can't be read"):
        load(control_vector=str(tmp_path / "text.gguf"))
    cut = write_directions(tmp_path / "cut.gguf", {"direction.1": direction(1)})
    cut.write_bytes(cut.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match=r"--control-vector .*cut\.gguf"):
        load(control_vector=str(cut))
