"""`Slots`: remembers tokens under a number, so that what is known of them can be saved, restored and erased.

llama-server's slots are places in its cache, each with a conversation. Here no conversation has a place of its own. A
slot has only the tokens that an alternative ended with, and their states are found as for any prompt
(`srb.engine.retained`).
"""

from dataclasses import dataclass

from srb.engine.pieces import PieceCopy
from srb.engine.radix import Tokens, pack
from srb.engine.retained import Retained
from srb.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """The states of the first `n_tokens` tokens of a slot. Each of the pieces continues the one before it."""

    n_tokens: int
    pieces: tuple[PieceCopy, ...]


class Slots:
    """The tokens that alternatives ended with, in slots from 0 to `count` - 1. Only the engine's thread may use it."""

    def __init__(self, retained: Retained, count: int) -> None:
        self._retained = retained
        self._count = count
        self._tokens: dict[int, Tokens] = {}

    def remember(self, slot: int, tokens: Tokens) -> None:
        """Sets the tokens of a slot, if there is such a slot."""
        if slot < self._count:
            self._tokens[slot] = tokens

    def known(self) -> list[tuple[int, Tokens]]:
        """The tokens of all texts that are known, whether a slot has them or not; see `PrefixTree.runs`."""
        return self._retained.runs()

    def save(self, slot: int) -> SavedSlot:
        """What is known of the tokens of a slot."""
        return self.copies(self._tokens.get(slot, pack(())))

    def copies(self, tokens: Tokens) -> SavedSlot:
        """What is known of some tokens."""
        n_tokens, pieces = self._retained.copies(tokens)
        return SavedSlot(n_tokens, tuple(pieces))

    def restore(self, slot: int, saved: SavedSlot) -> None:
        """Keeps what was saved, and sets the tokens of a slot. Raises `InvalidRequestError` if there is no room."""
        self._tokens[slot] = self.keep(saved)

    def keep(self, saved: SavedSlot) -> Tokens:
        """Keeps what was saved, and returns its tokens. Raises `InvalidRequestError` if there is no room."""
        tokens = pack(())
        for piece in saved.pieces:
            tokens = tokens[: piece.start] + piece.tokens
        tokens = tokens[: saved.n_tokens]
        self._retained.put(saved.pieces)
        known = self._retained.known(tokens)
        if known < saved.n_tokens:
            raise InvalidRequestError(
                f"there is room for {known} of the {saved.n_tokens} tokens in the file; start the server with a larger "
                "--cache-ram, or with --cache-disk",
                param="filename",
            )
        return tokens

    def erase(self, slot: int) -> int:
        """Forgets the tokens of a slot, and their states, but not those that other texts share.

        Returns how many of the tokens were known.
        """
        return self._retained.erase(self._tokens.pop(slot, pack(())))
