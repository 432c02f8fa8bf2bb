"""The backend: one model, its KV cache, and a second context for a long prompt while others run."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import llama_cpp

from srb.engine.backend import Batch, Logprobs
from srb.engine.request import SamplingParams
from srb.errors import BackendError, ModelLoadError
from srb.llama import log
from srb.llama.chat_template import chat_template_of
from srb.llama.context import Context
from srb.llama.embedder import LlamaEmbedder
from srb.llama.flash_attn import is_faster_without
from srb.llama.logprobs import Floats, logprobs
from srb.llama.model_file import find_model
from srb.llama.sampler import Candidates, CompiledSampling, LlamaSampler
from srb.llama.tokenizer import LlamaTokenizer
from srb.settings import Settings

_PROMPT_OUTPUTS = 128  # smaller pieces take longer, and from 64 tokens on their logits are the same to the last bit
_LONG = 1024
"""From so many tokens on, a prompt is in the way of the sequences that run beside it."""

Progress = Callable[[float], bool]
"""Gets the loaded fraction of the model, 0 to 1; False ends the loading."""


class LlamaBackend:
    """A model in llama.cpp, ready to decode. Implements `srb.engine.backend.Backend`.

    A prompt that gets long while sequences are running is evaluated in a context of its own, aside, and moved to the
    others before its last token: each row of a batch walks all cells in use, those of other sequences too.

    Loads the model of `settings`, which takes as long as reading the file; one from elsewhere must have been fetched by
    `srb.download.fetch_model`. Raises `ModelLoadError`. Use it as a context manager, or call `close`.
    """

    def __init__(self, settings: Settings, progress: Progress = lambda _fraction: True) -> None:
        if settings.model_url or settings.hf_repo:
            raise ModelLoadError(
                f"{settings.model_url or settings.hf_repo} isn't on this machine yet; "
                "AsyncEngine.from_settings fetches it, and srb.download.fetch_model does"
            )
        self.path = find_model(settings.model)
        log.redirect()
        llama_cpp.llama_backend_init()
        with ExitStack() as stack:
            self._model = model = _load_model(self.path, settings, progress)
            stack.callback(llama_cpp.llama_model_free, model)
            self.tokenizer = LlamaTokenizer(llama_cpp.llama_model_get_vocab(model))
            stack.callback(self.tokenizer.close)
            self.chat_template = chat_template_of(model)
            # The state of a recurrent layer is of the end of its sequence; there is none of the middle.
            self.shares_prefixes = not (
                llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
            )
            # What is saved of a sliding window is the window before the sequence's end.
            self.can_cut_saved = llama_cpp.llama_model_n_swa(model) == 0
            self.n_parallel = settings.parallel
            self.n_seqs = 2 * settings.parallel  # a prompt has one of its own, beside those that continue it
            self.n_batch = settings.batch_size
            self.n_outputs = _PROMPT_OUTPUTS
            self._settings = settings
            self._flash_attn = settings.flash_attn
            self.n_cells = _wanted_cells(model, settings)
            self._main = self._make_main()
            stack.callback(lambda: self._main.close())
            self.n_cells = self._main.n_cells
            self.embedder = LlamaEmbedder(self.path, model, settings) if settings.embeddings else None
            if self.embedder:
                stack.callback(self.embedder.close)
            self._exit = stack.pop_all()
        self._rows: list[int] = []  # of the last batch: where they were in the main context's; empty if there, too
        self._shared: dict[int, int] = {}  # how many of a sequence's first tokens are in others, too, by seq_id
        self._aside: Context | None = None
        self._aside_seq = -1  # the sequence that is in it
        on_gpu = settings.n_gpu_layers != 0 and llama_cpp.llama_supports_gpu_offload()
        self._moves = self.shares_prefixes and self.can_cut_saved and not on_gpu
        self._chooses = self._moves and settings.flash_attn == "auto" and "q" not in settings.cache_type_v
        self._candidates = Candidates(self.tokenizer.n_vocab)

    def _make_main(self) -> Context:
        return self._make_context(self.n_cells, self.n_seqs, self.n_parallel + self.n_outputs)

    def _make_context(self, n_cells: int, n_seqs: int, n_outputs: int) -> Context:
        return Context(
            self._model,
            self._settings,
            flash_attn=self._flash_attn,
            n_cells=n_cells,
            n_seqs=n_seqs,
            n_outputs=n_outputs,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the contexts and the model. No sampler made by this backend may be used any more."""
        self._drop_aside()
        self._exit.close()

    def prepare(self, work: list[tuple[int, int, int]]) -> None:
        """Makes another context if flash attention is worth turning off, or on again. See `Backend.prepare`."""
        if not self._chooses:
            return
        flash_attn = "off" if is_faster_without(work) else "auto"
        if flash_attn != self._flash_attn:
            self._main.close()
            self._flash_attn = flash_attn
            self._main = self._make_main()

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        """Evaluates the rows. See `Backend.decode`. A GPU can be interrupted between ubatches only."""
        if self._moves:
            self._choose_aside(batch)
        self._rows = []
        if not self._aside:
            return self._main.decode(batch, interrupted)
        here, aside = Batch(), Batch()
        for token, position, seq_id, output in zip(
            batch.tokens, batch.positions, batch.seq_ids, batch.logits, strict=True
        ):
            is_aside = seq_id == self._aside_seq
            part = aside if is_aside else here
            self._rows.append(part.add((token,), position, 0 if is_aside else seq_id, outputs=int(output)))
        return all(
            context.decode(part, interrupted)
            for context, part in ((self._main, here), (self._aside, aside))
            if len(part)
        )

    def _choose_aside(self, batch: Batch) -> None:
        """Moves the first long prompt beside running sequences out of their way, and back when its end comes.

        The rows of running sequences are those that want logits; a prompt wants them at its end.
        """
        running = {seq_id for seq_id, output in zip(batch.seq_ids, batch.logits, strict=True) if output}
        ends = dict(zip(batch.seq_ids, batch.positions, strict=True))
        if self._aside and (self._aside_seq in running or ends.get(self._aside_seq, 0) >= self._aside.n_cells):
            self._bring_back()
        if running and not self._aside:
            long = (seq_id for seq_id, end in ends.items() if end > _LONG and seq_id not in running)
            if (seq_id := next(long, None)) is not None:
                self._put_aside(seq_id, batch.positions[batch.seq_ids.index(seq_id)], ends[seq_id] + 1)

    def _put_aside(self, seq_id: int, n_tokens: int, n_cells: int) -> None:
        """Moves a sequence of so many tokens to a context of its own, if there is memory for one.

        n_cells: what it needs now. It gets four times as many, or moves again when that is too little.
        """
        state = self._main.save(seq_id, 0, n_tokens)
        try:
            aside = self._make_context(min(4 * n_cells, self.n_cells), 1, 1)
        except ModelLoadError as error:
            log.logger.warning("long prompts slow running alternatives down: %s", error.message)
            self._moves = False
            return
        if state and aside.restore(state, 0, 0, n_tokens):
            self._main.truncate(seq_id, self._shared.get(seq_id, 0))
            self._aside, self._aside_seq = aside, seq_id
        else:
            aside.close()

    def _bring_back(self) -> None:
        assert self._aside
        start, end = self._shared.get(self._aside_seq, 0), self._aside.length(0)
        state = self._aside.save(0, start, end)
        if not (state and self._main.restore(state, self._aside_seq, start, end)):
            raise BackendError("llama.cpp can't move a long prompt to the context of the others")
        self._drop_aside()

    def _drop_aside(self) -> None:
        if self._aside:
            self._aside.close()
        self._aside, self._aside_seq = None, -1

    def logits(self, row: int) -> Floats:
        """This row of the last batch, of shape (n_vocab,), valid until the next."""
        return self._main.logits(self._rows[row] if self._rows else row)

    def logprobs(self, logits: Floats, token: int, top: int) -> Logprobs:
        """The log-probabilities of a token and the likeliest ones in a row of logits, as the model has them."""
        return logprobs(logits, token, top)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Makes `target` share the first `n_tokens` cells of `source`."""
        if source == self._aside_seq:
            self._bring_back()
        self._main.fork(source, target, n_tokens)
        self._shared[source] = max(n_tokens, self._shared.get(source, 0))
        self._shared[target] = n_tokens

    def truncate(self, seq_id: int, n_tokens: int) -> bool:
        """Leaves the sequence its first `n_tokens`, if llama.cpp can."""
        if self._aside and seq_id == self._aside_seq:
            return self._aside.truncate(0, n_tokens)
        return self._main.truncate(seq_id, n_tokens)

    def remove(self, seq_id: int) -> None:
        """Empties the sequence."""
        if seq_id == self._aside_seq:
            self._drop_aside()
        self._shared.pop(seq_id, None)
        self._main.remove(seq_id)

    def save(self, seq_id: int, start: int, end: int) -> bytearray | None:
        """What a sequence's cells from `start` to `end` hold. See `Backend.save`."""
        if seq_id == self._aside_seq:
            self._bring_back()
        return self._main.save(seq_id, start, end)

    def restore(self, state: bytearray, seq_id: int, start: int, end: int) -> bool:
        """Adds what `save` returned to a sequence. See `Backend.restore`."""
        return self._main.restore(state, seq_id, start, end)

    def held(self) -> list[int]:
        """The seq_ids that hold a cell, by llama.cpp's own account."""
        return [
            seq_id for seq_id in range(self.n_seqs + 1) if seq_id == self._aside_seq or self._main.length(seq_id) > 0
        ]

    def compile(self, branches: tuple[SamplingParams, ...]) -> CompiledSampling:
        """What the samplers of a request share. May be called from any thread. See `Backend.compile`."""
        with self.tokenizer.in_use() as vocab:
            return CompiledSampling(vocab, self.n_cells, branches)

    def sampler(self, params: SamplingParams, compiled: CompiledSampling, prompt: tuple[int, ...]) -> LlamaSampler:
        """A sampler chain with these parameters, that has seen the prompt."""
        return LlamaSampler(self._candidates, self.n_cells, self.tokenizer, params, compiled, prompt)


def _load_model(path: Path, settings: Settings, progress: Progress) -> Any:
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = settings.n_gpu_layers
    params.progress_callback = on_progress = llama_cpp.llama_progress_callback(
        lambda fraction, _data: progress(fraction)
    )
    with log.collected() as complaints:
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    del on_progress
    if not model:
        raise ModelLoadError(f"the model {path} can't be loaded: {complaints.reason}")
    complaints.log()
    problem = None
    if llama_cpp.llama_model_has_encoder(model) or not llama_cpp.llama_model_has_decoder(model):
        problem = "it isn't a decoder-only model, and srb runs no others"
    elif llama_cpp.llama_vocab_type(llama_cpp.llama_model_get_vocab(model)) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
        problem = "it has no vocabulary"
    if problem:
        llama_cpp.llama_model_free(model)
        raise ModelLoadError(f"the model {path} can't be used: {problem}")
    return model


def _wanted_cells(model: Any, settings: Settings) -> int:
    trained: int = llama_cpp.llama_model_n_ctx_train(model)
    cells = settings.ctx_size or trained
    if cells > trained:
        log.logger.warning(
            "--ctx-size %d is more than the %d tokens that the model was trained for; "
            "texts longer than that may get worse",
            cells,
            trained,
        )
    return cells
