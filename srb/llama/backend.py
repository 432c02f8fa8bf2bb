"""The backend: one model in llama.cpp, with its KV cache, for the engine to use."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Self

import llama_cpp
import numpy as np

from srb.engine.backend import Batch, Costs, Logprobs, State
from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.model import ModelInfo
from srb.engine.sampling_params import SamplingParams
from srb.errors import ModelLoadError
from srb.llama.adapters import identity_of, load_adapters, load_control_vectors
from srb.llama.draft import LlamaDrafter, check_draft, draft_settings
from srb.llama.embedder import LlamaEmbedder
from srb.llama.grammar.constraint import LarkCompiler
from srb.llama.layouts import BLOCK, Layouts, check_reproducible, first_layout, hash_of, in_one_way
from srb.llama.model.chat_template import chat_template_of
from srb.llama.model.fit import PROMPT_OUTPUTS, fitted, max_cells, n_seqs, wanted_cells
from srb.llama.model.metadata import read_model_info
from srb.llama.model.model_file import find_model, fingerprint
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.model.weights import available_memory
from srb.llama.multimodal.projector import check_media, load_media
from srb.llama.native import library as log
from srb.llama.native.attention import MEASURED, can_choose, estimated
from srb.llama.native.context import Context, shiftable, window_of
from srb.llama.native.params import Progress, is_on_gpu, load_model, physical_cores, rounded, start
from srb.llama.native.streams import ReproducibleStreams, Streams
from srb.llama.native.threads import Crowd, Waiting
from srb.llama.sampling.candidates import Candidates, Floats, entropy, logprobs
from srb.llama.sampling.compiled import CompiledSampling
from srb.llama.sampling.sampler import LlamaRanker, LlamaSampler
from srb.llama.tune.tuned import Choice, choose
from srb.options.settings import EVALUATION, Settings, check_settings


class LlamaBackend:
    """A model in llama.cpp, ready to decode. Implements `srb.engine.backend.Backend`.

    Creating it loads the model of `settings`, which takes as long as reading the file. If the model isn't on this
    machine, `srb.files.download.fetch_model` must have fetched it before. Raises `ModelLoadError`. Use it as a context
    manager, or call `close`.
    """

    def __init__(self, settings: Settings, progress: Progress = lambda _fraction: True) -> None:
        check_settings(settings)
        if settings.model_url or settings.hf_repo:
            raise ModelLoadError(
                f"{settings.model_url or settings.hf_repo} isn't on this machine yet; "
                "AsyncEngine.from_settings fetches it, and srb.files.download.fetch_model does"
            )
        self.path = find_model(settings.model)
        check_media(settings)
        start(settings)
        check_draft(self.path, settings)
        with ExitStack() as stack:
            choice, model = self._load(settings, progress)
            settings, self._model = choice.settings, model
            stack.callback(self._free_model)
            self.adapters, self._pointers = load_adapters(model, settings.lora)
            self._control_vectors = load_control_vectors(model, settings.control_vector)
            vocabulary = model
            if settings.sleep_idle_seconds > 0:  # any thread may tokenize, also while the model is asleep
                vocabulary = load_model(choice.weights, settings, progress, vocab_only=True)
                stack.callback(llama_cpp.llama_model_free, vocabulary)
            self.tokenizer = LlamaTokenizer(llama_cpp.llama_model_get_vocab(vocabulary))
            n_threads = settings.threads_batch or settings.threads or physical_cores()
            self._waiting = Waiting(Crowd.of_libgomp())
            stack.callback(self._waiting.close)
            self.media = load_media(model, self.tokenizer, settings, n_threads, self._waiting)
            if self.media:
                stack.callback(self.media.close)  # runs after `tokenizer.close`, which waits for readers
            stack.callback(self.tokenizer.close)
            self.chat_template = chat_template_of(model, settings)
            self.window = window_of(model)
            if settings.reproducible:
                check_reproducible(settings, self.window, self.media)
                self.window = None  # `ReproducibleStreams` forgets nothing
            if self.media and self.media.has_positions and self.window is not None:
                raise ModelLoadError(
                    f"--mmproj {settings.mmproj} can't be used: this model forgets what it has read, and its images "
                    "have positions of their own (M-RoPE); srb can't do both"
                )
            has_positions = bool(self.media and self.media.has_positions)
            if settings.kv_layout == "streams" and (self.window is not None or has_positions):
                reason = (
                    "its images have positions of their own (M-RoPE)"
                    if has_positions
                    else "it forgets what it has read"
                )
                raise ModelLoadError(
                    f"--kv-layout streams can't be used with this model: {reason}, which takes a unified cache; "
                    "leave the option out"
                )
            self._weights = choice.weights
            self._fingerprint = fingerprint(choice.weights)
            self.can_unify = settings.kv_layout != "streams" and not settings.reproducible
            self.n_parallel = settings.parallel
            self.n_seqs = n_seqs(settings)
            self.n_batch = settings.batch_size
            self.n_outputs = PROMPT_OUTPUTS
            self.draft_max = settings.draft_max
            self._settings = settings
            self._estimated = None if choice.paces else estimated(model, n_threads, is_on_gpu=is_on_gpu(settings))
            self._paces = choice.paces or choice.machine or MEASURED
            is_relaid = not has_positions  # state.py can't read such cells
            self._chooses = settings.flash_attn == "auto" and can_choose(self.window, settings) and is_relaid
            flash_attn = self._paces.usual if self._chooses else settings.flash_attn
            self.identity = "/".join(
                (
                    self._fingerprint,
                    " or ".join(dict.fromkeys(map(self._cache_types, ("off", "on")))),
                    f"flash attention {settings.flash_attn}",
                    f"llama-cpp-python {llama_cpp.__version__}",
                    *(["reproducible"] if settings.reproducible else ()),
                    *(f"{name} {value}" for name, value in settings.given(EVALUATION).items()),
                    *(() if self._control_vectors is None else (f"control {identity_of(self._control_vectors)}",)),
                    *([f"projector {self.media.identity}"] if self.media else ()),
                )
            )
            self.fingerprint = hash_of(self.identity, settings, self.adapters, self.chat_template)
            n_wanted, free = wanted_cells(model, settings), available_memory()
            self._layout = first_layout(settings, n_wanted, n_seqs(settings), flash_attn)
            self._context = self._make_context()
            stack.callback(lambda: self._context.close())
            self.n_cells = self._layout.n_cells if settings.reproducible else rounded(n_wanted)
            self._layouts = Layouts(
                n_cells=self.n_cells,
                n_seqs=n_seqs(settings),
                n_parallel=settings.parallel,
                cell_bytes=self._context.cell_bytes,
                max_cells=max_cells(model, settings, self.n_cells, self._context.cell_bytes, free),
                rule=self._paces,
                paces=(self._paces.of_model(self._estimated) if self._estimated else self._paces).with_streams(),
                kinds=("auto", "off") if self._chooses else (flash_attn,),
                fixed=self._layout if settings.reproducible else None,
                unified=settings.kv_layout != "streams",
                streams=settings.kv_layout == "streams"
                or (settings.kv_layout == "auto" and is_relaid and self.window is None and not is_on_gpu(settings)),
                moves=is_relaid and self.window is None,
            )
            if not settings.reproducible:
                n_bytes = self._layouts.max_cells * self._context.cell_bytes
                log.logger.info(
                    "KV cache: a request may have %d cells; all requests together up to %d cells, which take %d MiB",
                    self.n_cells,
                    self._layouts.max_cells,
                    n_bytes >> 20,
                )
            self.block_size = BLOCK if settings.reproducible else 0
            kinds = map(self._settings_of, ("on", "off")) if self._chooses else ()
            self.can_shift = self._context.can_shift and all(shiftable(kind) == kind for kind in kinds)
            self.drafter = None
            if draft := draft_settings(settings):
                if self.window is not None:
                    raise ModelLoadError(
                        f"--model-draft {settings.model_draft} can't be used: this model forgets what it has read (a "
                        "sliding window, a recurrent state), so it can't take back a wrong guess; leave the option out"
                    )
                self.drafter = LlamaDrafter(draft, self.n_cells, self.tokenizer.n_vocab, self._waiting)
                stack.callback(self.drafter.close)
                self.drafter.measure(self._context)
            self.embedder = None
            if settings.embeddings or settings.reranking:
                self.embedder = LlamaEmbedder(self.path, model, settings, n_threads, self._waiting)
                stack.callback(self.embedder.close)
            self._exit = stack.pop_all()
        self._candidates = Candidates(self.tokenizer.n_vocab)
        self._lark = LarkCompiler(self.tokenizer)

    def _load(self, settings: Settings, progress: Progress) -> tuple[Choice, Any]:
        """Loads the model. Returns the settings and weights that it runs with, and the `llama_model`."""
        choice = in_one_way(choose(self.path, settings))
        try:
            choice = fitted(choice)
            return choice, load_model(choice.weights, choice.settings, progress)
        except ModelLoadError as error:
            if choice.weights == self.path or settings.weights:
                raise
            reason = error.message
        choice = fitted(in_one_way(choose(self.path, dataclasses.replace(settings, tune=False))))
        log.logger.warning("%s; going on with the file as it is, `srb tune` makes the weights again", reason)
        return choice, load_model(choice.weights, choice.settings, progress)

    def _make_context(self) -> Context:
        kind = Context if self._layout.is_unified else ReproducibleStreams if self._settings.reproducible else Streams
        return kind(
            self._model,
            self._settings_of(self._layout.flash_attn),
            self._layout,
            n_outputs=self.n_parallel + self.n_outputs,
            adapters=self._pointers,
            control_vectors=self._control_vectors,
            media=self.media,
        )

    @property
    def layout(self) -> Layout:
        """The layout of the present context; while it is closed, of the next one."""
        return self._layout

    def _settings_of(self, flash_attn: str) -> Settings:
        """The settings of a context with this kind of attention."""
        settings = self._settings
        if self._chooses and (cache_type := self._paces.of(flash_attn).cache_type):
            settings = dataclasses.replace(settings, cache_type_k=cache_type, cache_type_v=cache_type)
        return settings

    def _cache_types(self, flash_attn: str) -> str:
        settings = self._settings_of(flash_attn)
        return f"keys {settings.cache_type_k or 'f16'}, values {settings.cache_type_v or 'f16'}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the context and the model. No sampler made by this backend may be used any more."""
        self._exit.close()

    @cached_property
    def model_info(self) -> ModelInfo:
        """What the model's file says of it. See `Backend.model_info`."""
        return read_model_info(self.path)

    @property
    def costs(self) -> Costs:
        """How long the decodes of the present context take, measured or estimated. See `Backend.costs`."""
        if not self._layout.is_unified and not self._settings.reproducible:
            return self._layouts.paces.of(self._layout.flash_attn).in_streams()
        return self._estimated or self._paces.of(self._layout.flash_attn)

    def sleep(self) -> None:
        """Frees the context, and also the model unless it makes embeddings. See `Backend.sleep`."""
        self.reset()
        if not self.embedder:
            self._free_model()

    def reset(self) -> None:
        """Frees the contexts. The weights and the vocabulary stay: they are never written to. See `Backend.reset`."""
        self._context.close()
        if self.drafter:
            self.drafter.close()

    def _free_model(self) -> None:
        model, self._model = self._model, None
        if model:
            llama_cpp.llama_model_free(model)  # frees its adapters, too

    def _load_again(self) -> None:
        """Loads the model if `sleep` has freed it. Raises `ModelLoadError`."""
        if self._model:
            return
        try:
            if not self._weights.exists() or fingerprint(self._weights) != self._fingerprint:
                raise ModelLoadError(f"the model {self._weights} has changed while it was asleep; restart the server")
            with ExitStack() as stack:
                model = load_model(self._weights, self._settings, lambda _fraction: True)
                stack.callback(llama_cpp.llama_model_free, model)
                adapters, self._pointers = load_adapters(model, self._settings.lora)
                if adapters != self.adapters:
                    raise ModelLoadError("a file of --lora has changed while the model was asleep; restart the server")
                self._model = model  # only now: whoever tries again must check again
                stack.pop_all()
        except OSError as error:
            raise ModelLoadError(f"the model {self._weights} can't be read again: {error}") from None

    def choose(self, loads: Sequence[Load], n_held: int) -> Layout:
        """The layout for this work: what runs and waits, in the order in which it will run.

        n_held: how many tokens are in cells, which a change would move; 0: the cache is empty. The kind of attention
            changes only then.
        Returns the present layout unless another one pays, or is the only one that holds the work.
        """
        return self._layouts.choose(loads, self._layout, n_held, is_open=not self._context.is_closed)

    def prepare(self, layout: Layout) -> None:
        """Makes a context with this layout, unless there is one. Loads the model again after `sleep`.

        Called only when no sequence holds a cell. If there is no memory for another layout than the present one, the
        present one stays; `layout` tells. Raises `ModelLoadError`.
        """
        if not self._context.is_closed and layout == self._layout:
            return
        self._load_again()
        if self.drafter:
            self.drafter.open()
        self._context.close()  # before the other is made, since two at once would take twice the memory
        previous, self._layout = self._layout, layout
        try:
            self._context = self._make_context()
        except ModelLoadError as error:
            self._layout = previous
            if layout == previous:
                raise
            log.logger.warning("%s; going on with the KV cache as it was", error.message)
            if layout.flash_attn == previous.flash_attn:
                self._layouts.refuse(layout)
            else:
                self._settings, self._chooses = self._settings_of(previous.flash_attn), False
                self._layouts.kinds = (previous.flash_attn,)
            self._context = self._make_context()
        log.logger.debug("KV cache: %s, %d cells, %d sequences", layout.name, layout.n_cells, layout.n_seqs)

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        """Evaluates the rows. See `Backend.decode`. On a GPU `interrupted` is asked only between ubatches."""
        with self._waiting.watched():
            return self._context.decode(batch, interrupted)

    def logits(self, row: int) -> Floats:
        """The logits of this row of the last batch, of shape (n_vocab,), valid until the next decode."""
        return self._context.logits(row)

    def guided(self, logits: Floats, negative: Floats, scale: float) -> Floats:
        """Logits `scale` times as far from the `negative` ones. See `Backend.guided`."""
        return negative + np.float32(scale) * (logits - negative)

    def logits_of(self, data: bytes) -> Floats:
        """The row of logits that has these bytes."""
        return np.frombuffer(data, np.float32)

    def logprobs(self, logits: Floats, token: int, top: int) -> Logprobs:
        """The log-probabilities that the model gives to a token and to the likeliest ones, from a row of logits."""
        return logprobs(logits, token, top)

    def entropy(self, logits: Floats) -> float:
        """The entropy of the probabilities that a row of logits stands for, in nats."""
        return entropy(logits)

    def continuable_from(self, seq_id: int) -> int:
        """After how many of its tokens at least the sequence can be continued. See `Backend.continuable_from`."""
        return self._context.continuable_from(seq_id)

    def discard(self, seq_ids: list[int], start: int, end: int, shared: int) -> None:
        """Takes the positions from `start` to `end` out of sequences. See `Backend.discard`."""
        self._context.discard(seq_ids, start, end, shared)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Makes `target` share the first `n_tokens` cells of `source`."""
        self._context.fork(source, target, n_tokens)

    def truncate(self, seq_id: int, n_tokens: int) -> bool:
        """Leaves the sequence its first `n_tokens`. False if it can't be continued after these."""
        return self._context.truncate(seq_id, n_tokens)

    def remove(self, seq_id: int) -> None:
        """Empties the sequence."""
        self._context.remove(seq_id)

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        """The state of a sequence's cells from `start` to `end`. See `Backend.save`."""
        return self._context.save(seq_id, start, end, max_bytes)

    def restore(self, state: State, seq_id: int, start: int, end: int) -> bool:
        """Adds a state that `save` returned to a sequence. See `Backend.restore`."""
        return self._context.restore(state, seq_id, start, end)

    def held(self) -> list[int]:
        """The seq_ids that hold a cell, as llama.cpp counts them."""
        return self._context.held()

    def length(self, seq_id: int) -> int:
        """How many tokens a sequence holds."""
        return self._context.length(seq_id)

    def compile(self, branches: tuple[SamplingParams, ...], special_tokens: bool = False) -> CompiledSampling:
        """The parts that the samplers of a request share. May be called from any thread. See `Backend.compile`."""
        return CompiledSampling(self.tokenizer, self._lark, self.n_cells, branches, special_tokens)

    def sampler(
        self,
        params: SamplingParams,
        compiled: CompiledSampling,
        prompt: tuple[int, ...],
        begun: tuple[int, ...],
        healed: bytes = b"",
    ) -> LlamaSampler:
        """A sampler chain with these parameters that has seen the prompt, and has drawn the tokens in `begun`."""
        return LlamaSampler(self._candidates, self.tokenizer, params, compiled, prompt, begun, healed)

    def ranker(self, params: SamplingParams) -> LlamaRanker:
        """A ranker of tokens by the model's probabilities, after biases. See `Backend.ranker`."""
        return LlamaRanker(self.tokenizer, params)
