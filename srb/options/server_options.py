"""Declares the options of the server, in the groups that `--help` shows."""

from dataclasses import dataclass
from pathlib import Path

from srb.options.engine_options import option

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
        False, "end the process if the engine fails three times within ten minutes, so that a supervisor can restart it"
    )
