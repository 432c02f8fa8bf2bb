"""What a text must match. A constraint is made once for a request, and copied for each alternative."""

import ctypes
import threading
from typing import Any, Protocol

import llama_cpp
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from srb.errors import BackendError, InvalidRequestError
from srb.llama import log
from srb.llama.candidates import Candidates, alone
from srb.llama.tokenizer import LlamaTokenizer

_SPECIAL = b"\xff"  # llguidance's mark of tokens that are no text
_OPTIONS = '\n%llguidance {"no_forcing": true}'  # else it tokenizes what must come, however long that is


class Constraint(Protocol):
    """What a text must match, at some place in that text."""

    def allows(self, token: int) -> bool:
        """Whether the text may go on with this token."""

    def narrow(self, candidates: Candidates) -> None:
        """Bans all tokens that the text may not go on with. The candidates were just filled."""

    def accept(self, token: int) -> None:
        """Goes on with a token that it allows."""

    def copy(self) -> "Constraint":
        """The same, at the same place."""

    def close(self) -> None:
        """Frees it; copies live on."""


class GbnfConstraint:
    """A grammar in GBNF, as llama.cpp takes it. Raises `InvalidRequestError` if it doesn't parse."""

    def __init__(self, vocab: int, grammar: str) -> None:
        if "\0" in grammar:
            raise InvalidRequestError("grammar must not contain NUL", param="grammar")
        with log.collected() as complaints:
            sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(errors="replace"), b"root")
        if not sampler:
            raise InvalidRequestError(f"grammar doesn't parse: {complaints.reason}", param="grammar")
        self._sampler: Any = sampler

    def allows(self, token: int) -> bool:
        """See `Constraint.allows`."""
        one = alone(token)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(one))
        return bool(one.data[0].logit != -np.inf)

    def narrow(self, candidates: Candidates) -> None:
        """See `Constraint.narrow`."""
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(candidates.array))

    def accept(self, token: int) -> None:
        """See `Constraint.accept`."""
        llama_cpp.llama_sampler_accept(self._sampler, token)

    def copy(self) -> "GbnfConstraint":
        """See `Constraint.copy`. Raises `BackendError`."""
        result = object.__new__(GbnfConstraint)
        result._sampler = llama_cpp.llama_sampler_clone(self._sampler)
        if not result._sampler:
            raise BackendError("llama.cpp has no memory for a sampler")
        return result

    def close(self) -> None:
        """See `Constraint.close`."""
        llama_cpp.llama_sampler_free(self._sampler)


class LarkConstraint:
    """A grammar in llguidance's dialect of Lark, which may have JSON schemas in it."""

    def __init__(self, matcher: LLMatcher, ends: frozenset[int], n_vocab: int) -> None:
        self._matcher = matcher
        self._ends = ends
        self._n_vocab = n_vocab

    def allows(self, token: int) -> bool:
        """See `Constraint.allows`."""
        if self._matcher.is_stopped():  # the text is complete, or the grammar has turned out to be too complex
            return token in self._ends and not self._matcher.is_error()
        return bool(self._matcher.validate_tokens([token]))

    def narrow(self, candidates: Candidates) -> None:
        """See `Constraint.narrow`."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        candidates.keep(np.unpackbits(bits, count=self._n_vocab, bitorder="little").astype(bool))

    def accept(self, token: int) -> None:
        """See `Constraint.accept`."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)

    def copy(self) -> "LarkConstraint":
        """See `Constraint.copy`."""
        return LarkConstraint(self._matcher.deep_copy(), self._ends, self._n_vocab)

    def close(self) -> None:
        """See `Constraint.close`."""


class LarkCompiler:
    """Makes constraints of grammars in Lark for one vocabulary. Thread-safe.

    What llguidance needs to know of the vocabulary is made for the first grammar; it takes 0.1 s for 49,000 tokens.
    """

    def __init__(self, tokenizer: LlamaTokenizer) -> None:
        self._tokenizer = tokenizer
        self._made: Any = None
        self._lock = threading.Lock()

    def compile(self, vocab: int, grammar: str) -> LarkConstraint:
        """The constraint, at its beginning. Raises `InvalidRequestError` if the grammar can't be used."""
        with self._lock:
            self._made = self._made or self._make(vocab)
        matcher = LLMatcher(self._made, grammar + _OPTIONS, log_level=0)
        if error := matcher.get_error():
            raise InvalidRequestError(f"lark can't be used: {error.splitlines()[0]:.300}", param="lark")
        return LarkConstraint(matcher, self._tokenizer.ends, self._tokenizer.n_vocab)

    def _make(self, vocab: int) -> Any:
        ends = self._tokenizer.ends
        texts = [self._tokenizer.detokenize([token]) for token in range(self._tokenizer.n_vocab)]
        return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # missing in its stubs
            tokens=[_SPECIAL + text if token in ends else text for token, text in enumerate(texts)],
            vocab_ptr=vocab,
            tokenize_fptr=ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value,
            eos_token=sorted(ends),
            slices=None,
        )
