"""Constraints: grammars, JSON schemas and regular expressions that a text must match.

A constraint is made once for a request, and copied for each alternative.
"""

import ctypes
import json
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from srb.engine.sampling_params import is_lark
from srb.errors import InvalidRequestError, NoTokenError
from srb.llama.grammar import gbnf, json_schema
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.native.library import with_stack
from srb.llama.sampling.candidates import Candidates

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

# llguidance is imported with the first constraint: a start needs none, and the import takes 15 ms.

_NO_TEXT = "NoExtension"  # llguidance's message if no text can match begins so
_TOO_MUCH = re.compile("too (?:many|big|large|complex)|lexer precomputation", re.IGNORECASE)  # it has met a limit
_SPECIAL = b"\xff"  # with this in front of its bytes, llguidance takes a token for one that is no text
_OPTIONS = '\n%llguidance {"no_forcing": true}'  # otherwise it tokenizes the text that must come, however long that is

_FEW = 16  # tokens in more octets of the mask than these aren't all beginnings of one another

MAX_SCHEMA_CHARS = 100_000


def _limits() -> "LLParserLimits":
    """Limits with which a compilation takes some milliseconds.

    A grammar that was written to take long takes some seconds of a worker thread, and up to some tenths of a second for
    a token (docs/http/grammars.md). The items of a place are compared with each other, and a grammar of n symbols may
    have n of them at one place, so its size bounds that time.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=100_000,
        step_max_items=30_000,
        max_lexer_states=100_000,
        max_grammar_size=8_000,
        verbose_errors=False,
    )


# llguidance recurses into whatever a rule or a schema refers to. It takes up to 500 bytes of stack per character,
# measured with chains of rules and of `$ref`, and with nested schemas.
_STACK_BYTES_PER_CHAR = 1024


class GrammarMatcher:
    """What a text must match, and how far the text has come: a grammar in llguidance's Lark. It may have schemas."""

    def __init__(
        self,
        matcher: "LLMatcher",
        ends: frozenset[int],
        n_vocab: int,
        piece: Callable[[int], bytes] = lambda _token: b"",
    ) -> None:
        self._matcher = matcher
        self._ends = ends
        self._n_vocab = n_vocab
        self._piece = piece  # the bytes that a token adds to the text

    def allows(self, token: int) -> bool:
        """Whether the text may continue with this token."""
        if self._matcher.is_stopped():  # the text is complete, or the grammar has turned out to be too complex
            return token in self._ends and not self._matcher.is_error()
        return bool(self._matcher.validate_tokens([token]))

    def narrow(self, candidates: Candidates) -> None:
        """Bans all tokens that the text may not continue with. Call it right after the candidates were filled.

        Raises `NoTokenError` if finding them takes too long.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error() and not (reason := self._matcher.get_error()).startswith(_NO_TEXT):
            raise NoTokenError(
                f"the grammar has become too complex for this text: {_brief(reason)}; write it so that fewer of its "
                "parts can match the same text",
                param="grammar",
            )
        candidates.keep(np.unpackbits(bits, count=self._n_vocab, bitorder="little").astype(bool))

    def forced(self, most: int) -> list[int]:
        """The longest tokens of the text that must come next, up to `most`. The text may be written with others, too.

        llguidance could tell the whole text, but how long that takes has no bound, and it can break the grammar.
        """
        matcher, found = self._matcher, list[int]()
        while len(found) < most and not matcher.is_stopped() and (token := self._only(matcher)) is not None:
            if not found:
                matcher = matcher.deep_copy()
            matcher.consume_token(token)
            found.append(token)
        return found

    def _only(self, matcher: "LLMatcher") -> int | None:
        """The longest token that the text may continue with, if all others are its beginning."""
        octets = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        places = np.flatnonzero(octets)
        if len(places) > _FEW:
            return None
        tokens = [8 * place + bit for place in places.tolist() for bit in range(8) if octets[place] >> bit & 1]
        pieces = {token: self._piece(token) for token in tokens}
        longest = max(tokens, key=lambda each: len(pieces[each]), default=None)
        if longest is None or not all(each and pieces[longest].startswith(each) for each in pieces.values()):
            return None
        return longest

    def accept(self, token: int) -> None:
        """Takes the next token of the text. The constraint must allow this token."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)

    def copy(self) -> "GrammarMatcher":
        """The same constraint, at the same place of the text."""
        return GrammarMatcher(self._matcher.deep_copy(), self._ends, self._n_vocab, self._piece)


class LarkCompiler:
    """Compiles grammars in Lark for one vocabulary, with llguidance. Thread-safe.

    llguidance's copy of the vocabulary is made for the first grammar, which takes 0.1 s for 49,000 tokens. `_limits`
    bounds the time and memory that a grammar takes. Schemas that these limits wouldn't stop in time are refused.
    """

    def __init__(self, tokenizer: LlamaTokenizer) -> None:
        self._tokenizer = tokenizer
        self._made: dict[bool, Any] = {}
        self._lock = threading.Lock()

    def compile(self, vocab: int, grammar: str, param: str, *, special_tokens: bool = False) -> GrammarMatcher:
        """The constraint of a grammar in Lark, at the beginning of the text.

        special_tokens: whether a control token counts as the text of its name. If not, the grammar never allows one.
        Raises `InvalidRequestError`, which names `param`, if the grammar can't be used.
        """
        error = _problem_of_schemas(grammar)
        if not error:
            with self._lock:
                if special_tokens not in self._made:
                    self._made[special_tokens] = self._make(vocab, special_tokens)
            try:
                matcher = with_stack(
                    partial(self._matcher, grammar, special_tokens), _STACK_BYTES_PER_CHAR * len(grammar)
                )
            except MemoryError as problem:
                error = str(problem)
            else:
                error = matcher.get_error()
        if error:
            raise _unusable(error, param, is_made=not is_lark(grammar))
        return GrammarMatcher(matcher, self._tokenizer.ends, self._tokenizer.n_vocab, self._tokenizer.piece)

    def compile_grammar(self, vocab: int, grammar: str, *, special_tokens: bool = False) -> GrammarMatcher:
        """The constraint that the text matches a grammar, in Lark or in GBNF. Raises `InvalidRequestError`."""
        lark = grammar if is_lark(grammar) else gbnf.as_lark(grammar, self._tokenizer)
        return self.compile(vocab, lark, "grammar", special_tokens=special_tokens)

    def compile_regex(self, vocab: int, regex: str) -> GrammarMatcher:
        """The constraint that the text matches a regular expression. Raises `InvalidRequestError`."""
        if (len(regex) - len(regex.rstrip("\\"))) % 2:  # the backslash would escape the slash that ends the expression
            raise InvalidRequestError(
                "regex ends with a backslash that has nothing to escape; write two of them for one", param="regex"
            )
        from llguidance import regex_to_lark

        return self.compile(vocab, f"start: /{regex_to_lark(regex, '')}/", "regex")

    def compile_schema(self, vocab: int, text: str) -> GrammarMatcher:
        """The constraint that the text is JSON that matches a schema. Raises `InvalidRequestError`.

        Where the schema doesn't say whether an object may have other properties than those it names, the constraint
        allows no others. Whether the choices of a `oneOf` exclude each other is judged before this change.
        """
        schema = json_schema.corrected(_read_schema(text))
        whole = self.compile(vocab, f"start: {json_schema.as_lark(schema)}", "json_schema")
        closed = json_schema.closed(schema)
        if closed == schema:
            return whole
        try:
            return self.compile(vocab, f"start: {json_schema.as_lark(closed, coerce_one_of=True)}", "json_schema")
        except InvalidRequestError:  # no object matches the closed schema: in an `allOf`, one part bans another's names
            return whole

    def _matcher(self, grammar: str, special_tokens: bool) -> "LLMatcher":
        from llguidance import LLMatcher

        matcher = LLMatcher(self._made[special_tokens], grammar + _OPTIONS, log_level=0, limits=_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # here, not in the engine: it may be slow, and fails if no text can match
        return matcher

    def _make(self, vocab: int, special_tokens: bool) -> Any:
        from llguidance import LLTokenizer

        ends = self._tokenizer.ends
        texts = [self._tokenizer.detokenize([token]) for token in range(self._tokenizer.n_vocab)]
        no_text = set(ends)
        if not special_tokens:
            no_text |= {token for token, text in enumerate(texts) if text and not self._tokenizer.piece(token)}
        return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # missing in its stubs
            tokens=[_SPECIAL + text if token in no_text else text for token, text in enumerate(texts)],
            vocab_ptr=vocab,
            tokenize_fptr=ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value,
            eos_token=sorted(ends),
            slices=None,
        )


def _brief(error: str) -> str:
    """The part of llguidance's message that says what is wrong. The rest is advice for those who can set limits."""
    return re.split(r"\n| \(limit|; (?:try|consider|either)", re.sub("^[Pp]arser [Ee]rror: ", "", error))[0][:300]


def _unusable(error: str, param: str, *, is_made: bool) -> InvalidRequestError:
    """The error for a request whose constraint llguidance refuses.

    error: llguidance's message. is_made: whether the grammar was made here, so that the caller doesn't know it.
    """
    reason = _brief(error)
    if reason.startswith(_NO_TEXT):
        reason = "no text can match it"
    if reason.find("oneOf constraints") >= 0:
        reason = "oneOf has choices that the same value may match; anyOf may have them"
    if _TOO_MUCH.search(reason):
        return InvalidRequestError(
            f"{param} takes too long to follow: {reason}; give it fewer parts that can match the same text, or smaller "
            "counts",
            param=param,
        )
    if is_made:  # the message names a place in it
        reason = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", reason)
        return InvalidRequestError(
            f"{param} can't be enforced: {reason:.300}; leave that out, or say it otherwise", param=param
        )
    return InvalidRequestError(f"{param} can't be used: {reason:.300}", param=param)


def _read_schema(text: str) -> Any:
    if len(text) > MAX_SCHEMA_CHARS:
        raise InvalidRequestError(
            f"json_schema has {len(text)} characters; the limit is {MAX_SCHEMA_CHARS}", param="json_schema"
        )
    try:
        schema = json.loads(text)
    except RecursionError:
        raise InvalidRequestError("json_schema is nested too deeply", param="json_schema") from None
    except ValueError as error:
        raise InvalidRequestError(f"json_schema is no JSON: {error}", param="json_schema") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(f"json_schema must be an object, got {text[:60]}", param="json_schema")
    return schema


def _problem_of_schemas(grammar: str) -> str | None:
    """Why a schema in a grammar can't be enforced, with the place of the first such schema. None if all can."""
    for found in re.finditer(r"%json\b\s*", grammar):
        try:
            schema, _ = json.JSONDecoder().raw_decode(grammar, found.end())
            problem = json_schema.problem(schema)
        except RecursionError:
            problem = "it is nested too deeply"
        except ValueError:  # it is no JSON, and llguidance's message about that is better
            continue
        if problem:
            line = grammar.count("\n", 0, found.start()) + 1
            return f"at {line}({found.start() - grammar.rfind(chr(10), 0, found.start())}): {problem}"
    return None
