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
    """Which model runs, and how texts and chats become its prompts."""

    model: Path | None = _option(
        None, "the GGUF file to run (default: the small SmolLM2-135M-Instruct that is installed with srb)", short="-m"
    )
    hf_repo: str | None = _option(
        None, "download the model from this Hugging Face repository, written OWNER/NAME", short="-hf"
    )
    hf_file: str | None = _option(
        None, "which GGUF file of --hf-repo to download; not needed if the repository has only one", short="-hff"
    )
    model_url: str | None = _option(None, "download the model from this URL", short="-mu")
    models_dir: Path | None = _option(
        None, "a folder with GGUF files; --model may then be the beginning of a file's name"
    )
    alias: str | None = _option(None, "the name of the model in replies (default: its file name)", short="-a")
    chat_template: str | None = _option(
        None,
        "how a chat becomes a prompt: chatml, gemma, llama3, vicuna, zephyr, plain, a template in Jinja, or "
        "none to refuse chats (default: the model's own template, or plain if it has none)",
    )
    chat_template_file: Path | None = _option(None, "a file with a chat template in Jinja")
    jinja: bool = _option(
        True, "has no effect, because srb always reads templates as Jinja; llama-server has this option"
    )
    embeddings: bool = _option(
        False, "also answer POST /v1/embeddings and /embedding; this takes a second context of --ubatch-size cells"
    )
    pooling: str | None = _option(
        None,
        "how the vectors of a text's tokens become one vector, for embeddings (default: as the model says)",
        choices=POOLING_TYPES,
    )
    reranking: bool = _option(
        False,
        "also answer POST /rerank; for a model that ranks documents, such as Qwen3-Reranker. Not together "
        "with --embeddings",
        aliases=("rerank",),
    )
    override_kv: str | None = _option(
        None,
        "change metadata of the model: KEY=TYPE:VALUE, several with commas between; TYPE is int, float, bool or str",
    )
    lora: str | None = _option(
        None,
        "load this adapter with the model: FILE or FILE:SCALE. For several, repeat the option or write commas between",
        many=True,
    )
    control_vector: str | None = _option(
        None,
        "add this control vector to what the layers put out: FILE or FILE:SCALE. For several, repeat the "
        "option or write commas between; they are summed",
        many=True,
    )
    mmproj: Path | None = _option(
        None, "GGUF file with the model's projector, with which it takes images or sound", short="-mm"
    )
    rope_scaling: str | None = _option(
        None,
        "how positions are scaled for a longer context (default: as the model says)",
        choices=("none", "linear", "yarn"),
    )
    rope_scale: float | None = _option(
        None,
        "make the context this many times as long; --rope-freq-scale is the inverse, so give only one of the two",
        above=0,
    )
    rope_freq_base: float | None = _option(None, "the base frequency of RoPE (default: the model's)", above=0)
    rope_freq_scale: float | None = _option(
        None, "the factor of RoPE's frequencies; N makes the context 1/N times as long (default: the model's)", above=0
    )
    yarn_orig_ctx: int | None = _option(
        None, "for YaRN: the context size that the model was trained for (default: the model's)", low=0
    )
    yarn_ext_factor: float | None = _option(
        None, "for YaRN: how much is extrapolated; 0 only interpolates (default: the model's)"
    )
    yarn_attn_factor: float | None = _option(
        None, "for YaRN: a factor for the size of attention (default: the model's)"
    )
    yarn_beta_slow: float | None = _option(
        None, "for YaRN: the high correction dimension, alpha (default: the model's)"
    )
    yarn_beta_fast: float | None = _option(None, "for YaRN: the low correction dimension, beta (default: the model's)")


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """How much is kept in memory and on disk, and where the model is."""

    ctx_size: int = _option(
        8192,
        "room for tokens, in KV cells, for all requests together: a request needs its prompt's tokens + n x "
        "max_tokens. 0: as many as the model was trained for. auto: the same, or less if memory is short",
        short="-c",
        low=0,
        words={"auto": -1},
    )
    fit: str = _option(
        "on",
        "on: a model that doesn't fit into the free memory is refused before it is loaded. off: it is loaded anyway",
        choices=("on", "off"),
    )
    cache_type_k: str | None = _option(
        None, "the type of the cached keys (default: what srb tune chose, or f16)", short="-ctk", choices=CACHE_TYPES
    )
    cache_type_v: str | None = _option(
        None, "the type of the cached values (default: what srb tune chose, or f16)", short="-ctv", choices=CACHE_TYPES
    )
    swa_full: bool = _option(
        True,
        "for models with a sliding window: keep the cells of all tokens; --no-swa-full needs less memory, but "
        "evaluates more tokens again",
    )
    cache_ram: int = _option(
        1024,
        "MiB of memory that keep what was evaluated for finished requests, so that it isn't evaluated again; "
        "0 keeps nothing",
        short="-cram",
        low=0,
    )
    cache_disk: Path | None = _option(
        None, "a folder that keeps what was evaluated in files, so that a restarted server finds it (default: no files)"
    )
    cache_disk_size: int = _option(
        8192,
        "how many MiB --cache-disk may hold; when it is full, the files that weren't used for longest are removed",
        low=1,
    )
    mmap: bool = _option(
        True, "map the model's file into memory; --no-mmap reads all of it at the start, which takes longer"
    )
    mlock: bool = _option(False, "lock the weights in memory, so that the system can't swap them out")
    n_gpu_layers: int = _option(
        -1,
        "how many layers of the model the GPU holds, if llama.cpp was built for one; auto: as many as fit, "
        "all: all of them",
        short="-ngl",
        low=0,
        words={"auto": -1, "all": -2},
    )
    device: str | None = _option(
        None,
        "which devices hold the layers on the GPU, with commas between; none: only the processor (default: "
        "all devices)",
        short="-dev",
    )
    split_mode: str = _option(
        "layer",
        "how several GPUs share the model. none: one GPU has all. layer: each has some of the layers. row: "
        "each has a part of every weight. tensor: as row, and a part of the cache, too",
        short="-sm",
        choices=("none", "layer", "row", "tensor"),
    )
    tensor_split: str | None = _option(
        None, "how much of the model each GPU gets, for example 3,1 (default: by their free memory)", short="-ts"
    )
    main_gpu: int = _option(
        0,
        "the number of the GPU that has the whole model with --split-mode none, or the results between layers with row",
        short="-mg",
        low=0,
    )
    kv_offload: bool = _option(
        True, "the cells of layers on the GPU are in the GPU's memory; --no-kv-offload keeps them in the machine's"
    )
    override_tensor: str | None = _option(
        None,
        "which memory holds which tensors: PATTERN=BUFFER, several with commas between, for example exps=CPU; "
        "PATTERN is a regular expression for the tensors' names",
        short="-ot",
    )
    cpu_moe: bool = _option(
        False,
        "keep the expert weights of a mixture-of-experts model in the machine's memory, not on the GPU",
        short="-cmoe",
    )
    n_cpu_moe: int = _option(0, "the same as --cpu-moe, but only for the first N layers", short="-ncmoe", low=0)


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """How much is computed at once, with how many threads, and by how many engines."""

    parallel: int = _option(
        32,
        "how many alternatives may run at the same time, counted over all requests; more of them wait",
        short="-np",
        low=1,
        high=255,
    )
    batch_size: int = _option(512, "how many prompt tokens are evaluated in one step", short="-b", low=1)
    ubatch_size: int = _option(512, "how many tokens are computed at once", short="-ub", low=1)
    prefill_chunk: int = _option(
        0,
        "how many prompt tokens are evaluated after each token of the running alternatives; 0: as many as fit "
        "into a pause of 0.3 s",
        low=0,
    )
    threads: int | None = _option(
        None,
        "how many threads compute a step that has one row (default: what srb tune chose, or the physical cores)",
        short="-t",
        low=1,
    )
    threads_batch: int | None = _option(
        None,
        "how many threads compute all other steps (default: --threads, or what srb tune chose)",
        short="-tb",
        low=1,
    )
    numa: str | None = _option(
        None,
        "for machines with several NUMA nodes. distribute: use all nodes. isolate: use the node that srb was "
        "started on. numactl: use what the program numactl set",
        choices=("distribute", "isolate", "numactl"),
    )
    flash_attn: str = _option(
        "auto",
        "flash attention; auto takes what is faster for each request",
        short="-fa",
        choices=("on", "off", "auto"),
    )
    weights: str | None = _option(
        None,
        "convert the weights to this format, once, and evaluate them in it; file: leave them as they are in "
        "the file (default: what srb tune chose, or file)",
        choices=WEIGHTS,
    )
    tune: bool = _option(True, "use what srb tune chose; --no-tune takes the file as it is, with llama.cpp's defaults")
    replicas: str | None = _option(
        None,
        "how many engines share the work, through Ray: a number, or a range such as 1-4, in which the number "
        "follows the work",
    )
    ray_address: str | None = _option(
        None, "HOST:PORT of the Ray cluster that runs the engines, or auto (default: a cluster on this machine alone)"
    )
    replica_cpus: int | None = _option(
        None,
        "how many CPUs each engine gets (default: --threads, or the cores of this machine, divided among the "
        "engines if all of them are here)",
        low=1,
    )
    replica_gpus: int = _option(0, "how many GPUs each engine gets", low=0)


@dataclass(frozen=True, kw_only=True)
class RequestsOptions:
    """What a request gets if it doesn't say, how long it may wait, and how long it can be read."""

    n: int = _option(8, "how many alternatives a request gets if it doesn't say", short="-n", low=1)
    max_n: int = _option(32, "how many alternatives one request may ask for", low=1, high=1024)
    max_tokens: int | None = _option(
        None,
        "how many tokens each alternative may have if the request doesn't say; -1: as many as there is room "
        "for (default: 128, but -1 in chats and on llama-server's routes)",
        low=-1,
        aliases=("n_predict", "predict"),
    )
    context_shift: bool = _option(
        False, "prompts and texts that are longer than the context go on without a part, where requests don't say"
    )
    keep: int = _option(
        0, "first tokens of a prompt that then stay, beside its BOS, where requests don't say; -1: all", low=-1
    )
    default_format: str = _option(
        "events",
        "how /v1 answers a request that has neither stream nor model: events is a stream of native events, "
        "openai is OpenAI's object",
        choices=("events", "openai"),
    )
    preload: Path | None = _option(
        None, "a file with a text to evaluate before the first request; requests that begin with this text start sooner"
    )
    sleep_idle_seconds: int = _option(
        -1,
        "free the model's memory after this many seconds without a request; the next request loads the model "
        "again. -1: never",
        low=1,
        words={"never": -1},
    )
    max_queue: int = _option(128, "how many requests may wait; the next one is answered with the status 429", low=1)
    queue_timeout: int = _option(
        0, "how many seconds a request may wait for its turn; 0: any time", low=0, high=MAX_SECONDS
    )
    request_timeout: int = _option(
        0, "how many seconds a request may take, with the time that it waits; 0: any time", low=0, high=MAX_SECONDS
    )
    linger: int = _option(
        5,
        "how many seconds a native stream goes on after its last reader left, so that the reader can come back",
        low=0,
        high=MAX_SECONDS,
    )
    keep_finished: int = _option(
        900, "how many seconds a finished request can still be read; 0: not at all", low=0, high=MAX_SECONDS
    )
    keep_bytes: int = _option(256 << 20, "how many bytes of memory finished requests may take", low=0)
    history: Path | None = _option(
        None,
        "an SQLite file that keeps every request, its texts, and the stories of the page (default: nothing is kept)",
    )
    resume: bool = _option(True, "with --history: go on with detached requests that the last server left unfinished")
    slot_save_path: Path | None = _option(
        None,
        "a folder for the files of POST /slots/{id_slot}?action=save and restore; without this option both are refused",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Where the server listens."""

    url: str | None = _option(None, "ask the server at this address, instead of running a model here")
    host: str = _option(
        "127.0.0.1", "the address to listen on. For several, repeat the option or write commas between", many=True
    )
    port: int = _option(9090, "the port to listen on; 0 takes a free one", low=0, high=65535)
    uds: Path | None = _option(None, "listen on this Unix socket, instead of --host and --port")
    ssl_cert_file: Path | None = _option(None, "a PEM file with the certificate; it makes the server use HTTPS")
    ready_fd: int | None = _option(
        None, "a file descriptor; when the server is ready, its address and a newline are written there", low=1
    )
    ssl_key_file: Path | None = _option(None, "a PEM file with the private key of the certificate")


@dataclass(frozen=True, kw_only=True)
class SafetyOptions:
    """Who may use the server, what it shows, and what happens when it fails."""

    api_key: str | None = _option(
        None, "a key that every request must send; several keys with commas between", secret=True
    )
    api_key_file: Path | None = _option(None, "a file with such keys, one on each line")
    cors_origins: str = _option(
        "localhost",
        "which origins' web pages may use the server, with commas between; localhost: pages of this machine, "
        "on any port; *: all pages",
    )
    allowed_hosts: str | None = _option(
        None,
        "the host names that requests may use, beside localhost and IP addresses, with commas between; *: all "
        "(default: this machine's own name where the server listens on a loopback address, and all names "
        "elsewhere)",
    )
    allow_remote_media: bool = _option(
        False, "fetch the images and sounds that requests name by a URL, from public addresses alone"
    )
    show_prompts: bool = _option(False, "show the texts of prompts in GET /v1/requests")
    slots: bool = _option(True, "answer GET /slots, which shows the settings of running requests")
    log_level: str = _option("info", "how severe a message must be to be logged", choices=LOG_LEVELS)
    exit_on_fatal: bool = _option(False, "end the process when the engine fails, so that a supervisor can restart it")
