"""Images and sounds in prompts, through llama.cpp's mtmd. No other module uses mtmd.

A projector (`--mmproj`, a file of its own) encodes an image as vectors that the model decodes in place of tokens.
Pillow reads image files, because mtmd's own reader doesn't limit its memory, and tries to read unknown formats as
videos. mtmd reads sound files, after `media_files` has checked their headers.
"""

import ctypes
import hashlib
import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from srb.engine.media import Media
from srb.errors import BackendError, InvalidRequestError, ModelLoadError
from srb.llama.model.model_file import check_gguf, fingerprint
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.multimodal.media_files import check_pillow, is_sound, read_image, safe_sound
from srb.llama.native import library as log
from srb.llama.native.params import is_on_gpu
from srb.llama.native.threads import ThreadWaiting
from srb.options.settings import Settings

Vectors = NDArray[np.float32]
"""The vectors that an image is encoded as, of shape (cells, n_embd)."""

_CACHE_BYTES = 64 << 20
"""The bytes of vectors that are cached, for images that come again after another text."""

_MIN_SOUND_BYTES = 4 * 800
"""A twentieth of a second. Some projectors fail with less."""


class Chunk:
    """A chunk of media in mtmd, ready to be encoded: pixels or a spectrum, as the projector needs them."""

    def __init__(self, mtmd: Any, pointer: int) -> None:
        self.pointer = pointer
        self.n_cells = int(mtmd.mtmd_input_chunk_get_n_tokens(pointer))
        self.n_positions = int(mtmd.mtmd_input_chunk_get_n_pos(pointer))
        weakref.finalize(self, mtmd.mtmd_input_chunk_free, pointer)


class LlamaMedia:
    """The projector of `--mmproj`. Implements `srb.engine.media.MediaReader`. `decode` belongs to the engine's thread.

    Call `check_media` before. Raises `ModelLoadError`.

    Attributes:
        pointer: the `mtmd_context`.
        kinds: "image", "audio".
        has_positions: whether images don't have one position per cell (M-RoPE).
        n_encoded: how many chunks were encoded.
    """

    def __init__(
        self,
        path: Path,
        model: Any,
        tokenizer: LlamaTokenizer,
        settings: Settings,
        n_threads: int,
        waiting: ThreadWaiting,
    ) -> None:
        self._mtmd = mtmd = _library()
        mtmd.mtmd_helper_log_set(log.callback, ctypes.c_void_p(0))
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = is_on_gpu(settings)
        params.print_timings = False
        params.n_threads = n_threads
        # Of an image, for projectors with images of different sizes. -1: the projector's own limit.
        n_tokens = settings.image_min_tokens or -1, settings.image_max_tokens or -1
        params.image_min_tokens, params.image_max_tokens = n_tokens
        # llama.cpp ends the process if the file lacks tensors. This line is then the last of the log.
        log.logger.info("loading the projector %s", path)
        with log.collected() as messages:
            self.pointer = mtmd.mtmd_init_from_file(os.fsencode(path), model, params)
        if not self.pointer:
            hint = "give the projector that was made for this model, often called mmproj-....gguf"
            if n_tokens != (-1, -1):
                hint += ", or leave out --image-min-tokens and --image-max-tokens"
            reason = _reason(messages).partition(" hint:")[0]
            raise ModelLoadError(f"--mmproj {path} can't be used: {reason}; {hint}")
        messages.log()
        self.kinds = tuple(
            kind
            for kind, has in (("image", mtmd.mtmd_support_vision), ("audio", mtmd.mtmd_support_audio))
            if has(self.pointer)
        )
        self.has_positions: bool = mtmd.mtmd_decode_use_mrope(self.pointer)
        self.identity = fingerprint(path)[:16]
        self.n_encoded = 0
        self._tokenizer = tokenizer
        self._waiting = waiting
        self._n_embd = int(llama_cpp.llama_model_n_embd_inp(model))
        self._n_batch = settings.batch_size
        self._n_ubatch = min(settings.batch_size, settings.ubatch_size)
        self._encoder = ThreadPoolExecutor(1, "srb-media")  # one thread, because mtmd's context isn't thread-safe
        self._vectors: dict[str, Future[Vectors]] = {}  # by the media's names, the least recently used first

    def close(self) -> None:
        """Free the projector. Media that it has read must not be decoded any more."""
        self._encoder.shutdown(cancel_futures=True)
        context, self.pointer = self.pointer, None
        if context:
            self._mtmd.mtmd_free(context)

    def read(self, file: bytes) -> list[int | Media]:
        """Return the parts of a prompt for a file: media, and the tokens around it. Raises `InvalidRequestError`."""
        mtmd, digest = self._mtmd, hashlib.sha256(file).hexdigest()
        kind, what = ("audio", "sounds") if is_sound(file) else ("image", "images")
        if kind not in self.kinds:
            raise InvalidRequestError(f"this model takes no {what}", code="unsupported_media")
        with self._tokenizer.in_use(), ExitStack() as stack:
            bitmap = self._sound(file) if kind == "audio" else self._image(file)
            stack.callback(mtmd.mtmd_bitmap_free, bitmap)
            chunks = mtmd.mtmd_input_chunks_init()
            stack.callback(mtmd.mtmd_input_chunks_free, chunks)
            marker = mtmd.mtmd_default_marker()
            text = mtmd.mtmd_input_text(marker, len(marker), False, True)
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            with log.collected() as messages:
                code = mtmd.mtmd_tokenize(self.pointer, chunks, ctypes.byref(text), bitmaps, 1)
            if code:
                raise InvalidRequestError(f"one of the {what} can't be used: {_reason(messages)}", code="invalid_media")
            parts: list[int | Media] = []
            for k in range(mtmd.mtmd_input_chunks_size(chunks)):
                chunk = mtmd.mtmd_input_chunks_get(chunks, k)
                if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                    n = ctypes.c_size_t()
                    tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
                    parts += tokens[: n.value] if n.value else ()
                else:
                    parts.append(self._media(f"{digest}/{k}", mtmd.mtmd_input_chunk_copy(chunk)))
        return parts

    def _image(self, file: bytes) -> int:
        width, height, pixels = read_image(file)
        return int(self._mtmd.mtmd_bitmap_init(width, height, log.pointer_to(pixels)))  # it copies the pixels

    def _sound(self, file: bytes) -> int:
        mtmd, data = self._mtmd, safe_sound(file)
        option = mtmd.mtmd_helper_init_opt_default()
        with log.collected() as messages:
            made = mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(
                self.pointer, log.pointer_to(data), len(data), False, option
            )
        if not made.bitmap:
            raise InvalidRequestError(f"a sound can't be read: {_reason(messages)}", code="invalid_media")
        if mtmd.mtmd_bitmap_get_n_bytes(made.bitmap) < _MIN_SOUND_BYTES:
            mtmd.mtmd_bitmap_free(made.bitmap)
            raise InvalidRequestError("a sound is too short to be heard", code="invalid_media")
        return int(made.bitmap)

    def _media(self, name: str, pointer: int) -> Media:
        chunk = Chunk(self._mtmd, pointer)
        if chunk.n_cells > self._n_ubatch and self._mtmd.mtmd_decode_use_non_causal(self.pointer, pointer):
            raise InvalidRequestError(
                f"an image takes {chunk.n_cells} cells, which this model computes in one pass; "
                f"start with --ubatch-size {chunk.n_cells} or more",
                code="invalid_media",
            )
        return Media.of(name, chunk.n_cells, chunk)

    def decode(self, context: Any, media: Media, position: int, seq_id: int) -> int:
        """Decode media in a `llama_context`, and return the code of llama_decode. Raises `BackendError`."""
        try:
            vectors = self._encoded(media).result()
        except BackendError:
            del self._vectors[media.name]
            raise
        after = ctypes.c_int32()
        callback = self._mtmd.mtmd_helper_post_decode_callback()
        code: int = self._mtmd.mtmd_helper_decode_image_chunk(
            self.pointer,
            context,
            media.content.pointer,
            vectors.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            position,
            seq_id,
            self._n_batch,
            ctypes.byref(after),
            callback,
            None,
        )
        return code

    def is_ready(self, media: Media) -> bool:
        """Return whether media is encoded. If not, a thread starts to encode it now."""
        return self._encoded(media).done()

    def _encoded(self, media: Media) -> "Future[Vectors]":
        vectors = self._vectors.pop(media.name, None)
        if vectors is None:
            vectors = self._encoder.submit(self._encode, media.content)
        self._vectors[media.name] = vectors
        done = [name for name, each in self._vectors.items() if each.done() and not each.exception()]
        size = sum(self._vectors[name].result().nbytes for name in done)
        for name in done[:-1]:
            if size > _CACHE_BYTES and name != media.name:
                size -= self._vectors.pop(name).result().nbytes
        return vectors

    def _encode(self, chunk: Chunk) -> Vectors:
        with log.collected() as messages, self._waiting.watched():
            code = self._mtmd.mtmd_encode_chunk(self.pointer, chunk.pointer)
        if code:
            raise BackendError(f"an image can't be encoded: {_reason(messages)}")
        messages.log()
        vectors = self._mtmd.mtmd_get_output_embd(self.pointer)
        self.n_encoded += 1
        return np.ctypeslib.as_array(vectors, (chunk.n_cells, self._n_embd)).copy()


def _library() -> Any:
    """Return llama_cpp's binding of mtmd. Raises `ModelLoadError` if llama-cpp-python was compiled without mtmd."""
    try:
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, RuntimeError):
        raise ModelLoadError(
            "--mmproj needs a llama-cpp-python that was compiled with mtmd, and this one wasn't; in a checkout, "
            "./build.sh serve --mmproj compiles it again; elsewhere install it with CMAKE_ARGS=-DLLAVA_BUILD=ON"
        ) from None
    return mtmd_cpp


def _reason(messages: log.LogMessages) -> str:
    """Return the reason that mtmd gives for a failure, on one line."""
    return " ".join(messages.reason.removeprefix("error: ").split())


def check_media(settings: Settings) -> None:
    """Check, before a model is loaded, that `--mmproj` can be used here. Raises `ModelLoadError`."""
    if settings.mmproj is not None:
        check_pillow()
        _library()
        check_gguf(settings.mmproj, "--mmproj")
