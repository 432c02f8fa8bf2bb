"""What a prompt has in common with another text, but at another place: llama-server's `n_cache_reuse`.

An example: a chat whose oldest messages were dropped. What was kept of it is moved to where it is now.

    kept:     "You are a pirate. " "Who are you? " "A pirate. " "What do you want? " "Gold. "
    prompt:   "You are a pirate. " "What do you want? " "Gold. " "Where is it? "
               begins with that     moved, as one chunk           evaluated

What was evaluated behind other tokens isn't quite what it would be here. So such requests have beginnings of their own:
what they evaluate is found by others of them alone.
"""

from dataclasses import dataclass

from srb.engine.pieces import Piece, text_of
from srb.engine.radix import Tokens, common_prefix
from srb.engine.retained import Retained

KEY = "/moved"
"""Is a part of the key of a prompt that may have such chunks."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The positions from `start` to `end` of a piece, which become `by` less."""

    piece: Piece
    start: int
    end: int
    by: int


def find_moved(retained: Retained, tokens: Tokens, n_known: int, least: int, key: str) -> tuple[Moved, ...]:
    """What of a prompt's tokens is known at other places, from `n_known` on; without the last one.

    least: of how many tokens a chunk is, at least.
    """
    n_common, pieces = retained.others(tokens[:n_known], key)
    if not n_common:
        return ()
    found = [_chunks(piece, tokens, n_common, n_known, least) for piece in pieces]
    return max(found, key=lambda chunks: sum(each.end - each.start for each in chunks), default=())


def _chunks(piece: Piece, tokens: Tokens, n_common: int, n_known: int, least: int) -> tuple[Moved, ...]:
    """The chunks of a text, one behind the other in both, found as llama-server does: the next that is long enough."""
    ancestry = text_of(piece)
    text = ancestry[-1][1]
    data, chunks = text.tobytes(), list[Moved]()
    here, there, last = n_known, n_common, len(tokens) - 1
    while last - here >= least:
        there = _index(data, tokens[here : here + least].tobytes(), there * text.itemsize, text.itemsize)
        if there < 0:
            break
        end = there + min(common_prefix(text[there:], tokens, here), last - here)
        for k, (each, _) in enumerate(ancestry):
            before = ancestry[k + 1][0].start if k + 1 < len(ancestry) else len(text)
            if (first := max(there, each.start)) < (until := min(end, before)):
                chunks.append(Moved(each, first, until, there - here))
        here, there = here + end - there, end
    return tuple(chunks)


def _index(data: bytes, sought: bytes, start: int, itemsize: int) -> int:
    """The place of some items, or -1."""
    at = data.find(sought, start)
    while at >= 0 and at % itemsize:
        at = data.find(sought, at + 1)
    return at // itemsize if at >= 0 else -1
