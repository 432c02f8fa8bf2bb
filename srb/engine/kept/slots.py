"""`Slots`: remembers tokens under a number, so that what is known of them can be saved, restored and erased.

llama-server's slots are places in its cache, each with a conversation. Here no conversation has a place of its own. A
slot has only the tokens that an alternative ended with, and their states are found as for any prompt
(`srb.engine.kept.retained`).

Each `CompletionRequest.shared_within` has slots of its own: its requests remember tokens there, and only who names it
(`within`) finds them.

Saving a slot copies the pieces that hold its tokens. Restoring it puts pieces into `Retained`, as if they had been
evaluated. `Engine.ask` asks for both, and the answer comes when what has ended there is kept. Files are read and
written outside of the engine's thread.
"""

from dataclasses import dataclass

from srb.engine.kept.pieces import PieceCopy
from srb.engine.kept.retained import Retained
from srb.engine.kv.keys import keys_of
from srb.engine.kv.radix import Tokens, pack
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
        self._tokens: dict[str, dict[int, Tokens]] = {"": {}}  # by `within`, and the number of the slot

    def remember(self, slot: int, tokens: Tokens, within: str = "") -> None:
        """Sets the tokens of a slot, if there is such a slot."""
        slots = self._tokens.setdefault(within, {})
        if slot < self._count:
            slots[slot] = tokens

    def known(self) -> dict[str, list[tuple[int, Tokens]]]:
        """By `within`, the tokens of all texts that are known, in a slot or not; see `PrefixTree.runs`."""
        return {within: self._retained.runs(keys_of(within)[0]) for within in self._tokens}

    def save(self, slot: int, within: str = "") -> SavedSlot:
        """What is known of the tokens of a slot."""
        return self.copies(self._tokens.get(within, {}).get(slot, pack(())), within)

    def copies(self, tokens: Tokens, within: str = "") -> SavedSlot:
        """What is known of some tokens."""
        n_tokens, pieces = self._retained.copies(tokens, keys_of(within))
        return SavedSlot(n_tokens, tuple(pieces))

    def restore(self, slot: int, saved: SavedSlot, within: str = "") -> None:
        """Keeps what was saved, and sets the tokens of a slot. Raises `InvalidRequestError` if there is no room."""
        self._tokens.setdefault(within, {})[slot] = self.keep(saved, within)

    def keep(self, saved: SavedSlot, within: str = "") -> Tokens:
        """Keeps what was saved, and returns its tokens. Raises `InvalidRequestError` if there is no room."""
        tokens = pack(())
        for piece in saved.pieces:
            tokens = tokens[: piece.start] + piece.tokens
        tokens = tokens[: saved.n_tokens]
        self._retained.put(saved.pieces, keys_of(within))
        known = self._retained.known(tokens, keys_of(within))
        if known < saved.n_tokens:
            raise InvalidRequestError(
                f"there is room for {known} of the {saved.n_tokens} tokens in the file; start the server with a larger "
                "--cache-ram, or with --cache-disk",
                param="filename",
            )
        return tokens

    def erase(self, slot: int, within: str = "") -> int:
        """Forgets the tokens of a slot, and their states, but not those that other texts share.

        Returns how many of the tokens were known.
        """
        return self._retained.erase(self._tokens.get(within, {}).pop(slot, pack(())), keys_of(within))
