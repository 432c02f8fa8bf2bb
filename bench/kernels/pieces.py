"""Compares a piece of a prompt and running sequences in one decode with two decodes: `srb.engine.batch` builds on this.

usage: python bench/kernels/pieces.py

Each two sequences continue a prompt of 300 tokens. The piece follows 300 tokens of a prompt of its own. Both ways are
measured in turn. The program prints medians in milliseconds.
"""

import random
import statistics
import time

from srb import LlamaBackend, Settings
from srb.engine.backend import Batch

BEFORE = 300
CASES = (
    (4, 4),
    (4, 8),
    (4, 32),
    (8, 8),
    (8, 32),
    (16, 16),
    (16, 32),
    (16, 48),
    (24, 24),
    (24, 48),
    (32, 32),
    (32, 128),
)
"""Pairs of a number of sequences and the number of tokens in the piece."""

REPETITIONS = 9
PIECE = 120  # its seq_id


def random_tokens(n: int) -> tuple[int, ...]:
    return tuple(random.choices(range(1000, 40000), k=n))


def decode(backend: LlamaBackend, *parts: tuple[tuple[int, ...], int, int, int]) -> float:
    """The milliseconds of one decode. A part has tokens, their first position, a seq_id, and how many have logits."""
    batch = Batch()
    for tokens, position, seq_id, outputs in parts:
        batch.add(tokens, position, seq_id, outputs=outputs)
    start = time.perf_counter()
    backend.decode(batch, None)
    return (time.perf_counter() - start) * 1000


def measure(backend: LlamaBackend, n_rows: int, n_piece: int) -> tuple[float, float, float]:
    """The median times of both together, of the sequences alone, and of the piece alone."""
    for prompt in range(n_rows // 2):
        source = 64 + prompt
        decode(backend, (random_tokens(BEFORE), 0, source, 1))
        for seq_id in (2 * prompt, 2 * prompt + 1):
            backend.fork(source, seq_id, BEFORE)
    decode(backend, (random_tokens(BEFORE), 0, PIECE, 0))
    rows = [((1000,), BEFORE, seq_id, 1) for seq_id in range(n_rows)]
    piece = (random_tokens(n_piece), BEFORE, PIECE, 0)

    def timed(*parts: tuple[tuple[int, ...], int, int, int]) -> float:
        result = decode(backend, *parts)
        for _, position, seq_id, _ in parts:
            backend.truncate(seq_id, position)
        return result

    times = [(timed(*rows, piece), timed(*rows), timed(piece)) for _ in range(REPETITIONS)]
    for seq_id in range(backend.layout.n_seqs):
        backend.remove(seq_id)
    together, alone, apart = (statistics.median(column) for column in zip(*times, strict=True))
    return together, alone, apart


def main() -> None:
    with LlamaBackend(Settings(parallel=64, flash_attn="on")) as backend:
        print(
            "| sequences | piece | in one decode | in two | a token of the piece, in one | in two |\n"
            + "|---" * 6
            + "|"
        )
        for n_rows, n_piece in CASES:
            together, rows, piece = measure(backend, n_rows, n_piece)
            joined = (together - rows) / n_piece
            print(
                f"| {n_rows} | {n_piece} | {together:.0f} | {rows + piece:.0f} | {joined:.1f} | {piece / n_piece:.1f} |"
            )


if __name__ == "__main__":
    main()
