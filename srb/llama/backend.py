"""The backend: one model in llama.cpp with its KV cache, as the engine uses it."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Self

import llama_cpp
import numpy as np

from srb.engine.backend import Batch, Costs, Logprobs, State
from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.model import ModelInfo
from srb.engine.sampling_params import SamplingParams
from srb.errors import ModelLoadError
from srb.llama.adapters import vectors_identity
from srb.llama.contexts import Contexts
from srb.llama.draft import LlamaDrafter, check_draft, draft_settings
from srb.llama.embedder import LlamaEmbedder
from srb.llama.grammar.matcher import LarkCompiler
from srb.llama.model.chat_template import chat_template_of
from srb.llama.model.fit import PROMPT_OUTPUTS, fitted, n_seqs
from srb.llama.model.loader import LoadedModel, Progress, load_model
from srb.llama.model.metadata import read_model_info
from srb.llama.model.model_file import find_model
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.multimodal.projector import LlamaMedia, check_media
from srb.llama.native import library as log
from srb.llama.native.context import Context, window_of
from srb.llama.native.params import is_on_gpu, physical_cores, start
from srb.llama.native.streams import BLOCK
from srb.llama.native.threads import IdleTeam, ThreadWaiting
from srb.llama.sampling.candidates import Candidates, Floats, entropy, logprobs
from srb.llama.sampling.compiled import CompiledSampling
from srb.llama.sampling.sampler import LlamaRanker, LlamaSampler
from srb.llama.tune.result import Choice, choose, processor
from srb.options.settings import EVALUATION, Settings, check_settings


class LlamaBackend:
    """A model in llama.cpp, ready to decode. Implements `srb.engine.backend.Backend`.

    Creating it loads the model of `settings`, which takes as long as reading the file. A model that isn't on this
    machine must have been fetched before, with `srb.files.download.fetch_model`. Use it as a context manager, or call
    `close`.

    Raises:
        ModelLoadError: the model can't be loaded, or an option can't be used with it.
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
            choice, self._model = _load(self.path, settings, progress)
            settings = choice.settings
            stack.callback(self._model.free)
            self._model.load_adapters()
            self.adapters = self._model.adapters
            vocabulary = model = self._model.pointer
            if settings.sleep_idle_seconds > 0:  # any thread may tokenize, also while the model is asleep
                vocabulary = load_model(choice.weights, settings, progress, vocab_only=True)
                stack.callback(llama_cpp.llama_model_free, vocabulary)
            self.tokenizer = LlamaTokenizer(llama_cpp.llama_model_get_vocab(vocabulary))
            n_threads = settings.threads_batch or settings.threads or physical_cores()
            self._waiting = ThreadWaiting(IdleTeam.of_libgomp())
            stack.callback(self._waiting.close)
            self.media = None
            if settings.mmproj:
                self.media = LlamaMedia(settings.mmproj, model, self.tokenizer, settings, n_threads, self._waiting)
                stack.callback(self.media.close)  # runs after `tokenizer.close`, which waits for readers
            stack.callback(self.tokenizer.close)
            self.chat_template = chat_template_of(model, settings)
            self.window = window_of(model)
            _check_supported(settings, self.window, self.media)
            if settings.reproducible:
                self.window = None  # `ReproducibleStreams` has cells for all tokens
            self.can_unify = settings.kv_layout != "streams" and not settings.reproducible
            self.block_size = BLOCK if settings.reproducible else 0
            self.n_parallel, self.n_seqs = settings.parallel, n_seqs(settings)
            self.n_batch, self.n_outputs = settings.batch_size, PROMPT_OUTPUTS
            self.draft_max = settings.draft_max
            self._gpu_layers = settings.n_gpu_layers if is_on_gpu(settings) else 0
            self._contexts = Contexts(self._model, choice, n_threads, self.window, self.media)
            stack.callback(self._contexts.close)
            self.n_cells, self.can_shift = self._contexts.n_cells, self._contexts.can_shift
            self.identity = _identity(settings, self._model, self._contexts, self.media)
            self.cpu_variant = log.cpu_variant()
            self.fingerprint = self._fingerprint(settings) if settings.reproducible else ""
            self.drafter = None
            if draft := draft_settings(settings):
                self.drafter = LlamaDrafter(draft, self.n_cells, self.tokenizer.n_vocab, self._waiting)
                stack.callback(self.drafter.close)
                self.drafter.measure(self._contexts.current)
            self.embedder = None
            if settings.embeddings or settings.reranking:
                self.embedder = LlamaEmbedder(self.path, model, settings, n_threads, self._waiting)
                stack.callback(self.embedder.close)
            self._exit = stack.pop_all()
        self._candidates = Candidates(self.tokenizer.n_vocab)
        self._lark = LarkCompiler(self.tokenizer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the context and the model. No sampler made by this backend may be used any more."""
        self._exit.close()

    @cached_property
    def model_info(self) -> ModelInfo:
        """What the model's file says about the model."""
        return read_model_info(self.path, self._gpu_layers)

    @property
    def layout(self) -> Layout:
        """The layout of the present context; while it is closed, of the next one."""
        return self._contexts.layout

    @property
    def context(self) -> Context:
        """The present context. It must not be closed."""
        return self._contexts.current

    @property
    def costs(self) -> Costs:
        """The costs of decodes in the present context, measured or estimated."""
        return self._contexts.costs

    def sleep(self) -> None:
        """Free the context, and also the model unless it makes embeddings. `prepare` loads them again."""
        self.reset()
        if not self.embedder:
            self._model.free()

    def reset(self) -> None:
        """Free the contexts. The weights and the vocabulary stay, because nothing writes to them."""
        self._contexts.close()
        if self.drafter:
            self.drafter.close()

    def choose(self, loads: Sequence[Load], n_held: int) -> Layout:
        """Return the layout for this work: the present one, unless a change pays or only another one holds the work.

        Args:
            loads: what runs and waits, in the order in which it will run.
            n_held: the tokens in cells, which a change would move. The kind of attention changes only if there are
                none.
        """
        return self._contexts.choose(loads, n_held)

    def prepare(self, layout: Layout) -> None:
        """Make a context with this layout, unless it exists. Loads the model again after `sleep`.

        Called only when no sequence holds a cell. If there is no memory for another layout, the present one stays, and
        `layout` says so. Raises `ModelLoadError`.
        """
        self._model.load_again()
        if self.drafter:
            self.drafter.open()
        self._contexts.prepare(layout)

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        """Compute the rows of a batch. On a GPU, `interrupted` is asked only between ubatches.

        Returns False if the decode was interrupted.
        """
        with self._waiting.watched():
            return self._contexts.current.decode(batch, interrupted)

    def logits(self, row: int) -> Floats:
        """Return the logits of a row of the last batch, of shape (n_vocab,), valid until the next decode."""
        return self._contexts.current.logits(row)

    def guided(self, logits: Floats, negative: Floats, scale: float) -> Floats:
        """Return logits that are `scale` times as far from the `negative` ones (classifier-free guidance)."""
        return negative + np.float32(scale) * (logits - negative)

    def logits_of(self, data: bytes) -> Floats:
        """Return the row of logits that has these bytes."""
        return np.frombuffer(data, np.float32)

    def logprobs(self, logits: Floats, token: int, top: int) -> Logprobs:
        """Return the model's log-probabilities of a token and of the `top` most probable ones."""
        return logprobs(logits, token, top)

    def rank(self, logits: Floats, token: int) -> int:
        """Return how many tokens have at least the logit of this one, itself included."""
        return int(np.count_nonzero(logits >= logits[token]))

    def entropy(self, logits: Floats) -> float:
        """Return the entropy of the softmax of a row of logits, in nats."""
        return entropy(logits)

    def continuable_from(self, seq_id: int) -> int:
        """Return the fewest tokens after which the sequence can be continued."""
        return self._contexts.current.continuable_from(seq_id)

    def discard(self, seq_ids: list[int], start: int, end: int, shared: int) -> None:
        """Remove the positions from `start` to `end` from sequences, and lower the later ones."""
        self._contexts.current.discard(seq_ids, start, end, shared)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Make `target` share the first `n_tokens` cells of `source`."""
        self._contexts.current.fork(source, target, n_tokens)

    def truncate(self, seq_id: int, n_tokens: int) -> bool:
        """Cut the sequence to its first `n_tokens`. Returns False if it can't be continued after these."""
        return self._contexts.current.truncate(seq_id, n_tokens)

    def remove(self, seq_id: int) -> None:
        """Empty the sequence."""
        self._contexts.current.remove(seq_id)

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        """Return the state of a sequence's cells from `start` to `end`; None if it is larger than `max_bytes`."""
        return self._contexts.current.save(seq_id, start, end, max_bytes)

    def restore(self, state: State, seq_id: int, start: int, end: int) -> bool:
        """Append the positions from `start` to `end` of a saved state to a sequence. Returns whether this worked."""
        return self._contexts.current.restore(state, seq_id, start, end)

    def used_seq_ids(self) -> list[int]:
        """Return the seq_ids that hold a cell, as llama.cpp counts them."""
        return self._contexts.current.used_seq_ids()

    def length(self, seq_id: int) -> int:
        """Return how many tokens a sequence holds."""
        return self._contexts.current.length(seq_id)

    def compile(
        self, branches: tuple[SamplingParams, ...], special_tokens: bool = False, post_sampling_probs: bool = False
    ) -> CompiledSampling:
        """Make the parts that the samplers of a request share, such as a grammar. Thread-safe."""
        return CompiledSampling(self.tokenizer, self._lark, self.n_cells, branches, special_tokens, post_sampling_probs)

    def sampler(
        self,
        params: SamplingParams,
        compiled: CompiledSampling,
        prompt: tuple[int, ...],
        resumed_tokens: tuple[int, ...],
        healed: bytes = b"",
    ) -> LlamaSampler:
        """Make a sampler that has seen the prompt, and has sampled the tokens in `resumed_tokens`."""
        return LlamaSampler(self._candidates, self.tokenizer, params, compiled, prompt, resumed_tokens, healed)

    def ranker(self, params: SamplingParams) -> LlamaRanker:
        """Make a ranker of tokens by the model's probabilities, after biases."""
        return LlamaRanker(self.tokenizer, params)

    def _fingerprint(self, settings: Settings) -> str:
        """Return a hash of everything that answers depend on, except their requests."""
        system = llama_cpp.llama_print_system_info()  # the instructions that ggml uses
        threads = f"{settings.threads} {settings.threads_batch}"
        lengths = f"{settings.ctx_size} {settings.parallel} {settings.max_tokens}"
        loaded = " ".join(f"{each.identity} {each.scale}" for each in self.adapters)
        template = self.chat_template.source if self.chat_template else ""
        everything = "/".join((self.identity, processor(), str(system), threads, lengths, loaded, template))
        return hashlib.sha256(everything.encode()).hexdigest()[:16]


def _load(path: Path, settings: Settings, progress: Progress) -> tuple[Choice, LoadedModel]:
    """Load the model with the settings and weights that `srb tune` has chosen, or as the file has it."""
    choice = _choose(path, settings)
    try:
        choice = fitted(choice)
        return choice, LoadedModel(choice.weights, choice.settings, progress)
    except ModelLoadError as error:
        if choice.weights == path or settings.weights:
            raise
        reason = error.message
    choice = fitted(_choose(path, dataclasses.replace(settings, tune=False)))
    log.logger.warning("%s; the file's own weights are used; `srb tune` converts them again", reason)
    return choice, LoadedModel(choice.weights, choice.settings, progress)


def _choose(path: Path, settings: Settings) -> Choice:
    choice = choose(path, settings)
    if settings.reproducible:  # with flash attention, logits depend on the chunks of a prompt
        return dataclasses.replace(choice, settings=dataclasses.replace(choice.settings, flash_attn="off"))
    return choice


def _check_supported(settings: Settings, window: int | None, media: LlamaMedia | None) -> None:
    """Refuse options that this model doesn't support. Raises `ModelLoadError`."""
    has_positions = bool(media and media.has_positions)
    if settings.reproducible:
        reason = None
        if window == 0:
            reason = "this model has a recurrent state, from which padding rows can't be removed"
        elif is_on_gpu(settings):
            reason = "it is measured on processors only; --n-gpu-layers 0 computes there"
        elif has_positions:
            reason = "the images of this model have positions of their own (M-RoPE)"
        if reason:
            raise ModelLoadError(f"--reproducible can't be used: {reason}; leave it out")
        return
    if has_positions and window is not None:
        raise ModelLoadError(
            f"--mmproj {settings.mmproj} can't be used: this model has a sliding window or a recurrent state, and its "
            "images have positions of their own (M-RoPE); srb doesn't support both"
        )
    if settings.kv_layout == "streams" and (window is not None or has_positions):
        reason = "it has a sliding window or a recurrent state"
        if has_positions:
            reason = "its images have positions of their own (M-RoPE)"
        raise ModelLoadError(
            f"--kv-layout streams can't be used with this model: {reason}, which takes a unified cache; "
            "leave the option out"
        )
    if draft_settings(settings) and window is not None:
        raise ModelLoadError(
            f"--model-draft {settings.model_draft} can't be used: this model has a sliding window or a "
            "recurrent state, so it can't take back rejected draft tokens; leave the option out"
        )


def _identity(settings: Settings, model: LoadedModel, contexts: Contexts, media: LlamaMedia | None) -> str:
    """Return the names of everything that a saved state must fit."""
    parts = [
        model.fingerprint,
        contexts.cache_types,
        f"flash attention {settings.flash_attn}",
        f"llama-cpp-python {log.build()}",
    ]
    if settings.reproducible:
        parts.append("reproducible")
    parts += (f"{name} {value}" for name, value in settings.given(EVALUATION).items())
    if model.control_vectors is not None:
        parts.append(f"control {vectors_identity(model.control_vectors)}")
    if media:
        parts.append(f"projector {media.identity}")
    return "/".join(parts)
