"""Stop strings that name special tokens, and stop tokens, on llama.cpp."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driver import request, run, stops, texts
from tiny_model import CONTROL, EOS, write_tiny_model

from srb.engine.engine import Engine
from srb.llama.backend import LlamaBackend


@pytest.mark.parametrize("add_bos", [False, True])
def test_the_name_of_a_special_token_stops_also_if_prompts_begin_with_it(
    load: Callable[..., LlamaBackend], tmp_path: Path, add_bos: bool
) -> None:
    engine = Engine(load(model=write_tiny_model(tmp_path / "tiny.gguf", add_bos=add_bos)))
    often: dict[str, Any] = {"temperature": 0, "logit_bias": ((CONTROL, 100.0),), "max_tokens": 5}
    name = "<|control|>"
    events = run(engine, request(stop=(name,), **often))
    assert (texts(events), stops(events)[0].stop_reason, stops(events)[0].length) == ({}, name, 1)
    assert texts(run(engine, request(stop=(name,), include_stop_str_in_output=True, **often))) == {0: name}
    events = run(engine, request(stop_token_ids=(CONTROL,), include_stop_str_in_output=True, **often))
    assert (texts(events), stops(events)[0].stop_reason, stops(events)[0].length) == ({}, CONTROL, 1)
    assert stops(run(engine, request(**often)))[0].length == 5
    often["logit_bias"] = ((EOS, 100.0),)
    events = run(engine, request(stop=("<|endoftext|>",), include_stop_str_in_output=True, **often))
    assert (texts(events), stops(events)[0].stop_reason) == ({0: "<|endoftext|>"}, None)
