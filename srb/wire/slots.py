"""llama-server's slots and adapters: the bodies of their routes, and the settings of an alternative as JSON."""

import dataclasses
import json
import math
from typing import Any

from pydantic import Field, RootModel

from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError
from srb.wire.request.fields import AdapterScale
from srb.wire.request.read import BodyFields, read_fields, show
from srb.wire.tokens import check_text

_NOT_IN_NAMES = '/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff'
"""Characters that file names must not have: on this system or another, they may lead out of the folder."""

_LONGEST_NAME = 255
"""The longest file name, in bytes."""


class SlotFields(BodyFields):
    """The body of `POST /slots/{id_slot}`."""

    filename: str = Field(description="the file in `--slot-save-path`: a name without slashes, colons and the like.")


class AdapterFields(RootModel[list[AdapterScale]]):
    """The body of `POST /lora-adapters`."""


def parse_adapters(data: bytes) -> tuple[tuple[int | str, float], ...]:
    """The adapters and scales in the body of `POST /lora-adapters`. Raises `InvalidRequestError`."""
    fields = read_fields(data, AdapterFields)
    return tuple(each.asked for each in fields.root)


def parse_filename(data: bytes) -> str:
    """The name of the file that a slot is saved to. Raises `InvalidRequestError` if it might lead out of its folder.

    It refuses what llama-server refuses, and names with half a surrogate pair.
    """
    name = check_text(read_fields(data, SlotFields).filename, "filename")
    bad = next((char for char in name if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or char in _NOT_IN_NAMES), None)
    if bad is not None or ".." in name or name.endswith((" ", ".")) or name.startswith(" ") or not name:
        raise InvalidRequestError(
            f"filename must be the name of a file, without slashes, '..' and {_NOT_IN_NAMES[2:9]}, got {show(name)}",
            param="filename",
        )
    if len(name.encode()) > _LONGEST_NAME:
        raise InvalidRequestError(
            f"filename has {len(name.encode())} bytes; the limit is {_LONGEST_NAME}", param="filename"
        )
    return name


_PRIVATE = (
    *("stop", "banned_strings", "avoid", "negative_prompt", "logit_bias", "grammar", "json_schema"),
    *("dry_sequence_breakers", "label"),
)


def generation_settings(params: SamplingParams, request: CompletionRequest | None) -> dict[str, Any]:
    """`generation_settings`: how an alternative is sampled, with the defaults and its own seed."""
    result = dataclasses.asdict(params)
    del result["logits_processor"]  # a Python function, which only callers of the library can pass
    biases = [{"token": token, "bias": None if bias == -math.inf else bias} for token, bias in params.logit_bias]
    return result | {
        "logit_bias": biases,
        "grammar": params.grammar or "",
        "json_schema": params.json_schema and json.loads(params.json_schema),
        "n_predict": params.max_tokens,
        "n_keep": request.n_keep if request else 0,
        "n_discard": request.n_discard if request else 0,
        "n_probs": (request and request.logprobs) or 0,
        "post_sampling_probs": bool(request and request.post_sampling_probs),
    }


def public_settings(params: SamplingParams, request: CompletionRequest) -> dict[str, Any]:
    """The `generation_settings` without the fields that may quote a user's text."""
    return {name: value for name, value in generation_settings(params, request).items() if name not in _PRIVATE}
