"""Turns texts into tokens and back, with llama.cpp's tokenizer."""

import ctypes
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property, partial
from typing import NamedTuple

import llama_cpp
import numpy as np

from srb.engine.model import SpecialTokens
from srb.errors import CLOSED, BackendError, UnavailableError
from srb.llama.native.stack import with_stack
from srb.llama.sampling.candidates import Places

# For some vocabularies llama.cpp splits texts by std::regex, which recurses once for each character of a run. With
# GPT-4o's, a run of 20,000 to 40,000 characters uses up 8 MiB of stack (measured). Long texts get a larger stack.
_OWN_STACK_CHARS = 4_000
_STACK_BYTES_PER_CHAR = 512


class LlamaTokenizer:
    """The vocabulary of a loaded model. Thread-safe, as llama.cpp's vocabularies are."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(vocab)
        # The pieces that were used so far. Reading all of them takes longer than loading a small model.
        self._pieces: dict[int, _Piece] = {}
        # By their prefix, which is the text of a token. So all lists have at most as many ids as there are pairs of a
        # token and another token that it begins with.
        self._by_prefix: dict[bytes, Places] = {}
        self._unnamed_bos = llama_cpp.llama_vocab_bos(vocab) if llama_cpp.llama_vocab_get_add_bos(vocab) else None
        self.suppressed = _suppressed(vocab)
        self.special = _special(vocab)
        self._users = 0
        self._closed = False
        self._changed = threading.Condition()  # guards `_users` and `_closed`

    def close(self) -> None:
        """Wait until no thread uses the vocabulary, and refuse new uses: it is freed after this call."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._users)

    @cached_property
    def longest_piece(self) -> int:
        """The length of the longest token, in bytes."""
        return max(1, *(len(piece.text) for piece in self._all))

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end the generation."""
        with self.in_use() as vocab:
            return frozenset(token for token in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(vocab, token))

    @cached_property
    def text_and_line_ends(self) -> Places:
        """The tokens that end the generation, and those of one or two line breaks."""
        breaks = (self.tokenize(text, is_prompt=False)[-1:] for text in ("\n", "\n\n"))
        return np.fromiter(self.ends.union(*breaks), np.intp)

    def is_end(self, token: int) -> bool:
        """Return whether the token ends the generation."""
        return self._piece(token).is_end

    def piece(self, token: int) -> bytes:
        """Return the bytes that a generated token adds to the text. Control tokens add none."""
        piece = self._piece(token)
        return b"" if piece.is_control else piece.text

    def special_piece(self, token: int) -> bytes:
        """Return the text of a token in a prompt: the name of a control token, but nothing for a BOS that is added."""
        return b"" if token == self._unnamed_bos else self._piece(token).text

    def beginning_with(self, text: bytes) -> Places:
        """Return the tokens whose `piece` begins with these bytes, in ascending order."""
        found = self._by_prefix.get(text)
        if found is None:  # 137,542 of Gemma's tokens begin with a space
            pieces, ids = self._sorted
            first = bisect_left(pieces, text)
            end = bisect_left(pieces, True, first, key=lambda piece: not piece.startswith(text))
            found = self._by_prefix[text] = np.sort(ids[first:end])
        return found

    @cached_property
    def _sorted(self) -> tuple[list[bytes], Places]:
        """All pieces in the order of their bytes, and the token of each."""
        pieces = [b"" if piece.is_control else piece.text for piece in self._all]
        ids = sorted(range(self.n_vocab), key=pieces.__getitem__)
        return [pieces[token] for token in ids], np.array(ids, np.intp)

    @cached_property
    def texts(self) -> bytes:
        """The bytes of all tokens, including the names of special ones, with a zero byte after each."""
        return b"".join(piece.text + b"\0" for piece in self._all)

    @property
    def _all(self) -> list["_Piece"]:
        """The pieces of all tokens, in the order of their ids."""
        with self.in_use() as vocab:
            return [self._pieces.get(token) or _read_piece(vocab, token) for token in range(self.n_vocab)]

    def detokenize(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of tokens. Special tokens are written by their names."""
        return b"".join(self._piece(token).text for token in tokens)

    def _piece(self, token: int) -> "_Piece":
        piece = self._pieces.get(token)
        if piece is None and token < 0:
            return _MEDIA
        if piece is None:
            with self.in_use() as vocab:
                piece = self._pieces[token] = _read_piece(vocab, token)
        return piece

    def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        """Return the tokens of a text. Raises `UnavailableError` if there is no memory for a text this long."""
        with self.in_use():
            tokenize = partial(self._tokenize, text, is_prompt, parse_special)
            if len(text) <= _OWN_STACK_CHARS:
                return tokenize()
            return with_stack(tokenize, _STACK_BYTES_PER_CHAR * len(text))

    @contextmanager
    def in_use(self) -> Iterator[int]:
        """Yield the vocabulary, which isn't freed during the block. Raises `UnavailableError` after `close`."""
        with self._changed:
            if self._closed:
                raise UnavailableError(CLOSED)
            self._users += 1
        try:
            yield self._vocab
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _tokenize(self, text: str, is_prompt: bool, parse_special: bool) -> tuple[int, ...]:
        data = text.encode()
        size = len(data) + 8  # a token stands for at least one byte; 8 more are for BOS, EOS and a space prefix
        while True:
            tokens = (ctypes.c_int32 * size)()
            n: int = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, size, is_prompt, parse_special)
            if n >= 0:
                return tuple(tokens[:n])
            if n == -(2**31):
                raise BackendError("llama.cpp failed to tokenize the prompt")
            size = -n


class _Piece(NamedTuple):
    """A token's bytes, or its name if it is a control token."""

    text: bytes
    is_control: bool
    is_end: bool


_MEDIA = _Piece(b"", is_control=True, is_end=False)
"""The piece for the placeholders of images, which add no text."""


def _read_piece(vocab: int, token: int) -> _Piece:
    buffer = ctypes.create_string_buffer(256)
    while (n := llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, True)) < 0:
        buffer = ctypes.create_string_buffer(-n)
    return _Piece(
        buffer.raw[:n],
        bool(llama_cpp.llama_vocab_is_control(vocab, token)),
        bool(llama_cpp.llama_vocab_is_eog(vocab, token)),
    )


def _suppressed(vocab: int) -> list[int]:
    """Return the tokens that must never be sampled, according to the model's file."""
    n = ctypes.c_int32()
    tokens = llama_cpp.llama_vocab_get_suppress_tokens(vocab, ctypes.byref(n))
    return [tokens[i] for i in range(n.value)]


def _special(vocab: int) -> SpecialTokens:
    ids = {field.name: getattr(llama_cpp, f"llama_vocab_{field.name}")(vocab) for field in fields(SpecialTokens)}
    return SpecialTokens(
        **{name: None if token == llama_cpp.LLAMA_TOKEN_NULL else token for name, token in ids.items()}
    )
