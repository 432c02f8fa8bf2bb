"""Reads how a model's file wants its tokens drawn: the keys `general.sampling.*` of llama.cpp."""

import logging
from typing import Any

from srb.engine.asking.sampling_params import SAMPLERS, SamplingParams
from srb.errors import InvalidRequestError
from srb.llama.files.model_file import files_of, find_model
from srb.llama.files.tensors import read_metadata
from srb.options.settings import Settings

logger = logging.getLogger("srb")

_BEGINNING = "general.sampling."
_OTHER_NAMES = {"temp": "temperature", "penalty_last_n": "repeat_last_n", "penalty_repeat": "repeat_penalty"}
_KEYS = (
    *("top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta"),
    *_OTHER_NAMES,
)


def sampling_of(settings: Settings) -> dict[str, Any]:
    """The defaults of `SamplingParams` that the model's file names.

    The log says which they are, and which are left out because their values can't be. Raises `ModelLoadError`.
    """
    found: dict[str, Any] = {}
    for key, value in read_metadata(files_of(find_model(settings.model))[0], _BEGINNING).items():
        name = key.removeprefix(_BEGINNING)
        try:
            given = _as_field(name, value)
            SamplingParams(**given)
        except InvalidRequestError as error:
            logger.warning("the model's file has %s = %r, which is left out: %s", key, value, error.message)
        else:
            found |= given
    if found:
        told = ", ".join(f"{name} {value}" for name, value in found.items())
        logger.info("by the model's file: %s", told)
    return found


def _as_field(name: str, value: Any) -> dict[str, Any]:
    """A key of the file, without its beginning, as a field of `SamplingParams`. Raises `InvalidRequestError`."""
    if name in _KEYS:
        # The file has floats of 32 bits, and people mean the short number: 0.6 and not 0.6000000238418579.
        return {_OTHER_NAMES.get(name, name): float(f"{value:.7g}") if isinstance(value, float) else value}
    if name == "sequence":
        names = tuple(_OTHER_NAMES.get(each, each) for each in str(value).split(";"))
        if unknown := [each for each in names if each not in SAMPLERS]:
            raise InvalidRequestError(f"there is no sampler {unknown[0]!r}", param="samplers")
        return {"samplers": names}
    raise InvalidRequestError("srb knows no such key", param=name)
