"""The field `ahead`, and the server's option for those who don't say."""

import json
from typing import Any

import pytest

from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.llama_server import body as llama_body
from srb.wire.request.body import parse

NONE = Limits("fake", n=2, max_n=8)
THREE = Limits("fake", n=2, max_n=8, ahead=3)


def tokenize(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
    return tuple(text.encode())


def read(limits: Limits, **fields: Any) -> tuple[CompletionRequest, list[str]]:
    body = json.dumps({"prompt": "p"} | fields).encode()
    parsed = parse(body, limits, tokenize)
    other = llama_body.parse_completion(body, limits, tokenize)
    assert (other.completion.ahead, other.completion.any_seed) == (parsed.completion.ahead, parsed.completion.any_seed)
    return parsed.completion, parsed.ignored


@pytest.mark.parametrize(
    ("limits", "sent", "ahead"),
    [
        (NONE, {}, 0),
        (NONE, {"ahead": "2"}, 2),
        (NONE, {"ahead": None}, 0),
        (THREE, {}, 3),
        (THREE, {"ahead": 0}, 0),
        (THREE, {"ahead": 8}, 8),
        (THREE, {"diversity": 1}, 0),
        (THREE, {"prompt": ["a", "b"]}, 0),
    ],
)
def test_how_many_are_drawn_ahead(limits: Limits, sent: dict[str, Any], ahead: int) -> None:
    request, ignored = read(limits, **sent)
    assert (request.ahead, ignored) == (ahead, [])


@pytest.mark.parametrize(
    ("sent", "any_seed"),
    [
        ({}, True),
        ({"seed": -1}, True),
        ({"seed": None}, True),
        ({"seed": 7}, False),
        ({"branches": [{"label": "a"}, {"seed": -1}]}, True),
        ({"branches": [{}, {"seed": 7}]}, False),
    ],
)
def test_who_names_no_seed_takes_any(sent: dict[str, Any], any_seed: bool) -> None:
    assert read(NONE, **sent)[0].any_seed is any_seed


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"ahead": 9}, r"ahead must be from 0 to 8 \(--max-n\), got 9"),
        ({"ahead": -1}, r"ahead must be from 0 to 8 \(--max-n\), got -1"),
        ({"ahead": 2, "diversity": 1}, "ahead and diversity exclude each other; leave one out"),
        ({"ahead": 2, "branches": [{}, {"temperature": 0}]}, "ahead and branches that differ in more than seeds"),
    ],
)
def test_what_cannot_be_done_is_refused(sent: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        read(NONE, **sent)
    assert refused.value.param == "ahead"
