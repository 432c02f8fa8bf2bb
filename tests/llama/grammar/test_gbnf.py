"""Grammars in GBNF: llama.cpp's own sampler is the judge of what each of them allows, step by step."""

import ctypes
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from tiny_model import write_tiny_model

from srb.errors import InvalidRequestError
from srb.llama.grammar.matcher import LarkCompiler
from srb.llama.sampling.candidates import Candidates
from srb.llama.vocabulary import Vocabulary
from srb.options.settings import Settings

GRAMMARS = int(os.environ.get("FUZZ_GRAMMARS", "300"))

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws # with escapes
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= ([ \t\n] ws)?
"""

WRITTEN = [
    JSON,
    'root ::= ("- " [a-z]{1,5} "\\n"){3}',
    'root ::= [a-z]* "x"',  # a lexer that takes as much as it can would never come to the x
    'root ::= "a" "b" | "ab" "c" root',
    'root ::= "if" | [a-z]+ " " root',
    "root ::= . [^a] [^b-z] [\\x00-\\x20] [\\u00e4é-ü] [🙂-🙃]",
    'root ::= "é" root | "\\U0001F642" | [^\\x00-\\uFFFF]',
    "root ::= [z-a] | [^z-a] | [a-] | [-a] | [\\]\\-] | [^^]",
    'root ::= "" "abc"{2} ("x" | ){3} "y"{0} "z"{1,} [0-9]{2,3}? # the end',
    'root ::= "a" root | "b"\nb ::= "never"',
    'root ::= "a" (";" root)? | "b"',
    'root ::= "(" root ")" | "" | [a-c] root "d"',
    'root ::= item\n\nitem ::= "1"\nitem ::= (\n"2" | # either\r\n "3"\n)+',
    'root ::= ([^"]+ " "?)*',
    'root ::= "x" root',
    'root ::= "a" | [^\\x00-\\U0010FFFF] "b"',
    "root ::= <[97]> <|control|> !<[98]> [a-z]",
    'root ::= (!<[97]>)* "a" | "q" root',
]


def part(rng: random.Random, names: list[str], later: list[str], depth: int) -> str:
    """A random part of a rule. names: of all rules. later: of those after it."""
    kind = rng.random()
    if kind < 0.3:
        found = '"' + "".join(rng.choice("aabcé") for _ in range(rng.randrange(1, 4))) + '"'
    elif kind < 0.5:
        found = rng.choice(["[ab]", "[^a]", "[a-c]", "[b-z\\u00e0-\\u00ef]", ".", "[^a-zé]"])
    elif kind < 0.65 and later:
        found = rng.choice(later)
    elif kind < 0.8:  # without the parentheses, llama.cpp would take minutes for some grammars
        return f'"(" {rng.choice(names)} ")"'
    elif not depth:
        return '"c"'
    else:
        found = f"({alternatives(rng, names, later, depth - 1)})"
    return found + rng.choice(["", "", "", "", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,3}"])


def alternatives(rng: random.Random, names: list[str], later: list[str], depth: int) -> str:
    """The random right side of a rule."""
    return " | ".join(
        " ".join(part(rng, names, later, depth) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))) or '""'
        for _ in range(rng.choice([1, 1, 2, 3]))
    )


def grammar(rng: random.Random) -> str:
    """A random grammar."""
    names = ["root", "b", "c", "d-e"][: rng.randrange(1, 5)]
    is_recursive = rng.random() < 0.6
    return "\n".join(
        f"{name} ::= {alternatives(rng, names if is_recursive else ['[a-c]'], names[k + 1 :], 1)}"
        + (f' | "x" {name}' if rng.random() < 0.2 else "")
        for k, name in enumerate(names)
    )


class Judge:
    """Compares what llama.cpp and what srb allow in a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._compiler = LarkCompiler(vocabulary.tokenizer)
        self._candidates = Candidates(vocabulary.tokenizer.n_vocab)
        self._zeros = np.zeros(vocabulary.tokenizer.n_vocab, np.float32)

    def allowed(self, narrow: Any) -> list[int]:
        """The tokens that are left."""
        self._candidates.fill(self._zeros)
        narrow(self._candidates)
        ids, logits = self._candidates.remaining
        return [int(token) for token in ids[logits > -np.inf]]

    def _kind(self, tokens: list[int]) -> str:
        """What these tokens are: a text; cut, if it ends within a character; or none, if UTF-8 bars it."""
        text = self._tokenizer.detokenize(tokens)
        try:
            text.decode()
        except UnicodeDecodeError as error:
            is_cut = error.end == len(text) and error.reason == "unexpected end of data"
            return "cut" if is_cut and not re.search(b"\xed[\xa0-\xbf]|\0", text) else "none"
        return "none" if "\0" in text.decode() else "text"

    def texts(self, grammar: str, n_tokens: int) -> set[bytes]:
        """All texts of up to so many tokens that match, in a vocabulary of bytes."""
        with self._tokenizer.in_use() as vocab:
            todo: list[tuple[tuple[int, ...], Any]] = [((), self._compiler.compile_grammar(vocab, grammar))]
        found = set[bytes]()
        while todo:
            said, constraint = todo.pop()
            for token in self.allowed(lambda candidates, each=constraint: candidates.ban(each.banned())):
                if self._tokenizer.is_end(token):
                    found.add(self._tokenizer.detokenize(said))
                elif len(said) < n_tokens:
                    (after := constraint.copy()).accept(token)
                    todo.append(((*said, token), after))
        return found

    def compare(self, text: str, rng: random.Random, n_tokens: int) -> int:
        """How many places of a random text were compared. 0: both refuse the grammar, or llama.cpp alone."""
        with self._tokenizer.in_use() as vocab:
            sampler = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), b"root")
            if not sampler:
                return 0
            try:
                return self._steps(vocab, text, sampler, rng, n_tokens)
            finally:
                llama_cpp.llama_sampler_free(sampler)

    def _steps(self, vocab: int, text: str, sampler: Any, rng: random.Random, n_tokens: int) -> int:
        def narrow(candidates: Candidates) -> None:
            llama_cpp.llama_sampler_apply(sampler, ctypes.byref(candidates.array))

        try:
            constraint = self._compiler.compile_grammar(vocab, text, special_tokens=True)
        except InvalidRequestError as error:
            is_empty = "no text can match it" in error.message and not self.allowed(narrow)
            assert is_empty, text
            return 0
        said: list[int] = []
        for n in range(n_tokens):
            # llama.cpp allows bytes that UTF-8 bars. Of characters in several tokens it bars some that match.
            allowed = self.allowed(lambda candidates, each=constraint: candidates.ban(each.banned()))
            expected = [token for token in self.allowed(narrow) if self._kind([*said, token]) != "none"]
            more = {self._kind([*said, token]) for token in {*allowed} - {*expected}}
            where = f"behind {self._tokenizer.detokenize(said)!r} of {text}"
            assert {*expected} <= {*allowed}, where
            assert "text" not in more, where
            assert all(constraint.allows(token) == (token in allowed) for token in rng.sample(range(258), 20)), where
            if not expected:
                return n
            token = rng.choice(expected)
            if self._tokenizer.is_end(token):
                return n + 1
            said.append(token)
            llama_cpp.llama_sampler_accept(sampler, token)
            constraint.accept(token)
        return n_tokens


@pytest.fixture(scope="session", params=[258, 400])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    path: Path = write_tiny_model(tmp_path_factory.mktemp("model") / "words.gguf", n_vocab=request.param)
    vocabulary = Vocabulary(Settings(model=path))
    yield Judge(vocabulary)
    vocabulary.close()


@pytest.mark.parametrize("text", WRITTEN)
def test_it_allows_what_llama_cpp_allows(judge: Judge, text: str) -> None:
    rng = random.Random(0)
    assert sum(judge.compare(text, rng, 30) for _ in range(10))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('root ::= "a"\n  | "b" "c"\r\n\n# or\n| "d"\nx ::= "e"', 'root ::= "a" | "b" "c" | "d"'),
        ('root ::=\n  an_item+\n  | x\nan_item ::= "1"\nx ::= "2"\n  | [3]', 'root ::= "1"+ | ("2" | "3")'),
        ('root ::= a_b a-b C_0 _\na_b ::= "1"\na-b ::= "2"\nC_0 ::= "3"\n_ ::= "4"', 'root ::= "1234"'),
        ('root ::= "x" C_1 | "y" root "y"\nC_1 ::= "z"', 'root ::= "xz" | "y" root "y"'),
    ],
)
def test_lines_may_begin_with_a_bar_and_names_may_have_underscores(judge: Judge, text: str, plain: str) -> None:
    assert judge.texts(text, 5) == judge.texts(plain, 5) != set()


def test_random_grammars_allow_what_they_allow_in_llama_cpp(judge: Judge) -> None:
    rng = random.Random(1)
    compared = sum(judge.compare(grammar(rng), rng, 8) > 0 for _ in range(GRAMMARS))
    assert compared > GRAMMARS // 3
