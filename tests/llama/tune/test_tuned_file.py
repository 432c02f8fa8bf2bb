"""The file of `srb tune`: one of an earlier release is read, or reported, but never misread."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

from srb.llama.native.cost_model import DEFAULT_COST_MODEL
from srb.llama.tune import result
from srb.llama.tune.result import Tuned, read_tuned, write_tuned
from srb.options.settings import Settings

WRITTEN = """\
# What srb tune chose for model.gguf on this processor
version = 7
weights = "file"
weights_bytes = 1000
cache_type = "f16"
flash_attn = "on"
threads = 2
threads_batch = 4
times_as_fast = 1.5
usual = "auto"
making = 0.0005

[on]
step = 0
row = 0
prompt_token = 0
row_cell = 2.6e-06
prompt_cell = 0
in_turn = true
walks_all = false
lone_step = 0.0
lone_row_cell = 2.6e-06
cache_type = ""

[off]
step = 0
row = 0
prompt_token = 0.000325
row_cell = 1.3e-06
prompt_cell = 0
in_turn = true
walks_all = true
lone_step = 0.0
lone_row_cell = 2.6e-06
cache_type = ""
"""
"""What srb 0.1 writes for the result below. If a later srb can't read it as the same, it needs another `VERSION`."""

TUNED = Tuned(
    weights="file",
    weights_bytes=1000,
    cache_type="f16",
    flash_attn="on",
    threads=2,
    threads_batch=4,
    times_as_fast=1.5,
    cost_model=DEFAULT_COST_MODEL,
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results are written and read, for any model and machine."""
    path = tmp_path / "result.toml"
    monkeypatch.setattr(result, "tuned_path", lambda *_: path)
    return path


def test_a_result_of_this_version_is_read(path: Path) -> None:
    path.write_text(WRITTEN)
    assert read_tuned(path, Settings()) == TUNED


def test_the_file_has_the_fields_of_its_version(path: Path) -> None:
    write_tuned(path, Settings(), TUNED)
    written = tomllib.loads(path.read_text())
    assert written == tomllib.loads(WRITTEN)
    assert result.VERSION == 7


def test_every_field_is_in_the_file(path: Path) -> None:
    other = dataclasses.replace(TUNED, flash_attn="auto", cost_model=None)
    write_tuned(path, Settings(), other)
    assert read_tuned(path, Settings()) == other
