"""The options of the server: what each is called, and what it means, in the groups that `--help` shows."""

from dataclasses import dataclass
from pathlib import Path

from srb.options.engine_options import option

LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_SECONDS = 365 * 86_400


@dataclass(frozen=True, kw_only=True)
class RequestsOptions:
    """What a request gets if it doesn't say, how long it may wait, and how long it can be read."""

    n: int = option(8, "how many alternatives a request gets if it doesn't say", short="-n", low=1)
    max_n: int = option(32, "how many alternatives one request may ask for", low=1, high=1024)
    max_tokens: int | None = option(
        None,
        "how many tokens each alternative may have if the request doesn't say; -1: until the context is "
        "full (default: 128, in chats 1024, and -1 on llama-server's routes)",
        low=-1,
        aliases=("n_predict", "predict"),
    )
    context_shift: bool = option(
        False,
        "prompts and texts that are longer than the context go on without a part of them, if the request doesn't say",
    )
    keep: int = option(
        0,
        "for --context-shift: how many of a prompt's first tokens stay, beside its BOS token, if the request doesn't "
        "say; -1: all",
        low=-1,
    )
    ahead: int = option(
        0,
        "how many further alternatives of a request are drawn when it has ended and nobody waits, if the request "
        "doesn't say",
        low=0,
    )
    default_format: str = option(
        "events",
        "how /v1 answers a request that has neither stream nor model: events is a stream of native events, "
        "openai is OpenAI's object",
        choices=("events", "openai"),
    )
    preload: Path | None = option(
        None, "a file with a text to evaluate before the first request; requests that begin with this text start sooner"
    )
    sleep_idle_seconds: int = option(
        -1,
        "free the model's memory after this many seconds without a request; the next request loads the model "
        "again. -1: never",
        low=1,
        words={"never": -1},
    )
    max_queue: int = option(128, "how many requests may wait; the next one is answered with the status 429", low=1)
    queue_timeout: int = option(
        0, "how many seconds a request may wait for its turn; 0: any time", low=0, high=MAX_SECONDS
    )
    request_timeout: int = option(
        0, "how many seconds a request may take, with the time that it waits; 0: any time", low=0, high=MAX_SECONDS
    )
    linger: int = option(
        5,
        "how many seconds a native stream goes on after its last reader left, so that the reader can come back",
        low=0,
        high=MAX_SECONDS,
    )
    keep_finished: int = option(
        900, "how many seconds a finished request can still be read; 0: not at all", low=0, high=MAX_SECONDS
    )
    history: Path | None = option(
        None,
        "an SQLite file that keeps every request, its texts, and the stories of the page (default: nothing is kept)",
    )
    resume: bool = option(True, "with --history: go on with detached requests that the last server left unfinished")
    slot_save_path: Path | None = option(
        None,
        "a folder for the files of POST /slots/{id_slot}?action=save and restore; without this option both are refused",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Where the server listens, and which connections it keeps open."""

    url: str | None = option(None, "ask the server at this address, instead of running a model here")
    host: str = option(
        "127.0.0.1", "the address to listen on. For several, repeat the option or write commas between", many=True
    )
    port: int = option(9090, "the port to listen on; 0 takes a free one", low=0, high=65535)
    uds: Path | None = option(None, "listen on this Unix socket, instead of --host and --port")
    ssl_cert_file: Path | None = option(None, "a PEM file with the certificate; it makes the server use HTTPS")
    ready_fd: int | None = option(
        None, "a file descriptor; when the server is ready, its address and a newline are written there", low=1
    )
    ssl_key_file: Path | None = option(None, "a PEM file with the private key of the certificate")
    max_connections: int | None = option(
        None,
        "how many connections may be open; for a new one, an idle one is closed (default: as many as the limit of open "
        "files leaves room for, at most 4096)",
        low=1,
    )
    max_connections_per_address: int | None = option(
        None,
        "how many connections one address may have open, this machine's own excepted (default: half of "
        "--max-connections)",
        low=1,
    )
    receive_timeout: int = option(
        30,
        "how many seconds the headers of a request may take, and how many seconds its body may make no progress",
        low=1,
        high=MAX_SECONDS,
    )


@dataclass(frozen=True, kw_only=True)
class SafetyOptions:
    """Who may use the server, what it shows, and what happens when it fails."""

    api_key: str | None = option(
        None, "a key that every request must send; several keys with commas between", secret=True
    )
    api_key_file: Path | None = option(None, "a file with such keys, one on each line")
    share_prompts: str = option(
        "key",
        "who begins with what was evaluated before. key: only requests with the same API key. all: all requests; then "
        "whoever has a key can find out, token by token, what others have sent",
        choices=("key", "all"),
    )
    cors_origins: str = option(
        "localhost",
        "which origins' web pages may use the server, with commas between; localhost: pages of this machine, "
        "on any port; *: all pages",
    )
    allowed_hosts: str | None = option(
        None,
        "the host names that requests may use, beside localhost and IP addresses, with commas between; *: all "
        "(default: this machine's own name where the server listens on a loopback address, and all names "
        "elsewhere)",
    )
    allow_remote_media: bool = option(
        False, "fetch the images and sounds that requests name by a URL, from public addresses alone"
    )
    show_prompts: bool = option(False, "show the texts of prompts in GET /v1/requests")
    slots: bool = option(True, "answer GET /slots, which shows the settings of running requests")
    log_level: str = option("info", "how severe a message must be to be logged", choices=LOG_LEVELS)
    exit_on_fatal: bool = option(
        False,
        "end the process when the engine has failed three times in ten minutes, so that a supervisor can restart it",
    )
