"""Runs programs of random traffic, and checks that each text equals the text of the same request alone.

Everything is exact: F32 weights, an f32 cache, no flash attention, one thread. With quantized weights, the number of
rows in a batch changes log-probabilities by up to 0.6. This would hide faults.

With `--reproducible` nothing may change them, so there all bits are compared, and tokens are drawn at random.
"""

import dataclasses
import itertools
import os
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
from driver import check_order, run, stops
from fixed_costs import fix_costs
from tiny_lora import write_tiny_lora
from tiny_model import WINDOW, write_tiny_model
from traffic import Abort, Ask, Program, Run, Step, banned, matched, refused, tokens, words

from srb.engine.backend import Costs
from srb.engine.engine import Engine
from srb.engine.events import ErrorEvent, Event, StartEvent, StopEvent, StreamEvent, Token
from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.sampling_params import SamplingParams
from srb.engine.stats import EngineStats
from srb.errors import InvalidRequestError
from srb.files.disk_cache import DiskCache
from srb.llama.backend import LlamaBackend
from srb.llama.layouts import FEWEST_STREAMS
from srb.llama.native import library as log
from srb.options.settings import Settings

KINDS = {"full": "llama", "window": "gemma3", "recurrent": "mamba", "hybrid": "jamba"}
"""The kinds of memory that llama.cpp has, each with the architecture of the tiny model that has it."""

BITS_KINDS = ("full", "window")
"""Those with which `--reproducible` keeps its promise."""

BITS_WINDOW = 128
"""The sliding window for that: no longer text is kept for others, and no text shorter than a block."""

TOLERANCE = 1e-3
"""How much log-probabilities may differ. The number of rows in a batch changes them by up to 1e-4."""

DRAWS: tuple[dict[str, Any], ...] = (
    {},
    {"mirostat": 2},
    {"adaptive_target": 0.1},
    {"xtc_probability": 0.5, "xtc_threshold": 0.02},
)
"""How alternatives draw where all bits are compared."""

NO_GUESSES = Costs(step=0.0, row=1.0, prompt_token=1.0, row_cell=0.0, prompt_cell=0.0)
"""Those of a reference: a row for a token that is guessed costs as much as a step, so none is guessed."""

PROPOSERS = dataclasses.replace(NO_GUESSES, step=100.0)
"""Those with which whatever may be guessed is evaluated."""

_MOST_HELD = 3
"""An alternative that is aborted says the last tokens, which might have been taken back. They can't be compared."""

_TOP = 5  # so many of the likeliest tokens are compared at each place
_SECONDS_PER_STEP = 0.1  # on the engine's clock, so that a program always makes the same batches
_MOST_STEPS = 20_000
_MOST_TIES = 2  # of a program; one in some thousand tokens is drawn at the edge between two of them
_PENALTY_LAST_N = SamplingParams().repeat_last_n


@dataclass(frozen=True)
class Answer:
    """What one alternative has said. Its tokens begin with those of its prompt if the prompt was scored."""

    tokens: tuple[Token, ...]
    text: str
    stop: StopEvent


def answers(events: list[Event], request: CompletionRequest) -> list[Answer]:
    """The answers of a request that has ended, by index, from its events."""
    said: list[list[StreamEvent]] = [[] for _ in range(request.count)]
    for event in events:
        if isinstance(event, StreamEvent):
            said[event.index].append(event)
    ends = stops(events)
    return [
        Answer(tuple(each.token for each in own if each.token), "".join(each.text for each in own), ends[index])
        for index, own in enumerate(said)
    ]


class Model:
    """A model to run programs on, and a second engine, the reference, which answers each request alone.

    unit: a length in tokens for `traffic.generate`; chosen so that the texts of a program outgrow the model's window.
    bits: whether engines run with `--reproducible`, and all bits are compared.
    adapter: the file of an adapter that alternatives may use.
    vocabulary: the tokens of random texts.
    """

    def __init__(self, path: Path, unit: int = WINDOW, *, bits: bool = False, adapter: Path | None = None) -> None:
        self.path = path
        self.adapter = adapter
        self.unit = unit
        self.bits = bits
        self.tolerance = 0.0 if bits else TOLERANCE
        self._backend = self.load(Program(ops=(), ctx_size=32 * unit, parallel=2, batch_size=512))
        fix_costs(self._backend, NO_GUESSES)
        self._engine = Engine(self._backend)
        self._known: dict[tuple[object, ...], Answer] = {}
        n_vocab = self._backend.tokenizer.n_vocab
        self.vocabulary = range(32, 127) if n_vocab < 1000 else range(1000, min(n_vocab, 20_000))

    def close(self) -> None:
        """Frees the backend of the reference."""
        self._backend.close()

    def load(self, program: Program) -> LlamaBackend:
        """A backend that is set up as a program says."""
        settings = Settings(
            model=self.path,
            ctx_size=program.ctx_size,
            parallel=program.parallel,
            batch_size=program.batch_size,
            ubatch_size=min(program.batch_size, 512),
            threads=1,
            flash_attn="off",
            cache_type_k="f32",
            cache_type_v="f32",
            lora=f"{self.adapter}:0" if self.adapter else "",
        )
        if self.bits:  # answers depend on the sizes of the context, but not on that of a batch
            sizes: dict[str, Any] = {"ctx_size": 8 * 32 * self.unit, "parallel": 8}
            sizes |= {"batch_size": max(64, program.batch_size), "ubatch_size": 512}
            settings = dataclasses.replace(settings, reproducible=True, cache_type_k="f16", cache_type_v="f16", **sizes)
        return LlamaBackend(settings)

    def alone(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        *,
        echo: bool,
        bridge: dict[str, Any] | None = None,
        resumed_tokens: tuple[int, ...] = (),
    ) -> Answer:
        """What a request with one alternative says, with nothing shared and nobody beside it.

        bridge: the fields of a bridge, if it is one. resumed_tokens: the first tokens of the answer, if it has begun.
        """
        bridge = bridge or {}
        resumed = {"resumed": (Resumed(resumed_tokens),)} if resumed_tokens else {}
        key = (prompt, params, echo, resumed_tokens, *bridge.values())
        if key not in self._known:
            if len(self._known) > 1000:
                self._known.clear()
            request = _request("alone", (prompt,), (params,), echo=echo, cache_prompt=False, **bridge, **resumed)
            self._known[key] = answers(run(self._engine, request, steps=_MOST_STEPS), request)[0]
        return self._known[key]

    def check(self, program: Program) -> EngineStats:
        """Runs a program. Raises `AssertionError` if a text isn't that of its request alone, or if cells are lost.

        The exceptions of an engine with a bug are passed on. Returns what the last engine has done.
        """
        backend = self.load(program)
        if program.drafts:
            fix_costs(backend, PROPOSERS)
        try:
            trial = _Trial(self, program, backend)
            trial.run(program)
            return trial.check()
        finally:
            backend.close()


def _request(
    name: str, prompts: tuple[tuple[int, ...], ...], branches: tuple[SamplingParams, ...], **options: Any
) -> CompletionRequest:
    return CompletionRequest(prompts, branches, logprobs=_TOP, return_tokens=True, id=name, **options)


def _bridge(suffix: tuple[int, ...], n: int) -> dict[str, Any]:
    """The fields of a bridge whose n candidates are all told."""
    return {"suffix": suffix, "n_candidates": n}


class _Trial:
    """One run of a program."""

    def __init__(self, model: Model, program: Program, backend: LlamaBackend) -> None:
        self._model = model
        self._backend = backend
        self._now = 0.0
        self._layouts = program.layouts
        self._moves = None if program.layouts is None else random.Random(program.layouts)
        self._n_ties = 0  # how many tokens were drawn otherwise than alone, at random from the same probabilities
        self._stays = 0  # for so many steps the layout stays
        if self._moves:
            backend.choose = self._choose  # type: ignore[method-assign]
            self._prepare, backend.prepare = backend.prepare, self._prepare_some  # type: ignore[method-assign]
        self._engine = self._make_engine(program, None)
        self._requests: dict[str, CompletionRequest] = {}
        self._events: dict[str, list[Event]] = {}

    def _make_engine(self, program: Program, store: DiskCache | None) -> Engine:
        return Engine(
            self._backend,
            default_max_tokens=40,
            cache_bytes=program.cache_bytes,
            store=store,
            clock=lambda: self._now,
        )

    def run(self, program: Program) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self._folder = Path(folder)
            if program.restarts:
                self._restart(program)
            self._run(program)
            self._engine.close()

    def _restart(self, program: Program) -> None:
        """Plays another process, which has only the files of what was evaluated."""
        self._engine.close()
        store = DiskCache(self._folder, self._backend.identity, 1 << 30)
        self._engine = self._make_engine(program, store)

    def _run(self, program: Program) -> None:
        for op in program.ops:
            if isinstance(op, Ask):
                self._ask(op)
            elif isinstance(op, Abort):
                self._engine.abort(str(op.name), op.index)
            elif isinstance(op, Step):
                self._step(op.times)
            elif program.restarts:
                self._step(_MOST_STEPS)
                self._restart(program)
        self._step(_MOST_STEPS)
        assert not self._engine.has_work, "a request starves"

    def _step(self, times: int) -> None:
        for _ in itertools.takewhile(lambda _: self._engine.has_work, range(times)):
            self._now += _SECONDS_PER_STEP
            self._move()
            for event in self._engine.step():
                self._events[event.request_id].append(event)

    def _move(self) -> None:
        """Lets the engine ask for a layout at random moments, in place of those when it has news."""
        if self._moves:
            self._stays -= 1
            if self._stays < 0:
                self._stays = self._moves.choice([1, 3, 10, 30])
                self._engine._scheduler.has_news = True

    def _choose(self, loads: Sequence[Load], n_held: int) -> Layout:
        """Any layout that has room for each of the loads, at most of the moments that `_move` has chosen."""
        assert self._moves
        present = self._backend.layout
        if not self._layouts or self._backend.window is not None:  # what forgets can't move
            return present
        if n_held and self._stays and self._moves.random() < 0.7:
            return present
        n_cells, kind = self._backend.n_cells, present.flash_attn
        options = [Layout(True, size, self._backend.n_seqs, kind) for size in (n_cells, 2 * n_cells)]
        if not any(load.needs_unified for load in loads):
            options += [Layout(False, n_cells, n, kind) for n in range(FEWEST_STREAMS, 9)]
        return self._moves.choice(options)

    def _prepare_some(self, layout: Layout) -> None:
        """Acts at random moments as if there were no memory for another layout."""
        assert self._moves
        self._prepare(self._backend.layout if self._moves.random() < 0.3 else layout)

    def _ask(self, ask: Ask) -> None:
        prompts = tuple(tokens(parts, self._model.vocabulary, self._said) for parts in ask.prompts)
        try:
            branches = tuple(self._params(**branch) for branch in ask.branches)
            bridge = _bridge(words(ask.suffix, self._model.vocabulary), len(branches)) if ask.suffix else {}
            request = _request(str(ask.name), prompts, branches, echo=ask.echo, cache_prompt=ask.cache_prompt, **bridge)
            self._engine.add_request(request)
        except InvalidRequestError:
            return  # the request has no prompt, or can never fit
        self._requests[request.id] = request
        self._events[request.id] = []

    def _params(
        self,
        ban: int | None = None,
        refuse: int | None = None,
        match: int | None = None,
        draw: int = 0,
        lora: float = 0.0,
        guide: Run | None = None,
        **values: Any,
    ) -> SamplingParams:
        bias = tuple((token, float("-inf")) for token in banned(ban, self._backend.tokenizer.n_vocab))
        defaults: dict[str, Any] = {"ignore_eos": True, "logit_bias": bias, "seed": draw}
        defaults |= {"banned_strings": refused(refuse), "regex": matched(match)}
        if lora and self._model.adapter:
            defaults["lora"] = ((0, lora),)
        if guide:
            defaults |= {"negative_prompt": words(guide, self._model.vocabulary), "guidance_scale": 1.5}
        defaults |= DRAWS[draw % len(DRAWS)] if self._model.bits else {"temperature": 0.0}
        return SamplingParams(**(defaults | values))

    def _said(self, name: int, index: int) -> tuple[int, ...]:
        request = self._requests.get(str(name))
        if request is None or index >= request.count:
            return ()
        prompt = request.token_ids[index // len(request.branches)]
        events = [each for each in self._events[request.id] if isinstance(each, StreamEvent) and each.index == index]
        said = tuple(token for event in events for token in event.tokens)
        return (*prompt, *said[len(prompt) if request.echo else 0 :])

    def check(self) -> EngineStats:
        """Compares all answers with those of their requests alone, and checks that everything was given back."""
        stats = self._engine.stats()
        assert (stats.sequences, stats.cells, self._backend.used_seq_ids()) == (0, 0, []), "not all was given back"
        assert self._engine._allocator.free_seqs == self._backend.layout.n_seqs, "not all seq_ids were given back"
        assert self._engine._states.n_set_aside == 0, "a state that was swapped out is still there"
        for name, request in self._requests.items():
            events = self._events[name]
            errors = [event.error for event in events if isinstance(event, ErrorEvent)]
            assert not errors, f"request {name}: {errors[0]}"
            check_order(events, request, started=any(isinstance(event, StartEvent) for event in events))
            for index, answer in enumerate(answers(events, request)):
                try:
                    self._check_answer(request, index, answer)
                except AssertionError as error:
                    raise AssertionError(f"request {name}, alternative {index}: {error}") from None
        assert self._n_ties <= _MOST_TIES, f"{self._n_ties} tokens were drawn otherwise than alone"
        return stats

    def _check_answer(self, request: CompletionRequest, index: int, answer: Answer) -> None:
        prompt = request.token_ids[index // len(request.branches)]
        params = request.branches[index % len(request.branches)]
        stop = answer.stop
        if stop.finish_reason == "length" and params.max_tokens not in (None, -1):
            assert stop.length == params.max_tokens, f"{stop.length} tokens, and not {params.max_tokens}"
        # At its last token nothing is taken back any more, so the reference goes on where this answer would have.
        n_more = _MOST_HELD if stop.finish_reason != "length" and params.banned_strings else 0
        n_held = n_more if stop.finish_reason == "abort" else 0
        said = answer.tokens[: len(answer.tokens) - n_held]
        expected = self._check_tokens(prompt, params, said, n_more, echo=request.echo)
        if expected and stop.finish_reason != "abort":
            assert answer.text == expected.text
            end = (stop.length, stop.finish_reason, stop.stop_reason)
            assert end == (expected.stop.length, expected.stop.finish_reason, expected.stop.stop_reason)
            if request.suffix:
                self._check_suffix(request, prompt, params, answer)

    def _check_suffix(
        self, request: CompletionRequest, prompt: tuple[int, ...], params: SamplingParams, answer: Answer
    ) -> None:
        """Compares the score of a bridge's suffix with the one that it has behind the same text alone."""
        suffix = request.suffix_ids
        alone = self._model.alone(prompt, params, echo=False, bridge=_bridge(suffix, 1))
        if [token.id for token in alone.tokens] == [token.id for token in answer.tokens]:
            scores = alone.stop.suffix_logprob, answer.stop.suffix_logprob
            assert None not in scores, "a suffix has no score"
            off = abs((scores[0] or 0.0) - (scores[1] or 0.0))
            assert off <= self._model.tolerance * len(suffix), f"the score of the suffix is off by {off:.2g}"

    def _check_tokens(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        said: tuple[Token, ...],
        n_more: int = 0,
        *,
        echo: bool,
        resumed_tokens: tuple[int, ...] = (),
    ) -> Answer | None:
        """Compares tokens with the reference's, and returns its answer; None if a tie went another way.

        resumed_tokens: the first tokens of the answer, if these aren't in `said`.
        """
        if not said:
            return None
        n_scored = len(prompt) if echo else 0
        n_tokens = max(0, len(resumed_tokens) + len(said) + n_more - n_scored)
        wanted = dataclasses.replace(params, max_tokens=n_tokens)
        expected = self._model.alone(prompt, wanted, echo=echo, resumed_tokens=resumed_tokens)
        for place, (token, other) in enumerate(zip(said, expected.tokens, strict=False)):
            known = (*prompt, *resumed_tokens, *(each.id for each in said[n_scored:place]))
            where = f"token {place}" if place < n_scored else f"token {len(known)}, {place - n_scored} after the prompt"
            tolerance = self._model.tolerance
            _check_logprobs(token, other, where, tolerance)
            if token.id != other.id and params.temperature:
                # The logits are rounded otherwise, and so the same number from the generator fell on the next token.
                # The tokens behind it must be those that come from the generator's next numbers.
                self._n_ties += 1
                resumed_tokens += tuple(each.id for each in said[n_scored : place + 1])
                self._check_tokens(prompt, params, said[place + 1 :], n_more, echo=False, resumed_tokens=resumed_tokens)
                return None
            if token.id != other.id:
                _check_tie(token, other, params, known, where, tolerance)
                if (
                    params.banned_strings or params.regex or params.negative_prompt
                ):  # the reference, begun here, wouldn't see what comes before
                    return None
                # Both tokens are right, so the rest is compared with what the reference says after the drawn token.
                rest = dataclasses.replace(params, stop=())
                self._check_tokens((*known, token.id), rest, said[place + 1 :], echo=False)
                return None
        assert len(expected.tokens) >= len(said), f"{len(said)} tokens, and not {len(expected.tokens)}"
        return expected


def _check_logprobs(said: Token, expected: Token, where: str, tolerance: float) -> None:
    pairs = [(one.logprob, other.logprob) for one, other in zip(said.top_logprobs, expected.top_logprobs, strict=True)]
    if said.id == expected.id:
        pairs.append((said.logprob, expected.logprob))
    off = max(0.0 if one is other is None else abs((one or 0.0) - (other or 0.0)) for one, other in pairs)
    assert off <= tolerance, (
        f"{where}: log-probabilities are off by {off:.2g}; "
        f"likeliest {[token.id for token in said.top_logprobs]}, alone {[token.id for token in expected.top_logprobs]}"
    )


def _check_tie(
    said: Token, expected: Token, params: SamplingParams, known: tuple[int, ...], where: str, tolerance: float
) -> None:
    """Checks that the samplers make two tokens equally likely. Then either may be drawn."""
    bias = dict(params.logit_bias)
    recent = known[-_PENALTY_LAST_N:]

    def score(token: Token) -> float:
        assert token.logprob is not None
        return token.logprob + bias.get(token.id, 0.0) - params.presence_penalty * (token.id in recent)

    gap = abs(score(said) - score(expected))
    assert 0 < 2 * tolerance >= gap, f"{where}: {said.id} was drawn, not {expected.id}, which is better by {gap:.2g}"


def failure(model: Model, program: Program) -> str | None:
    """What is wrong with a program's answers; None if nothing is."""
    try:
        model.check(program)
    except Exception as error:  # an engine with a bug may raise anything
        return f"{type(error).__name__}: {error}"
    return None


def report(program: Program, problem: str | None) -> str:
    """What to print about a program that fails: why it fails, and the Python text that makes it again."""
    return f"{problem}\n{program}"


def tiny_model(kind: str, folder: Path, window: int = WINDOW) -> Path:
    """The path of a tiny model with one of the `KINDS` of memory, written into the folder."""
    return write_tiny_model(folder / f"{kind}.gguf", arch=KINDS[kind], window=window)


def tiny_adapter(kind: str, folder: Path) -> Path | None:
    """The path of an adapter for the tiny model of a kind; None if its layers have nothing to adapt."""
    arch = KINDS[kind]
    return write_tiny_lora(folder / f"{kind}-lora.gguf", arch=arch) if arch in ("llama", "gemma3") else None


def exact_copy(model: Path, folder: Path) -> Path:
    """The path of a copy of a model with F32 weights, written into the folder."""
    log.redirect()  # llama.cpp logs a line for each tensor
    target = folder / f"{model.stem}-F32.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_ALL_F32
    params.allow_requantize = True
    code = llama_cpp.llama_model_quantize(os.fsencode(model), os.fsencode(target), params)
    assert code == 0, f"llama_model_quantize failed with code {code} for {model}"
    return target
