"""Compiles grammars within limits of llguidance's time and memory.

With these limits most compilations take some milliseconds. A malicious grammar takes some seconds of a worker thread,
and up to some tenths of a second per token (docs/http/grammars.md). llguidance compares all items at a position with
each other, and a grammar of n symbols may have n of them, so the grammar's size or the number of items bounds that
time.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_SYMBOLS = 24_000

_USUAL, _LARGE = (8_000, 30_000, 100_000), (MAX_SYMBOLS, 3_000, 300_000)
"""Symbols, items at a position, and fuel of the lexer. Large: few symbols may be possible at one position, as with 128
tools of 10 arguments."""


def compiled(tokenizer: Any, grammar: str) -> "LLMatcher":
    """Compile a grammar in Lark for an `LLTokenizer`. The matcher has an error if that fails, or if no text matches."""
    from llguidance import LLMatcher, LLParserLimits

    for symbols, items, fuel in (_USUAL, _LARGE):
        limits = LLParserLimits(
            initial_lexer_fuel=fuel,
            step_max_items=items,
            max_lexer_states=100_000,
            max_grammar_size=symbols,
            verbose_errors=False,
        )
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if not is_too_large(matcher.get_error()):
            break
    if not matcher.is_error():
        matcher.compute_bitmask()  # here, not in the engine: it may be slow, and fails if no text can match
    return matcher


def is_too_large(error: str) -> bool:
    """Return whether llguidance's message is about the size of a grammar or its lexer."""
    return "grammar size" in error or "initial lexer" in error
