"""The draft model: a small model that guesses what texts say next (`--model-draft`), in a context of its own.

`engine/spec_decode/draft_model.py` says when it is asked.
It needs the vocabulary of the large model, so its tokens are compared.
The file may have fewer of them, or more: models of one family often have another number of unused tokens at the end.
"""

import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp

from srb.engine.backend import Batch
from srb.engine.kv_cache.allocator import Layout
from srb.engine.kv_cache.radix import Tokens, common_prefix, pack
from srb.errors import BackendError, ModelLoadError
from srb.llama.model.model_file import check_gguf
from srb.llama.native import library as log
from srb.llama.native.context import Context, window_of
from srb.llama.native.params import engine_params, is_on_gpu, load_model
from srb.llama.native.threads import Waiting
from srb.llama.sampling.candidates import logprobs
from srb.options.settings import Settings

N_TEXTS = 4
"""For so many texts it guesses at once. More have rows enough."""

_PIECE = 64  # how many tokens are read to measure how long this takes
_REPEATS = 3

_SHARED = ("threads", "threads_batch", "numa", "mmap", "mlock", "device", "main_gpu", "kv_offload", "flash_attn")
"""The options that count for the draft model, too."""


def draft_settings(settings: Settings) -> Settings | None:
    """The settings of the draft model; None if there is none, or if nothing is guessed."""
    if settings.model_draft is None or settings.reproducible or settings.draft_max == 0:
        return None
    shared = {name: getattr(settings, name) for name in _SHARED}
    layers = -2 if is_on_gpu(settings) else 0
    return Settings(model=settings.model_draft, parallel=min(N_TEXTS, settings.parallel), n_gpu_layers=layers, **shared)


def draft_sizes(settings: Settings) -> tuple[Path, Settings, Callable[[Any, int], Any]] | None:
    """What `srb.llama.model.fit.fit` wants to know of the draft model; None if there is none."""
    draft = draft_settings(settings)
    if not draft or not draft.model:
        return None
    n = draft.parallel

    def context_params(model: Any, n_cells: int) -> Any:
        return engine_params(model, draft, Layout(True, n_cells, n, draft.flash_attn), n_outputs=n)

    return draft.model, draft, context_params


def check_draft(path: Path, settings: Settings) -> None:
    """Raises `ModelLoadError` if the draft model's file is none, or has another vocabulary than the model at `path`.

    Call it before the large model is loaded, which takes long.
    """
    draft = settings.model_draft
    if draft is None:
        return
    if draft_settings(settings) is None:
        option = "--reproducible" if settings.reproducible else "--draft-max 0"
        log.logger.warning("--model-draft has no effect, because nothing is guessed with %s", option)
        return
    check_gguf(draft, "--model-draft")
    with ExitStack() as stack:
        large = load_model(path, Settings(), lambda _fraction: True, vocab_only=True)
        stack.callback(llama_cpp.llama_model_free, large)
        small = _load(draft, Settings(), vocab_only=True)
        stack.callback(llama_cpp.llama_model_free, small)
        difference = _difference(*map(llama_cpp.llama_model_get_vocab, (large, small)))
    if difference:
        raise ModelLoadError(
            f"--model-draft {draft} can't guess for {path}, because its vocabulary is another one: {difference}; use a "
            "smaller model of the same family, or leave the option out"
        )


def _load(path: Path, settings: Settings, *, vocab_only: bool = False) -> Any:
    try:
        return load_model(path, settings, lambda _fraction: True, vocab_only=vocab_only)
    except ModelLoadError as error:
        raise ModelLoadError(f"--model-draft: {error.message}") from None


def _rows(n: int, seq_id: int | None = None) -> Batch:
    """A row of `n` texts each; with a seq_id, a piece of its text."""
    batch = Batch()
    if seq_id is None:
        for each in range(n):
            batch.add_row(0, 0, each)
    else:
        batch.add((0,) * n, 0, seq_id, outputs=0)
    return batch


def _difference(large: Any, draft: Any) -> str | None:
    """What is different between two vocabularies, but for the number of their tokens. None: nothing is."""
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
class _Place:
    """What a sequence of the context has: the tokens of a text, the last `n_guessed` of which were guessed."""

    seq_id: int
    owner: Hashable = None
    tokens: Tokens = field(default_factory=lambda: pack(()))
    n_guessed: int = 0

    def alike(self, owner: Hashable, text: Tokens) -> int:
        """How many first tokens it has of a text."""
        return common_prefix(self.tokens, text, 0) if owner == self.owner else 0


class LlamaDrafter:
    """The draft model. Implements `srb.engine.model.Drafter`.

    settings: see `draft_settings`. n_cells, n_vocab: how many cells and tokens the large model has.
    Raises `ModelLoadError`. Call `close` at the end.
    """

    def __init__(self, settings: Settings, n_cells: int, n_vocab: int, waiting: Waiting) -> None:
        self._settings, self._waiting = settings, waiting
        self._n_wanted, self._n_large = n_cells, n_vocab
        self.n_texts = settings.parallel
        self.reading = 1.0
        self._making = (1.0, 1.0)  # for one text, and for `n_texts`
        self._model: Any = None
        self.open()

    def open(self) -> None:
        """Loads the model, unless it is loaded. Raises `ModelLoadError`."""
        if self._model:
            return
        path = self._settings.model
        assert path
        with ExitStack() as stack:
            model = _load(path, self._settings)
            stack.callback(llama_cpp.llama_model_free, model)
            if window_of(model) is not None:
                raise ModelLoadError(
                    f"--model-draft {path} can't be used: it forgets what it has read (a sliding window, a recurrent "
                    "state), so it can't take back a wrong guess; use another model, or leave the option out"
                )
            n_texts, flash_attn = self.n_texts, self._settings.flash_attn
            self.n_cells = min(self._n_wanted, int(llama_cpp.llama_model_n_ctx_train(model)))
            layout = Layout(True, self.n_cells, n_texts, flash_attn)
            self._context = Context(model, self._settings, layout, n_outputs=n_texts)
            stack.pop_all()
        self._model = model
        self._n_batch = min(self._settings.batch_size, self._context.n_cells)  # with more, llama.cpp ends the process
        n_vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._n_vocab = min(n_vocab, self._n_large)  # the tokens that both have
        self._places = [_Place(seq_id) for seq_id in range(n_texts)]  # the one that wasn't used for longest is first

    def close(self) -> None:
        """Frees the model. `open` loads it again."""
        if self._model:
            self._context.close()
            llama_cpp.llama_model_free(self._model)
            self._model = None

    def measure(self, large: Context) -> None:
        """Measures how long it takes, compared with the large model, whose context must be empty.

        Both are measured in turn, and the shortest time of each counts: other programs can only make a time longer.
        """
        small, n, piece = self._context, self.n_texts, min(_PIECE, self._n_batch)
        jobs: list[tuple[Context, Batch]] = [(each, _rows(k)) for k in (1, n) for each in (large, small)]
        jobs.append((small, _rows(piece, seq_id=0)))
        seconds = [min(times) for times in zip(*(self._timed(jobs) for _ in range(_REPEATS)), strict=True)]
        self._making = seconds[1] / seconds[0], seconds[3] / seconds[2]
        self.reading = seconds[4] / piece / seconds[0]
        log.logger.info(
            "the draft model %s: a guessed token takes %.2f of a step, and for %d texts %.2f",
            self._settings.model,
            self._making[0],
            n,
            self._making[1],
        )

    def _timed(self, jobs: list[tuple[Context, Batch]]) -> list[float]:
        """How many seconds each of these decodes takes."""
        seconds = []
        for context, batch in jobs:
            began = time.perf_counter()
            with self._waiting.watched():
                context.decode(batch, None)
            seconds.append(time.perf_counter() - began)
            for seq_id in set(batch.seq_ids):
                context.remove(seq_id)
        return seconds

    def making(self, n_texts: int) -> float:
        """See `Drafter.making`: between one text and `n_texts`, it is on a line."""
        one, all_texts = self._making
        return one + (all_texts - one) * (n_texts - 1) / max(1, self.n_texts - 1)

    def known(self, owner: Hashable, text: Tokens) -> int:
        """How many first tokens of a text it has read for this owner."""
        return max(place.alike(owner, text) for place in self._places)

    def draft(self, owner: Hashable, texts: Sequence[Tokens], n: int, least_likely: float) -> list[list[int]]:
        """The tokens that it thinks likeliest behind each text. See `Drafter.draft`. Raises `BackendError`."""
        try:
            return self._draft(self._placed(owner, texts, n), texts, n, least_likely)
        except BackendError as error:
            log.logger.warning("the draft model guesses no more for a text: %s", error.message)
            for place in self._places:
                self._context.remove(place.seq_id)
                place.tokens, place.n_guessed = pack(()), 0
            raise

    def _draft(self, places: list[_Place], texts: Sequence[Tokens], n: int, least_likely: float) -> list[list[int]]:
        drafted: list[list[int]] = [[] for _ in texts]
        likely = [0.0] * len(texts)  # as natural logarithms
        new = [text[len(place.tokens) :] for place, text in zip(places, texts, strict=True)]
        if sum(map(len, new)) > self._n_batch:
            new = [self._read(place, tokens) for place, tokens in zip(places, new, strict=True)]
        if not n:
            self._decode(places, new, outputs=0)
        going = dict(enumerate(new))  # the texts that go on, with what they go on with
        for step in range(n):
            if not going:
                break
            rows = self._decode([places[k] for k in going], list(going.values()), outputs=1)
            for k, row in zip(tuple(going), rows, strict=True):
                places[k].n_guessed = step
                logits = self._context.logits(row)[: self._n_vocab]
                token = int(logits.argmax())
                likely[k] += logprobs(logits, token, 0)[0]
                if math.exp(likely[k]) < least_likely:
                    del going[k]
                else:
                    going[k] = pack((token,))
                    drafted[k].append(token)
        return drafted

    def _read(self, place: _Place, tokens: Tokens) -> Tokens:
        """Reads all tokens but the last one, which it returns: the next token is guessed from its logits."""
        for start in range(0, len(tokens) - 1, self._n_batch):
            self._decode([place], [tokens[start : min(start + self._n_batch, len(tokens) - 1)]], outputs=0)
        return tokens[-1:]

    def _decode(self, places: list[_Place], new: list[Tokens], outputs: int) -> list[int]:
        """Adds tokens to each place. Returns the row of the last one of each."""
        batch = Batch()
        rows = []
        for place, tokens in zip(places, new, strict=True):
            if max(tokens) >= self._n_vocab:
                raise BackendError(f"it has {self._n_vocab} tokens, and the text has number {max(tokens)}")
            rows.append(batch.add(tuple(tokens), len(place.tokens), place.seq_id, outputs=outputs))
            place.tokens += tokens
        with self._waiting.watched():
            self._context.decode(batch, None)
        return rows

    def _placed(self, owner: Hashable, texts: Sequence[Tokens], n: int) -> list[_Place]:
        """A place for each text, which has nothing but the beginning of the text.

        A text has the place that has only guesses beside it. Without one, it is forked into the place that wasn't used
        for longest: another text may go on in the place that it is forked from.
        """
        free = self._places.copy()
        placed: dict[int, _Place] = {}
        for k, text in enumerate(texts):
            best = max(free, key=lambda place: place.alike(owner, text))
            alike = best.alike(owner, text)
            if alike and alike >= len(best.tokens) - best.n_guessed:
                free.remove(best)
                placed[k] = self._cut(best, min(alike, len(text) - 1))
        for k, text in enumerate(texts):
            if k not in placed:
                source, place = max(self._places, key=lambda place: place.alike(owner, text)), free.pop(0)
                alike = min(source.alike(owner, text), len(text) - 1)
                if place is not source:
                    self._cut(place, 0)
                    if alike:
                        self._context.fork(source.seq_id, place.seq_id, alike)
                    place.tokens = source.tokens[:alike]
                place.owner = owner
                placed[k] = self._cut(place, alike)
        places = [placed[k] for k in range(len(texts))]
        self._places = [place for place in self._places if place not in places] + places
        self._make_room(places, sum(len(text) + n for text in texts))
        return places

    def _cut(self, place: _Place, n_tokens: int) -> _Place:
        """Leaves a place its first `n_tokens`."""
        if not self._context.truncate(place.seq_id, n_tokens):
            raise BackendError(f"llama.cpp can't take back tokens of sequence {place.seq_id}")
        place.tokens, place.n_guessed = place.tokens[:n_tokens], 0
        return place

    def _make_room(self, places: list[_Place], n_cells: int) -> None:
        """Empties places that weren't used for longest, until there are so many cells for these ones."""
        others = self._places[: -len(places)]
        for place in others:
            if n_cells + sum(len(each.tokens) for each in others) > self.n_cells:
                self._cut(place, 0)
