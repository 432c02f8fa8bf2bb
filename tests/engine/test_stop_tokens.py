"""`stop_token_ids` and `include_stop_str_in_output`, however a text is found."""

import dataclasses
from typing import Any

import pytest
from driver import request, run, stops, texts, tokens_of
from fake_backend import END, FakeBackend, says

from srb.engine.engine import Engine
from srb.engine.events import Event
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError

ASCII = tuple((token, -float("inf")) for token in range(257) if token != END and not 97 <= token < 123)


def ends(events: list[Event]) -> tuple[str, int, object]:
    stop = stops(events)[0]
    assert stop.finish_reason == "stop"
    return texts(events).get(0, ""), stop.length, stop.stop_reason


def test_an_alternative_ends_before_its_stop_token() -> None:
    backend = FakeBackend(script=says(b"ab\0cd"))
    assert ends(run(Engine(backend), request(stop_token_ids=(5, 0)))) == ("ab", 3, 0)
    assert ends(run(Engine(backend), request(stop_token_ids=(97,)))) == ("", 1, 97)
    assert ends(run(Engine(backend), request(stop_token_ids=(END,)))) == ("ab\0cd", 6, None)
    shown = run(Engine(backend), request(stop_token_ids=(0,), include_stop_str_in_output=True))
    assert ends(shown) == ("ab\0", 3, 0)
    # What may become a stop string, or a banned one, isn't lost.
    assert ends(run(Engine(backend), request(stop_token_ids=(0,), stop=("bc",)))) == ("ab", 3, 0)
    assert ends(run(Engine(backend), request(stop_token_ids=(0,), banned_strings=("bc",)))) == ("ab", 3, 0)
    asked = dataclasses.replace(request(stop_token_ids=(0,)), return_tokens=True)
    assert tokens_of(run(Engine(backend), asked), 0) == [*b"ab\0"]


@pytest.mark.parametrize("fields", [{"search": "beam", "beams": 1, "early_stopping": True}, {"suffix": (97,)}])
def test_beams_and_bridges_end_there(fields: dict[str, Any]) -> None:
    def found(**params: Any) -> list[Event]:
        asked = request(logit_bias=ASCII, max_tokens=8, **params)
        return run(Engine(FakeBackend(n_cells=4000, n_parallel=40)), dataclasses.replace(asked, **fields))

    if "suffix" in fields:
        fields = fields | {"n_candidates": 1}
    text = texts(found())[0]
    token = next(ord(char) for at, char in enumerate(text) if at > 1 and char not in text[:at])
    before = text[: text.index(chr(token))]
    assert ends(found(stop_token_ids=(token,))) == (before, len(before) + 1, token)
    assert ends(found(stop_token_ids=(token,), include_stop_str_in_output=True))[0] == before + chr(token)
    stop = before[-1] + chr(token)
    assert ends(found(stop=(stop,))) == (before[:-1], len(before) + 1, stop)
    assert ends(found(stop=(stop,), include_stop_str_in_output=True)) == (before + chr(token), len(before) + 1, stop)


def test_wrong_ids_are_refused() -> None:
    for wrong, message in (
        (("a",), "stop_token_ids takes whole numbers as token ids"),
        ([5], "stop_token_ids takes a tuple"),
        ((1,) * 1001, "stop_token_ids takes at most 1000 ids, got 1001"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            SamplingParams(stop_token_ids=wrong)  # type: ignore[arg-type]
    for bad in (-1, 257):
        with pytest.raises(InvalidRequestError, match=rf"stop_token_ids has the token id {bad}; .* from 0 to 256"):
            Engine(FakeBackend()).add_request(request(stop_token_ids=(5, bad)))
