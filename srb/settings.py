"""Every option once: a flag, an `SRB_...` variable and a key of the settings file.

A flag wins over a variable, a variable over the file, the file over the default.
"""

import argparse
import dataclasses
import difflib
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srb.errors import SettingsError

WEIGHTS = ("file", "f16", "bf16", "q8_0")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
POOLING_TYPES = ("none", "mean", "cls", "last")
LOG_LEVELS = ("debug", "info", "warning", "error")
BOOLS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
MAX_SECONDS = 365 * 86_400
ENV_PREFIX = "SRB_"
ENV_CONFIG = "SRB_CONFIG"

SERVER_OPTIONS = frozenset(
    {
        "host",
        "port",
        "uds",
        "ssl_cert_file",
        "ssl_key_file",
        "cors_origins",
        "allowed_hosts",
        "show_prompts",
        "exit_on_fatal",
        "default_format",
        "chat_template",
        "chat_template_file",
        "history",
        "resume",
        "replicas",
        "ray_address",
        "replica_cpus",
        "replica_gpus",
    }
    | {"max_queue", "queue_timeout", "request_timeout", "linger", "keep_finished", "keep_bytes"}
)
"""The options of `serve` alone."""

CLIENT_OPTIONS = frozenset({"url"})
"""The options of `generate` and `compare` alone."""


def _option(
    default: Any,
    text: str,
    *,
    short: str | None = None,
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] | None = None,
    secret: bool = False,
) -> Any:
    metadata = {"help": text, "short": short, "low": low, "high": high, "choices": choices, "secret": secret}
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a server and its engine, with their defaults. Raises `SettingsError` for a wrong value."""

    model: Path | None = _option(None, "GGUF file to run (default: the embedded SmolLM2-135M-Instruct)", short="-m")
    hf_repo: str | None = _option(None, "Hugging Face repository to fetch the model from: OWNER/NAME", short="-hf")
    hf_file: str | None = _option(None, "GGUF file in --hf-repo; may be left out where there is one", short="-hff")
    model_url: str | None = _option(None, "URL to fetch the model from", short="-mu")
    url: str | None = _option(None, "server to ask, instead of running the model here")
    alias: str | None = _option(None, "name of the model in replies (default: its file name)", short="-a")
    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(9090, "port to listen on; 0 takes a free one", low=0, high=65535)
    uds: Path | None = _option(None, "Unix socket to listen on, instead of --host and --port")
    ssl_cert_file: Path | None = _option(None, "PEM file with the certificate, for HTTPS")
    ssl_key_file: Path | None = _option(None, "PEM file with the certificate's private key")
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
    n: int = _option(8, "alternatives of a request that doesn't say how many", short="-n", low=1)
    max_n: int = _option(32, "most alternatives that one request may have", low=1, high=1024)
    chat_template: str | None = _option(
        None,
        "how chats are written: chatml, gemma, llama3, vicuna, zephyr, plain, a template in Jinja, or none to refuse "
        "them (default: the model's, or plain)",
    )
    chat_template_file: Path | None = _option(None, "file with such a template in Jinja")
    default_format: str = _option(
        "events",
        "what /v1 answers to a request with neither stream nor model: native events, or OpenAI's object",
        choices=("events", "openai"),
    )
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
    parallel: int = _option(
        32, "alternatives that run at the same time, of all requests; others wait", short="-np", low=1, high=255
    )
    max_tokens: int | None = _option(
        None,
        "tokens per alternative of a request that doesn't say; -1: all there is room for "
        "(default: 128, and -1 in chats and on llama-server's routes)",
        low=-1,
    )
    ctx_size: int = _option(
        8192, "KV cells, shared by all alternatives; 0: what the model was trained for", short="-c", low=0
    )
    cache_ram: int = _option(
        1024, "MiB of memory for what finished requests have evaluated; 0: none", short="-cram", low=0
    )
    cache_disk: Path | None = _option(
        None, "folder for what was evaluated, so that it outlives the server; off without"
    )
    cache_disk_size: int = _option(8192, "MiB that --cache-disk may hold; the least recently used are removed", low=1)
    batch_size: int = _option(512, "prompt tokens evaluated in one step", short="-b", low=1)
    prefill_chunk: int = _option(
        0,
        "prompt tokens evaluated after each token of running alternatives; 0: as many as fit into a pause of 0.3 s",
        low=0,
    )
    ubatch_size: int = _option(512, "tokens computed at once", short="-ub", low=1)
    threads: int | None = _option(
        None, "threads for a step of one row (default: what srb tune chose, or the physical cores)", short="-t", low=1
    )
    threads_batch: int | None = _option(
        None, "threads for all other steps (default: --threads, or what srb tune chose)", short="-tb", low=1
    )
    n_gpu_layers: int = _option(
        -1, "layers kept on the GPU, where llama.cpp was built for one; -1: all", short="-ngl", low=-1
    )
    flash_attn: str = _option(
        "auto", "flash attention; auto: what is faster for the request", short="-fa", choices=("on", "off", "auto")
    )
    cache_type_k: str | None = _option(
        None, "type of the cached keys (default: what srb tune chose, or f16)", short="-ctk", choices=CACHE_TYPES
    )
    cache_type_v: str | None = _option(
        None, "type of the cached values (default: what srb tune chose, or f16)", short="-ctv", choices=CACHE_TYPES
    )
    weights: str | None = _option(
        None,
        "format to evaluate the weights in, converted once and kept; file: as they are there (default: what srb tune "
        "chose, or file)",
        choices=WEIGHTS,
    )
    tune: bool = _option(True, "use what srb tune chose; --no-tune: the file as it is, with llama.cpp's defaults")
    max_queue: int = _option(128, "requests that may wait; further ones are answered with 429", low=1)
    queue_timeout: int = _option(0, "seconds that a request may wait; 0: any number", low=0, high=MAX_SECONDS)
    request_timeout: int = _option(
        0, "seconds that a request may take, waiting included; 0: any number", low=0, high=MAX_SECONDS
    )
    history: Path | None = _option(
        None, "SQLite file that keeps every request and its texts, and the page's stories (default: nothing is kept)"
    )
    resume: bool = _option(
        True, "with --history, go on with the detached requests that the last server left unfinished"
    )
    linger: int = _option(
        5, "seconds that a native stream without readers goes on, for them to come back", low=0, high=MAX_SECONDS
    )
    keep_finished: int = _option(
        900, "seconds that finished requests can still be read; 0: not at all", low=0, high=MAX_SECONDS
    )
    keep_bytes: int = _option(256 << 20, "bytes of memory for finished requests", low=0)
    show_prompts: bool = _option(False, "show the prompts' texts in GET /v1/requests")
    embeddings: bool = _option(
        False, "POST /v1/embeddings and /embedding, with a second context of --ubatch-size cells"
    )
    pooling: str | None = _option(
        None, "how the embeddings of tokens become one of a text (default: the model's)", choices=POOLING_TYPES
    )
    slots: bool = _option(True, "GET /slots, which shows the settings of running requests")
    slot_save_path: Path | None = _option(
        None, "folder for the files of POST /slots/{id_slot}?action=save and restore; without it they are refused"
    )
    log_level: str = _option("info", "least severe messages to log", choices=LOG_LEVELS)
    exit_on_fatal: bool = _option(False, "end the process when the engine fails, for a supervisor to restart it")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, meta = getattr(self, field.name), field.metadata
            if value is None:
                continue
            if meta["choices"] and value not in meta["choices"]:
                raise SettingsError(f"{_flag(field.name)} is one of {', '.join(meta['choices'])}; got {value!r}")
            for limit, wrong in ((meta["low"], int.__lt__), (meta["high"], int.__gt__)):
                if limit is not None and wrong(value, limit):
                    high = "" if meta["high"] is None else f" to {meta['high']}"
                    raise SettingsError(f"{_flag(field.name)} must be {meta['low']}{high or ' or more'}, got {value}")
        if self.chat_template is not None and self.chat_template_file is not None:
            raise SettingsError("--chat-template and --chat-template-file exclude each other: leave one out")
        _ = self.replica_limits
        if self.is_cluster and self.slot_save_path is not None:
            raise SettingsError("--slot-save-path is for one engine; leave it out, or --replicas and --ray-address")
        if self.n > self.max_n:
            raise SettingsError(f"--n {self.n} is more than --max-n {self.max_n}: lower the one or raise the other")

    @property
    def is_cluster(self) -> bool:
        """Whether the engines are replicas, on this machine or on others."""
        return self.replicas is not None or self.ray_address is not None

    @property
    def replica_limits(self) -> tuple[int, int]:
        """How many replicas there are at least, and at most. Raises `SettingsError`."""
        least, _, most = (self.replicas or "1").partition("-")
        limits = [int(each) if each.isascii() and each.isdecimal() and len(each) < 6 else 0 for each in (least, most)]
        if not most:
            limits[1] = limits[0]
        if not 1 <= limits[0] <= limits[1]:
            raise SettingsError(f"--replicas takes a number from 1, or two as in 1-4; got {self.replicas!r}")
        return limits[0], limits[1]


def add_arguments(parser: argparse.ArgumentParser, without: frozenset[str] = frozenset()) -> None:
    """Adds a flag for every option but those, and `--config`."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"TOML file with these options as keys (or {ENV_CONFIG})"
    )
    for field in dataclasses.fields(Settings):
        if field.name in without:
            continue
        meta = field.metadata
        default = "" if field.default in (None, False) else f" (default: {field.default})"
        choices = f": {', '.join(meta['choices'])}" if meta["choices"] else ""
        flags = [*([meta["short"]] if meta["short"] else []), _flag(field.name)]
        text = meta["help"] + choices + default
        if _type(field.name) is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(*flags, dest=field.name, default=argparse.SUPPRESS, action=action, help=text)
        else:
            metavar = _type(field.name).__name__.upper()
            parser.add_argument(*flags, dest=field.name, default=argparse.SUPPRESS, metavar=metavar, help=text)


def load_settings(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings from parsed flags, the environment and the settings file. Raises `SettingsError`."""
    names = [field.name for field in dataclasses.fields(Settings)]
    values: dict[str, Any] = {}
    config = arguments.config or (Path(environ[ENV_CONFIG]) if environ.get(ENV_CONFIG) else None)
    if config:
        for key, value in _read_toml(config).items():
            name = key.replace("-", "_")
            if name not in names:
                raise SettingsError(f"{config}: {key} is not an option{_guess(name, names)}")
            values[name] = _convert(name, value, f"{config}: {key}")
    for key, value in environ.items():
        name = key.removeprefix(ENV_PREFIX).lower()
        if key.startswith(ENV_PREFIX) and key != ENV_CONFIG:
            if name not in names:
                raise SettingsError(f"{key} is not an option{_guess(name, names)}; unset it")
            values[name] = _convert(name, value, key)
    for name in names:
        if hasattr(arguments, name):
            values[name] = _convert(name, getattr(arguments, name), _flag(name))
    return Settings(**values)


def is_given(arguments: argparse.Namespace, settings: Settings, name: str) -> bool:
    """Whether an option was set: by a flag, or in another way to something else than its default."""
    return hasattr(arguments, name) or getattr(settings, name) != getattr(Settings(), name)


def read_keys(settings: Settings) -> tuple[bytes, ...]:
    """The keys of `--api-key` and `--api-key-file`; none let everybody in.

    Raises `SettingsError`, which shows no key.
    """
    keys: list[bytes] = []
    if settings.api_key is not None:
        keys += _stripped("--api-key", settings.api_key.encode(errors="surrogateescape").split(b","))
    if settings.api_key_file is not None:
        try:
            lines = settings.api_key_file.read_bytes().splitlines()
        except OSError as error:
            raise SettingsError(
                f"--api-key-file {settings.api_key_file} can't be read: {error.strerror or error}"
            ) from None
        keys += _stripped(f"--api-key-file {settings.api_key_file}", lines)
    return tuple(keys)


def _stripped(source: str, values: list[bytes]) -> list[bytes]:
    keys = [value.strip() for value in values if value.strip()]
    if not keys:  # a variable that was meant to have one must not open the server to everybody
        raise SettingsError(f"{source} has no key in it; write one, or leave the option out and let everybody in")
    return keys


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _guess(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {close[0].replace('_', '-')}?" if close else ""


def _type(name: str) -> type:
    """The type of an option, without the None that stands for "not given"."""
    hint = typing.get_type_hints(Settings)[name]
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    assert isinstance(hint, type)
    return hint


def _convert(name: str, value: Any, source: str) -> Any:
    kind = _type(name)
    if kind is bool:
        if str(value).lower() in BOOLS:
            return BOOLS[str(value).lower()]
        raise SettingsError(f"{source} takes true or false, got {value!r}")
    if kind is not int:
        if not isinstance(value, str):
            secret = Settings.__dataclass_fields__[name].metadata["secret"]
            got = type(value).__name__ if secret else repr(value)
            raise SettingsError(f"{source} takes a string, got {got}")
        return kind(value)
    try:
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise SettingsError(f"{source} takes a whole number, got {value!r}")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"the settings file {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not valid TOML: {error}") from None
