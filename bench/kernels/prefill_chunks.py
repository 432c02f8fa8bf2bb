"""Compare a prefill chunk and running sequences in one decode with two decodes. `srb.engine.batch` relies on this.

usage: python bench/kernels/prefill_chunks.py

Every two sequences continue a prompt of 300 tokens. The chunk follows 300 tokens of another prompt. The two variants
alternate. The program prints medians in milliseconds.
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
"""Numbers of sequences, and of tokens in the chunk."""

REPETITIONS = 9
CHUNK = 120  # its seq_id


def random_tokens(n: int) -> tuple[int, ...]:
    return tuple(random.choices(range(1000, 40000), k=n))


def decode(backend: LlamaBackend, *parts: tuple[tuple[int, ...], int, int, int]) -> float:
    """Return the milliseconds of a decode. A part: tokens, their first position, a seq_id, how many have logits."""
    batch = Batch()
    for tokens, position, seq_id, outputs in parts:
        batch.add(tokens, position, seq_id, outputs=outputs)
    start = time.perf_counter()
    backend.decode(batch, None)
    return (time.perf_counter() - start) * 1000


def measure(backend: LlamaBackend, n_rows: int, n_chunk: int) -> tuple[float, float, float]:
    """Return the median times of both in one decode, of the sequences alone, and of the chunk alone."""
    for prompt in range(n_rows // 2):
        source = 64 + prompt
        decode(backend, (random_tokens(BEFORE), 0, source, 1))
        for seq_id in (2 * prompt, 2 * prompt + 1):
            backend.fork(source, seq_id, BEFORE)
    decode(backend, (random_tokens(BEFORE), 0, CHUNK, 0))
    rows = [((1000,), BEFORE, seq_id, 1) for seq_id in range(n_rows)]
    chunk = (random_tokens(n_chunk), BEFORE, CHUNK, 0)

    def timed(*parts: tuple[tuple[int, ...], int, int, int]) -> float:
        result = decode(backend, *parts)
        for _, position, seq_id, _ in parts:
            backend.truncate(seq_id, position)
        return result

    times = [(timed(*rows, chunk), timed(*rows), timed(chunk)) for _ in range(REPETITIONS)]
    for seq_id in range(backend.layout.n_seqs):
        backend.remove(seq_id)
    mixed, rows_alone, chunk_alone = (statistics.median(column) for column in zip(*times, strict=True))
    return mixed, rows_alone, chunk_alone


def main() -> None:
    with LlamaBackend(Settings(parallel=64, flash_attn="on")) as backend:
        print(
            "| sequences | chunk | in one decode | in two | a token of the chunk, in one | in two |\n"
            + "|---" * 6
            + "|"
        )
        for n_rows, n_chunk in CASES:
            mixed, rows, chunk = measure(backend, n_rows, n_chunk)
            joined = (mixed - rows) / n_chunk
            print(f"| {n_rows} | {n_chunk} | {mixed:.0f} | {rows + chunk:.0f} | {joined:.1f} | {chunk / n_chunk:.1f} |")


if __name__ == "__main__":
    main()
