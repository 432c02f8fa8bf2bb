"""Translates llama.cpp's GBNF into llguidance's Lark. Pure functions.

llguidance splits a text into lexemes, each as long as possible; GBNF has no lexemes. So a grammar without recursion
becomes one regular expression, which is one lexeme. In any other grammar, each character is a lexeme.

llguidance 1.9 has a `gbnf_to_lark`, which fails 24 of the 46 tests of tests/llama/grammar/test_gbnf.py: tokens,
negative classes and alternatives that begin alike, for example.

llama.cpp's own sampler has no limits: some grammars of 50 characters block the engine's thread for minutes. The tests
compare what a translation allows with llama.cpp's sampler.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from srb.errors import InvalidRequestError
from srb.llama.model.tokenizer import LlamaTokenizer

Node: TypeAlias = "str | list[list[Node]]"
"""The name of a rule, a part in Lark that is never a name in GBNF, or a group: alternatives of consecutive nodes."""

_MAX_REPEATS = 100_000
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_CHAR = re.compile(r'\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\[trn\\"\[\]-]|[^\\]', re.DOTALL)
_COUNTS = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_TOKEN = re.compile(r"(!?)(<(?:\[(\d{1,9})\]|[^\s>]+)>)")
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n"}
_CHARS = ((1, 0xD7FF), (0xE000, 0x10FFFF))  # what a text may have: UTF-8 has no surrogates, and llama.cpp bars NUL
_NOTHING = r"[^\x{0}-\x{10FFFF}]"


def as_lark(grammar: str, tokenizer: LlamaTokenizer) -> str:
    """Translate a grammar to Lark. Raises `InvalidRequestError`."""
    try:
        return _Reader(grammar, tokenizer).lark()
    except RecursionError:
        raise _wrong("it is nested too deeply") from None


class _Reader:
    """Parses GBNF. Large counts are exact.

    It takes what llama.cpp takes, and also left recursion, names with `_`, and lines that begin with `|`.
    """

    def __init__(self, grammar: str, tokenizer: LlamaTokenizer) -> None:
        self._text = grammar
        self._tokenizer = tokenizer
        self._at = 0
        self._rules: dict[str, list[list[Node]]] = {}
        self._lexemes: dict[str, str] = {}
        self._has_tokens = False
        self._skip(_SPACES)
        while self._at < len(grammar):
            self._rule()
        if "root" not in self._rules:
            raise _wrong("it does not contain a 'root' symbol, the rule that it begins with")

    def lark(self) -> str:
        """Return the rules that `root` needs, in Lark."""
        rules = {name: _without_tail_recursion(name, parts) for name, parts in self._rules.items()}
        needed: dict[str, set[str]] = {}
        todo = ["root"]
        while todo:
            if (name := todo.pop()) in needed:
                continue
            needed[name] = {each for each in _leaves(rules[name]) if _NAME.fullmatch(each)}
            if missing := [each for each in needed[name] if each not in rules]:
                raise _wrong(f"it has no rule {missing[0]:.60}")
            todo += sorted(needed[name])
        # Lark takes a rule with an upper-case name as a part of a regular expression.
        kind = "r" if _is_recursive(needed) or self._has_tokens else "R"
        names = {name: f"{kind}{k}" for k, name in enumerate(needed)} | self._lexemes
        lines = [f"{names[name]}: {_written(rules[name], names)}" for name in needed]
        lines += [f"{name}: {text}" for text, name in self._lexemes.items()]
        return "\n".join([f"start: {names['root']}", *lines])

    def _skip(self, space: re.Pattern[str]) -> None:
        match = space.match(self._text, self._at)
        assert match
        self._at = match.end()

    def _take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if not match:
            raise _wrong(f"{what} was expected {self._place}")
        self._at = match.end()
        return match

    @property
    def _place(self) -> str:
        line = self._text.count("\n", 0, self._at) + 1
        return f"in line {line}, before {self._text[self._at : self._at + 20]!r}"

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _rule(self) -> None:
        name = self._take(_NAME, "the name of a rule")[0]
        self._skip(_SPACE)
        self._take(re.compile("::="), "::=")
        self._skip(_SPACES)
        self._rules[name] = self._alternatives(_SPACE)
        if self._at < len(self._text):
            self._take(re.compile(r"[\r\n]"), "the end of the line")
        self._skip(_SPACES)

    def _alternatives(self, space: re.Pattern[str]) -> list[list[Node]]:
        """Parse up to the end of a rule or of a group. space: what may separate its parts."""
        found = [self._sequence(space)]
        while self._has_more():
            self._at += 1
            self._skip(_SPACES)
            found.append(self._sequence(space))
        return found

    def _has_more(self) -> bool:
        """Return whether another alternative follows, maybe on a new line. If so, skip the spaces before it."""
        end = self._at
        self._skip(_SPACES)
        if self._next() == "|":
            return True
        self._at = end
        return False

    def _sequence(self, space: re.Pattern[str]) -> list[Node]:
        found: list[Node] = []
        while (first := self._next()) and first not in "|)\r\n":
            if first in "*+?{":
                if not found:
                    raise _wrong(f"something to repeat was expected {self._place}")
                found[-1] = self._repeated(found[-1])
            else:
                found.append(self._part(first))
            self._skip(space)
        # A group of one alternative needs no parentheses, and an empty one disappears.
        return [part for node in found for part in (node[0] if isinstance(node, list) and len(node) == 1 else [node])]

    def _part(self, first: str) -> Node:
        if first in "!<":
            return self._token()
        if first not in '"[(.':
            return self._take(_NAME, "a rule, a text or a class")[0]
        self._at += 1
        if first == ".":
            return self._lexeme(_class([], is_negative=True))
        if first == "(":
            self._skip(_SPACES)
            group = self._alternatives(_SPACES)
            self._take(re.compile(r"\)"), "a closing parenthesis")
            return group
        if first == '"':
            text: list[Node] = []
            while self._next() != '"':
                text.append(self._lexeme(_class([(char := self._char(), char)])))
            self._at += 1
            return [text]
        if is_negative := self._next() == "^":
            self._at += 1
        ranges = []
        while self._next() != "]":
            low = high = self._char()
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._char()
            ranges.append((low, high))
        self._at += 1
        if not ranges:
            raise _wrong(f"a class has no characters {self._place}; leave it out")
        return self._lexeme(_class(ranges, is_negative=is_negative))

    def _char(self) -> int:
        found = self._take(_CHAR, "a character, or an escape that GBNF has,")[0]
        if found[0] != "\\":
            return ord(found)
        return int(found[2:], 16) if found[1] in "xuU" else ord(_ESCAPED.get(found[1], found[1]))

    def _token(self) -> str:
        found = self._take(_TOKEN, "a token such as <[123]> or <|name|>")
        tokens = [int(found[3])] if found[3] else list(self._tokenizer.tokenize(found[2], is_prompt=False))
        if len(tokens) != 1 or tokens[0] >= self._tokenizer.n_vocab:
            raise _wrong(f"{found[2]:.60} isn't one token of this model")
        self._has_tokens = True
        if not found[1]:
            return f"<[{tokens[0]}]>"
        return f"<[^{','.join(map(str, sorted({*tokens, *self._tokenizer.ends})))}]>"

    def _lexeme(self, text: str) -> str:
        """Return a lexeme, which gets a name in Lark."""
        self._lexemes.setdefault(text, f"C_{len(self._lexemes)}")
        return text

    def _repeated(self, node: Node) -> Node:
        place = self._place
        if self._next() == "{":
            low, comma, high = self._take(_COUNTS, "a count such as {2,5}").groups()
            least, most = int(low), int(high) if high else None if comma else int(low)
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._next()]
            self._at += 1
        if max(least, most or 0) > _MAX_REPEATS:
            raise _wrong(f"a count may be at most {_MAX_REPEATS}, and is larger {place}")
        if most is not None and most < least:
            raise _wrong(f"something is repeated at least {least} and at most {most} times {place}")
        if most == 0:
            return _EMPTY
        if isinstance(node, list) and [] in node:  # repeating nothing is the same as not repeating
            least, node = 0, [each for each in node if each]
        if (least, most) == (0, 1):
            return [*(node if isinstance(node, list) else [[node]]), []]
        counts = {"{0,}": "*", "{1,}": "+"}
        count = f"{{{least},{'' if most is None else most}}}"
        return [[node, counts.get(count, count)]] if node else _EMPTY


_EMPTY: Node = [[]]


def _wrong(problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"grammar doesn't parse: {problem}", param="grammar")


def _class(ranges: list[tuple[int, int]], *, is_negative: bool = False) -> str:
    """Return the regular expression of a character in one of these ranges, or in none of them."""
    ranges = sorted(each for each in ranges if each[0] <= each[1])
    if is_negative:
        lows = [0, *(high + 1 for _, high in ranges)]
        highs = [*(low - 1 for low, _ in ranges), 0x10FFFF]
        # A range may end before the previous one does.
        lows = [max(lows[: k + 1]) for k in range(len(lows))]
        ranges = list(zip(lows, highs, strict=True))
    parts = [(max(low, least), min(high, most)) for low, high in ranges for least, most in _CHARS]
    inner = "".join(rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in parts if low <= high)
    return f"/[{inner}]/" if inner else f"/{_NOTHING}/"


def _leaves(node: Node) -> Iterator[str]:
    if isinstance(node, list):
        for part in (part for parts in node for part in parts):
            yield from _leaves(part)
    else:
        yield node


def _without_tail_recursion(name: str, parts: list[list[Node]]) -> list[list[Node]]:
    """Rewrite a rule that ends with itself as a loop. llguidance would need a step per character and recursion."""
    flat = list(_flat(name, parts))
    again: list[list[Node]] = [each[:-1] for each in flat if each[-1:] == [name]]
    ends = [each for each in flat if each[-1:] != [name]]
    return [[again, "*", ends]] if again and ends and all(again) else parts


def _flat(name: str, parts: list[list[Node]]) -> Iterator[list[Node]]:
    """Yield the alternatives, including those of groups at their ends, if these end with this rule."""
    for each in parts:
        last = list(_flat(name, each[-1])) if each and isinstance(each[-1], list) else []
        if any(inner[-1:] == [name] for inner in last):
            yield from ([*each[:-1], *inner] for inner in last)
        else:
            yield each


def _is_recursive(needed: dict[str, set[str]]) -> bool:
    """Return whether a rule needs itself. needed: the rules that each rule needs."""
    left = {name: set(each) for name, each in needed.items()}
    while ready := [name for name, each in left.items() if not each & left.keys()]:
        for name in ready:
            del left[name]
    return bool(left)


def _written(parts: Iterable[list[Node]], names: dict[str, str]) -> str:
    return " | ".join(
        " ".join(f"({_written(node, names)})" if isinstance(node, list) else names.get(node, node) for node in each)
        or '""'
        for each in parts
    )
