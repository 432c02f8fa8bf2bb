"""Token healing on the fake backend, with tokens that begin with one another."""

import dataclasses

import pytest
from driver import check_order, run, stops, texts, tokens_of
from fake_backend import END, ByteTokenizer, FakeBackend

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.sampling_params import SamplingParams

A, B, C = ord("a"), ord("b"), ord("c")
TEXTS = {200: b" ", 201: b" a", 202: b" ab"}


class Spaces(ByteTokenizer):
    """Some tokens begin with a space."""

    def piece(self, token: int) -> bytes:
        return b"" if token == END else TEXTS.get(token) or super().piece(token)

    def special_piece(self, token: int) -> bytes:
        return TEXTS.get(token) or super().special_piece(token)


def backend(**fields: object) -> FakeBackend:
    made = FakeBackend(**fields)  # type: ignore[arg-type]
    made.tokenizer = Spaces()
    return made


def asked(prompt: tuple[int, ...], n: int = 4, **params: object) -> CompletionRequest:
    branches = SamplingParams(**{"seed": 0, "max_tokens": 6, "ignore_eos": True} | params).alternatives(n)  # type: ignore[arg-type]
    return CompletionRequest((prompt,), branches, heal=True)


def test_the_first_token_begins_with_the_last_of_the_prompt_and_its_text_is_not_said_again() -> None:
    engine = Engine(made := backend(script=lambda params, tokens: ord("a") + (params.seed + len(tokens)) % 26))
    each = asked((A, 200))
    events = run(engine, each)
    check_order(events, each)
    for index, text in texts(events).items():
        tokens = tokens_of(events, index)
        whole = b"".join(map(made.tokenizer.piece, tokens))
        assert made.tokenizer.piece(tokens[0]).startswith(b" ")
        assert text == whole.removeprefix(b" ").decode(errors="ignore")
        assert len(tokens) == stops(events)[index].length == 6
    (done,) = (event for event in events if isinstance(event, DoneEvent))
    assert done.usage.prompt_tokens == 2
    assert made.cells == 0


@pytest.mark.parametrize(
    "prompt", [(A, B), (200,), (201, 202), (A, END)], ids=["no other", "the only one", "the longest", "an end token"]
)
def test_nothing_is_taken_back_where_nothing_else_can_come_of_it(prompt: tuple[int, ...]) -> None:
    each = asked(prompt)
    plain = dataclasses.replace(each, heal=False)
    assert texts(run(Engine(backend()), each)) == texts(run(Engine(backend()), plain))


def test_the_prompt_is_evaluated_once_and_its_echo_is_whole() -> None:
    engine = Engine(made := backend(script=lambda params, tokens: B))
    events = run(engine, dataclasses.replace(asked((A, C, 200), 3, max_tokens=2), echo=True))
    assert set(texts(events).values()) <= {"ac b", "ac ab", "ac abb"}
    assert engine.stats().prompt_tokens_evaluated == 2
    assert made.cells == 0


def test_a_stop_string_and_a_banned_one_do_not_see_what_was_taken_back() -> None:
    for fields in ({"stop": (" ",)}, {"banned_strings": (" ",)}):
        events = run(Engine(backend(script=lambda params, tokens: B)), asked((A, 200), 1, **fields))
        assert stops(events)[0].length == 6
        assert not stops(events)[0].rewinds


def test_what_is_banned_at_its_beginning_is_taken_back_and_another_token_begins_with_the_same() -> None:
    engine = Engine(made := backend(script=lambda params, tokens: 201 if len(tokens) == 1 else B))
    events = run(engine, asked((A, 200), 1, banned_strings=("a",)))
    assert stops(events)[0].rewinds
    assert "a" not in texts(events)[0]
    assert made.tokenizer.piece(tokens_of(events, 0)[0]).startswith(b" ")
    assert made.cells == 0


def test_a_negative_prompt_that_ends_alike_is_healed_too() -> None:
    made = backend(script=lambda params, tokens: B)
    run(Engine(made), asked((A, 200), 1, negative_prompt=(C, 200), guidance_scale=2.0, max_tokens=1))
    assert made.rows == 2, "one row of each prompt, without the space"


def test_what_began_alike_before_an_interruption_is_known_without_what_was_taken_back() -> None:
    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        return 201 if len(tokens) == 1 else ord(" ") if len(tokens) % 2 == 0 else B

    each = asked((C, 201), 2, avoid=(), max_tokens=24)
    each = dataclasses.replace(each, branches=each.branches[:1])
    plain = run(Engine(backend(script=script)), each)
    ended = Resumed(tuple(tokens_of(plain, 0)), finished=24)
    again = dataclasses.replace(each, branches=each.branches * 2, resumed=(ended, Resumed()))
    (end,) = stops(run(Engine(backend(script=script)), again)).values()
    assert end.rewinds, texts(plain)
