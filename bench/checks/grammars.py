"""Measure how long grammars take: usual ones and malicious ones.

usage: python bench/checks/grammars.py [--tokens 580] [--model MODEL.gguf] [--seed 0] [--rounds 3]

The program compiles each grammar, and samples random texts that it allows, over the vocabulary of the model, until
--tokens is reached. It prints a table in milliseconds of CPU time: to compile the grammar, to find all allowed tokens,
and to accept one; the latter two are the maximum over all tokens. It also reports grammars that are refused, and texts
that end with an error. Each round repeats this, and the minimum of all rounds counts, because other programs on the
machine can only slow it down.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from llama_cpp import llama_grammar

from srb.errors import InvalidRequestError, NoTokenError
from srb.llama.grammar.matcher import GrammarMatcher, LarkCompiler
from srb.llama.sampling.candidates import Candidates
from srb.llama.vocabulary import Vocabulary
from srb.options.settings import Settings

SCHEMA = {"type": "object", "properties": {f"property {k}": {"type": "integer"} for k in range(300)}}
GRAMMARS = {
    "llama.cpp's grammar of JSON": llama_grammar.JSON_GBNF,
    "llama.cpp's grammar of C": llama_grammar.C_GBNF,
    "llama.cpp's grammar of chess": llama_grammar.CHESS_GBNF,
    "2,000 texts, one of which must come": "root ::= " + " | ".join(f'"text {k * k} of many"' for k in range(2000)),
    "a schema with 300 properties that may be left out": json.dumps(SCHEMA),
    '`("x"|"y"){3,5} ("z"?){0,1000}`': 'root ::= ("x"|"y"){3,5} ("z"?){0,1000}',
    '`("a"|"a")*`, 20 times': "root ::= " + '("a"|"a")* ' * 20,
    "`[a-z]*`, in 20 parentheses with `*`": "root ::= " + "(" * 20 + "[a-z]" + "*)" * 20,
    r'`([^\n]* "a" [^\n]{30} "b")*`': r'root ::= ([^\n]* "a" [^\n]{30} "b")*',
    '`"a"?`, 2,000 times': "root ::= " + '"a"? ' * 2000,
    "`(([a-z]{0,100}){0,100}){0,100}`": "root ::= (([a-z]{0,100}){0,100}){0,100}",
    '`root root | [^"]`': 'root ::= root root | [^"]',
    "20 nested repetitions, beside recursion": f'root ::= {"(" * 20}[a-z]+{")+" * 20} | "(" root ")"',
    '`"(" root ")" | [a-z]+ root root | ""`': 'root ::= "(" root ")" | [a-z]+ root root | ""',
}

ESCAPED = "\\|"

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result, and the milliseconds of CPU time that this process spent on it."""
    began = time.process_time()
    result = work()
    return result, (time.process_time() - began) * 1000


class Texts:
    """Sample random texts that a constraint allows, and record the longest times in milliseconds."""

    def __init__(self, whole: GrammarMatcher, vocabulary: Vocabulary, rng: random.Random) -> None:
        self._whole = whole
        self._is_end = vocabulary.tokenizer.is_end
        self._zeros = np.zeros(vocabulary.tokenizer.n_vocab, np.float32)
        self._candidates = Candidates(vocabulary.tokenizer.n_vocab)
        self._rng = rng
        self.next = self.take = 0.0

    def draw(self, n_tokens: int) -> int:
        """Sample n tokens, in one text after another. Return after how many the grammar was too complex, or 0."""
        text, length = self._whole.copy(), 0
        for _ in range(n_tokens):
            self._candidates.fill(self._zeros)
            try:
                _, spent = timed(lambda text=text: self._candidates.ban(text.banned()))  # type: ignore[misc]
            except NoTokenError:
                return max(1, length)
            self.next = max(self.next, spent)
            ids, logits = self._candidates.remaining
            allowed = [int(token) for token in ids[logits > -np.inf] if not self._is_end(int(token))]
            if not allowed:
                text, length = self._whole.copy(), 0
                continue
            token = self._rng.choice(allowed)
            _, spent = timed(lambda text=text, token=token: text.accept(token))  # type: ignore[misc]
            self.take = max(self.take, spent)
            length += 1
        return 0


def measure(
    make: Callable[[], GrammarMatcher], vocabulary: Vocabulary, seed: int, n_tokens: int
) -> tuple[list[float], str]:
    """Return a grammar's times (compiled; next and take, if it isn't refused), and a remark."""
    began = time.process_time()
    try:
        whole = make()
    except InvalidRequestError:
        return [(time.process_time() - began) * 1000], "refused"
    compiled = (time.process_time() - began) * 1000
    texts = Texts(whole, vocabulary, random.Random(seed))
    ended = texts.draw(n_tokens)
    said = f"ends with an error after {ended} tokens" if ended else ""
    return [compiled, texts.next, texts.take], said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=580, help="tokens for each grammar")
    parser.add_argument("--model", type=Path, help="whose tokens are used; left out: those of the default model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    vocabulary = Vocabulary(Settings(model=options.model))
    compiler = LarkCompiler(vocabulary.tokenizer)
    print("| grammar | compiled | next | take | |\n|---|---|---|---|---|")
    with vocabulary.tokenizer.in_use() as vocab:
        compiler.compile_grammar(vocab, 'root ::= "a"')  # the first grammar also reads the vocabulary
        for name, grammar in GRAMMARS.items():
            is_schema = grammar.startswith("{")
            make = partial(compiler.compile_schema if is_schema else compiler.compile_grammar, vocab, grammar)
            rounds = [measure(make, vocabulary, options.seed, options.tokens) for _ in range(options.rounds)]
            least = [min(times) for times in zip(*(times for times, _ in rounds), strict=True)]
            cells = [f"{least[0]:.0f}", *(f"{each:.1f}" for each in least[1:]), "", ""][:3]
            print(f"| {name.replace('|', ESCAPED)} | {' | '.join(cells)} | {rounds[0][1]} |", flush=True)
    vocabulary.close()


if __name__ == "__main__":
    main()
