"""Reads and checks options: each is a flag, an `SRB_...` environment variable and a TOML key.

A flag overrides a variable, a variable the settings file, and the file the default.
"""

import argparse
import dataclasses
import difflib
import math
import operator
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from srb.engine.validation.fields import wrong_field
from srb.errors import SettingsError
from srb.options.groups import MemoryOptions, ModelOptions, NetworkOptions, RequestsOptions, SafetyOptions, SpeedOptions

BOOLS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
ENV_PREFIX = "SRB_"
ENV_CONFIG = "SRB_CONFIG"

SERVER_OPTIONS = frozenset(
    {field.name for group in (RequestsOptions, NetworkOptions, SafetyOptions) for field in dataclasses.fields(group)}
    - {"n", "max_n", "max_tokens", "sleep_idle_seconds", "slot_save_path", "url", "api_key", "api_key_file", "slots"}
    - {"log_level"}
    | {"chat_template", "chat_template_file", "mmproj", "image_min_tokens", "image_max_tokens"}
    | {"replicas", "ray_address", "replica_cpus", "replica_gpus"}
)
"""Options of `srb serve` only."""

CHAT_OPTIONS = frozenset({"chat_template", "chat_template_file"})
"""Options in `SERVER_OPTIONS` that `srb generate` and `srb compare` have, too."""

CLIENT_OPTIONS = frozenset({"url"})
"""Options of the commands that can send requests to a server instead of running a model."""

FIRST_OPTIONS = frozenset(
    {"model", "hf_repo", "hf_file", "host", "port", "api_key", "n", "max_tokens", "ctx_size", "n_gpu_layers", "history"}
    | {"config"}
)
"""Options of `srb serve` that `--help` shows without `all`."""

EVALUATION = (
    *("override_kv", "rope_scaling", "rope_scale", "rope_freq_base", "rope_freq_scale", "swa_full"),
    *("yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast"),
    *("image_min_tokens", "image_max_tokens"),
)
"""Options that change a model's results, or the contents of KV cells."""

PLACEMENT = (
    *("mmap", "mlock", "numa", "device", "split_mode", "tensor_split", "main_gpu", "kv_offload", "override_tensor"),
    *("cpu_moe", "n_cpu_moe"),
)
"""Options that choose the memory and devices of the model: they change its speed, not its results."""


@dataclass(frozen=True, kw_only=True)
class Settings(ModelOptions, MemoryOptions, SpeedOptions, RequestsOptions, NetworkOptions, SafetyOptions):
    """The options of a server and its engine. Paths may be strings.

    Raises:
        SettingsError: A value is wrong, or two options exclude each other.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if _type(field.name) is Path and isinstance(path := getattr(self, field.name), str):
                object.__setattr__(self, field.name, Path(path))
        if wrong_type := wrong_field(self):
            raise SettingsError(f"{_flag(wrong_type[0])} {wrong_type[1]}")
        for field in dataclasses.fields(self):
            value, meta = getattr(self, field.name), field.metadata
            if value is None:
                continue
            if meta["choices"] and value not in meta["choices"]:
                raise SettingsError(f"{_flag(field.name)} is one of {', '.join(meta['choices'])}; got {value!r}")
            if isinstance(value, int) and value in meta["words"].values():
                continue
            for limit, wrong in ((meta["low"], operator.lt), (meta["high"], operator.gt)):
                if limit is not None and wrong(value, limit):
                    high = "" if meta["high"] is None else f" to {meta['high']}"
                    raise SettingsError(f"{_flag(field.name)} must be {meta['low']}{high or ' or more'}, got {value}")
            if meta["above"] is not None and not value > meta["above"]:
                raise SettingsError(f"{_flag(field.name)} must be more than {meta['above']}, got {value}")
        if self.chat_template is not None and self.chat_template_file is not None:
            raise SettingsError("--chat-template and --chat-template-file exclude each other: leave one out")
        if self.embeddings and self.reranking:
            raise SettingsError("--embeddings and --reranking exclude each other: leave one out")
        if not self.jinja:
            raise SettingsError("--no-jinja isn't supported: all templates of srb are Jinja; see --chat-template")
        if self.rope_scale is not None and self.rope_freq_scale is not None:
            raise SettingsError("--rope-scale is the inverse of --rope-freq-scale: leave one out")
        _ = self.replica_limits
        if self.mmproj and self.sleep_idle_seconds > 0:
            raise SettingsError("--mmproj and --sleep-idle-seconds exclude each other: leave one out")
        if (self.image_min_tokens or 1) > (self.image_max_tokens or math.inf):
            raise SettingsError("--image-min-tokens is more than --image-max-tokens: lower one or raise the other")
        for name in ("mmproj", "slot_save_path"):
            if self.is_cluster and getattr(self, name):
                raise SettingsError(
                    f"{_flag(name)} is for one engine; leave out either it, or --replicas and --ray-address"
                )
        if self.reproducible:
            self._check_reproducible()
        limited = ("ahead",) if self.url else ("n", "ahead")  # a server at --url has its own limit of n
        for name in limited:
            if (value := getattr(self, name)) > self.max_n:
                raise SettingsError(
                    f"{_flag(name)} {value} is more than --max-n {self.max_n}: lower the first or raise the second"
                )

    def _check_reproducible(self) -> None:
        quantized = self.cache_type_v not in (None, "f32", "f16", "bf16")
        least = max(64, self.parallel + 3)  # two prompts, and the row of a negative sequence
        excluded = (
            ("--flash-attn on", self.flash_attn == "on"),
            ("a quantized --cache-type-v, which needs flash attention", quantized),
            ("--context-shift", self.context_shift),
            ("--kv-layout unified", self.kv_layout == "unified"),
            ("--no-swa-full", not self.swa_full),
            ("--replicas and --ray-address", self.is_cluster),
            ("a --batch-size below 64, the size of a block", self.batch_size < 64),
            (f"a --ubatch-size below {least}, which splits blocks and rows", self.ubatch_size < least),
        )
        for name, is_given in excluded:
            if is_given:
                raise SettingsError(f"--reproducible excludes {name}: leave one of them out")

    @property
    def is_cluster(self) -> bool:
        """Whether engines run as Ray replicas, here or on other machines."""
        return self.replicas is not None or self.ray_address is not None

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those of the named options that differ from their defaults."""
        default = Settings()
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(default, name)}

    @property
    def replica_limits(self) -> tuple[int, int]:
        """The smallest and the largest number of replicas."""
        least, _, most = (self.replicas or "1").partition("-")
        limits = [int(each) if each.isascii() and each.isdecimal() and len(each) < 6 else 0 for each in (least, most)]
        if not most:
            limits[1] = limits[0]
        if not 1 <= limits[0] <= limits[1]:
            raise SettingsError(f"--replicas takes a number from 1, or a range such as 1-4; got {self.replicas!r}")
        return limits[0], limits[1]


def add_arguments(parser: argparse.ArgumentParser, without: frozenset[str] = frozenset()) -> None:
    """Add `--config`, and a flag for every option that isn't in `without`."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"a TOML file of these options; also set by {ENV_CONFIG}",
    )
    for group in Settings.__bases__:
        fields = [field for field in dataclasses.fields(group) if field.name not in without]
        if fields:
            shown = parser.add_argument_group(group.__name__.removesuffix("Options").lower(), group.__doc__)
            for field in fields:
                _add_argument(shown, field)


def _add_argument(group: argparse._ArgumentGroup, field: dataclasses.Field[Any]) -> None:
    meta = field.metadata
    number_words = {number: word for word, number in meta["words"].items()}
    default = "" if field.default in (None, False) else f" (default: {number_words.get(field.default, field.default)})"
    choices = f": {', '.join(meta['choices'])}" if meta["choices"] else ""
    flags = [*([meta["short"]] if meta["short"] else []), *map(_flag, (field.name, *meta["aliases"]))]
    text = meta["help"] + choices + default
    if _type(field.name) is bool:
        group.add_argument(
            *flags, dest=field.name, default=argparse.SUPPRESS, action=argparse.BooleanOptionalAction, help=text
        )
    else:
        metavar = _type(field.name).__name__.upper()
        action = "append" if meta["many"] else "store"
        added = group.add_argument(
            *flags, dest=field.name, default=argparse.SUPPRESS, action=action, metavar=metavar, help=text
        )
        if meta["choices"]:  # argcomplete completes an option's values with the attribute `completer`
            added.completer = lambda **_: meta["choices"]  # type: ignore[attr-defined]


def load_settings(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings from parsed flags, environment variables and the settings file. Raises `SettingsError`."""
    names = [field.name for field in dataclasses.fields(Settings)]
    aliases = {alias: field.name for field in dataclasses.fields(Settings) for alias in field.metadata["aliases"]}
    values: dict[str, Any] = {}
    config = arguments.config or (Path(environ[ENV_CONFIG]) if environ.get(ENV_CONFIG) else None)
    if config:
        for key, value in _read_toml(config).items():
            name = key.replace("-", "_")
            name = aliases.get(name, name)
            if name not in names:
                raise SettingsError(f"{config}: {key} is not an option{_suggestion(name, names)}")
            values[name] = _convert(name, value, f"{config}: {key}")
    for key, value in environ.items():
        name = key.removeprefix(ENV_PREFIX).lower()
        name = aliases.get(name, name)
        if key.startswith(ENV_PREFIX) and key != ENV_CONFIG:
            if name not in names:
                raise SettingsError(f"{key} is not an option{_suggestion(name, names)}; unset it")
            values[name] = _convert(name, value, key)
    for name in names:
        if hasattr(arguments, name):
            value = getattr(arguments, name)
            values[name] = _convert(name, ",".join(value) if isinstance(value, list) else value, _flag(name))
    return Settings(**values)


def check_settings(settings: Any) -> None:
    """Raise `SettingsError` if this isn't a `Settings` object."""
    if not isinstance(settings, Settings):
        raise SettingsError(f"takes srb.Settings, got {settings!r:.60}; write Settings(model=...)")


def is_given(arguments: argparse.Namespace, settings: Settings, name: str) -> bool:
    """Return whether an option was given as a flag, or differs from its default."""
    return hasattr(arguments, name) or getattr(settings, name) != getattr(Settings(), name)


def read_keys(settings: Settings) -> tuple[bytes, ...]:
    """Return the keys of `--api-key` and `--api-key-file`. Without any, the server accepts all requests.

    Raises `SettingsError`.
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
    if not keys:  # an empty variable must not open the server to everybody
        raise SettingsError(f"{source} has no key in it; add one, or leave the option out to accept all requests")
    return keys


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _suggestion(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {close[0].replace('_', '-')}?" if close else ""


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Settings)  # slow, so it is cached


def _type(name: str) -> type:
    """Return the type of an option, without None."""
    hint = _hints()[name]
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
    meta = Settings.__dataclass_fields__[name].metadata
    if kind not in (int, float):
        if not isinstance(value, str):
            got = type(value).__name__ if meta["secret"] else repr(value)
            raise SettingsError(f"{source} takes a string, got {got}")
        return kind(value)
    if isinstance(value, str) and value in meta["words"]:
        return meta["words"][value]
    try:
        if isinstance(value, (int, str, kind)) and not isinstance(value, bool) and math.isfinite(kind(value)):
            return kind(value)
    except ValueError:
        pass
    words = "".join(f", or {word}" for word in meta["words"])
    raise SettingsError(f"{source} takes a {'whole ' if kind is int else ''}number{words}, got {value!r}")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"the settings file {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not valid TOML: {error}") from None
