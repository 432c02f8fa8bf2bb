"""What was last evaluated under a number, so that it can be saved, put back and erased.

llama-server's slots are places in its cache, each with a conversation. Here nothing has a place of its own: a slot is
the tokens that an alternative ended with, and what is known of them is found as for any prompt (`srb.engine.retained`).
"""

from dataclasses import dataclass

from srb.engine.pieces import PieceCopy
from srb.engine.radix import Tokens, pack
from srb.engine.retained import Retained
from srb.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """What is known of the tokens of a slot: `n_tokens` of them, in pieces that each go on from the one before it."""

    n_tokens: int
    pieces: tuple[PieceCopy, ...]


class Slots:
    """The tokens that alternatives ended with, in slots from 0 to `count` - 1. Belongs to the engine's thread."""

    def __init__(self, retained: Retained, count: int) -> None:
        self._retained = retained
        self._count = count
        self._tokens: dict[int, Tokens] = {}

    def remember(self, slot: int, tokens: Tokens) -> None:
        """Sets the tokens of a slot, if there is such a slot."""
        if slot < self._count:
            self._tokens[slot] = tokens

    def known(self) -> list[tuple[int, Tokens]]:
        """The tokens of all that is known, of all slots and beside them; see `PrefixTree.runs`."""
        return self._retained.runs()

    def save(self, slot: int) -> SavedSlot:
        """What is known of the tokens of a slot."""
        return self.copies(self._tokens.get(slot, pack(())))

    def copies(self, tokens: Tokens) -> SavedSlot:
        """What is known of some tokens."""
        n_tokens, pieces = self._retained.copies(tokens)
        return SavedSlot(n_tokens, tuple(pieces))

    def restore(self, slot: int, saved: SavedSlot) -> None:
        """Keeps what was saved, and has it be the tokens of a slot. Raises `InvalidRequestError` if it has no room."""
        self._tokens[slot] = self.keep(saved)

    def keep(self, saved: SavedSlot) -> Tokens:
        """Keeps what was saved, and returns its tokens. Raises `InvalidRequestError` if it has no room."""
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
        """Forgets the tokens of a slot, and what is known of them but for what others go on from.

        Returns how many of them were known.
        """
        return self._retained.erase(self._tokens.pop(slot, pack(())))
