"""Finds text that a prompt has in common with retained text at another place: llama-server's `n_cache_reuse`.

An example: a chat whose oldest messages were dropped. The retained state of its later messages is moved to their new
place.

    retained: "You are a pirate. " "Who are you? " "A pirate. " "What do you want? " "Gold. "
    prompt:   "You are a pirate. " "What do you want? " "Gold. " "Where is it? "
               begins with that     moved, as one chunk           evaluated

A state that was evaluated behind other tokens isn't quite the same as one that is evaluated at its new place. So states
of requests with `n_cache_reuse` have a key of their own, and only other requests with `n_cache_reuse` find them.
"""

from dataclasses import dataclass

from srb.engine.backend import Backend
from srb.engine.kept.pieces import Piece, text_of
from srb.engine.kept.retained import Retained
from srb.engine.kv.keys import Keys
from srb.engine.kv.radix import Tokens, common_prefix
from srb.engine.sequence import Prompt


@dataclass(frozen=True, slots=True)
class Chunk:
    """The positions from `start` to `end` of a piece, each of which becomes `by` less."""

    piece: Piece
    start: int
    end: int
    by: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A chunk as a part of a prompt's beginning. Implements `srb.engine.ports.Part`."""

    backend: Backend
    retained: Retained
    chunk: Chunk
    moves: bool = True

    @property
    def n_tokens(self) -> int:
        """How many tokens it has."""
        return self.chunk.end - self.chunk.start

    def apply(self, prompt: Prompt) -> int:
        """See `Part.apply`. Where positions can't be moved now, it is evaluated: to wait for that would take longer."""
        chunk = self.chunk
        assert prompt.seq_id is not None
        fits = chunk.start - chunk.by == prompt.evaluated and self.backend.shifts_now
        state = self.retained.state(chunk.piece) if fits else None
        if state is None or not self.backend.restore(state, prompt.seq_id, chunk.start, chunk.end, chunk.by):
            return prompt.evaluated
        # llama.cpp moves the chunk with the next decode. Before that the state can't be saved.
        prompt.saved = chunk.end - chunk.by
        return prompt.saved


def find_moved(retained: Retained, tokens: Tokens, n_known: int, least: int, keys: Keys) -> tuple[Chunk, ...]:
    """The chunks of a prompt, behind its first `n_known` tokens, that were retained at other places.

    The prompt's last token is in no chunk, because it must be evaluated for its logits.
    least: how many tokens a chunk must have.
    """
    n_common, pieces = retained.others(tokens[:n_known], keys)
    if not n_common:
        return ()
    found = [_chunks(piece, tokens, n_common, n_known, least) for piece in pieces]
    return max(found, key=lambda chunks: sum(each.end - each.start for each in chunks), default=())


def _chunks(piece: Piece, tokens: Tokens, n_common: int, n_known: int, least: int) -> tuple[Chunk, ...]:
    """The chunks that a retained text and the prompt have in common, in the same order in both.

    They are found as llama-server finds them: each time the next chunk that is long enough is taken.
    """
    ancestry = text_of(piece)
    text = ancestry[-1][1]
    data, chunks = text.tobytes(), list[Chunk]()
    here, there, last = n_known, n_common, len(tokens) - 1
    while last - here >= least:
        there = _index(data, tokens[here : here + least].tobytes(), there * text.itemsize, text.itemsize)
        if there < 0:
            break
        end = there + min(common_prefix(text[there:], tokens, here), last - here)
        for k, (each, _) in enumerate(ancestry):
            before = ancestry[k + 1][0].start if k + 1 < len(ancestry) else len(text)
            if (first := max(there, each.start)) < (until := min(end, before)):
                chunks.append(Chunk(each, first, until, there - here))
        here, there = here + end - there, end
    return tuple(chunks)


def _index(data: bytes, sought: bytes, start: int, itemsize: int) -> int:
    """The number of the item at which the sought items begin, from the byte `start` on; -1: they aren't there."""
    at = data.find(sought, start)
    while at >= 0 and at % itemsize:
        at = data.find(sought, at + 1)
    return at // itemsize if at >= 0 else -1
