"""Check that `banned_strings` bans the model's most frequent phrases, and measure its cost.

usage: python bench/checks/banned.py [--model FILE | --kind window [--large]] [--alternatives 1000] [--rounds 20]

The program requests many alternatives and counts sequences of three tokens. It bans the texts of the 50 most frequent
sequences and requests the same alternatives again. It searches for each phrase in the stream, in the journal, in the
tokens, and in the tokens that come with log-probabilities.

Then it times 16 alternatives without banned strings, and with 50 that begin as often but never complete: the same
phrases, each followed by a character that the model doesn't write. The two alternate, and the program prints the ratio
of their total times.

--kind is a small model with random weights that can't roll back: window (gemma3), recurrent (mamba) or hybrid (jamba).
With --large its tokens take as long as those of a model with 150 million weights.
The default model has full attention.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from alone import KINDS
from tiny_model import write_tiny_model

from srb.engine.engine import Engine
from srb.engine.events import StopEvent, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings
from srb.serving.event_log import EventLog

PROMPT = "Once upon a time, there was"
N_PHRASES = 50
N_TIMED = 16
TIMED_TOKENS = 64
NEVER = "\u2603"


@dataclasses.dataclass
class Said:
    """The text of each alternative: streamed, from the journal, from tokens, and from tokens with probabilities."""

    streamed: list[str]
    kept: list[str]
    tokens: list[list[int]]
    scored: list[bytes]
    rewinds: int = 0
    thrown_away: int = 0
    exhausted: int = 0
    seconds: float = 0.0

    def with_one_of(self, phrases: tuple[str, ...], engine: Engine) -> list[int]:
        """Return how many alternatives have one of the phrases, for each of the four forms."""
        pieces = [
            b"".join(
                engine.model.tokenizer.piece(token) for token in tokens if not engine.model.tokenizer.is_end(token)
            )
            for tokens in self.tokens
        ]
        texts = [each.decode(errors="replace") for each in pieces]
        scored = [each.decode(errors="replace") for each in self.scored]
        return [
            sum(any(phrase in text for phrase in phrases) for text in each)
            for each in (self.streamed, self.kept, texts, scored)
        ]


def ask(engine: Engine, n: int, max_tokens: int, banned: tuple[str, ...], *, is_timed: bool = False) -> Said:
    """Request n alternatives. is_timed: all have the same number of tokens, and come without probabilities."""
    params = SamplingParams(seed=1, max_tokens=max_tokens, banned_strings=banned, ignore_eos=is_timed)
    branches = params.alternatives(n)
    request = CompletionRequest(
        (engine.tokenize(PROMPT),), branches, return_tokens=True, logprobs=None if is_timed else 0
    )
    journal = EventLog(request)
    said = Said([""] * n, [], [[] for _ in branches], [b""] * n)
    began = time.perf_counter()
    engine.add_request(request)
    while engine.has_work:
        events = engine.step()
        journal.put(events)
        for event in events:
            if isinstance(event, StreamEvent):
                said.streamed[event.index] += event.text
                said.tokens[event.index] += event.tokens
                if event.token and not engine.model.tokenizer.is_end(event.token.id):
                    said.scored[event.index] += engine.model.tokenizer.piece(event.token.id)
            elif isinstance(event, StopEvent):
                said.rewinds += event.rewinds or 0
                said.thrown_away += event.rewound_tokens or 0
                said.exhausted += bool(event.rewinds_exhausted)
    said.seconds = time.perf_counter() - began
    said.kept = journal.texts
    return said


def loved(said: Said, engine: Engine) -> list[tuple[str, int]]:
    """Return the texts of the most frequent sequences of three tokens, with their counts."""
    counts = Counter(tuple(tokens[k : k + 3]) for tokens in said.tokens for k in range(len(tokens) - 2))
    found: dict[str, int] = {}
    for gram, n in counts.most_common():
        text = b"".join(map(engine.model.tokenizer.piece, gram)).decode(errors="replace")
        if text.strip() and "\ufffd" not in text:
            found.setdefault(text, n)
        if len(found) == N_PHRASES:
            break
    return list(found.items())


def look(engine: Engine, n: int, max_tokens: int) -> tuple[str, ...]:
    """Ban the most frequent phrases, count them without and with the ban, and return them."""
    plain = ask(engine, n, max_tokens, ())
    found = loved(plain, engine)
    phrases = tuple(text for text, _ in found)
    print(f"{n} alternatives of {max_tokens} tokens; what is banned came {sum(count for _, count in found)} times,")
    print("most often", ", ".join(f"{text!r} ({count})" for text, count in found[:5]))
    banned = ask(engine, n, max_tokens, phrases)
    print(
        "| alternatives with a banned phrase | streamed | journal | tokens | log-probabilities |\n|---|---|---|---|---|"
    )
    for name, said in (("without `banned_strings`", plain), ("with it", banned)):
        print(f"| {name} |", " | ".join(map(str, said.with_one_of(phrases, engine))), "|")
    n_tokens = sum(map(len, banned.tokens))
    print(f"went back {banned.rewinds} times, threw {banned.thrown_away} tokens away beside {n_tokens} that stay;")
    print(f"let through: {banned.exhausted}; {banned.seconds / plain.seconds:.2f} times the time")
    return phrases


def compare(engine: Engine, phrases: tuple[str, ...], rounds: int) -> None:
    """Compare the time with phrases that never complete to the time without banned strings, alternating."""
    never = tuple(phrase + NEVER for phrase in phrases)
    seconds = [0.0, 0.0]
    for k in range(rounds + 1):
        for j in (0, 1) if k % 2 else (1, 0):
            said = ask(engine, N_TIMED, TIMED_TOKENS, never if j else (), is_timed=True)
            seconds[j] += said.seconds if k else 0.0  # the first round warms up
    print(f"where none of 50 comes: {seconds[1] / seconds[0]:.3f} times the time ({rounds} rounds in turns)")


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", type=Path)
    model.add_argument("--kind", choices=[kind for kind in KINDS if kind != "full"])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--alternatives", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model
        if arguments.kind:
            size = 768 if arguments.large else 256
            path = write_tiny_model(
                Path(folder) / "model.gguf",
                arch=KINDS[arguments.kind],
                n_ctx_train=8192,
                n_layer=16 if arguments.large else 8,
                n_embd=size,
                n_ff=4 * size,
                scale=0.05 if arguments.large else 0.3,
                layers_alike=arguments.large,
            )
        settings = Settings(ctx_size=8192, parallel=64)
        with LlamaBackend(dataclasses.replace(settings, model=path) if path else settings) as backend:
            engine = Engine(backend)
            compare(engine, look(engine, arguments.alternatives, arguments.tokens), arguments.rounds)


if __name__ == "__main__":
    main()
