"""The fields of searches in a body, what they go with, and what is said of the texts that were found."""

import json
from typing import Any

import pytest

from srb.engine.events import StopEvent
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.llama_server import body as llama_body
from srb.wire.native import reply as native
from srb.wire.request.body import Parsed, parse

LIMITS = Limits("fake", n=2, max_n=8)


def tokenize(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
    return tuple(text.encode())


def read(*, chat: bool = False, **fields: Any) -> Parsed:
    return parse(json.dumps({"prompt": "p"} | fields).encode(), LIMITS, tokenize, chat=chat)


def search_of(request: CompletionRequest) -> tuple[Any, ...]:
    return request.search, request.n_rows, request.length_penalty, request.early_stopping


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({}, ("sample", 0, 1.0, False)),
        ({"search": "sample"}, ("sample", 0, 1.0, False)),
        ({"search": "beam"}, ("beam", 4, 1.0, False)),
        ({"search": "beam", "n": 6}, ("beam", 6, 1.0, False)),
        ({"search": "beam", "beams": "5", "length_penalty": "-1.5"}, ("beam", 5, -1.5, False)),
        ({"search": "beam", "early_stopping": True}, ("beam", 4, 1.0, True)),
        ({"search": "beam", "early_stopping": "false"}, ("beam", 4, 1.0, False)),
        ({"search": "beam", "early_stopping": "never"}, ("beam", 4, 1.0, "never")),
    ],
)
def test_the_fields(sent: dict[str, Any], meant: tuple[Any, ...]) -> None:
    parsed = read(**sent)
    assert search_of(parsed.completion) == meant
    assert parsed.ignored == []
    request = llama_body.parse_completion(
        json.dumps({"prompt": "p", "n": 2} | sent).encode(), LIMITS, tokenize
    ).completion
    assert search_of(request) == meant


@pytest.mark.parametrize(
    ("sent", "without_effect"),
    [
        ({"beams": 3, "length_penalty": 2, "early_stopping": True}, ["beams", "early_stopping", "length_penalty"]),
        ({"search": "best", "temperature": 1, "beams": 3}, ["beams", "search"]),
        ({"search": "beam", "temperature": 1, "mirostat": 2, "seed": 1}, ["mirostat", "seed", "temperature"]),
        ({"search": "beam", "branches": [{"label": "x"}, {"min_p": 0.05}]}, ["branches[1].min_p"]),
        ({"search": "beam", "logit_bias": {"5": 1}, "min_tokens": 3, "stop": "x", "ignore_eos": True}, []),
    ],
)
def test_what_has_no_effect_is_reported(sent: dict[str, Any], without_effect: list[str]) -> None:
    assert sorted(read(**sent).ignored) == without_effect


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"search": 5}, "search"),
        ({"search": "beam", "beams": 1}, "beams"),
        ({"search": "beam", "early_stopping": "soon"}, "early_stopping"),
        ({"search": "beam", "length_penalty": 100}, "length_penalty"),
        ({"search": "beam", "distinct": True}, "distinct"),
        ({"search": "beam", "grammar": "root ::= [a]"}, "grammar"),
        ({"search": "beam", "json_schema": {}}, "json_schema"),
        ({"search": "beam", "regex": "a"}, "regex"),
        ({"search": "beam", "banned_strings": ["x"]}, "banned_strings"),
        ({"search": "beam", "diversity": 1}, "diversity"),
        ({"search": "beam", "avoid": []}, "avoid"),
        ({"search": "beam", "negative_prompt": "x", "guidance_scale": 2}, "guidance_scale"),
        ({"search": "beam", "max_tokens": -1}, "max_tokens"),
        ({"search": "beam", "logprobs": 1, "post_sampling_probs": True}, "post_sampling_probs"),
        ({"search": "beam", "branches": [{}, {"max_tokens": 5}]}, "branches"),
        ({"search": "beam", "stream": False, "n": 1, "best_of": 2}, "best_of"),
    ],
)
def test_what_a_search_refuses(sent: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**sent)
    assert caught.value.param == param


def test_llama_servers_default_length_is_no_length_for_a_search() -> None:
    def most(**sent: Any) -> int | None:
        body = json.dumps({"prompt": "p"} | sent).encode()
        return llama_body.parse_completion(body, LIMITS, tokenize).completion.branches[0].max_tokens

    assert most() == -1
    assert most(search="beam") is None


def test_what_is_said_of_a_text() -> None:
    def said(**found: float) -> dict[str, Any]:
        return native.to_json(
            StopEvent("id", 0, 5, "stop", None, **found),  # type: ignore[arg-type]
            model="m",
            created=0,
            ignored=[],
        )

    assert "logprob" not in said()
    assert said(logprob=-2.00000001)["logprob"] == -2.0
