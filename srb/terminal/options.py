"""Makes options of the fields of a request: `--top-k 20`, `--branch temperature=1.2,label=wild`."""

import argparse
import difflib
import json
import types
import typing
from collections.abc import Iterable
from typing import Any

from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError
from srb.wire.request.fields import (
    BEAM_FIELDS,
    BRIDGE_FIELDS,
    BranchFields,
    CompletionFields,
    SamplingFields,
)
from srb.wire.request.read import ALIASES

PREFIX = "field_"
"""Prefix of field names in the parsed arguments, which separates them from the options of `Settings`."""

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "the text": (
        "constraints, and when the text ends",
        (
            *("stop", "stop_token_ids", "include_stop_str_in_output", "min_tokens", "ignore_eos", "seed"),
            *("banned_strings", "bad_words", "banned_tokens", "logit_bias"),
            *("grammar", "regex", "lark", "json_schema", "response_format", "structured_outputs", "echo", "heal"),
        ),
    ),
    "the alternatives": (
        "how they differ from each other, or from a text",
        ("directions", "distinct", "diversity", "avoid", "negative_prompt", "guidance_scale"),
    ),
    "beam search": (
        "the most probable texts, no sampling",
        ("search", *BEAM_FIELDS),
    ),
    "filling in": (
        "texts that lead up to a given ending",
        ("suffix", *BRIDGE_FIELDS),
    ),
    "output details": (
        "included in the events of --json",
        ("logprobs", "post_sampling_probs", "return_tokens", "return_progress"),
    ),
    "the context": (
        "prefix caching and context shift",
        ("cache_prompt", "context_shift", "n_keep", "n_discard"),
    ),
    "the order of requests": ("what runs first; needs --url", ("priority",)),
    "prefetching": ("alternatives that the server generates while it is idle; needs --url", ("ahead",)),
    "sampling": ("the samplers, named as in llama-server", ()),
}
"""The groups of `--help`: a description and the fields of each. The last group has all other fields."""

REQUEST_FIELDS = tuple(
    name
    for name in CompletionFields.model_fields
    if name == "directions"
    or (name in CompletionRequest.__dataclass_fields__ and name not in ("branches", *SamplingFields.model_fields))
)
"""The fields of a whole request that are options: `directions`, and those that `CompletionRequest` has, too."""

_TEXTS = ("negative_prompt", "suffix")
"""Fields whose options take a text, although a body may have another type."""

BRANCH_NAMES = {*BranchFields.model_fields} | {
    alias for alias, of in ALIASES.items() if of in BranchFields.model_fields
}


def add_field_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of `SamplingFields` and `REQUEST_FIELDS`, and `--branch`."""
    groups = {
        names: parser.add_argument_group(title, f"{text}; see docs/http/api.md")
        for title, (text, names) in GROUPS.items()
    }
    for name in (*SamplingFields.model_fields, *REQUEST_FIELDS):
        if name in ("max_tokens", "lora", "direction"):  # --branch takes them, and two are options of `Settings`
            continue
        group = next(group for names, group in groups.items() if name in names or not names)
        names = [name, *(alias for alias, of in ALIASES.items() if of == name)]
        flags = ["--" + each.replace("_", "-") for each in names]
        field = CompletionFields.model_fields[name]
        default = field.json_schema_extra.get("default") if isinstance(field.json_schema_extra, dict) else None
        text = (field.description or "") + ("" if default is None else f" (default: {default})")
        options: dict[str, Any] = {"dest": PREFIX + name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if _kind(name) is bool:
            group.add_argument(*flags, action=argparse.BooleanOptionalAction, **options)
        elif name in _TEXTS:
            group.add_argument(*flags, metavar="TEXT", **options)
        elif name in ("stop", "banned_strings", "bad_words", "avoid", "directions"):
            group.add_argument(*flags, action="append", metavar="TEXT", **options)
        else:
            group.add_argument(*flags, metavar=getattr(_kind(name), "__name__", "json").upper(), **options)
    parser.add_argument_group("branches", "alternatives with their own settings").add_argument(
        "--branch",
        action="append",
        dest="branches",
        metavar="NAME=VALUE,...",
        help="an alternative with its own settings, such as label=wild,temperature=1.2, or a JSON object; repeat the "
        "option for each alternative",
    )


def given_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that were given as options, and `branches`, for a request body.

    Raises `InvalidRequestError`.
    """
    given = {name.removeprefix(PREFIX): value for name, value in vars(arguments).items() if name.startswith(PREFIX)}
    fields = {name: _value(name, value) for name, value in given.items()}
    if arguments.branches:
        fields["branches"] = [_read_branch(text) for text in arguments.branches]
    return fields


def check_names(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise `InvalidRequestError` for an unknown name, with the nearest known one."""
    known = sorted(known)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known names: {', '.join(known)}"
            raise InvalidRequestError(f"{where}: there is no {name!r}; {hint}", param=name)


def _read_branch(text: str) -> dict[str, Any]:
    where = f"--branch {text}"
    if text.lstrip().startswith("{"):
        branch: dict[str, Any] = _read_json(text, where)
    else:
        branch = {}
        for part in filter(None, text.split(",")):
            name, equals, value = part.partition("=")
            name = name.strip().replace("-", "_")
            if not equals or name in branch:
                problem = "is repeated" if equals else "has no value"
                raise InvalidRequestError(f"{where}: {name!r} {problem}; write NAME=VALUE,...", param=name)
            branch[name] = value
    check_names(branch, BRANCH_NAMES, where)
    if not text.lstrip().startswith("{"):
        branch = {name: _value(ALIASES.get(name, name), value) for name, value in branch.items()}
    return branch


def _value(name: str, value: Any) -> Any:
    """Return the value of an option for a body. Numbers may stay strings: `parse` converts them."""
    if name == "samplers":
        return [part.strip() for part in value.split(",")]
    if isinstance(value, str) and _kind(name) is None and name not in _TEXTS:
        return _read_json(value, name)
    return value


def _read_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{where} takes JSON: {error}, got {text:.60}", param=where) from None


def _kind(name: str) -> type | None:
    """Return the type of an option's value: int, float, bool or str (also for a list of strings), or None for JSON."""
    hint = {**CompletionFields.model_fields, **BranchFields.model_fields}[name].annotation
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    hints = typing.get_args(hint) if is_union else (hint,)
    kinds = [typing.get_args(each)[0] if typing.get_origin(each) is typing.Annotated else each for each in hints]
    return next((kind for kind in (int, float, bool, str) if kind in kinds), str if list[str] in kinds else None)
