"""The base of all bodies' fields: the names that other servers' clients use for them, and their notations of values."""

import json
import math
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

ALIASES = {
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "n_cmpl": "n",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequence": "stop",
    "stop_sequences": "stop",
    "stopping_strings": "stop",
    "sampler_seed": "seed",
    "repetition_penalty": "repeat_penalty",
    "rep_pen": "repeat_penalty",
    "rep_pen_range": "repeat_last_n",
    "mirostat_mode": "mirostat",
    "ban_eos_token": "ignore_eos",
    "use_default_badwordsids": "ignore_eos",
    "nsigma": "top_n_sigma",
    "typ_p": "typical_p",
    "typical": "typical_p",
    "grammar_string": "grammar",
    "guided_grammar": "grammar",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "custom_token_bans": "banned_tokens",
    "cfg_scale": "guidance_scale",
}
"""The names of fields that clients of other servers use. If both names are sent, the alias is ignored and reported."""


def not_a_bool(value: Any) -> Any:
    """Returns the value. Raises `ValueError` if it is true or false, which Python takes for numbers."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not true or false")
    return value


def as_list(value: Any) -> Any:
    """A list with the text, if the value is a single text; else the value."""
    return [value] if isinstance(value, str) else value


def _as_breakers(value: Any) -> Any:
    """The list of `dry_sequence_breakers`. Frontends send a list, a list as JSON text, or texts with commas between."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.lstrip().startswith("[") else value.split(",")
    except ValueError:
        return [value]


def _as_phrases(value: Any) -> Any:
    """The list of `banned_strings`. Frontends send a list, a list as JSON text, or a phrase on each line.

    A phrase on a line may be in quotes.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        with suppress(ValueError):
            return json.loads(value)
    return [_unquoted(line) for line in value.splitlines() if line.strip()]


def _unquoted(line: str) -> Any:
    if line.strip().startswith('"'):
        with suppress(ValueError):
            return json.loads(line)
    return line


def _as_ids(value: Any) -> Any:
    """The list of `banned_tokens`. text-generation-webui sends a text, of ids with commas between."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _read_dynatemp(fields: dict[str, Any]) -> None:
    """Turns text-generation-webui's lowest and highest temperature into the middle of the two and the range around it.

    Fields without a meaning are left, so that they are reported: an empty range, or one beside `dynatemp_range`.
    """
    low, high = fields.get("dynatemp_low"), fields.get("dynatemp_high")
    if low is None or high is None or "dynatemp_range" in fields or fields.get("dynamic_temperature") is False:
        return
    try:
        low, high = float(low), float(high)
    except (ValueError, TypeError, OverflowError):
        return
    if not -math.inf < low < high < math.inf:
        return
    if fields.get("temperature") not in (None, (low + high) / 2):
        fields["temperature (dynatemp_low and dynatemp_high tell it)"] = fields["temperature"]
    fields |= {"temperature": (low + high) / 2, "dynatemp_range": (high - low) / 2}
    for name in ("dynatemp_low", "dynatemp_high", "dynamic_temperature"):
        fields.pop(name, None)


Int = Annotated[int, BeforeValidator(not_a_bool)]
Float = Annotated[float, BeforeValidator(not_a_bool), Field(allow_inf_nan=False)]
Strings = Annotated[list[str], BeforeValidator(as_list, json_schema_input_type=str | list[str])]
TokenIdReport = Annotated[list[Any], BeforeValidator(_as_ids, json_schema_input_type=str | list[Any])]
Phrases = Annotated[list[str], BeforeValidator(_as_phrases, json_schema_input_type=str | list[str])]
Breakers = Annotated[list[str], BeforeValidator(_as_breakers, json_schema_input_type=str | list[str])]


class BodyFields(BaseModel):
    """The fields of any body. They may be absent or null, and numbers may come as strings.

    Unknown fields are kept, so that they can be reported.
    """

    model_config = ConfigDict(extra="allow", defer_build=True)  # what nobody asks for is never built

    @model_validator(mode="before")
    @classmethod
    def _clean(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = {name: value for name, value in data.items() if value is not None}
        for alias, name in ALIASES.items():
            if alias in fields and name not in fields:
                fields[name] = fields.pop(alias)
        _read_dynatemp(fields)
        return fields

    @property
    def _unknown(self) -> list[str]:
        return list(self.model_extra or ())

    def unread(self, model: str | None = None) -> list[str]:
        """The names of the fields that aren't known here. model: the server's; another one in the body is among them.

        Only for bodies whose other fields all have an effect.
        """
        is_other = model is not None and getattr(self, "model", None) not in (None, model)
        return [*self._unknown, *(["model"] if is_other else [])]
