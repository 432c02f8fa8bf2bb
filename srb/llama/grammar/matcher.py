"""Grammars, JSON schemas and regular expressions that a text must match, with llguidance.

A `GrammarMatcher` is compiled once for a request, and copied for each alternative.
"""

import ctypes
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from srb.engine.sampling_params import is_lark
from srb.errors import InvalidRequestError, NoTokenError
from srb.llama.grammar import gbnf, json_schema
from srb.llama.grammar.enforceable import place_of_fault
from srb.llama.grammar.limits import compiled
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.native.stack import with_stack

if TYPE_CHECKING:
    from llguidance import LLMatcher

# llguidance is imported with the first grammar, because the import takes 15 ms.

_NO_TEXT = "NoExtension"  # the beginning of llguidance's message if no text can match
_TOO_MUCH = re.compile("too (?:many|big|large|complex)|lexer precomputation", re.IGNORECASE)  # messages about a limit
_SPECIAL = b"\xff"  # the prefix of tokens that aren't text, for llguidance
_OPTIONS = '\n%llguidance {"no_forcing": true}'  # otherwise it tokenizes forced text of any length

# What a JSON schema allows, but with bounded numbers, which llguidance can't bound without losing their exponents.
_VALUE = "srb_value"
_ANY_VALUE = r"""
srb_value: SRB_STRING | SRB_NUMBER | "true" | "false" | "null" | srb_array | srb_object
srb_array: "[" SRB_SPACE (srb_value SRB_SPACE ("," SRB_SPACE srb_value SRB_SPACE)*)? "]"
srb_object: "{" SRB_SPACE (srb_pair ("," SRB_SPACE srb_pair)*)? "}"
srb_pair: SRB_STRING SRB_SPACE ":" SRB_SPACE srb_value SRB_SPACE
SRB_STRING: /"(\\.|[^"\\])*"/
SRB_NUMBER: /-?[0-9]{1,DIGITS}(\.[0-9]{1,DIGITS})?([eE][+-]?[0-9]{1,3})?/
SRB_SPACE: /[ \n\r\t]*/
"""

_MAX_OCTETS = 16  # tokens in more octets of the mask than this aren't all prefixes of each other

MAX_SCHEMA_CHARS = 100_000

# llguidance recurses into the references of rules and schemas, with up to 500 bytes of stack per character. This was
# measured with chains of rules and of `$ref`, and with nested schemas.
_STACK_BYTES_PER_CHAR = 1024


class GrammarMatcher:
    """Matches a text, token by token, with a grammar in llguidance's Lark, which may contain JSON schemas.

    Args:
        piece: returns the bytes that a token adds to the text.
        numbers: matches the same texts and more, but only with numbers of few digits.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        ends: frozenset[int],
        n_vocab: int,
        piece: Callable[[int], bytes] = lambda _token: b"",
        numbers: "LLMatcher | None" = None,
    ) -> None:
        self._matcher = matcher
        self._numbers = numbers
        self._ends = ends
        self._n_vocab = n_vocab
        self._piece = piece

    def allows(self, token: int) -> bool:
        """Return whether the text may continue with this token."""
        if self._matcher.is_stopped():  # the text is complete, or the grammar is too complex
            return token in self._ends and not self._matcher.is_error()
        if not self._matcher.validate_tokens([token]):
            return False
        return not self._numbers or bool(self._numbers.validate_tokens([token])) or not self.banned()[token]

    def banned(self) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Return whether each token is one that the text may not continue with. Raises `NoTokenError`."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error() and not (reason := self._matcher.get_error()).startswith(_NO_TEXT):
            raise NoTokenError(
                f"the grammar has become too complex for this text: {_brief(reason)}; write it so that fewer of its "
                "parts can match the same text",
                param="grammar",
            )
        if self._numbers:
            short = bits & np.frombuffer(self._numbers.compute_bitmask(), np.uint8)
            if short.any():
                bits = short
            else:  # only a longer number can match, such as a multiple
                self._numbers = None
        return np.asarray(np.unpackbits(bits, count=self._n_vocab, bitorder="little") == 0)

    def forced(self, most: int) -> list[int]:
        """Return the longest tokens of the text that must come next, up to `most`. Shorter tokens are allowed, too.

        llguidance can compute the whole text, but its time has no bound, and it can break the grammar.
        """
        matcher, found = self._matcher, list[int]()
        while len(found) < most and not matcher.is_stopped() and (token := self._only(matcher)) is not None:
            if not found:
                matcher = matcher.deep_copy()
            matcher.consume_token(token)
            found.append(token)
        return found

    def _only(self, matcher: "LLMatcher") -> int | None:
        """Return the longest token that the text may continue with, if all others are prefixes of it."""
        octets = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        filled = np.flatnonzero(octets)
        if len(filled) > _MAX_OCTETS:
            return None
        tokens = [8 * octet + bit for octet in filled.tolist() for bit in range(8) if octets[octet] >> bit & 1]
        pieces = {token: self._piece(token) for token in tokens}
        longest = max(tokens, key=lambda each: len(pieces[each]), default=None)
        if longest is None or not all(each and pieces[longest].startswith(each) for each in pieces.values()):
            return None
        return longest

    def accept(self, token: int) -> None:
        """Append the next token of the text, which must be allowed."""
        for each in (self._matcher, self._numbers):
            if each and not each.is_stopped():
                each.consume_token(token)

    def copy(self) -> "GrammarMatcher":
        """Return a copy at the same position of the text."""
        numbers = self._numbers and self._numbers.deep_copy()
        return GrammarMatcher(self._matcher.deep_copy(), self._ends, self._n_vocab, self._piece, numbers)


class LarkCompiler:
    """Compiles grammars in Lark for one vocabulary, with llguidance. Thread-safe.

    The first grammar takes 0.1 s more, for llguidance's copy of a vocabulary of 49,000 tokens. `grammar/limits.py`
    bounds the time and memory of a grammar. Schemas that these limits wouldn't stop in time are refused.
    """

    def __init__(self, tokenizer: LlamaTokenizer) -> None:
        self._tokenizer = tokenizer
        self._lark_tokenizers: dict[bool, Any] = {}  # by whether control tokens are text
        self._lock = threading.Lock()

    def compile(
        self, vocab: int, grammar: str, param: str, *, special_tokens: bool = False, schema: Any = None
    ) -> GrammarMatcher:
        """Compile a grammar in Lark. Raises `InvalidRequestError`.

        Args:
            param: the request field that the grammar comes from, for errors.
            special_tokens: whether a control token counts as the text of its name. If not, it is never allowed.
            schema: the JSON schema that it is made of. An error has the place of the fault in it.
        """
        error, bounding = _read_schemas(grammar)
        if not error:
            with self._lock:
                if special_tokens not in self._lark_tokenizers:
                    self._lark_tokenizers[special_tokens] = self._make_tokenizer(vocab, special_tokens)
            tokenizer = self._lark_tokenizers[special_tokens]
            matchers = with_stack(
                lambda: [compiled(tokenizer, each + _OPTIONS) for each in (grammar, bounding) if each is not None],
                _STACK_BYTES_PER_CHAR * len(grammar),
            )
            error = next((each.get_error() for each in matchers if each.is_error()), None)
        if error:
            raise _unusable(error, param, is_made=not is_lark(grammar), schema=schema)
        vocabulary = self._tokenizer
        return GrammarMatcher(matchers[0], vocabulary.ends, vocabulary.n_vocab, vocabulary.piece, *matchers[1:])

    def compile_grammar(self, vocab: int, grammar: str, *, special_tokens: bool = False) -> GrammarMatcher:
        """Compile a grammar, in Lark or in GBNF. Raises `InvalidRequestError`."""
        lark = grammar if is_lark(grammar) else gbnf.as_lark(grammar, self._tokenizer)
        return self.compile(vocab, lark, "grammar", special_tokens=special_tokens)

    def compile_regex(self, vocab: int, regex: str) -> GrammarMatcher:
        """Compile a regular expression. Raises `InvalidRequestError`."""
        if (len(regex) - len(regex.rstrip("\\"))) % 2:  # the backslash would escape the slash that ends the expression
            raise InvalidRequestError(
                "regex ends with a backslash that escapes nothing; write \\\\ for a backslash", param="regex"
            )
        from llguidance import regex_to_lark

        return self.compile(vocab, f"start: /{regex_to_lark(regex, '')}/", "regex")

    def compile_schema(self, vocab: int, text: str) -> GrammarMatcher:
        """Compile a JSON schema. Raises `InvalidRequestError`.

        If the schema doesn't say whether an object may have other properties than those it names, none are allowed.
        Integers without bounds have 16 digits at most.
        Whether the choices of a `oneOf` exclude each other is checked before these changes.
        """
        schema = json_schema.corrected(_read_schema(text))
        whole = self.compile(vocab, f"start: {json_schema.as_lark(schema)}", "json_schema", schema=schema)
        for narrower in json_schema.narrowed(schema):
            # No value may match it: in an `allOf`, one part bans another's names.
            with suppress(InvalidRequestError):
                return self.compile(vocab, f"start: {json_schema.as_lark(narrower, coerce_one_of=True)}", "json_schema")
        return whole

    def _make_tokenizer(self, vocab: int, special_tokens: bool) -> Any:
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
    """Return what is wrong from llguidance's message. The rest of it is advice about limits."""
    return re.split(r"\n| \(limit|; (?:try|consider|either)", re.sub("^[Pp]arser [Ee]rror: ", "", error))[0][:300]


def _unusable(error: str, param: str, *, is_made: bool, schema: Any) -> InvalidRequestError:
    """Return the error for a grammar that llguidance refuses.

    Args:
        is_made: whether the grammar was translated from another format, so the message's positions mean nothing.
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
    if is_made:  # the message names a position in it
        reason = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", reason)
        place = None if schema is None else place_of_fault(schema)
        at = f"{place:.200}: " if place else ""
        return InvalidRequestError(
            f"{param} can't be enforced: {at}{reason:.300}; leave that out, or write it differently", param=param
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
        raise InvalidRequestError(f"json_schema isn't JSON: {error}", param="json_schema") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(f"json_schema must be an object, got {text[:60]}", param="json_schema")
    return schema


def _read_schemas(grammar: str) -> tuple[str | None, str | None]:
    """Return why a schema in a grammar can't be enforced, with its position, and the grammar that bounds their numbers.

    None if all schemas can be enforced, and if there are none.
    """
    parts, end, n_digits = list[str](), 0, json_schema.MAX_DIGITS
    for found in re.finditer(r"%json\b\s*", grammar):
        if found.start() < end:
            continue  # in a text of the schema
        try:
            schema, after = json.JSONDecoder().raw_decode(grammar, found.end())
            problem = json_schema.problem(schema)
            n_digits = max(n_digits, json_schema.most_digits(schema))
        except RecursionError:
            problem = "it is nested too deeply"
        except ValueError:  # it isn't JSON, and llguidance's message about that is better
            continue
        if problem:
            line = grammar.count("\n", 0, found.start()) + 1
            return f"at {line}({found.start() - grammar.rfind(chr(10), 0, found.start())}): {problem}", None
        parts += grammar[end : found.start()], _VALUE
        end = after
    if not parts:
        return None, None
    return None, "".join(parts) + grammar[end:] + _ANY_VALUE.replace("DIGITS", str(n_digits))
