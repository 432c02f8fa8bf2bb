"""Measure the bookkeeping of a step, with few and many waiting and cached requests.

usage: python bench/overhead/scale.py [--quick]

The engine runs on a backend that does nothing, so only Python is timed: admission, the search for common prefixes,
forks, rows, sampling, text, events. Prompts have 2,000, 20,000 and 100,000 tokens, with and without 500 waiting
and 1,000 cached requests. The program prints milliseconds of CPU time: of a step of 255 alternatives; of a step
in which a request replaces one that has ended; and of a whole request that is admitted, forked to 8 and to
255 alternatives, and cached.
"""

import argparse
import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from srb.engine.backend import Batch, Costs, Logprobs, State
from srb.engine.engine import Engine
from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.model import ModelInfo, SpecialTokens, Tokenizer
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams

N_VOCAB = 50_000
N = 255
STEPS = 200
COMMON = 0.9
"""The common prefix of all prompts, as a share of their tokens."""


class Nothing:
    """A placeholder for logits, and for compiled parts of a request."""

    nbytes = 200_000

    def copy(self) -> "Nothing":
        return self

    def tobytes(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


class Words:
    """A tokenizer for which each token is one letter."""

    n_vocab = N_VOCAB
    longest_piece = 1
    special = SpecialTokens()

    def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        return tuple(text.encode())

    def detokenize(self, tokens: Iterable[int]) -> bytes:
        return b"".join(map(self.piece, tokens))

    def piece(self, token: int) -> bytes:
        return b"x"

    def special_piece(self, token: int) -> bytes:
        return b"x"

    def beginning_with(self, text: bytes) -> Collection[int]:
        return ()

    def is_end(self, token: int) -> bool:
        return False


class Counting:
    """A sampler that returns the tokens in the order of their ids."""

    def __init__(self) -> None:
        self._next = itertools.count(random.randrange(N_VOCAB))

    def sample(self, logits: Any, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        return next(self._next) % N_VOCAB

    def sample_again(
        self, token: int, logits: Any, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None
    ) -> None:
        next(self._next)

    def hold(self, n_tokens: int) -> None:
        pass

    def go_back(self, n_tokens: int) -> None:
        pass

    def forced(self, most: int) -> tuple[int, ...]:
        return ()

    def logprobs(self, token: int, top: int) -> Logprobs:
        return 0.0, []

    def close(self) -> None:
        pass


class Idle:
    """A backend that computes nothing."""

    n_cells = 1 << 40
    layout = Layout(True, n_cells, N)
    can_unify = True
    block_size = 0
    fingerprint = ""
    n_parallel = N
    n_seqs = N
    n_batch = 1 << 30
    n_outputs = 128
    draft_max = 16
    drafter = None
    costs = Costs(step=0, row=0, prompt_token=0, row_cell=0, prompt_cell=0)
    window = None
    identity = "idle"
    cpu_variant = "idle"
    chat_template = None
    embedder = None
    media = None
    adapters = ()
    model_info = ModelInfo("idle", "idle", 0, 0, None, 0, None, {}, {})

    def __init__(self) -> None:
        self.tokenizer: Tokenizer = Words()

    def sleep(self) -> None:
        """Do nothing: there is nothing to free."""

    def reset(self) -> None:
        """Do nothing: there is nothing to free."""

    def choose(self, loads: Sequence[Load], n_held: int) -> Layout:
        return self.layout

    def prepare(self, layout: Layout) -> None:
        pass

    def length(self, seq_id: int) -> int:
        return 0

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        return True

    def logits(self, row: int) -> Nothing:
        return _NOTHING

    def guided(self, logits: Any, negative: Any, scale: float) -> Nothing:
        return _NOTHING

    def logits_of(self, data: bytes) -> Nothing:
        return _NOTHING

    def logprobs(self, logits: Any, token: int, top: int) -> Logprobs:
        return 0.0, []

    def rank(self, logits: Any, token: int) -> int:
        return 1

    def entropy(self, logits: Any) -> float:
        return 0.0

    def continuable_from(self, seq_id: int) -> int:
        return 0

    can_shift = False

    def discard(self, seq_ids: list[int], start: int, end: int, shared: int) -> None:
        pass

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        pass

    def truncate(self, seq_id: int, n_tokens: int) -> bool:
        return True

    def remove(self, seq_id: int) -> None:
        pass

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        return bytearray(8)

    def restore(self, state: State, seq_id: int, start: int, end: int, moved: int = 0) -> bool:
        return True

    def compile(
        self, branches: tuple[SamplingParams, ...], special_tokens: bool = False, post_sampling_probs: bool = False
    ) -> Nothing:
        return _NOTHING

    def sampler(
        self,
        params: SamplingParams,
        compiled: Any,
        prompt: tuple[int, ...],
        begun: tuple[int, ...] = (),
        healed: bytes = b"",
    ) -> Counting:
        return Counting()

    def ranker(self, params: SamplingParams) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


_NOTHING = Nothing()


def requests(length: int, count: int, n: int = 1, max_tokens: int = 2, seed: int = 0) -> list[CompletionRequest]:
    """Return requests whose prompts share a prefix and then differ."""
    common = tuple(random.Random(length).choices(range(N_VOCAB), k=int(length * COMMON)))
    own = random.Random(seed)
    branches = SamplingParams(max_tokens=max_tokens, seed=0).alternatives(n)
    return [
        CompletionRequest(((*common, *own.choices(range(N_VOCAB), k=length - len(common))),), branches)
        for _ in range(count)
    ]


def finish(engine: Engine) -> float:
    """Step until no work is left. Return the milliseconds that this took."""
    began = time.process_time()
    while engine.has_work:
        engine.step()
    return (time.process_time() - began) * 1000


def timed_step(engine: Engine) -> float:
    """Run a step. Return the milliseconds that it took."""
    began = time.process_time()
    engine.step()
    return (time.process_time() - began) * 1000


def measure(length: int, waiting: int, cached: int) -> tuple[float, ...]:
    """Return milliseconds of the median step, the median step with a change, and requests with n = 8 and 255."""
    engine = Engine(Idle(), cache_bytes=1 << 40)
    for each in requests(length, cached, seed=1):
        engine.add_request(each)
        finish(engine)
    whole = []
    for n in (8, N):
        engine.add_request(requests(length, 1, n=n, seed=n)[0])
        whole.append(finish(engine))
    # The requests have n = 1, so each that ends makes room for another.
    for each in requests(length, N, max_tokens=1 << 20, seed=3):
        engine.add_request(each)
    for each in requests(length, waiting, max_tokens=1 << 20, seed=4):
        engine.add_request(each)
    while engine.stats().sequences < N:
        engine.step()
    gc.collect()
    steps = [timed_step(engine) for _ in range(STEPS)]
    changes = []
    for each in requests(length, 20, max_tokens=1 << 20, seed=5):
        running = next(iter(engine._scheduler.running))
        engine.abort(running)
        engine.step()
        engine.add_request(each)
        changes.append(timed_step(engine))
        engine.step()
    return statistics.median(steps), statistics.median(changes), *whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only prompts of 2,000 tokens")
    arguments = parser.parse_args()
    print("| prompt | waiting | cached | a step | a step with a change | a request of 8 | a request of 255 |")
    print("|---|---|---|---|---|---|---|")
    for length in (2_000,) if arguments.quick else (2_000, 20_000, 100_000):
        for waiting, cached in ((0, 0), (500, 0), (0, 1_000), (500, 1_000)):
            columns = " | ".join(f"{each:.1f}" for each in measure(length, waiting, cached))
            print(f"| {length} | {waiting} | {cached} | {columns} |", flush=True)


if __name__ == "__main__":
    main()
