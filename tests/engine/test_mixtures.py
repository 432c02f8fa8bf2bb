"""All that a request may ask for, mixed, while decodes fail, requests are aborted and engines are lost and resumed.

After any of this every cell and seq_id is back, and every event has come. The fake backend checks along the way that
positions have no gaps and that admission never promised too much. It draws tokens from all that a sequence's cells
hold, so a cell that is shared by mistake shows in the text.

A seed gives a run; `pytest tests/engine/test_mixtures.py -k "[17]"` does that of the seed 17.
"""

import dataclasses
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
from driver import check_order, run, seeds, stops, texts
from fake_backend import ByteTokenizer, FakeBackend, FakeReader
from memory_store import MemoryStore, StoredEntry
from mixed import ASCII, BANNED, COSTS, TEXTS, ascii_babble

from srb.engine.backend import State
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event, StartEvent
from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.lora import Adapter
from srb.engine.media import PromptPart
from srb.engine.request import CompletionRequest, Explore
from srb.engine.resume import resume
from srb.engine.sampling_params import SamplingParams
from srb.errors import ModelLoadError, SrbError

FEATURES = (
    *("stop", "lora", "direction", "diversity", "guidance", "guidance", "banned", "avoid", "distinct"),
    *("grammar", "grammar", "grammar", "heal", "echo", "logprobs", "return_tokens", "return_progress"),
)
NEGATIVE = [None, tuple(b"p" * 10), tuple(b"n" * 30), tuple(b"m" * 30)]
ADAPTERS = (Adapter("plain", "a.gguf", "aa", 0.0), Adapter("wild", "b.gguf", "bb", 1.0))


class AsciiTokenizer(ByteTokenizer):
    """Heals a prompt's last character with itself or the next one."""

    def beginning_with(self, text: bytes) -> Collection[int]:
        return [text[0], (text[0] + 1) % 128] if len(text) == 1 else []


def mostly(params: SamplingParams, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """What a plain alternative will say, with a wrong token at times. So guesses are met and missed."""
    n = len(tokens)
    for k in range(8):
        tokens += ((ascii_babble(params, tokens) + (k == n % 9)) % 128,)
    return tokens[n:]


def ascii_backend(**options: Any) -> FakeBackend:
    backend = FakeBackend(script=ascii_babble, forced=mostly, adapters=ADAPTERS, media=FakeReader(), **options)
    backend.tokenizer = AsciiTokenizer()
    return backend


class Mixture:
    """One run, and the events of each of its requests."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pick = self.random.choice
        self.requests: dict[str, CompletionRequest] = {}
        self.events: dict[str, list[Event]] = {}
        self.resumed: set[str] = set()
        self.now = 0.0
        self.entries: dict[str, StoredEntry] = {}
        self.n_idle = 0  # how many steps did nothing, one after another
        self.window = self.pick([None, None, None, 0, 1, 5, 20])
        n_parallel = self.pick([1, 2, 4, 5, 12])
        self.negative = self.random.sample(NEGATIVE, 2)
        self.of_backend: dict[str, Any] = {
            "n_parallel": n_parallel,
            "n_batch": 16,
            "n_outputs": self.pick([3, 128]),
            "window": self.window,
            "max_seqs": max(6, n_parallel + self.pick([2, 4, 30])),  # an alternative with a guide and marks takes 6
            "costs": self.pick([*COSTS, *COSTS[-1:] * 4]),
            "shifts": True,
            "poison": self.pick(["", "", "\x07", "n", "q"]),
            "names_poisoned": self.maybe(0.5),
        }
        self.of_engine: dict[str, Any] = {
            "default_max_tokens": self.pick([12, -1]),
            "cache_bytes": self.pick([0, 600, 5000, 100_000]),
        }
        self.has_store = self.maybe(0.3)
        self.save_seconds = self.pick([0, 0.001, 0.01, 0.3])
        self.refused = self.pick([0, 0, 0.1])  # the share of states for which llama.cpp finds no cells
        self.lays_out = self.window is None and self.maybe(0.5)
        self.start(self.pick([60, 80, 120]))

    def maybe(self, probability: float) -> bool:
        return self.random.random() < probability

    def start(self, n_cells: int) -> None:
        self.backend = ascii_backend(n_cells=n_cells, chooser=self.choose, **self.of_backend)
        self.backend.has_memory = lambda _layout: self.maybe(0.6)
        self.backend.on_prepare = self.prepare
        save, restore = self.backend.save, self.backend.restore

        def save_slowly(seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
            self.now += self.save_seconds
            return save(seq_id, start, end, max_bytes)

        def refuse_some(state: State, seq_id: int, start: int, end: int) -> bool:
            return not self.maybe(self.refused) and restore(state, seq_id, start, end)

        self.backend.save, self.backend.restore = save_slowly, refuse_some  # type: ignore[method-assign]
        assert isinstance(self.backend.media, FakeReader)
        self.backend.media.n_wait = self.pick([0, 0, 2])
        store = MemoryStore(self.entries) if self.has_store else None
        self.engine = Engine(self.backend, store=store, clock=lambda: self.now, **self.of_engine)

    def prepare(self) -> None:
        """At times there is no memory for any layout."""
        if self.lays_out and self.maybe(0.02):
            raise ModelLoadError("no memory")

    def choose(self, backend: FakeBackend, loads: Sequence[Load]) -> Layout:
        """Any layout at any time."""
        unified = Layout(True, backend.n_cells, backend.n_seqs)
        if not self.lays_out or any(load.needs_unified for load in loads):
            return unified
        streams = Layout(False, backend.n_cells, max(6, backend.n_parallel + 2))
        larger = Layout(True, 3 * backend.n_cells, backend.n_seqs)
        return self.pick([backend.layout, streams, streams, unified, larger])

    def branch(self, features: list[str]) -> SamplingParams:
        """An alternative with most of these features."""
        has = [each for each in features if self.maybe(0.8)]
        fields: dict[str, Any] = {"max_tokens": self.pick([1, 2, 5, 8, 20, 30]), "ignore_eos": self.maybe(0.5)}
        if "shift" in features:
            fields["max_tokens"] = self.pick([-1, 50, 100])
            fields["ignore_eos"] &= fields["max_tokens"] != -1
        if "stop" in has:
            fields["stop"] = ("\x00\x01", "a")
        if "lora" in has:
            fields["lora"] = self.pick([(), ((0, 1.0),), (("wild", 0.5),)])
        if "direction" in has:
            fields["direction"] = self.pick([tuple(b"d"), tuple(b"said\n"), tuple(b"d" * 20)])
        if "diversity" in has:
            fields["diversity"] = 1.0
        if "guidance" in has:
            fields |= {"guidance_scale": 2.0, "negative_prompt": self.pick(self.negative)}
        if "grammar" in has:
            fields["grammar"] = "root ::= [a-z]*"  # the fake sampler knows no grammars, and guesses if there is one
        if "banned" in has:
            fields["banned_strings"] = self.pick([BANNED, ("b", "ab")])
        if "avoid" in has:
            fields["avoid"] = self.pick([(), ("ab",)])
        return SamplingParams(seed=self.random.randint(0, 100), **fields)

    def text(self) -> str:
        """One of a few texts, or a part of what another request has said."""
        others = [each for each in self.requests.values() if not each.media]
        if not others or self.maybe(0.8):
            return self.pick(TEXTS)[: self.pick([1, 10, 22, 50])]
        each = self.pick(others)
        said = bytes(each.token_ids[0]).decode() + texts(self.events[each.id]).get(0, "")
        return said[: self.random.randint(1, 50)] + self.pick(["", "line"])

    def request(self) -> CompletionRequest:
        resumed_tokens = [self.text() for _ in range(self.pick([1, 1, 2, 3]))]
        prompts = tuple(tuple(text.encode()) for text in resumed_tokens)
        n = self.pick([1, 1, 2, 3, 6, 12])
        kind = self.pick(
            ["plain"] * 4 + ["search", "media", "bridge", "score"] + ["shift", "explore"] * (self.window is None)
        )
        if kind == "explore":
            depth, top_k, most = self.pick([1, 2, 4]), self.pick([1, 3, 10]), self.pick([1, 5, 30])
            explore = Explore(depth=depth, top_k=top_k, min_probability=0.0, max_nodes=most, min_entropy=0.0)
            return dataclasses.replace(CompletionRequest.exploring(prompts[0], explore), cache_prompt=self.maybe(0.7))
        features = [each for each in FEATURES if self.maybe(0.25)]
        options: dict[str, Any] = {each: each in features for each in ("return_tokens", "return_progress", "heal")}
        options |= {"cache_prompt": self.maybe(0.7), "slot": self.pick([-1] * 9 + [0, 1, 100])}
        options |= {"shared_within": self.pick(["", "", "ann", "bob"]), "priority": self.pick([0] * 8 + [-1, 1])}
        options |= {"logprobs": self.pick([0, 2])} if "logprobs" in features else {}
        options |= {"echo": "echo" in features and kind != "media"}
        if kind == "score":
            ends = [tuple(self.text().encode()) for _ in range(n)]
            return dataclasses.replace(CompletionRequest.scoring(prompts[0], ends), priority=options["priority"])
        if kind == "search":
            one = SamplingParams(seed=0, max_tokens=self.pick([None, 0, 1, 5]), logit_bias=ASCII)
            return CompletionRequest(prompts, one.alternatives(n), search="beam", **options | {"heal": False})
        if kind == "bridge":
            fields: dict[str, Any] = {
                "max_tokens": self.pick([None, 0, 1, 5, 12]),
                "ignore_eos": self.maybe(0.5),
                "logit_bias": ASCII,
            }
            one = SamplingParams(seed=self.random.randint(0, 100), stop=self.pick([(), ("\x00", "ab")]), **fields)
            options |= {"suffix": self.pick([tuple(b"end"), tuple(b"and so they lived")])}
            options |= {"n_candidates": self.pick([None, n, n + 2]), "stop_at_suffix": self.maybe(0.3)}
            return CompletionRequest(prompts, one.alternatives(n), **options)
        if kind == "shift":
            features = [
                "shift",
                *(each for each in features if each not in ("direction", "guidance", "banned", "avoid")),
            ]
            branches = tuple(self.branch(features) for _ in range(n))
            options |= {"context_shift": True, "n_keep": self.pick([0, 3, 7, -1]), "n_discard": self.pick([0, 3, 40])}
            return CompletionRequest((prompts[0] * 3,), branches, **options)
        branches = tuple(self.branch(features) for _ in range(n))
        options["distinct"] = "distinct" in features
        if kind == "plain":
            return CompletionRequest(prompts, branches, **options)
        images = [self.pick([b"i", b"j"]) * self.random.randint(1, 15) for _ in resumed_tokens]
        parts: list[PromptPart] = [resumed_tokens[0][:20], *images, "??"]
        tokens, media = self.engine.tokenize_parts(parts)
        return CompletionRequest((tokens,), branches, media=media, **options)

    def add(self) -> None:
        try:
            each = self.request()
            self.engine.add_request(each)
        except SrbError:  # two of its features can't be had together, or it is too large
            return
        self.requests[each.id], self.events[each.id] = each, []

    def step(self, seconds: float = 0.01) -> None:
        self.now += seconds
        n_decodes = self.backend.decodes
        try:
            events = self.engine.step()
        except RuntimeError as error:
            if not self.refused or "can't be swapped in" not in str(error):
                raise
            self.lose()
            return
        self.n_idle = (
            self.n_idle + 1 if self.engine.has_work and n_decodes == self.backend.decodes and not events else 0
        )
        assert self.n_idle < 20, "requests wait while nothing runs"
        for event in events:
            self.events[event.request_id].append(event)

    def lose(self) -> None:
        """Another engine resumes what the last one had not ended. What has no room there is forgotten."""
        self.start(self.pick([60, 60, 40, 100]))
        for each in list(self.requests.values()):
            if any(isinstance(event, DoneEvent) for event in self.events[each.id]):
                continue
            self.resumed.add(each.id)
            try:
                rest = resume(each, self.events[each.id])
                assert rest, "it had not ended"
                self.engine.add_request(rest)
            except SrbError:
                del self.requests[each.id]

    def act(self) -> None:
        action = self.pick(
            ["add", "add", "add", "step", "step", "step", "abort", "abort within", "fail", "lose", "prioritize"]
        )
        some = self.pick(list(self.requests.values())) if self.requests else None
        if action == "add":
            self.add()
        elif action == "step":
            seconds = self.pick([0.01, 3.0])
            for _ in range(self.random.randint(1, 8)):
                self.step(seconds)
        elif action == "abort" and some:
            index = self.pick([None, self.random.randrange(some.count)])
            self.engine.abort(some.id, index, self.pick(["cancelled", "shutdown"]))
        elif action == "prioritize" and some:
            self.engine.prioritize(some.id, self.pick([0, 5]))
        elif action == "abort within" and some:
            self.backend.on_decode = lambda: self.engine.abort(some.id)
            self.step()
            self.backend.on_decode = lambda: None
        elif action == "fail":
            self.backend.fail_decodes |= {self.backend.decodes + 1, self.backend.decodes + self.random.randint(1, 2)}
        elif action == "lose" and self.maybe(0.3):
            self.lose()

    def run(self) -> None:
        for _ in range(self.random.randint(5, 40)):
            self.act()
            stats = self.engine.stats()
            assert self.backend.cells <= stats.cells or stats.layout == "streams"
            assert stats.cells <= stats.max_cells
            # A sequence has a seq_id, its guide one, and each of these what it goes back to. A prompt and its companion
            # outlast their sequences by a step when the last of these waits and is aborted.
            most = (2 if self.window is None else 4) * stats.sequences + 2
            assert sum(bool(cells) for cells in self.backend.sequences.values()) <= most
            assert stats.sequences <= max(6, self.backend.n_seqs)
            assert stats.retained_bytes <= stats.max_retained_bytes
        for _ in range(20_000):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, "a request starves"
        stats = self.engine.stats()
        assert (stats.sequences, stats.cells, self.backend.cells) == (0, 0, 0)
        assert self.engine._allocator.free_seqs == self.engine._allocator.layout.n_seqs, "no seq_id is lost"
        assert (self.backend.open_samplers, self.backend.open_compiled) == (0, 0)
        for each in self.requests.values():
            events = self.events[each.id]
            started = any(isinstance(event, StartEvent) for event in events)
            check_order(events, each, started=started, is_resumed=each.id in self.resumed)
            if self.is_certain(each):
                self.check_texts(each, events)

    def is_certain(self, each: CompletionRequest) -> bool:
        """Whether what a request says depends neither on who runs at the same time nor on the room that there is."""
        if each.is_joint or each.context_shift or each.explore:
            return False
        if any(params.max_tokens in (-1, None) for params in each.branches):
            return False
        if any(params.banned_strings for params in each.branches):
            return each.id not in self.resumed and self.window is None
        return not (each.n_rows and each.id in self.resumed)

    def check_texts(self, each: CompletionRequest, events: list[Event]) -> None:
        alone = Engine(ascii_backend(n_cells=10_000, n_parallel=50, n_batch=1000), default_max_tokens=12)
        plain = dataclasses.replace(each, logprobs=None, return_tokens=False, return_progress=False, slot=-1)
        expected, said = texts(run(alone, plain)), texts(events)
        for index, stop in stops(events).items():
            params = each.branches[index % len(each.branches)]
            if stop.finish_reason in ("stop", "length"):
                assert said.get(index, "") == expected.get(index, "")
            elif not (params.banned_strings or params.avoid is not None or each.n_rows):
                assert expected.get(index, "").startswith(said.get(index, ""))


@pytest.mark.parametrize("seed", seeds(150, first=20))
def test_a_mixture_of_requests(seed: int, limit_rewinds: Callable[[int], None]) -> None:
    limit_rewinds(random.Random(seed).choice([0, 3, 10]))
    Mixture(seed).run()
