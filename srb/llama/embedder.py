"""Computes embeddings and reranking scores, in a context of its own on the weights of the model that generates.

The server calls it directly, not through the engine, in a thread that takes none away from completions.
"""

import threading
from pathlib import Path
from typing import Any

import llama_cpp

from srb.engine.backend import Batch
from srb.errors import CLOSED, BackendError, ModelLoadError, UnavailableError
from srb.llama.model.metadata import read_tensors
from srb.llama.model.model_file import files_of
from srb.llama.native import library as log
from srb.llama.native.batch import Positions, Rows
from srb.llama.native.context import new_context
from srb.llama.native.params import context_params
from srb.llama.native.threads import ThreadWaiting
from srb.options.settings import Settings

_POOLING = {
    None: llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED,
    "none": llama_cpp.LLAMA_POOLING_TYPE_NONE,
    "mean": llama_cpp.LLAMA_POOLING_TYPE_MEAN,
    "cls": llama_cpp.LLAMA_POOLING_TYPE_CLS,
    "last": llama_cpp.LLAMA_POOLING_TYPE_LAST,
}


class LlamaEmbedder:
    """A context that embeds texts of up to `settings.ubatch_size` tokens, one at a time. Thread-safe.

    With `settings.reranking` it computes scores. Call `close` before the model is freed. Raises `ModelLoadError`.
    """

    def __init__(self, path: Path, model: Any, settings: Settings, n_threads: int, waiting: ThreadWaiting) -> None:
        self.max_tokens = settings.ubatch_size
        params = context_params(settings)
        params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = self.max_tokens
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = n_threads
        params.embeddings = True
        params.pooling_type = _POOLING[settings.pooling]
        self._size: int = llama_cpp.llama_model_n_embd(model)
        self.rank_template = None
        if settings.reranking:
            self.rank_template = _rank_template(path, model)
            params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_RANK
            self._size = llama_cpp.llama_model_n_cls_out(model)
        self._context = new_context(model, params, f"a context for embeddings for {path}")
        self.pools = llama_cpp.llama_pooling_type(self._context) != llama_cpp.LLAMA_POOLING_TYPE_NONE
        self._rows = Rows(self.max_tokens, self.max_tokens)
        self._waiting = waiting
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Free the context, after the call that is using it has returned."""
        with self._lock:
            self._closed = True
            llama_cpp.llama_free(self._context)

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """Compute the embedding of 1 to `max_tokens` tokens. Raises `BackendError` and `UnavailableError`.

        Returns:
            One vector, not normalized, or one per token without pooling. With `settings.reranking`, the vector has the
            model's scores, and texts are ranked by the first.
        """
        if not 0 < len(tokens) <= self.max_tokens:
            raise BackendError(f"an embedding takes 1 to {self.max_tokens} tokens, not {len(tokens)}")
        with self._lock:
            if self._closed:
                raise UnavailableError(CLOSED)
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
            self._decode(tokens)
            if self.pools:
                return [self._read(llama_cpp.llama_get_embeddings_seq(self._context, 0))]
            return [self._read(llama_cpp.llama_get_embeddings_ith(self._context, i)) for i in range(len(tokens))]

    def _decode(self, tokens: tuple[int, ...]) -> None:
        batch = Batch()
        batch.add(tokens, 0, 0, outputs=len(tokens))
        with log.collected() as messages, self._waiting.watched():
            code: int = llama_cpp.llama_decode(self._context, self._rows.fill(batch, Positions()))
        if code:
            raise BackendError(f"llama_decode failed with code {code}: {messages.reason}")
        messages.log()

    def _read(self, vector: Any) -> list[float]:
        if not vector:
            raise BackendError("llama.cpp has no embedding for this text")
        values: list[float] = vector[: self._size]
        return values


def _rank_template(path: Path, model: Any) -> str:
    # Without a classification head, llama.cpp silently returns a number of the embedding as the score.
    if not any(tensor.name == "cls.output.weight" for file in files_of(path) for tensor in read_tensors(file)):
        raise ModelLoadError(
            f"--reranking: the model {path} doesn't rank, as it has no classification head (cls.output.weight); "
            "use a reranker, such as Qwen3-Reranker, or leave the option out"
        )
    template = llama_cpp.llama_model_chat_template(model, b"rerank")
    if not template:
        raise ModelLoadError(
            f"--reranking: the model {path} doesn't say how to write a query and a document "
            "(tokenizer.chat_template.rerank); convert it again with llama.cpp's convert_hf_to_gguf.py"
        )
    return str(template.decode())
