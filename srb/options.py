"""What every option is called, and what it means, in the groups that `--help` shows.

`srb.settings.Settings` has them all, checks them, and reads them.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEIGHTS = ("file", "f16", "bf16", "q8_0")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
POOLING_TYPES = ("none", "mean", "cls", "last")
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_SECONDS = 365 * 86_400


def _option(
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
    """An option.

    above: it must be more than that. words: what stands for some of its numbers. aliases: llama-server's other names.
    many: the flag may come several times, and its values are joined with commas.
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
    """What is run, and how texts become its prompts."""

    model: Path | None = _option(None, "GGUF file to run (default: the embedded SmolLM2-135M-Instruct)", short="-m")
    hf_repo: str | None = _option(None, "Hugging Face repository to fetch the model from: OWNER/NAME", short="-hf")
    hf_file: str | None = _option(None, "GGUF file in --hf-repo; may be left out where there is one", short="-hff")
    model_url: str | None = _option(None, "URL to fetch the model from", short="-mu")
    models_dir: Path | None = _option(
        None, "folder with GGUF files that --model may name by the beginning of their names"
    )
    alias: str | None = _option(None, "name of the model in replies (default: its file name)", short="-a")
    chat_template: str | None = _option(
        None,
        "how chats are written: chatml, gemma, llama3, vicuna, zephyr, plain, a template in Jinja, or none to refuse "
        "them (default: the model's, or plain)",
    )
    chat_template_file: Path | None = _option(None, "file with such a template in Jinja")
    jinja: bool = _option(True, "accepted for llama-server's sake: templates are always evaluated as Jinja")
    embeddings: bool = _option(
        False, "POST /v1/embeddings and /embedding, with a second context of --ubatch-size cells"
    )
    pooling: str | None = _option(
        None, "how the embeddings of tokens become one of a text (default: the model's)", choices=POOLING_TYPES
    )
    reranking: bool = _option(
        False,
        "POST /rerank, in place of embeddings, for a model that ranks, as Qwen3-Reranker does",
        aliases=("rerank",),
    )
    override_kv: str | None = _option(
        None, "metadata of the model to change: KEY=TYPE:VALUE, with commas between; TYPE is int, float, bool or str"
    )
    lora: str | None = _option(
        None, "adapters to load with the model, FILE or FILE:SCALE; given several times, or with commas", many=True
    )
    control_vector: str | None = _option(
        None,
        "directions to add to what the layers put out, FILE or FILE:SCALE; given several times, or with commas: "
        "their sum",
        many=True,
    )
    rope_scaling: str | None = _option(
        None, "how positions are scaled (default: the model's)", choices=("none", "linear", "yarn")
    )
    rope_scale: float | None = _option(
        None, "the context becomes so many times as long; the inverse of --rope-freq-scale", above=0
    )
    rope_freq_base: float | None = _option(None, "base frequency of RoPE (default: the model's)", above=0)
    rope_freq_scale: float | None = _option(
        None, "factor of RoPE's frequencies: the context becomes 1/N times as long (default: the model's)", above=0
    )
    yarn_orig_ctx: int | None = _option(
        None, "YaRN: the context that the model was trained for (default: the model's)", low=0
    )
    yarn_ext_factor: float | None = _option(
        None, "YaRN: share of extrapolation; 0: interpolation alone (default: the model's)"
    )
    yarn_attn_factor: float | None = _option(None, "YaRN: factor of attention's magnitude (default: the model's)")
    yarn_beta_slow: float | None = _option(None, "YaRN: high correction dimension, alpha (default: the model's)")
    yarn_beta_fast: float | None = _option(None, "YaRN: low correction dimension, beta (default: the model's)")


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """What is kept, and where."""

    ctx_size: int = _option(
        8192,
        "KV cells, shared by all alternatives; 0: what the model was trained for; auto: as many of these as fit",
        short="-c",
        low=0,
        words={"auto": -1},
    )
    fit: str = _option(
        "on", "whether a model that doesn't fit into what is free is refused before it's loaded", choices=("on", "off")
    )
    cache_type_k: str | None = _option(
        None, "type of the cached keys (default: what srb tune chose, or f16)", short="-ctk", choices=CACHE_TYPES
    )
    cache_type_v: str | None = _option(
        None, "type of the cached values (default: what srb tune chose, or f16)", short="-ctv", choices=CACHE_TYPES
    )
    swa_full: bool = _option(
        True, "keep all of a sliding window's cells; --no-swa-full takes less memory, and evaluates more again"
    )
    cache_ram: int = _option(
        1024, "MiB of memory for what finished requests have evaluated; 0: none", short="-cram", low=0
    )
    cache_disk: Path | None = _option(
        None, "folder for what was evaluated, so that it outlives the server; off without"
    )
    cache_disk_size: int = _option(8192, "MiB that --cache-disk may hold; the least recently used are removed", low=1)
    mmap: bool = _option(True, "map the file into memory; --no-mmap reads it, which takes longer to start")
    mlock: bool = _option(False, "keep the weights in memory: the system may not swap them out")
    n_gpu_layers: int = _option(
        -1,
        "layers kept on the GPU, where llama.cpp was built for one; auto: as many as fit, all: all",
        short="-ngl",
        low=0,
        words={"auto": -1, "all": -2},
    )
    device: str | None = _option(
        None, "devices for the layers on the GPU, with commas between; none: none (default: all)", short="-dev"
    )
    split_mode: str = _option(
        "layer",
        "how several GPUs share the model: none uses one, layer gives each its layers, row parts the weights, tensor "
        "these and the cache",
        short="-sm",
        choices=("none", "layer", "row", "tensor"),
    )
    tensor_split: str | None = _option(
        None, "shares of the model for each GPU, as in 3,1 (default: by their free memory)", short="-ts"
    )
    main_gpu: int = _option(
        0,
        "number of the GPU that has the model with --split-mode none, or what is between with row",
        short="-mg",
        low=0,
    )
    kv_offload: bool = _option(True, "keep the cells of layers on the GPU there, too")
    override_tensor: str | None = _option(
        None,
        "where to keep tensors: PATTERN=BUFFER, with commas between, as in exps=CPU; PATTERN is a regular expression",
        short="-ot",
    )
    cpu_moe: bool = _option(False, "keep the weights of a mixture's experts off the GPU", short="-cmoe")
    n_cpu_moe: int = _option(0, "the same for the first N layers alone", short="-ncmoe", low=0)


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """How much is computed at once, and by whom."""

    parallel: int = _option(
        32, "alternatives that run at the same time, of all requests; others wait", short="-np", low=1, high=255
    )
    batch_size: int = _option(512, "prompt tokens evaluated in one step", short="-b", low=1)
    ubatch_size: int = _option(512, "tokens computed at once", short="-ub", low=1)
    prefill_chunk: int = _option(
        0,
        "prompt tokens evaluated after each token of running alternatives; 0: as many as fit into a pause of 0.3 s",
        low=0,
    )
    threads: int | None = _option(
        None, "threads for a step of one row (default: what srb tune chose, or the physical cores)", short="-t", low=1
    )
    threads_batch: int | None = _option(
        None, "threads for all other steps (default: --threads, or what srb tune chose)", short="-tb", low=1
    )
    numa: str | None = _option(
        None,
        "for several NUMA nodes: distribute uses all, isolate that of the start, numactl what numactl says",
        choices=("distribute", "isolate", "numactl"),
    )
    flash_attn: str = _option(
        "auto", "flash attention; auto: what is faster for the request", short="-fa", choices=("on", "off", "auto")
    )
    weights: str | None = _option(
        None,
        "format to evaluate the weights in, converted once and kept; file: as they are there (default: what srb tune "
        "chose, or file)",
        choices=WEIGHTS,
    )
    tune: bool = _option(True, "use what srb tune chose; --no-tune: the file as it is, with llama.cpp's defaults")
    replicas: str | None = _option(
        None, "engines that share the work, by Ray: a number, or from-to for as many as there is work for, as in 1-4"
    )
    ray_address: str | None = _option(
        None, "HOST:PORT of a Ray cluster to run them on, or auto (default: one of this machine alone)"
    )
    replica_cpus: int | None = _option(
        None, "CPUs of each of them (default: --threads, or this machine's cores, divided where all are here)", low=1
    )
    replica_gpus: int = _option(0, "GPUs of each of them", low=0)


@dataclass(frozen=True, kw_only=True)
class RequestsOptions:
    """What they get if they don't say, how long they may wait and how long they can be read."""

    n: int = _option(8, "alternatives of a request that doesn't say how many", short="-n", low=1)
    max_n: int = _option(32, "most alternatives that one request may have", low=1, high=1024)
    max_tokens: int | None = _option(
        None,
        "tokens per alternative of a request that doesn't say; -1: all there is room for "
        "(default: 128, and -1 in chats and on llama-server's routes)",
        low=-1,
        aliases=("n_predict", "predict"),
    )
    keep: int = _option(
        0, "accepted for llama-server's sake: the context isn't shifted, so all of a prompt is kept", low=-1
    )
    default_format: str = _option(
        "events",
        "what /v1 answers to a request with neither stream nor model: native events, or OpenAI's object",
        choices=("events", "openai"),
    )
    preload: Path | None = _option(
        None, "file with a prompt to evaluate before the first request, kept for prompts that begin with it"
    )
    sleep_idle_seconds: int = _option(
        -1,
        "seconds without a request after which the model is freed, until the next request; -1: never",
        low=1,
        words={"never": -1},
    )
    max_queue: int = _option(128, "requests that may wait; further ones are answered with 429", low=1)
    queue_timeout: int = _option(0, "seconds that a request may wait; 0: any number", low=0, high=MAX_SECONDS)
    request_timeout: int = _option(
        0, "seconds that a request may take, waiting included; 0: any number", low=0, high=MAX_SECONDS
    )
    linger: int = _option(
        5, "seconds that a native stream without readers goes on, for them to come back", low=0, high=MAX_SECONDS
    )
    keep_finished: int = _option(
        900, "seconds that finished requests can still be read; 0: not at all", low=0, high=MAX_SECONDS
    )
    keep_bytes: int = _option(256 << 20, "bytes of memory for finished requests", low=0)
    history: Path | None = _option(
        None, "SQLite file that keeps every request and its texts, and the page's stories (default: nothing is kept)"
    )
    resume: bool = _option(
        True, "with --history, go on with the detached requests that the last server left unfinished"
    )
    slot_save_path: Path | None = _option(
        None, "folder for the files of POST /slots/{id_slot}?action=save and restore; without it they are refused"
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Where the server is."""

    url: str | None = _option(None, "server to ask, instead of running the model here")
    host: str = _option(
        "127.0.0.1", "address to listen on; several with commas between, or given several times", many=True
    )
    port: int = _option(9090, "port to listen on; 0 takes a free one", low=0, high=65535)
    uds: Path | None = _option(None, "Unix socket to listen on, instead of --host and --port")
    ssl_cert_file: Path | None = _option(None, "PEM file with the certificate, for HTTPS")
    ready_fd: int | None = _option(
        None, "file descriptor that gets the server's address and a newline when it is ready", low=1
    )
    ssl_key_file: Path | None = _option(None, "PEM file with the certificate's private key")


@dataclass(frozen=True, kw_only=True)
class SafetyOptions:
    """Who may use it, what is shown, and what happens when it fails."""

    api_key: str | None = _option(None, "key that requests must have; several with commas between", secret=True)
    api_key_file: Path | None = _option(None, "file with one such key on each line")
    cors_origins: str = _option(
        "localhost", "origins whose web pages may use the server, with commas between; *: all, localhost: on any port"
    )
    allowed_hosts: str | None = _option(
        None,
        "host names to answer under, beside localhost and IP addresses, with commas between; *: all (default: on "
        "loopback addresses this machine's own name, elsewhere all)",
    )
    show_prompts: bool = _option(False, "show the prompts' texts in GET /v1/requests")
    slots: bool = _option(True, "GET /slots, which shows the settings of running requests")
    log_level: str = _option("info", "least severe messages to log", choices=LOG_LEVELS)
    exit_on_fatal: bool = _option(False, "end the process when the engine fails, for a supervisor to restart it")
