"""Images on the real llama.cpp, compared with mtmd's own evaluation of a prompt with them.

They need a llama-cpp-python that was compiled with mtmd, as ./build.sh does.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from driver import run, texts
from tiny_model import write_tiny_model
from tiny_projector import N_CELLS, N_SOUND_CELLS, has_mtmd, png, wav, write_tiny_ear, write_tiny_projector

from srb.engine.engine import Engine
from srb.engine.events import StreamEvent
from srb.engine.media import Media, PromptPart
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError, ModelLoadError
from srb.files.disk_cache import DiskCache
from srb.llama.backend import LlamaBackend
from srb.llama.native.context import new_context

pytestmark = pytest.mark.skipif(not has_mtmd(), reason="llama-cpp-python was compiled without mtmd (LLAVA_BUILD)")

Load = Callable[..., LlamaBackend]
BEFORE, AFTER = "It was a dark and stormy night; the picture shows ", ", said the old man."
N = 6


@pytest.fixture(scope="session")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_projector(tmp_path_factory.mktemp("mmproj") / "mmproj.gguf")


def ask(engine: Engine, *parts: PromptPart, n: int = 1, **options: Any) -> CompletionRequest:
    tokens, media = engine.tokenize_parts(parts)
    branches = [SamplingParams(temperature=0, max_tokens=N, ignore_eos=True)] * n
    return CompletionRequest((tokens,), tuple(branches), logprobs=1, media=media, **options)


def said(engine: Engine, *parts: PromptPart) -> list[tuple[int, float]]:
    """The tokens that follow a prompt, and their log-probabilities."""
    return [
        (event.token.id, event.token.logprob)
        for event in run(engine, ask(engine, *parts))
        if isinstance(event, StreamEvent) and event.token and event.token.logprob is not None
    ]


def evaluated_by_mtmd(backend: LlamaBackend, *parts: PromptPart) -> list[tuple[int, float]]:
    """The same, from mtmd's own tokenizer, reader and loop over a prompt, in a context of its own."""
    from llama_cpp import mtmd_cpp as mtmd

    media: Any = backend.media
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 512, 512, 512
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = new_context(backend._model.pointer, params, "a context")
    marker = mtmd.mtmd_default_marker()
    text = b"".join(part.encode() if isinstance(part, str) else marker for part in parts)
    files = [part for part in parts if isinstance(part, bytes)]
    option = mtmd.mtmd_helper_init_opt_default()
    bitmaps = (ctypes.c_void_p * len(files))(
        *(
            mtmd.mtmd_helper_bitmap_init_from_buf(
                media.pointer, (ctypes.c_uint8 * len(file)).from_buffer_copy(file), len(file), False, option
            )
            for file in files
        )
    )
    chunks, after = mtmd.mtmd_input_chunks_init(), ctypes.c_int32()
    asked = mtmd.mtmd_input_text(text, len(text), True, True)
    assert mtmd.mtmd_tokenize(media.pointer, chunks, ctypes.byref(asked), bitmaps, len(files)) == 0
    assert mtmd.mtmd_helper_eval_chunks(media.pointer, context, chunks, 0, 0, 512, True, ctypes.byref(after)) == 0
    found: list[tuple[int, float]] = []
    position = after.value
    for _ in range(N):
        row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (backend.tokenizer.n_vocab,))
        row = row.astype(np.float64)
        row[sorted(backend.tokenizer.ends)] = -np.inf
        token = int(row.argmax())
        full = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (backend.tokenizer.n_vocab,))
        found.append((token, backend.logprobs(full, token, 0)[0]))
        tokens, positions = (ctypes.c_int32 * 1)(token), (ctypes.c_int32 * 4)(*[position] * 3, 0)
        seq_ids = (ctypes.POINTER(ctypes.c_int32) * 1)(ctypes.pointer(ctypes.c_int32(0)))
        batch = llama_cpp.llama_batch(
            1, tokens, None, positions, (ctypes.c_int32 * 1)(1), seq_ids, (ctypes.c_int8 * 1)(1)
        )
        assert llama_cpp.llama_decode(context, batch) == 0
        position += 1
    llama_cpp.llama_free(context)
    mtmd.mtmd_input_chunks_free(chunks)
    for bitmap in bitmaps:
        mtmd.mtmd_bitmap_free(bitmap)
    return found


def assert_alike(some: list[tuple[int, float]], others: list[tuple[int, float]]) -> None:
    assert len(some) == len(others) == N
    assert [token for token, _ in some] == [token for token, _ in others]
    assert [value for _, value in some] == pytest.approx([value for _, value in others], abs=2e-3)


def test_it_goes_on_as_mtmd_does(load: Load, projector: Path) -> None:
    backend = load(mmproj=projector, flash_attn="off")
    assert backend.media
    assert backend.media.kinds == ("image",)
    engine = Engine(backend)
    prompts: list[list[PromptPart]] = [
        [png(1), AFTER],
        [BEFORE, png(1), AFTER],
        [BEFORE, png(1), " and ", png(2, 40, 17), AFTER],
    ]
    for parts in prompts:
        assert_alike(said(engine, *parts), evaluated_by_mtmd(backend, *parts))
    assert backend.used_seq_ids() == []


def test_images_that_see_all_of_themselves(load: Load, tmp_path: Path) -> None:
    """Gemma 3's cells of an image attend to later ones as well, and it has sliding windows."""
    model = write_tiny_model(tmp_path / "gemma.gguf", arch="gemma3")
    projector = write_tiny_projector(tmp_path / "mmproj.gguf", kind="gemma3")
    backend = load(model=model, mmproj=projector, flash_attn="off")
    engine = Engine(backend, cache_bytes=10_000_000)
    parts: list[PromptPart] = [BEFORE, png(1), AFTER]
    expected = evaluated_by_mtmd(backend, *parts)
    for _ in range(2):
        assert_alike(said(engine, *parts), expected)
    assert engine.stats().media_encoded == 1


@pytest.fixture
def wide(load: Load, tmp_path: Path) -> LlamaBackend:
    """A backend whose images have other positions than one for each cell."""
    model = write_tiny_model(tmp_path / "qwen.gguf", arch="qwen2vl")
    projector = write_tiny_projector(tmp_path / "mmproj.gguf", kind="qwen2vl_merger")
    return load(model=model, mmproj=projector, flash_attn="off")


def test_images_with_a_width_and_a_height(wide: LlamaBackend) -> None:
    engine = Engine(wide, cache_bytes=10_000_000)
    prompts: list[list[PromptPart]] = [
        [BEFORE, png(1, 48, 24), AFTER],
        [BEFORE, png(1, 48, 24), AFTER],  # known to the last token
        [BEFORE, png(1, 48, 24), " and ", png(2, 24, 40), " and ", png(1, 48, 24), AFTER],  # continues after an image
        [BEFORE, png(1, 48, 24), " and ", png(2, 24, 40), "?", AFTER],
        [png(3, 16, 40), png(1, 48, 24), AFTER],
    ]
    for parts in prompts:
        assert_alike(said(engine, *parts), evaluated_by_mtmd(wide, *parts))
    assert engine.stats().media_encoded == 3
    assert wide.used_seq_ids() == []


def test_how_many_cells_such_an_image_has(load: Load, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "qwen.gguf", arch="qwen2vl")
    projector = write_tiny_projector(tmp_path / "mmproj.gguf", kind="qwen2vl_merger")
    sizes = []
    for least, most in ((None, None), (40, 60), (1, 4)):
        backend = load(model=model, mmproj=projector, image_min_tokens=least, image_max_tokens=most)
        sizes.append(len(Engine(backend).tokenize_parts([png(1, 40, 40), "?"])[1][0].tokens))
    assert sizes == [25, 49, 4]


def test_alternatives_after_such_an_image_roll_back(wide: LlamaBackend) -> None:
    """Forks, cuts and saved answers are by tokens, where the memory counts in positions."""
    engine = Engine(wide, cache_bytes=10_000_000)
    parts: list[PromptPart] = [BEFORE, png(1, 48, 24), AFTER]
    tokens, media = engine.tokenize_parts(parts)
    banned = tuple(chr(k) for k in range(32, 127) if k % 3)
    params = SamplingParams(max_tokens=12, ignore_eos=True, seed=0, banned_strings=banned)
    events = run(engine, CompletionRequest((tokens,), params.alternatives(4), media=media))
    assert not set("".join(texts(events).values())) & set(banned)
    answer = next(iter(texts(run(engine, ask(engine, *parts))).values()))
    if answer.isascii():
        parts[-1] = AFTER + answer
    assert_alike(said(engine, *parts, " indeed"), evaluated_by_mtmd(wide, *parts, " indeed"))


@pytest.mark.parametrize("kind", ["mlp", "qwen2vl_merger"])
def test_after_a_restart_an_image_is_read_from_the_disk(load: Load, tmp_path: Path, kind: str) -> None:
    model = write_tiny_model(tmp_path / "model.gguf", arch="llama" if kind == "mlp" else "qwen2vl")
    projector = write_tiny_projector(tmp_path / "mmproj.gguf", kind=kind)
    answers = []
    for _ in range(2):
        backend = load(model=model, mmproj=projector, flash_attn="off")
        engine = Engine(backend, store=DiskCache(tmp_path / "cache", backend.identity, 100 << 20))
        answers.append(said(engine, BEFORE, png(1, 48, 24), AFTER))
        answers.append(said(engine, BEFORE, png(1, 48, 24), " and nothing else"))
        n_encoded = engine.stats().media_encoded
        engine.close()
    assert n_encoded == 0
    assert answers[2:] == answers[:2]


def test_what_stands_for_an_image(load: Load, projector: Path) -> None:
    engine = Engine(load(mmproj=projector))
    tokens, (media,) = engine.tokenize_parts(["a", png(1), "b"])
    assert tokens == (ord("a"), *media.tokens, ord("b"))
    assert len(media.tokens) == N_CELLS
    again, _ = engine.tokenize_parts(["a", png(1), "b", png(1), "c"])
    assert again == (*tokens, *media.tokens, ord("c"))
    assert engine.model.tokenizer.detokenize(tokens) == b"ab"
    assert engine.model.tokenizer.special_piece(tokens[1]) == b""


def test_penalties_and_dry_and_grammars_look_past_images(load: Load, projector: Path) -> None:
    engine = Engine(load(mmproj=projector))
    tokens, media = engine.tokenize_parts([BEFORE, png(1), AFTER])
    params = SamplingParams(
        max_tokens=N, repeat_penalty=1.5, repeat_last_n=-1, dry_multiplier=1, grammar='root ::= "a"+', seed=0
    )
    request = CompletionRequest((tokens,), params.alternatives(3), media=media)
    assert set("".join(texts(run(engine, request)).values())) == {"a"}


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_kinds_of_files(load: Load, projector: Path, form: str) -> None:
    engine = Engine(load(mmproj=projector))
    assert len(engine.tokenize_parts([png(1, 30, 20, form=form), "?"])[1]) == 1


def test_files_that_are_no_images(load: Load, projector: Path) -> None:
    engine = Engine(load(mmproj=projector))
    whole = png(1, 100, 100)
    bad = [b"", b"x", b"<svg/>", whole[:60], whole[: len(whole) // 2], png(1, 1, 201)]
    for file in bad:
        with pytest.raises(InvalidRequestError, match="image"):
            engine.tokenize_parts([file, "?"])
    huge = bytearray(png(1))
    huge[16:24] = (30_000).to_bytes(4) * 2  # a header that lies, with another checksum, or 2.7 GB
    with pytest.raises(InvalidRequestError, match="image"):
        engine.tokenize_parts([bytes(huge), "?"])


def test_sounds(load: Load, tmp_path: Path) -> None:
    backend = load(mmproj=write_tiny_ear(tmp_path / "ear.gguf"), flash_attn="off")
    assert backend.media
    assert backend.media.kinds == ("audio",)
    engine = Engine(backend, cache_bytes=10_000_000)
    parts: list[PromptPart] = ["Listen: ", wav(1), " and ", wav(2, 31, rate=8_000, channels=2), "?"]
    tokens, media = engine.tokenize_parts(parts)
    assert [len(each.tokens) for each in media] == [N_SOUND_CELLS] * 3  # one for each 30 seconds
    assert len(tokens) == len("Listen:  and ?") + 3 * N_SOUND_CELLS
    expected = evaluated_by_mtmd(backend, *parts)
    for _ in range(2):
        assert_alike(said(engine, *parts), expected)
    assert engine.stats().media_encoded == 3
    with pytest.raises(InvalidRequestError, match="takes no images"):
        engine.tokenize_parts([png(1), "?"])


def test_files_that_are_no_sounds(load: Load, tmp_path: Path, projector: Path) -> None:
    engine = Engine(load(mmproj=write_tiny_ear(tmp_path / "ear.gguf")))
    flac = b"fLaC\x80\0\0\x22" + bytes(10) + (16_000 << 44 | (1 << 36) - 1).to_bytes(8) + bytes(100)
    bad = [wav(1, 0.01), wav(1)[:40], flac, b"ID3" + bytes(7) + flac, b"ID3\4\0\0\x7f\x7f\x7f\x7f", b"\xff\xfb" * 500]
    for file in bad:
        with pytest.raises(InvalidRequestError, match="sound"):
            engine.tokenize_parts([file, "?"])
    with pytest.raises(InvalidRequestError, match="takes no sounds"):
        Engine(load(mmproj=projector)).tokenize_parts([wav(1), "?"])


def test_errors_about_wrong_projectors_are_one_line(load: Load, tmp_path: Path, tiny_model: Path) -> None:
    other = write_tiny_projector(tmp_path / "other.gguf", n_embd=32)
    (tmp_path / "text").write_text("hello")
    for path, reason in (
        (tmp_path / "none.gguf", "No such file"),
        (tmp_path / "text", "not a GGUF file"),
        (tiny_model, "Failed to load CLIP model"),
        (other, "n_embd = 32"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(ModelLoadError) as refusal:
            load(mmproj=path)
        assert reason in refusal.value.message
        assert str(path) in refusal.value.message
        assert "\n" not in refusal.value.message


def test_an_image_that_must_be_computed_at_once_and_cant_is_refused(load: Load, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "gemma.gguf", arch="gemma3")
    projector = write_tiny_projector(tmp_path / "mmproj.gguf", kind="gemma3")
    engine = Engine(load(model=model, mmproj=projector, ubatch_size=8))
    with pytest.raises(InvalidRequestError, match="--ubatch-size 9"):
        engine.tokenize_parts([png(1), "?"])


def test_media_outlive_the_backend_that_has_read_them(load: Load, projector: Path) -> None:
    backend = load(mmproj=projector)
    _, media = Engine(backend).tokenize_parts([png(1), "?"])
    backend.close()
    assert isinstance(media[0], Media)
    del media
