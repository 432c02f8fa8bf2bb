"""Declares all options, in the groups that `--help` shows. `settings.Settings` combines, checks and reads them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
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
    words: Mapping[str, int] = MappingProxyType({}),
    aliases: tuple[str, ...] = (),
    many: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field of a dataclass that is an option.

    The range includes `low` and `high`, but not `above`. `words` are names of numbers, which may be out of range.
    `aliases` are other servers' names. The values of an option that may be given `many` times are joined with commas. A
    `secret` value is in no message.
    """
    metadata: dict[str, Any] = {
        "help": text,
        "short": short,
        "low": low,
        "high": high,
        "above": above,
        "choices": choices,
    }
    metadata |= {"words": words, "aliases": aliases, "many": many, "secret": secret}
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model to run, and how texts and chats become prompts."""

    model: Path | None = option(
        None, "the GGUF file to run (default: SmolLM2-135M-Instruct, which is installed with srb)", short="-m"
    )
    hf_repo: str | None = option(None, "download the model from this Hugging Face repository: OWNER/NAME", short="-hf")
    hf_file: str | None = option(
        None, "the GGUF file in --hf-repo to download; not needed if the repository has only one", short="-hff"
    )
    model_url: str | None = option(None, "download the model from this URL", short="-mu")
    models_dir: Path | None = option(None, "a folder of GGUF files; --model can then be the start of a file name")
    alias: str | None = option(None, "the model's name in responses (default: its file name)", short="-a")
    chat_template: str | None = option(
        None,
        "the chat template: chatml, gemma, llama3, vicuna, zephyr, plain, a Jinja template, or none to refuse "
        "chats (default: the model's own, or plain if it has none)",
    )
    chat_template_file: Path | None = option(None, "a file with a Jinja chat template")
    jinja: bool = option(
        True, "no effect: srb always uses Jinja templates. Accepted because llama-server has this option"
    )
    embeddings: bool = option(
        False, "enable POST /v1/embeddings and /embedding; this takes a second context of --ubatch-size cells"
    )
    pooling: str | None = option(
        None, "how token vectors are combined into one embedding (default: set by the model)", choices=POOLING_TYPES
    )
    reranking: bool = option(
        False,
        "enable POST /rerank, for reranker models such as Qwen3-Reranker; cannot be combined with --embeddings",
        aliases=("rerank",),
    )
    override_kv: str | None = option(
        None, "override model metadata: KEY=TYPE:VALUE, comma-separated; TYPE is int, float, bool or str"
    )
    lora: str | None = option(
        None, "load a LoRA adapter: FILE or FILE:SCALE. Repeat the option, or separate with commas", many=True
    )
    control_vector: str | None = option(
        None,
        "add a control vector to the layers' outputs: FILE or FILE:SCALE. Repeat the option, or separate with "
        "commas, to add the sum of several",
        many=True,
    )
    mmproj: Path | None = option(
        None, "the GGUF file of the model's multimodal projector, for image or audio input", short="-mm"
    )
    image_min_tokens: int | None = option(
        None, "minimum cells per image, for models with dynamic resolution (default: set by the projector)", low=1
    )
    image_max_tokens: int | None = option(
        None, "maximum cells per image, for models with dynamic resolution (default: set by the projector)", low=1
    )
    rope_scaling: str | None = option(
        None, "RoPE scaling method for longer contexts (default: set by the model)", choices=("none", "linear", "yarn")
    )
    rope_scale: float | None = option(
        None,
        "RoPE scale: multiplies the context length. The inverse of --rope-freq-scale; give only one of them",
        above=0,
    )
    rope_freq_base: float | None = option(None, "RoPE base frequency (default: set by the model)", above=0)
    rope_freq_scale: float | None = option(
        None, "RoPE frequency factor: N scales the context by 1/N (default: set by the model)", above=0
    )
    yarn_orig_ctx: int | None = option(
        None, "YaRN: the context size the model was trained with (default: set by the model)", low=0
    )
    yarn_ext_factor: float | None = option(
        None, "YaRN: extrapolation mix factor; 0 is pure interpolation (default: set by the model)"
    )
    yarn_attn_factor: float | None = option(None, "YaRN: attention magnitude factor (default: set by the model)")
    yarn_beta_slow: float | None = option(None, "YaRN: high correction dimension, alpha (default: set by the model)")
    yarn_beta_fast: float | None = option(None, "YaRN: low correction dimension, beta (default: set by the model)")


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """Context size, KV cache and prefix cache, and where the model is held."""

    ctx_size: int = option(
        8192,
        "maximum context of one request, in tokens: the prompt plus one alternative. 0: the model's trained "
        "context. auto: the same, or less if memory is short",
        short="-c",
        low=0,
        words={"auto": -1},
    )
    fit: str = option(
        "on", "on: refuse to load a model that doesn't fit into free memory. off: load it anyway", choices=("on", "off")
    )
    cache_type_k: str | None = option(
        None,
        "data type of the KV cache's keys (default: the srb tune result, or f16)",
        short="-ctk",
        choices=CACHE_TYPES,
    )
    cache_type_v: str | None = option(
        None,
        "data type of the KV cache's values (default: the srb tune result, or f16)",
        short="-ctv",
        choices=CACHE_TYPES,
    )
    kv_layout: str = option(
        "auto",
        "unified: all sequences share one pool of KV cells, and a fork is free. streams: each sequence has its "
        "own cells and attends only to them. auto: whichever is faster for the current requests",
        choices=("auto", "unified", "streams"),
    )
    swa_full: bool = option(
        True,
        "for sliding-window models: keep the cells of all tokens; --no-swa-full uses less memory, but recomputes "
        "more tokens",
    )
    cache_ram: int = option(
        1024,
        "memory in MiB for the prefix cache and for preempted alternatives; 0: off, both are recomputed",
        short="-cram",
        low=0,
    )
    cache_disk: Path | None = option(
        None, "a folder for the disk tier of the prefix cache, which survives restarts (default: off)"
    )
    cache_disk_size: int = option(
        8192, "maximum size of --cache-disk in MiB; the least recently used files are removed first", low=1
    )
    mmap: bool = option(True, "memory-map the model file; --no-mmap reads all of it at the start, which takes longer")
    mlock: bool = option(False, "lock the weights in memory, so that the system can't swap them out")
    n_gpu_layers: int = option(
        -1,
        "number of layers to offload to the GPU, if llama.cpp was built for one. auto: as many as fit. all: all layers",
        short="-ngl",
        low=0,
        words={"auto": -1, "all": -2},
    )
    device: str | None = option(
        None, "comma-separated list of devices to offload to; none: CPU only (default: all devices)", short="-dev"
    )
    split_mode: str = option(
        "layer",
        "how to split the model across GPUs. none: use one GPU. layer: split by layers. row: split every weight. "
        "tensor: as row, and split the KV cache, too",
        short="-sm",
        choices=("none", "layer", "row", "tensor"),
    )
    tensor_split: str | None = option(
        None, "share of the model for each GPU, such as 3,1 (default: by free memory)", short="-ts"
    )
    main_gpu: int = option(
        0,
        "the GPU that holds the whole model with --split-mode none, or intermediate results with row",
        short="-mg",
        low=0,
    )
    kv_offload: bool = option(
        True, "keep the KV cells of offloaded layers in GPU memory; --no-kv-offload keeps them in system memory"
    )
    override_tensor: str | None = option(
        None,
        "override the memory of matching tensors: PATTERN=BUFFER, comma-separated, such as exps=CPU; PATTERN is a "
        "regular expression",
        short="-ot",
    )
    cpu_moe: bool = option(False, "keep mixture-of-experts weights in system memory", short="-cmoe")
    n_cpu_moe: int = option(
        0, "keep the mixture-of-experts weights of the first N layers in system memory", short="-ncmoe", low=0
    )


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """Batch sizes, threads, speculative decoding and replicas."""

    parallel: int = option(
        32,
        "maximum number of alternatives decoded in one step, over all requests, which share these rows fairly",
        short="-np",
        low=1,
        high=255,
    )
    batch_size: int = option(512, "maximum number of prompt tokens evaluated in one step", short="-b", low=1)
    ubatch_size: int = option(
        512, "maximum number of tokens computed at once (llama.cpp's physical batch size)", short="-ub", low=1
    )
    draft_max: int = option(
        16,
        "speculative decoding: maximum number of draft tokens for an alternative; 0: off",
        low=0,
        high=64,
        aliases=("spec_draft_n_max",),
    )
    model_draft: Path | None = option(
        None,
        "speculative decoding: the GGUF file of a small draft model with the same vocabulary, used while at most "
        "4 alternatives run and it saves time",
        short="-md",
        aliases=("spec_draft_model",),
    )
    threads: int | None = option(
        None,
        "number of threads for steps with a single row (default: the srb tune result, or the physical cores)",
        short="-t",
        low=1,
    )
    threads_batch: int | None = option(
        None, "number of threads for all other steps (default: --threads, or the srb tune result)", short="-tb", low=1
    )
    numa: str | None = option(
        None,
        "NUMA strategy. distribute: use all nodes. isolate: use the node srb was started on. numactl: use the CPU "
        "map from numactl",
        choices=("distribute", "isolate", "numactl"),
    )
    flash_attn: str = option(
        "auto",
        "use flash attention; auto: whichever is faster for each request",
        short="-fa",
        choices=("on", "off", "auto"),
    )
    reproducible: bool = option(
        False,
        "return the same bytes for the same request, under any load. Each alternative gets its own cells "
        "(--ctx-size divided by --parallel), and prompts are evaluated in blocks of 64 tokens without flash "
        "attention",
    )
    weights: str | None = option(
        None,
        "convert the weights to this format once, and use the result. file: use the model file as it is (default: "
        "the srb tune result, or file)",
        choices=WEIGHTS,
    )
    tune: bool = option(
        True, "use the srb tune result; --no-tune uses the model file as it is, with llama.cpp's defaults"
    )
    replicas: str | None = option(
        None, "number of engine replicas to run with Ray, or a range such as 1-4 to scale with the load"
    )
    ray_address: str | None = option(
        None, "HOST:PORT of the Ray cluster to run engines on, or auto (default: a local cluster)"
    )
    replica_cpus: int | None = option(
        None,
        "CPUs for each replica (default: --threads, or this machine's cores, divided among replicas that run here)",
        low=1,
    )
    replica_gpus: int = option(0, "GPUs for each replica", low=0)


LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_SECONDS = 365 * 86_400


@dataclass(frozen=True, kw_only=True)
class RequestsOptions:
    """Defaults and limits of requests, and how long their results are available."""

    n: int = option(8, "default number of alternatives per request", short="-n", low=1)
    max_n: int = option(32, "maximum number of alternatives per request", low=1, high=1024)
    max_tokens: int | None = option(
        None,
        "default maximum length of an alternative, in tokens; -1: until the context is full (default: 128, in "
        "chats 1024, and -1 on llama-server's routes)",
        low=-1,
        aliases=("n_predict", "predict"),
    )
    context_shift: bool = option(
        False, "shift the context by default: drop tokens from the middle when a prompt or text outgrows it"
    )
    keep: int = option(
        0, "with --context-shift: default number of prompt tokens to keep at the start, besides BOS; -1: all", low=-1
    )
    ahead: int = option(
        0, "default number of alternatives to prefetch after a request, while the server is idle", low=0
    )
    default_format: str = option(
        "events",
        "response format of /v1 for requests that set neither stream nor model. events: a stream of native "
        "events. openai: OpenAI's JSON object",
        choices=("events", "openai"),
    )
    preload: Path | None = option(
        None, "a text file to evaluate before the first request; requests that start with this text respond sooner"
    )
    sleep_idle_seconds: int = option(
        -1,
        "unload the model after this many seconds without a request; the next request loads it again. -1: never",
        low=1,
        words={"never": -1},
    )
    max_queue: int = option(128, "maximum number of waiting requests; further ones get status 429", low=1)
    queue_timeout: int = option(0, "maximum time a request may wait, in seconds; 0: no limit", low=0, high=MAX_SECONDS)
    request_timeout: int = option(
        0, "maximum time for a request, including its wait, in seconds; 0: no limit", low=0, high=MAX_SECONDS
    )
    linger: int = option(
        5,
        "how long a native stream continues after its last reader disconnects, in seconds, so that the reader can "
        "resume it",
        low=0,
        high=MAX_SECONDS,
    )
    keep_finished: int = option(
        900, "how long a finished request can be read again, in seconds; 0: not at all", low=0, high=MAX_SECONDS
    )
    history: Path | None = option(
        None, "an SQLite file that stores all requests, their texts, and the stories written on the page (default: off)"
    )
    resume: bool = option(True, "with --history: resume detached requests that the previous server left unfinished")
    slot_save_path: Path | None = option(
        None, "a folder for POST /slots/{id_slot}?action=save and restore; both are refused without this option"
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Addresses, TLS and connection limits."""

    url: str | None = option(None, "send requests to the server at this URL instead of running a model")
    host: str = option(
        "127.0.0.1", "address to listen on. Repeat the option, or separate with commas, for several", many=True
    )
    port: int = option(9090, "port to listen on; 0: any free port", low=0, high=65535)
    uds: Path | None = option(None, "listen on this Unix socket instead of --host and --port")
    ssl_cert_file: Path | None = option(None, "PEM file with the TLS certificate; enables HTTPS")
    ready_fd: int | None = option(
        None, "file descriptor to write the server's address to, with a newline, when the server is ready", low=1
    )
    ssl_key_file: Path | None = option(None, "PEM file with the certificate's private key")
    max_connections: int | None = option(
        None,
        "maximum number of open connections; at the limit, a new one replaces an idle one (default: derived from "
        "the limit of open files, at most 4096)",
        low=1,
    )
    max_connections_per_address: int | None = option(
        None,
        "maximum number of open connections per client address, except from this machine (default: half of "
        "--max-connections)",
        low=1,
    )
    receive_timeout: int = option(
        30, "timeout for a request's headers, and for progress of its body, in seconds", low=1, high=MAX_SECONDS
    )


@dataclass(frozen=True, kw_only=True)
class SafetyOptions:
    """Access, logging, and what to do when the engine fails."""

    api_key: str | None = option(None, "API key that every request must send; comma-separated for several", secret=True)
    api_key_file: Path | None = option(None, "file of API keys, one on each line")
    share_prompts: str = option(
        "key",
        "who shares the prefix cache. key: requests with the same API key. all: all requests; any client can then "
        "find out, token by token, what others have sent",
        choices=("key", "all"),
    )
    cors_origins: str = option(
        "localhost",
        "comma-separated origins whose pages may use the server. localhost: pages on this machine, on any port. *: all",
    )
    allowed_hosts: str | None = option(
        None,
        "comma-separated host names to accept, besides localhost and IP addresses. *: all (default: this "
        "machine's own name when listening on a loopback address, otherwise all)",
    )
    allow_remote_media: bool = option(
        False, "download images and audio that requests reference by URL, from public addresses only"
    )
    show_prompts: bool = option(False, "include prompt texts in GET /v1/requests")
    slots: bool = option(True, "enable GET /slots, which shows the settings of running requests")
    log_level: str = option("info", "minimum level of log messages", choices=LOG_LEVELS)
    exit_on_fatal: bool = option(
        False, "end the process if the engine fails six times without progress, so that a supervisor can restart it"
    )
