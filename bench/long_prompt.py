"""What a long prompt costs the sequences beside it: `python bench/long_prompt.py [on|off]`, by flash attention.

Four sequences of 30 tokens take a step each, alone and with 1 to 8 tokens of the prompt. Prints median milliseconds.
"""

import statistics
import sys
import time

from srb import LlamaBackend, Settings
from srb.engine.backend import Batch

REPEATS = 12


def main() -> None:
    flash_attn = sys.argv[1] if len(sys.argv) > 1 else "auto"
    with LlamaBackend(Settings(flash_attn=flash_attn, log_level="error")) as backend:
        lengths = dict.fromkeys(range(5), 0)  # of each sequence; 0 is the prompt's

        def decode(*rows: tuple[int, int]) -> float:
            batch = Batch()
            for seq_id, n_tokens in rows:
                batch.add((5,) * n_tokens, lengths[seq_id], seq_id, outputs=int(seq_id > 0))
                lengths[seq_id] += n_tokens
            start = time.perf_counter()
            backend.decode(batch, None)
            return 1000 * (time.perf_counter() - start)

        others = [(seq_id, 1) for seq_id in range(1, 5)]
        for seq_id in range(1, 5):
            decode((seq_id, 30))
        for target in (500, 2000, 3500):
            while lengths[0] < target:
                decode((0, min(512, target - lengths[0])))
            medians = [
                statistics.median(decode(*others, *([(0, k)] if k else [])) for _ in range(REPEATS))
                for k in (0, 1, 2, 4, 8)
            ]
            print(target, *(f"{each:.0f}" for each in medians), sep="\t", flush=True)


if __name__ == "__main__":
    main()
