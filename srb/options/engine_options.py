"""The options of the engine: what each is called, and what it means, in the groups that `--help` shows.

`server_options.py` has the others. `settings.Settings` has all of them, checks them, and reads them.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS = ("file", "f16", "bf16", "q8_0")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
POOLING_TYPES = ("none", "mean", "cls", "last")


def option(
    default: Any,
    text: str,
    *,
    short: str | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
    words: dict[str, int] | None = None,
    aliases: tuple[str, ...] = (),
    many: bool = False,
    secret: bool = False,
) -> Any:
    """A field of a dataclass that is an option.

    low, high: the value must be in this range, both ends included. above: the value must be more than this.
    words: names for some of its numbers. aliases: the other names that llama-server has for it.
    many: the flag may come several times, and its values are joined with commas.
    secret: no message shows the value.
    """
    metadata: dict[str, Any] = {
        "help": text,
        "short": short,
        "low": low,
        "high": high,
        "above": above,
        "choices": choices,
    }
    metadata |= {"words": words or {}, "aliases": aliases, "many": many, "secret": secret}
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model runs, and how texts and chats become its prompts."""

    model: Path | None = option(
        None, "the GGUF file to run (default: the small SmolLM2-135M-Instruct that is installed with srb)", short="-m"
    )
    hf_repo: str | None = option(
        None, "download the model from this Hugging Face repository, written OWNER/NAME", short="-hf"
    )
    hf_file: str | None = option(
        None, "which GGUF file of --hf-repo to download; not needed if the repository has only one", short="-hff"
    )
    model_url: str | None = option(None, "download the model from this URL", short="-mu")
    models_dir: Path | None = option(
        None, "a folder with GGUF files; --model may then be the beginning of a file's name"
    )
    alias: str | None = option(None, "the name of the model in replies (default: its file name)", short="-a")
    chat_template: str | None = option(
        None,
        "how a chat becomes a prompt: chatml, gemma, llama3, vicuna, zephyr, plain, a template in Jinja, or "
        "none to refuse chats (default: the model's own template, or plain if it has none)",
    )
    chat_template_file: Path | None = option(None, "a file with a chat template in Jinja")
    jinja: bool = option(
        True, "has no effect, because srb always reads templates as Jinja; llama-server has this option"
    )
    embeddings: bool = option(
        False, "also answer POST /v1/embeddings and /embedding; this takes a second context of --ubatch-size cells"
    )
    pooling: str | None = option(
        None,
        "how the vectors of a text's tokens become one vector, for embeddings (default: as the model says)",
        choices=POOLING_TYPES,
    )
    reranking: bool = option(
        False,
        "also answer POST /rerank; for a model that ranks documents, such as Qwen3-Reranker. Not together "
        "with --embeddings",
        aliases=("rerank",),
    )
    override_kv: str | None = option(
        None,
        "change metadata of the model: KEY=TYPE:VALUE, several with commas between; TYPE is int, float, bool or str",
    )
    lora: str | None = option(
        None,
        "load this adapter with the model: FILE or FILE:SCALE. For several, repeat the option or write commas between",
        many=True,
    )
    control_vector: str | None = option(
        None,
        "add this control vector to what the layers put out: FILE or FILE:SCALE. For several, repeat the "
        "option or write commas between; they are summed",
        many=True,
    )
    mmproj: Path | None = option(
        None, "the GGUF file of the model's projector; with it the model takes images or sound", short="-mm"
    )
    image_min_tokens: int | None = option(
        None, "fewest cells of an image, where these depend on its size (default: the projector's)", low=1
    )
    image_max_tokens: int | None = option(None, "most cells of such an image (default: the projector's)", low=1)
    rope_scaling: str | None = option(
        None,
        "how positions are scaled for a longer context (default: as the model says)",
        choices=("none", "linear", "yarn"),
    )
    rope_scale: float | None = option(
        None,
        "make the context this many times as long; --rope-freq-scale is the inverse, so give only one of the two",
        above=0,
    )
    rope_freq_base: float | None = option(None, "the base frequency of RoPE (default: the model's)", above=0)
    rope_freq_scale: float | None = option(
        None, "the factor of RoPE's frequencies; N makes the context 1/N times as long (default: the model's)", above=0
    )
    yarn_orig_ctx: int | None = option(
        None, "for YaRN: the context size that the model was trained for (default: the model's)", low=0
    )
    yarn_ext_factor: float | None = option(
        None, "for YaRN: how much is extrapolated; 0 only interpolates (default: the model's)"
    )
    yarn_attn_factor: float | None = option(None, "for YaRN: a factor for the size of attention (default: the model's)")
    yarn_beta_slow: float | None = option(None, "for YaRN: the high correction dimension, alpha (default: the model's)")
    yarn_beta_fast: float | None = option(None, "for YaRN: the low correction dimension, beta (default: the model's)")


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """How much is kept in memory and on disk, and where the model is."""

    ctx_size: int = option(
        8192,
        "the longest context of one request, in tokens: its prompt and the text of one alternative. 0: as many as "
        "the model was trained for. auto: the same, or less if memory is short",
        short="-c",
        low=0,
        words={"auto": -1},
    )
    fit: str = option(
        "on",
        "on: a model that doesn't fit into the free memory is refused before it is loaded. off: it is loaded anyway",
        choices=("on", "off"),
    )
    cache_type_k: str | None = option(
        None, "the type of the cached keys (default: what srb tune chose, or f16)", short="-ctk", choices=CACHE_TYPES
    )
    cache_type_v: str | None = option(
        None, "the type of the cached values (default: what srb tune chose, or f16)", short="-ctv", choices=CACHE_TYPES
    )
    kv_layout: str = option(
        "auto",
        "unified: all sequences share the KV cells, and a fork is free. streams: each sequence has cells of its own, "
        "and attends to no others. auto: what is faster for the requests that run and wait",
        choices=("auto", "unified", "streams"),
    )
    swa_full: bool = option(
        True,
        "for models with a sliding window: keep the cells of all tokens; --no-swa-full needs less memory, but "
        "evaluates more tokens again",
    )
    cache_ram: int = option(
        1024,
        "MiB of memory for the prefix cache, which keeps what finished requests have evaluated, and for preempted "
        "alternatives; 0: neither is kept, and both are evaluated again",
        short="-cram",
        low=0,
    )
    cache_disk: Path | None = option(
        None, "a folder that keeps what was evaluated in files, so that a restarted server finds it (default: no files)"
    )
    cache_disk_size: int = option(
        8192,
        "how many MiB --cache-disk may hold; when it is full, the files that weren't used for longest are removed",
        low=1,
    )
    mmap: bool = option(
        True, "map the model's file into memory; --no-mmap reads all of it at the start, which takes longer"
    )
    mlock: bool = option(False, "lock the weights in memory, so that the system can't swap them out")
    n_gpu_layers: int = option(
        -1,
        "how many layers of the model the GPU holds, if llama.cpp was built for one; auto: as many as fit, "
        "all: all of them",
        short="-ngl",
        low=0,
        words={"auto": -1, "all": -2},
    )
    device: str | None = option(
        None,
        "which devices hold the layers on the GPU, with commas between; none: only the processor (default: "
        "all devices)",
        short="-dev",
    )
    split_mode: str = option(
        "layer",
        "how several GPUs share the model. none: one GPU has all. layer: each has some of the layers. row: "
        "each has a part of every weight. tensor: as row, and a part of the cache, too",
        short="-sm",
        choices=("none", "layer", "row", "tensor"),
    )
    tensor_split: str | None = option(
        None, "how much of the model each GPU gets, for example 3,1 (default: by their free memory)", short="-ts"
    )
    main_gpu: int = option(
        0,
        "the number of the GPU that has the whole model with --split-mode none, or the results between layers with row",
        short="-mg",
        low=0,
    )
    kv_offload: bool = option(
        True, "the cells of layers on the GPU are in the GPU's memory; --no-kv-offload keeps them in the machine's"
    )
    override_tensor: str | None = option(
        None,
        "which memory holds which tensors: PATTERN=BUFFER, several with commas between, for example exps=CPU; "
        "PATTERN is a regular expression for the tensors' names",
        short="-ot",
    )
    cpu_moe: bool = option(
        False,
        "keep the expert weights of a mixture-of-experts model in the machine's memory, not on the GPU",
        short="-cmoe",
    )
    n_cpu_moe: int = option(0, "the same as --cpu-moe, but only for the first N layers", short="-ncmoe", low=0)


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """How much is computed at once, with how many threads, and by how many engines."""

    parallel: int = option(
        32,
        "how many alternatives get a token in one step, counted over all requests; these divide the rows fairly",
        short="-np",
        low=1,
        high=255,
    )
    batch_size: int = option(512, "how many prompt tokens are evaluated in one step", short="-b", low=1)
    ubatch_size: int = option(512, "how many tokens are computed at once", short="-ub", low=1)
    draft_max: int = option(
        16,
        "how many tokens of an alternative are guessed at most, and evaluated before they are drawn, where that saves "
        "time; 0: none, so that every token is evaluated in a row of its own",
        low=0,
        high=64,
        aliases=("spec_draft_n_max",),
    )
    model_draft: Path | None = option(
        None,
        "the GGUF file of a small model with the same vocabulary, which guesses tokens, too, while at most 4 "
        "alternatives run and it saves time",
        short="-md",
        aliases=("spec_draft_model",),
    )
    threads: int | None = option(
        None,
        "how many threads compute a step that has one row (default: what srb tune chose, or the physical cores)",
        short="-t",
        low=1,
    )
    threads_batch: int | None = option(
        None,
        "how many threads compute all other steps (default: --threads, or what srb tune chose)",
        short="-tb",
        low=1,
    )
    numa: str | None = option(
        None,
        "for machines with several NUMA nodes. distribute: use all nodes. isolate: use the node that srb was "
        "started on. numactl: use what the program numactl set",
        choices=("distribute", "isolate", "numactl"),
    )
    flash_attn: str = option(
        "auto",
        "flash attention; auto takes what is faster for each request",
        short="-fa",
        choices=("on", "off", "auto"),
    )
    reproducible: bool = option(
        False,
        "give the same request the same bytes, whatever else runs: each alternative then has cells of its own, "
        "--ctx-size divided by --parallel, and prompts are evaluated in blocks of 64 tokens without flash attention",
    )
    weights: str | None = option(
        None,
        "convert the weights to this format, once, and evaluate them in it; file: leave them as they are in "
        "the file (default: what srb tune chose, or file)",
        choices=WEIGHTS,
    )
    tune: bool = option(True, "use what srb tune chose; --no-tune takes the file as it is, with llama.cpp's defaults")
    replicas: str | None = option(
        None,
        "how many engines share the work, through Ray: a number, or a range such as 1-4, in which the number "
        "follows the work",
    )
    ray_address: str | None = option(
        None, "HOST:PORT of the Ray cluster that runs the engines, or auto (default: a cluster on this machine alone)"
    )
    replica_cpus: int | None = option(
        None,
        "how many CPUs each engine gets (default: --threads, or the cores of this machine, divided among the "
        "engines if all of them are here)",
        low=1,
    )
    replica_gpus: int = option(0, "how many GPUs each engine gets", low=0)
