"""After an engine failure, texts are those of an undisturbed run, whatever samples them."""

import dataclasses
from pathlib import Path
from typing import Any

from driver import request, stops
from gguf import GGMLQuantizationType
from tiny_model import write_tiny_model

from srb.engine.events import Event, StreamEvent
from srb.engine.request import CompletionRequest
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings
from srb.serving.async_engine import AsyncEngine

ALL: dict[str, Any] = {"temperature": 1.2, "top_k": 0, "top_p": 1, "min_p": 0}
XTC: dict[str, Any] = {"xtc_probability": 0.5, "xtc_threshold": 0.002}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "all tokens": ALL,
    "penalties": {"repeat_penalty": 1.3, "presence_penalty": 0.5, "repeat_last_n": -1},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "typical": {**ALL, "typical_p": 0.7},
    "dynamic temperature": {**ALL, "dynatemp_range": 0.6, "smoothing_factor": 0.3},
    "biases": {"logit_bias": ((101, 2.0), (32, -5.0)), "min_tokens": 10},
    "mirostat 1": {"mirostat": 1, "mirostat_eta": 0.5},
    "mirostat 2": {"mirostat": 2, "mirostat_eta": 0.5},
    "adaptive": {**ALL, "adaptive_target": 0.3, "adaptive_decay": 0.8},
    "xtc": {**ALL, **XTC},
    "grammar": {**ALL, "grammar": "root ::= [a-z]{100}"},
    "regex and xtc": {**ALL, **XTC, "regex": "([a-f]+ ?)*"},
    "schema": {**ALL, "json_schema": '{"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 30}'},
    "banned strings": {"banned_strings": ("e", "th", "a"), "mirostat": 2},
    "guidance": {"negative_prompt": tuple(b"It rained."), "guidance_scale": 1.5, "mirostat": 1},
    "distinct": {"distinct": True, "adaptive_target": 0.4},
    "diversity": {"diversity": 1.0, **XTC},
    "healed": {"heal": True, "mirostat": 2},
}


class Lost(LlamaBackend):
    """Fails in some decodes, as a bug would, counted from the last `fail_in` on."""

    in_decodes: tuple[int, ...] = ()
    n_decodes = 0

    def decode(self, *args: Any) -> bool:
        self.n_decodes += 1
        if self.n_decodes in self.in_decodes:
            raise ZeroDivisionError
        return super().decode(*args)


def asked(params: dict[str, Any]) -> CompletionRequest:
    options = {name: params[name] for name in ("distinct", "heal") if name in params}
    params = {name: value for name, value in params.items() if name not in options}
    each = request("The cat sat on the mat and th", n=3, max_tokens=24, ignore_eos=True, seed=11, **params)
    return dataclasses.replace(each, logprobs=0, **options)


def said(events: list[Event]) -> list[list[int]]:
    """The tokens of each alternative."""
    told = [(event.index, event.token) for event in events if isinstance(event, StreamEvent)]
    return [[token.id for index, token in told if token and index == k] for k in range(3)]


async def test_texts_of_all_kinds_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "f32.gguf", weight_type=GGMLQuantizationType.F32)
    types: dict[str, Any] = {"flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32", "threads": 1}
    backend = Lost(Settings(model=model, ctx_size=1024, parallel=8, **types))
    async with AsyncEngine(lambda _progress: backend, max_failures=10**6) as engine:

        async def collect(each: CompletionRequest, *failures: int) -> list[Event]:
            backend.n_decodes, backend.in_decodes = 0, failures
            return [event async for event in engine.generate(each)]

        for name, params in KINDS.items():
            n_restarts = engine.health.engine_restarts
            expected, events = await collect(asked(params)), await collect(asked(params), 5, 9)
            assert engine.health.engine_restarts == n_restarts + 2, name
            assert said(events) == said(expected), name
            assert {k: stop.finish_reason for k, stop in stops(events).items()} == dict.fromkeys(range(3), "length")
