"""What `--reproducible` asks of a model and its settings. `native/streams.py` is the context that it needs.

docs/running/reproducible.md says what is promised, and why.
"""

import dataclasses
import hashlib

import llama_cpp

from srb.engine.prompts.adapters import Adapter
from srb.errors import ModelLoadError
from srb.llama.media.projector import LlamaMedia
from srb.llama.native.params import is_on_gpu
from srb.llama.text.chat_template import ChatTemplate
from srb.llama.tune.tuned import Choice, processor
from srb.options.settings import Settings

BLOCK = 64
"""The size of a prompt's blocks, in tokens. Kernels that take rows in groups take all of these alike."""


def hash_of(
    identity: str, settings: Settings, adapters: tuple[Adapter, ...], chat_template: ChatTemplate | None
) -> str:
    """A hash of what answers depend on beside their requests, with `--reproducible`; without it empty."""
    if not settings.reproducible:
        return ""
    system = llama_cpp.llama_print_system_info()  # the instructions that ggml uses
    threads = f"{settings.threads} {settings.threads_batch}"
    lengths = f"{settings.ctx_size} {settings.parallel} {settings.max_tokens}"
    loaded = " ".join(f"{each.identity} {each.scale}" for each in adapters)
    template = chat_template.source if chat_template else ""
    everything = "/".join((identity, processor(), str(system), threads, lengths, loaded, template))
    return hashlib.sha256(everything.encode()).hexdigest()[:16]


def in_one_way(choice: Choice) -> Choice:
    """With `--reproducible` the choice without flash attention, whose logits depend on the pieces of a prompt."""
    if not choice.settings.reproducible:
        return choice
    return dataclasses.replace(choice, settings=dataclasses.replace(choice.settings, flash_attn="off"))


def check_reproducible(settings: Settings, window: int | None, media: LlamaMedia | None) -> None:
    """Raises `ModelLoadError` if it can't be had. window: see `Backend.window`."""
    reason = None
    if window == 0:
        reason = "this model has a recurrent state, which can't take back the rows that are computed beside others"
    elif is_on_gpu(settings):
        reason = "it is measured on processors only; --n-gpu-layers 0 computes there"
    elif media and media.has_positions:
        reason = "the images of this model have positions of their own (M-RoPE)"
    if reason:
        raise ModelLoadError(f"--reproducible can't be had: {reason}; leave it out")
