"""The draft model of `--model-draft`: a small model that proposes tokens, in a context of its own.

It only computes, and measures how long this takes. `srb/engine/spec_decode/draft_model.py` decides when draft tokens
are worth that time. The draft model must have the vocabulary of the large model; only the number of unused tokens at
the end may differ, as it often does within a family of models.
"""

import math
import time
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp

from srb.engine.backend import Batch
from srb.engine.kv_cache.allocator import Layout
from srb.engine.kv_cache.radix import Tokens, common_prefix, pack
from srb.errors import BackendError, ModelLoadError
from srb.llama.model.loader import load_model
from srb.llama.model.model_file import check_gguf
from srb.llama.native import library as log
from srb.llama.native.context import Context, window_of
from srb.llama.native.params import is_on_gpu
from srb.llama.native.threads import ThreadWaiting
from srb.llama.sampling.candidates import logprobs
from srb.options.settings import Settings

MAX_TEXTS = 4
"""How many texts the draft model continues in one batch. More texts have enough rows without draft tokens."""

_CHUNK = 64  # tokens that are read to measure how long this takes
_REPEATS = 3

_SHARED = ("threads", "threads_batch", "numa", "mmap", "mlock", "device", "main_gpu", "kv_offload", "flash_attn")
"""The options that also apply to the draft model."""


def draft_settings(settings: Settings) -> Settings | None:
    """Return the settings of the draft model; None if there is none, or if it can't be used."""
    if settings.model_draft is None or settings.reproducible or settings.draft_max == 0:
        return None
    shared = {name: getattr(settings, name) for name in _SHARED}
    layers = -2 if is_on_gpu(settings) else 0
    return Settings(
        model=settings.model_draft, parallel=min(MAX_TEXTS, settings.parallel), n_gpu_layers=layers, **shared
    )


def draft_layout(settings: Settings, n_cells: int) -> Layout:
    """Return the layout of the draft model's context. settings: those of `draft_settings`."""
    return Layout(True, n_cells, settings.parallel, settings.flash_attn)


def check_draft(path: Path, settings: Settings) -> None:
    """Check the file of the draft model before the large model at `path` is loaded, which takes long.

    Raises `ModelLoadError`.
    """
    draft = settings.model_draft
    if draft is None:
        return
    if draft_settings(settings) is None:
        option = "--reproducible" if settings.reproducible else "--draft-max 0"
        log.logger.warning("--model-draft has no effect, because %s turns speculative decoding off", option)
        return
    check_gguf(draft, "--model-draft")
    with ExitStack() as stack:
        large = load_model(path, Settings(), vocab_only=True)
        stack.callback(llama_cpp.llama_model_free, large)
        small = _load(draft, Settings(), vocab_only=True)
        stack.callback(llama_cpp.llama_model_free, small)
        difference = _difference(*map(llama_cpp.llama_model_get_vocab, (large, small)))
    if difference:
        raise ModelLoadError(
            f"--model-draft {draft} can't be used with {path}, because it has another vocabulary: {difference}; use a "
            "smaller model of the same family, or leave the option out"
        )


def _load(path: Path, settings: Settings, *, vocab_only: bool = False) -> Any:
    try:
        return load_model(path, settings, vocab_only=vocab_only)
    except ModelLoadError as error:
        raise ModelLoadError(f"--model-draft: {error.message}") from None


def _difference(large: Any, draft: Any) -> str | None:
    """Return the first difference between two vocabularies, apart from their sizes; None if there is none."""
    kinds = [llama_cpp.llama_vocab_type(each) for each in (large, draft)]
    if kinds[0] != kinds[1]:
        return f"its tokenizer is of llama.cpp's type {kinds[1]}, and not {kinds[0]}"
    get = llama_cpp.llama_vocab_get_text
    for token in range(min(llama_cpp.llama_vocab_n_tokens(each) for each in (large, draft))):
        texts = get(large, token), get(draft, token)
        if texts[0] != texts[1]:
            shown = [str(text.decode(errors="replace")) for text in texts]
            return f"token {token} is {shown[1]!r} there, and not {shown[0]!r}"
    return None


@dataclass(eq=False)
class _DraftSequence:
    """A sequence of the draft model's context: the tokens of a text. The last `n_drafted` of them are draft tokens."""

    seq_id: int
    owner: Hashable = None
    tokens: Tokens = field(default_factory=lambda: pack(()))
    n_drafted: int = 0

    def n_common(self, owner: Hashable, text: Tokens) -> int:
        """Return the length of the prefix that it has in common with a text of this owner."""
        return common_prefix(self.tokens, text, 0) if owner == self.owner else 0


class LlamaDrafter:
    """The draft model. Implements `srb.engine.model.Drafter`. Call `close` at the end. Raises `ModelLoadError`.

    Args:
        settings: those of the draft model, from `draft_settings`.
        n_cells, n_vocab: the sizes of the large model's context and vocabulary.
    """

    def __init__(self, settings: Settings, n_cells: int, n_vocab: int, waiting: ThreadWaiting) -> None:
        self._settings, self._waiting = settings, waiting
        self._max_cells, self._max_vocab = n_cells, n_vocab
        self.n_texts = settings.parallel
        self.reading = 1.0
        self.making_seconds = (1.0, 1.0)  # for one text, and for `n_texts` texts
        self._model: Any = None
        self.open()

    def open(self) -> None:
        """Load the model, unless it is loaded. Raises `ModelLoadError`."""
        if self._model:
            return
        path = self._settings.model
        assert path
        with ExitStack() as stack:
            model = _load(path, self._settings)
            stack.callback(llama_cpp.llama_model_free, model)
            if window_of(model) is not None:
                raise ModelLoadError(
                    f"--model-draft {path} can't be used: it has a sliding window or a recurrent state, so it can't "
                    "take back rejected draft tokens; use another model, or leave the option out"
                )
            self.n_cells = min(self._max_cells, int(llama_cpp.llama_model_n_ctx_train(model)))
            layout = draft_layout(self._settings, self.n_cells)
            self._context = Context(model, self._settings, layout, n_outputs=self.n_texts)
            stack.pop_all()
        self._model = model
        self._n_batch = min(self._settings.batch_size, self._context.n_cells)  # with more, llama.cpp ends the process
        n_vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._n_vocab = min(n_vocab, self._max_vocab)  # the tokens that both models have
        self._sequences = [_DraftSequence(seq_id) for seq_id in range(self.n_texts)]  # the least recently used first

    def close(self) -> None:
        """Free the model. `open` loads it again."""
        if self._model:
            self._context.close()
            llama_cpp.llama_model_free(self._model)
            self._model = None

    def measure(self, large: Context) -> None:
        """Measure its speed relative to the large model, whose context must be empty.

        Both are measured in turn, and the shortest time of each counts: other programs can only make a time longer.
        """
        small, n, chunk = self._context, self.n_texts, min(_CHUNK, self._n_batch)
        jobs = [(context, _rows(range(k))) for k in (1, n) for context in (large, small)]
        jobs.append((small, Batch()))
        jobs[-1][1].add((0,) * chunk, 0, 0, outputs=0)
        seconds = [min(times) for times in zip(*(self._timed(jobs) for _ in range(_REPEATS)), strict=True)]
        self.making_seconds = seconds[1] / seconds[0], seconds[3] / seconds[2]
        self.reading = seconds[4] / chunk / seconds[0]
        log.logger.info(
            "the draft model %s: a draft token takes %.2f of a step, and for %d texts %.2f",
            self._settings.model,
            self.making_seconds[0],
            n,
            self.making_seconds[1],
        )

    def _timed(self, jobs: list[tuple[Context, Batch]]) -> list[float]:
        """Return the seconds of each of these decodes."""
        seconds = []
        for context, batch in jobs:
            start = time.perf_counter()
            with self._waiting.watched():
                context.decode(batch, None)
            seconds.append(time.perf_counter() - start)
            for seq_id in set(batch.seq_ids):
                context.remove(seq_id)
        return seconds

    def making(self, n_texts: int) -> float:
        """Return the time of a draft token for `n_texts` texts each, as a share of a step with their rows."""
        one, most = self.making_seconds
        return one + (most - one) * (n_texts - 1) / max(1, self.n_texts - 1)

    def known(self, owner: Hashable, text: Tokens) -> int:
        """Return how many first tokens of a text it has read for this owner."""
        return max(each.n_common(owner, text) for each in self._sequences)

    def draft(self, owner: Hashable, texts: Sequence[Tokens], n: int, least_likely: float) -> list[list[int]]:
        """Return the most probable tokens after each text. Raises `BackendError`."""
        try:
            return self._draft(self._assigned(owner, texts, n), texts, n, least_likely)
        except BackendError as error:
            log.logger.warning("the draft model proposes no more tokens for a text: %s", error.message)
            for each in self._sequences:
                self._context.remove(each.seq_id)
                each.tokens, each.n_drafted = pack(()), 0
            raise

    def _draft(
        self, sequences: list[_DraftSequence], texts: Sequence[Tokens], n: int, least_likely: float
    ) -> list[list[int]]:
        drafted: list[list[int]] = [[] for _ in texts]
        likely = [0.0] * len(texts)  # log-probabilities of the draft tokens so far
        new = [text[len(seq.tokens) :] for seq, text in zip(sequences, texts, strict=True)]
        if sum(map(len, new)) > self._n_batch:
            new = [self._read(seq, tokens) for seq, tokens in zip(sequences, new, strict=True)]
        if not n:
            self._decode(sequences, new, outputs=0)
        running = dict(enumerate(new))  # the next tokens of each text that goes on
        for step in range(n):
            if not running:
                break
            rows = self._decode([sequences[k] for k in running], list(running.values()), outputs=1)
            for k, row in zip(tuple(running), rows, strict=True):
                sequences[k].n_drafted = step
                logits = self._context.logits(row)[: self._n_vocab]
                token = int(logits.argmax())
                likely[k] += logprobs(logits, token, 0)[0]
                if math.exp(likely[k]) < least_likely:
                    del running[k]
                else:
                    running[k] = pack((token,))
                    drafted[k].append(token)
        return drafted

    def _read(self, seq: _DraftSequence, tokens: Tokens) -> Tokens:
        """Read all tokens but the last, and return the last: the first draft token comes from its logits."""
        for start in range(0, len(tokens) - 1, self._n_batch):
            self._decode([seq], [tokens[start : min(start + self._n_batch, len(tokens) - 1)]], outputs=0)
        return tokens[-1:]

    def _decode(self, sequences: list[_DraftSequence], new: list[Tokens], outputs: int) -> list[int]:
        """Append tokens to each sequence. Returns the row of the last token of each."""
        batch = Batch()
        rows = []
        for seq, tokens in zip(sequences, new, strict=True):
            if max(tokens) >= self._n_vocab:
                raise BackendError(f"its vocabulary has {self._n_vocab} tokens, and the text has token {max(tokens)}")
            rows.append(batch.add(tuple(tokens), len(seq.tokens), seq.seq_id, outputs=outputs))
            seq.tokens += tokens
        with self._waiting.watched():
            self._context.decode(batch, None)
        return rows

    def _assigned(self, owner: Hashable, texts: Sequence[Tokens], n: int) -> list[_DraftSequence]:
        """Assign a sequence to each text, which holds only a prefix of the text.

        A text gets the sequence that holds nothing else but draft tokens. Otherwise the longest prefix is forked into
        the least recently used sequence, because another text may continue the sequence that has it.
        """
        free = self._sequences.copy()
        assigned: dict[int, _DraftSequence] = {}
        for k, text in enumerate(texts):
            best = max(free, key=lambda each: each.n_common(owner, text))
            n_common = best.n_common(owner, text)
            if n_common and n_common >= len(best.tokens) - best.n_drafted:
                free.remove(best)
                assigned[k] = self._cut(best, min(n_common, len(text) - 1))
        for k, text in enumerate(texts):
            if k not in assigned:
                source, target = max(self._sequences, key=lambda each: each.n_common(owner, text)), free.pop(0)
                n_common = min(source.n_common(owner, text), len(text) - 1)
                if target is not source:
                    self._cut(target, 0)
                    if n_common:
                        self._context.fork(source.seq_id, target.seq_id, n_common)
                    target.tokens = source.tokens[:n_common]
                target.owner = owner
                assigned[k] = self._cut(target, n_common)
        sequences = [assigned[k] for k in range(len(texts))]
        others = [each for each in self._sequences if each not in sequences]
        self._sequences = others + sequences
        n_cells = sum(len(text) + n for text in texts)
        for each in others:
            if n_cells + sum(len(other.tokens) for other in others) > self.n_cells:
                self._cut(each, 0)
        return sequences

    def _cut(self, seq: _DraftSequence, n_tokens: int) -> _DraftSequence:
        """Cut a sequence to its first `n_tokens`."""
        if not self._context.truncate(seq.seq_id, n_tokens):
            raise BackendError(f"llama.cpp can't truncate sequence {seq.seq_id}")
        seq.tokens, seq.n_drafted = seq.tokens[:n_tokens], 0
        return seq


def _rows(seq_ids: range) -> Batch:
    batch = Batch()
    for seq_id in seq_ids:
        batch.add_row(0, 0, seq_id)
    return batch
