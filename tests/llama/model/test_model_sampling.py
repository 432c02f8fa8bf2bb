"""Sampling defaults in a model's file are read, logged, and used unless a request sets them. Takes a second."""

import logging
from pathlib import Path
from typing import Any

import gguf
import pytest
from tiny_model import write_tiny_model

import srb
from srb.llama.model.metadata import sampling_of
from srb.options.settings import Settings
from srb.server.openapi import describe
from srb.wire.limits import Limits
from srb.wire.request.body import parse
from srb.wire.request.fields import CompletionFields
from srb.wire.request.read import validate
from srb.wire.vendors import ROUTES


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "plain.gguf")


def with_keys(plain: Path, to: Path, keys: dict[str, Any]) -> Path:
    """A copy of a model's file with more keys."""
    reader = gguf.GGUFReader(plain)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    for name, each in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(name, each.contents(), each.types[0], each.types[-1] if len(each.types) > 1 else None)
    for name, value in keys.items():
        kinds = {float: "FLOAT32", int: "INT32", str: "STRING"}
        writer.add_key_value(f"general.sampling.{name}", value, gguf.GGUFValueType[kinds[type(value)]])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to


def test_the_file_says_what_a_request_leaves_open(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"temp": 0.6, "top_k": 20, "penalty_repeat": 1.05, "penalty_last_n": 32, "sequence": "top_k;top_p;temp"}
    model = with_keys(plain, tmp_path / "model.gguf", keys)
    with caplog.at_level(logging.INFO, "srb"):
        found = sampling_of(Settings(model=model))
    samplers = ("top_k", "top_p", "temperature")
    rest = {"temperature": 0.6, "top_k": 20, "repeat_penalty": 1.05, "repeat_last_n": 32}
    assert found == rest | {"samplers": samplers}
    assert "temperature 0.6" in caplog.text
    limits = Limits("m", 2, 8, sampling=found, tokenize=lambda text, **_: tuple(text.encode()))
    body: dict[str, Any] = {"prompt": "a", "top_k": 5, "branches": [{}, {"temperature": 1.5}]}
    parsed = parse(validate(body, CompletionFields), limits)
    first, second = parsed.completion.branches
    assert (first.temperature, first.top_k, first.repeat_penalty, first.samplers) == (0.6, 5, 1.05, samplers)
    assert second.temperature == 1.5
    schemas = describe(ROUTES, limits, keyed=False)["components"]["schemas"]
    assert schemas["CompletionFields"]["properties"]["temperature"]["default"] == 0.6


def test_invalid_values_are_ignored_with_a_warning(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"temp": -1.0, "top_p": 0.9, "top_k": 0.5, "sequence": "top_k;nonsense", "wild": 3}
    with caplog.at_level(logging.INFO, "srb"):
        assert sampling_of(Settings(model=with_keys(plain, tmp_path / "model.gguf", keys))) == {"top_p": 0.9}
    ignored = [record.message for record in caplog.records if "ignored:" in record.message]
    assert len(ignored) == 4
    assert "general.sampling.temp = -1.0" in ignored[0]


def test_a_file_without_such_keys_changes_nothing(plain: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "srb"):
        assert sampling_of(Settings(model=plain)) == {}
    assert not caplog.records


def test_mirostat_of_the_file_says_which_fields_have_no_effect() -> None:
    limits = Limits("m", 1, 8, sampling={"mirostat": 2})
    parsed = parse(validate({"prompt": "a", "top_k": 5}, CompletionFields), limits)
    assert parsed.ignored == ["top_k"]


def test_a_program_draws_by_the_file_too(plain: Path, tmp_path: Path) -> None:
    model = with_keys(plain, tmp_path / "model.gguf", {"temp": 0.0})
    first, *others = srb.generate("a", 3, model=model, max_tokens=6, ignore_eos=True)
    assert {*others} == {first}
    assert len({*srb.generate("a", 3, model=model, max_tokens=6, ignore_eos=True, temperature=2.0)}) == 3
