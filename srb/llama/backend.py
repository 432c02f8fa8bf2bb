"""The backend: one model, one context, one unified KV cache."""

import ctypes
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import llama_cpp
import numpy as np

from srb.engine.backend import Batch, Logprobs
from srb.engine.request import SamplingParams
from srb.errors import BackendError, ModelLoadError
from srb.llama import log
from srb.llama.chat_template import chat_template_of
from srb.llama.embedder import LlamaEmbedder
from srb.llama.logprobs import Floats, logprobs
from srb.llama.model_file import find_model
from srb.llama.sampler import Candidates, CompiledSampling, LlamaSampler
from srb.llama.tokenizer import LlamaTokenizer
from srb.settings import Settings

_FLASH_ATTN = {
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
}
_PROMPT_OUTPUTS = 128  # smaller pieces take longer, and from 64 tokens on their logits are the same to the last bit
_BYTES = ctypes.POINTER(ctypes.c_uint8)
_CELLS_STEP = 256  # llama.cpp rounds a context up to this

Progress = Callable[[float], bool]
"""Gets the loaded fraction of the model, 0 to 1; False ends the loading."""


class LlamaBackend:
    """A model in llama.cpp, ready to decode. Implements `srb.engine.backend.Backend`.

    Loads the model of `settings`, which takes as long as reading the file. Raises `ModelLoadError`. Use it as a
    context manager, or call `close`.
    """

    def __init__(self, settings: Settings, progress: Progress = lambda _fraction: True) -> None:
        self.path = find_model(settings.model)
        log.redirect()
        llama_cpp.llama_backend_init()
        with ExitStack() as stack:
            model = _load_model(self.path, settings, progress)
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
            self._context = _make_context(self.path, model, settings)
            stack.callback(llama_cpp.llama_free, self._context)
            self.embedder = LlamaEmbedder(self.path, model, settings) if settings.embeddings else None
            if self.embedder:
                stack.callback(self.embedder.close)
            self._exit = stack.pop_all()
        self._memory = llama_cpp.llama_get_memory(self._context)
        self.n_cells: int = llama_cpp.llama_n_ctx(self._context)
        self.n_parallel = settings.parallel
        self.n_seqs = _n_seqs(settings)
        self._scratch = self.n_seqs  # a sequence for what is saved or restored
        self.n_batch = settings.batch_size
        self.n_outputs = _PROMPT_OUTPUTS
        self._candidates = Candidates(self.tokenizer.n_vocab)
        self._rows = _Rows(llama_cpp.llama_n_batch(self._context), self.n_parallel + self.n_outputs)
        self._interrupted: Callable[[], bool] | None = None
        self._abort_callback = llama_cpp.ggml_abort_callback(self._ask_interrupted)
        llama_cpp.llama_set_abort_callback(self._context, llama_cpp.ggml_abort_callback(), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the context and the model. No sampler made by this backend may be used any more."""
        self._exit.close()

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        """Evaluates the rows. See `Backend.decode`. A GPU can be interrupted between ubatches only."""
        # Asking costs a call into Python for every node of the graph, so it is done only where it's wanted.
        self._interrupted = interrupted
        callback = self._abort_callback if interrupted else llama_cpp.ggml_abort_callback()
        llama_cpp.llama_set_abort_callback(self._context, callback, None)
        rows = self._rows.fill(batch)
        with log.collected() as complaints:
            code: int = llama_cpp.llama_decode(self._context, rows)
        if code == 2:
            return False
        if code:
            raise BackendError(f"llama_decode failed with code {code}: {complaints.reason}")
        complaints.log()
        llama_cpp.llama_synchronize(self._context)  # a GPU may still be at it, and its time is the decode's
        return True

    def _ask_interrupted(self, _data: ctypes.c_void_p) -> bool:
        return self._interrupted is not None and self._interrupted()

    def logits(self, row: int) -> Floats:
        """This row of the last batch, of shape (n_vocab,), valid until the next."""
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        if not logits:
            raise BackendError(f"llama.cpp has no logits for row {row}")
        return np.ctypeslib.as_array(logits, (self.tokenizer.n_vocab,))

    def logprobs(self, logits: Floats, token: int, top: int) -> Logprobs:
        """The log-probabilities of a token and the likeliest ones in a row of logits, as the model has them."""
        return logprobs(logits, token, top)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Makes `target` share the first `n_tokens` cells of `source`."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, n_tokens)

    def truncate(self, seq_id: int, n_tokens: int) -> bool:
        """Leaves the sequence its first `n_tokens`, if llama.cpp can."""
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, seq_id, n_tokens, -1))

    def remove(self, seq_id: int) -> None:
        """Empties the sequence."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, seq_id, -1, -1):
            raise BackendError(f"llama.cpp can't remove sequence {seq_id}")

    def save(self, seq_id: int, start: int, end: int) -> bytes | None:
        """What a sequence's cells from `start` to `end` hold. See `Backend.save`."""
        llama_cpp.llama_memory_seq_cp(self._memory, seq_id, self._scratch, start, end)
        try:
            size = llama_cpp.llama_state_seq_get_size(self._context, self._scratch)
            state = np.empty(size, np.uint8)
            pointer = state.ctypes.data_as(_BYTES)
            written = llama_cpp.llama_state_seq_get_data(self._context, pointer, size, self._scratch)
            return state.tobytes() if written == size else None
        finally:
            self.remove(self._scratch)

    def restore(self, state: bytes, seq_id: int, start: int, end: int) -> bool:
        """Adds what `save` returned to a sequence. See `Backend.restore`."""
        pointer = ctypes.cast(ctypes.c_char_p(state), _BYTES)
        with log.collected() as complaints:
            read = llama_cpp.llama_state_seq_set_data(self._context, pointer, len(state), self._scratch)
        if read != len(state):
            complaints.log()
            self.remove(self._scratch)
            return False
        llama_cpp.llama_memory_seq_cp(self._memory, self._scratch, seq_id, start, end)
        self.remove(self._scratch)
        return True

    def held(self) -> list[int]:
        """The seq_ids that hold a cell, by llama.cpp's own account."""
        return [
            seq_id for seq_id in range(self.n_seqs + 1) if llama_cpp.llama_memory_seq_pos_max(self._memory, seq_id) >= 0
        ]

    def compile(self, branches: tuple[SamplingParams, ...]) -> CompiledSampling:
        """What the samplers of a request share. May be called from any thread. See `Backend.compile`."""
        with self.tokenizer.in_use() as vocab:
            return CompiledSampling(vocab, self.n_cells, branches)

    def sampler(self, params: SamplingParams, compiled: CompiledSampling, prompt: tuple[int, ...]) -> LlamaSampler:
        """A sampler chain with these parameters, that has seen the prompt."""
        return LlamaSampler(self._candidates, self.n_cells, self.tokenizer, params, compiled, prompt)


class _Rows:
    """The arrays behind a `llama_batch` of up to `size` rows, `outputs` of which may have logits."""

    def __init__(self, size: int, outputs: int) -> None:
        self._size = size
        self._outputs = outputs
        self._tokens: Any = (ctypes.c_int32 * size)()
        self._positions: Any = (ctypes.c_int32 * size)()
        self._seq_ids: Any = (ctypes.c_int32 * size)()
        self._logits: Any = (ctypes.c_int8 * size)()
        self._n_seq_ids = (ctypes.c_int32 * size)(*[1] * size)
        pointer = ctypes.POINTER(ctypes.c_int32)
        item, base = ctypes.sizeof(ctypes.c_int32), ctypes.addressof(self._seq_ids)
        self._seq_id_pointers = (pointer * size)(*[ctypes.cast(base + i * item, pointer) for i in range(size)])

    def fill(self, batch: Batch) -> llama_cpp.llama_batch:
        """The rows as C wants them, valid until the next call."""
        n = len(batch)
        if not 0 < n <= self._size:
            raise BackendError(f"a batch has 1 to {self._size} rows, not {n}")
        if (outputs := sum(batch.logits)) > self._outputs:
            raise BackendError(f"a batch has up to {self._outputs} rows with logits, not {outputs}")
        self._tokens[:n] = batch.tokens
        self._positions[:n] = batch.positions
        self._seq_ids[:n] = batch.seq_ids
        self._logits[:n] = batch.logits
        return llama_cpp.llama_batch(
            n, self._tokens, None, self._positions, self._n_seq_ids, self._seq_id_pointers, self._logits
        )


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


def _make_context(path: Path, model: Any, settings: Settings) -> Any:
    trained: int = llama_cpp.llama_model_n_ctx_train(model)
    cells = settings.ctx_size or trained
    if cells > trained:
        log.logger.warning(
            "--ctx-size %d is more than the %d tokens that the model was trained for; "
            "texts longer than that may get worse",
            cells,
            trained,
        )
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = cells + -cells % _CELLS_STEP
    params.n_batch = settings.batch_size + settings.parallel
    params.n_ubatch = settings.ubatch_size
    params.n_seq_max = _n_seqs(settings) + 1
    params.n_outputs_max = settings.parallel + _PROMPT_OUTPUTS  # the default is one for each token of a batch
    params.n_threads = settings.threads or physical_cores()
    params.n_threads_batch = settings.threads_batch or params.n_threads
    params.flash_attn_type = _FLASH_ATTN[settings.flash_attn]
    params.type_k = _ggml_type(settings.cache_type_k)
    params.type_v = _ggml_type(settings.cache_type_v)
    params.kv_unified = True  # a fork shares its cells, and one sequence may use them all
    params.no_perf = True
    with log.collected() as complaints:
        context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise ModelLoadError(f"llama.cpp can't make a context of {cells} cells for {path}: {complaints.reason}")
    complaints.log()
    return context


def _n_seqs(settings: Settings) -> int:
    """A prompt has a sequence of its own, beside those that continue it."""
    return 2 * settings.parallel


def _ggml_type(name: str) -> int:
    """The number of a ggml type. llama_cpp 0.3.36 leaves BF16's out; it is ggml.h's."""
    return 30 if name == "bf16" else int(getattr(llama_cpp, f"GGML_TYPE_{name.upper()}"))


def physical_cores() -> int:
    """The physical cores that this process may use: threads that share one only get in each other's way."""
    try:
        topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        return len({Path(topology.format(cpu)).read_text() for cpu in os.sched_getaffinity(0)})
    except (AttributeError, OSError):
        return os.cpu_count() or 1
