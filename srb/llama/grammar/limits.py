"""Limits of llguidance's time and memory for a grammar."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits


@dataclass(frozen=True)
class GrammarLimits:
    """Limits with which most compilations take some milliseconds.

    A malicious grammar takes some seconds of a worker thread, and up to some tenths of a second per token
    (docs/http/grammars.md). llguidance compares all items at a position with each other, and a grammar of n symbols may
    have n of them, so the grammar's size or the number of items bounds that time.
    """

    symbols: int
    items: int
    lexer_fuel: int = 100_000

    def of_parser(self) -> "LLParserLimits":
        """Return the limits as llguidance takes them."""
        from llguidance import LLParserLimits

        return LLParserLimits(
            initial_lexer_fuel=self.lexer_fuel,
            step_max_items=self.items,
            max_lexer_states=100_000,
            max_grammar_size=self.symbols,
            verbose_errors=False,
        )


USUAL = GrammarLimits(symbols=8_000, items=30_000)

LARGE = GrammarLimits(symbols=24_000, items=3_000, lexer_fuel=300_000)
"""For grammars of more symbols, few of which may be possible at one position: 128 tools with 10 arguments."""


def is_too_large(error: str) -> bool:
    """Return whether llguidance's message is about the size of a grammar or its lexer."""
    return "grammar size" in error or "initial lexer" in error
