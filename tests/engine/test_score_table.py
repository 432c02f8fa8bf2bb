"""Tables of scores: how they are cut into requests, and how pairs of texts are tokenized."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from driver import request
from fake_backend import END, ByteTokenizer, FakeBackend, scores

from srb.engine import score_table as tables
from srb.engine.engine import Engine
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import ScoredRow, Table, pair_tokens
from srb.errors import InvalidRequestError
from srb.llm import LLM

CONTEXTS = ["Once upon a time", "It was", "In the beginning there was"]
ENDS = [" a dragon", " an egg.", "?"]


ENDS_OF_ALL_KINDS: list[str | tuple[int, ...]] = [" a", (END, 5), " and so on"]


def expected(context: str, end: str) -> tuple[float, ...]:
    """What the fake backend finds a continuation as likely as."""
    text = (context + end).encode()
    return tuple(scores(tuple(text[:k]))[text[k]] for k in range(len(context), len(text)))


def table_rows(engine: Engine, table: Table) -> list[ScoredRow]:
    return list(LLM(engine).score_table(table))


def test_each_row_is_scored_given_its_context_and_each_context_is_evaluated_once() -> None:
    engine = Engine(backend := FakeBackend())
    rows = table_rows(engine, Table.of(CONTEXTS, ENDS))
    assert [(row.context, row.continuation) for row in rows] == [(c, k) for c in range(3) for k in range(3)]
    for row in rows:
        assert row.score
        right = expected(CONTEXTS[row.context], ENDS[row.continuation])
        assert row.score.logprobs == right
        assert row.score.logprob == pytest.approx(sum(right))
        assert (row.n_characters, len(row.score.tokens)) == (len(ENDS[row.continuation]),) * 2
        ordered = sorted(
            (each.score.logprob for each in rows if each.context == row.context and each.score), reverse=True
        )
        assert row.rank == 1 + ordered.index(row.score.logprob)
    assert backend.rows == sum(map(len, CONTEXTS)) + 3 * sum(len(end) - 1 for end in ENDS)
    assert not engine.has_work
    assert backend.cells == 0


def test_a_text_is_greedy_if_each_of_its_tokens_is_the_likeliest() -> None:
    context, best = tuple(b"Once"), list[int]()
    for _ in range(3):
        found = scores(context + tuple(best))
        best.append(max(range(END), key=found.__getitem__))
    other = [*best[:2], (best[2] + 1) % END]
    rows = table_rows(Engine(FakeBackend()), Table.of([context], [tuple(best), tuple(other)], top=2))
    assert [row.score and row.score.greedy for row in rows] == [True, False]
    assert [len(token.top_logprobs) for token in rows[1].reported] == [2, 2, 2]
    assert [token.id for token in rows[1].reported] == other


def test_lists_for_each_context_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts with equally many continuations are one request, long lists are several, and their ranks are of all."""
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 4)
    many = [chr(97 + k) for k in range(10)]
    table = Table.of([*CONTEXTS, "x", "y"], [["a", "b"], ["c", "d"], many, ["e"], ["f", "g", "h"]])
    asked: list[CompletionRequest] = []

    class Watched(Engine):
        def add_request(self, request: CompletionRequest) -> None:
            asked.append(request)
            super().add_request(request)

    rows = table_rows(Watched(FakeBackend()), table)
    assert [each.count for each in asked] == [4, 4, 4, 2, 1, 3]
    assert len({each.id for each in asked}) == 6
    assert {(row.context, row.continuation) for row in rows} == {
        (c, k) for c, ends in enumerate(table.continuations) for k in range(len(ends))
    }
    assert sorted(row.rank for row in rows if row.context == 2) == [*range(1, 11)]


def test_rows_that_cant_be_scored_have_errors_and_the_rest_is_scored() -> None:
    engine = Engine(backend := FakeBackend(n_cells=40))
    rows = table_rows(engine, Table.of(["Once", "x" * 41, "y" * 35], ENDS_OF_ALL_KINDS))
    errors = {(row.context, row.continuation): row.error.message for row in rows if row.error}
    assert set(errors) == {(0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)}
    assert errors[0, 1].startswith("continuations[0][1] goes on after an end token")
    for (context, k), n_tokens in ((1, 0), 41), ((2, 2), 45):
        assert errors[context, k].startswith(
            f"continuations[{context}][{k}] and the text before it are too long together"
        )
        assert f"{n_tokens} tokens, more than the 40 cells" in errors[context, k]
        assert "shorten one of them" in errors[context, k]
    assert [row.rank for row in rows if row.context == 0 and row.score] in ([1, 2], [2, 1])
    assert backend.cells == 0


def test_leaving_the_loop_ends_the_requests() -> None:
    engine = Engine(backend := FakeBackend())
    with closing(LLM(engine).score_table(Table.of(CONTEXTS * 20, ENDS))) as rows:
        next(rows)
    assert not engine.has_work
    assert backend.cells == 0
    engine.add_request(request())
    with pytest.raises(RuntimeError, match="no other work"):
        next(LLM(engine).score_table(Table.of(CONTEXTS, ENDS)))
    assert engine.has_work


def test_adapters_are_branches() -> None:
    engine = Engine(FakeBackend())
    with pytest.raises(InvalidRequestError, match="there is no adapter 0"):
        table_rows(engine, Table.of(CONTEXTS, ENDS, [SamplingParams(lora=((0, 1.0),))]))
    assert not engine.has_work
    rows = table_rows(engine, Table.of(CONTEXTS, ENDS, [SamplingParams(lora=()), SamplingParams()]))
    of_branch = [[row.score for row in rows if row.branch == branch] for branch in (0, 1)]
    assert of_branch[0] == of_branch[1]
    assert len(of_branch[0]) == 9


@pytest.mark.parametrize(
    ("contexts", "continuations", "message"),
    [
        ("a", ["b"], "contexts takes a list of texts; write [...] around it"),
        (["a"], "b", "continuations takes a list of texts, or such a list for each context; write [...] around it"),
        ([], ["b"], "contexts must have at least one text"),
        (["a"], [], "continuations must have at least one text"),
        (["a"], [[]], "continuations[0] must have at least one text"),
        (["a", "b"], [["c"]], "continuations has lists for 1 contexts, and there are 2; send a list for each, or one list of texts for all"),  # noqa: E501
        (["a", ""], ["b"], "contexts[1] must have at least one token"),
        (["a"], [(1.5,)], "continuations[0] takes whole numbers as token ids, got (1.5,)"),
    ],
)  # fmt: skip
def test_wrong_tables(contexts: Any, continuations: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Table.of(contexts, continuations)
    assert caught.value.message == message


WORDS = ["The", " capital", " is", " ", " Pa", " Paris", "ris", "app", "le", "apple", "s"]


def longest_words(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
    """A tokenizer that takes the longest word each time; 99 begins a text."""
    tokens = [99] if is_prompt else []
    while text:
        word = max((each for each in WORDS if text.startswith(each)), key=len)
        tokens.append(WORDS.index(word))
        text = text.removeprefix(word)
    return tuple(tokens)


@pytest.mark.parametrize(
    ("context", "continuation", "tokens"),
    [
        ("The capital is", " Paris", ["99 The  capital  is", " Paris"]),
        ("The capital is ", "Paris", ["99 The  capital  is", " Paris"]),  # the space is the continuation's
        ("The", "apple", ["99 The", "apple"]),
        ("app", "le", ["99 app", "le"]),  # together they are one token, and none is left
        ("app", "les", ["99 app", "s"]),  # lm-eval's rule, too: the text is "apples", and the context is "app"
        (" ", "le", ["99  ", "le"]),  # a context of spaces alone keeps them
        ((0,), " Paris", ["The", " Paris"]),
        ("The", (2, 3), ["99 The", " is  "]),
        ("The ", (2, 3), ["99 The  ", " is  "]),
    ],
)
def test_pairs(context: Any, continuation: Any, tokens: Sequence[str]) -> None:
    def shown(ids: tuple[int, ...]) -> str:
        return " ".join("99" if each == 99 else WORDS[each] for each in ids)

    *found, retokenized = pair_tokens(context, continuation, longest_words)
    assert [*map(shown, found)] == tokens
    assert retokenized == (context == "app")


def test_rows_whose_boundary_is_tokenized_anew_are_marked() -> None:
    class Words(ByteTokenizer):
        def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
            return super().tokenize(text.replace("apple", "@"), is_prompt=is_prompt, parse_special=parse_special)

    rows = table_rows(Engine(FakeBackend(tokenizer=Words())), Table.of(["app"], ("les", " is", (1, 2))))
    assert [row.score and row.score.retokenized for row in rows] == [True, False, False]
