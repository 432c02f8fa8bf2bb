"""Reads a body's bytes into its fields: the base of all bodies, other servers' names, and their notations of values.

An error names the field, its value, and what the value should be.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    ValidationError,
    model_validator,
)

from srb.engine.sampling_params import MAX_SEED
from srb.errors import InvalidRequestError

MAX_ID = 2**53
"""The largest id of a node. JavaScript has no larger whole numbers."""

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
    "return_token_ids": "return_tokens",
}
"""Other servers' names of fields.

If a body has both names, the alias is ignored and reported, unless it is the format's own (`BodyFields.own_names`).
"""


def not_a_bool(value: Any) -> Any:
    """Return the value. Raises `ValueError` if it is true or false, which Python takes for numbers."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not true or false")
    return value


def _as_seed(seed: int) -> int:
    """Return a seed modulo 2^32; -1, for a random one, as it is. Clients send 64 bits."""
    return seed if seed == -1 else seed % (MAX_SEED + 1)


def as_list(value: Any) -> Any:
    """Return a list with the text if the value is a text, else the value."""
    return [value] if isinstance(value, str) else value


def _as_breakers(value: Any) -> Any:
    """Read `dry_sequence_breakers`.

    Frontends send a list, a list as JSON text, comma-separated texts with escapes or without, or as
    text-generation-webui texts in quotes with commas between them.
    """
    if not isinstance(value, str):
        return _filled(value)
    first = value.lstrip()[:1]
    if first in ("[", '"'):
        with suppress(ValueError):
            return _filled(json.loads(value if first == "[" else f"[{value.rstrip(', ')}]", strict=False))
    return _filled([value] if first == "[" else [_unescaped(part) for part in value.split(",")])


def _unescaped(text: str) -> str:
    """Return a text with its escapes, such as a backslash and an n, replaced as in JSON."""
    with suppress(ValueError):
        return str(json.loads(f'"{text}"', strict=False)) if "\\" in text else text
    return text


def _filled(value: Any) -> Any:
    """Return a list of texts without those that are empty or null; anything else as it is."""
    return [each for each in value if each not in ("", None)] if isinstance(value, list) else value


def _as_phrases(value: Any) -> Any:
    """Read `banned_strings`. Frontends send a list, a list as JSON text, or a phrase on each line, maybe in quotes."""
    if not isinstance(value, str):
        return _filled(value)
    if value.lstrip().startswith("["):
        with suppress(ValueError):
            return _filled(json.loads(value))
    return [_unquoted(line) for line in value.splitlines() if line.strip()]


def _unquoted(line: str) -> Any:
    if line.strip().startswith('"'):
        with suppress(ValueError):
            return json.loads(line)
    return line


def _as_ids(value: Any) -> Any:
    """Read `banned_tokens`. text-generation-webui sends comma-separated ids."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _read_dynatemp(fields: dict[str, Any]) -> None:
    """Turn text-generation-webui's lowest and highest temperature into their mean and the range around it.

    Fields without effect stay, so that they are reported: an empty range, or one in addition to `dynatemp_range`.
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
        fields["temperature (dynatemp_low and dynatemp_high are used)"] = fields["temperature"]
    fields |= {"temperature": (low + high) / 2, "dynatemp_range": (high - low) / 2}
    for name in ("dynatemp_low", "dynatemp_high", "dynamic_temperature"):
        fields.pop(name, None)


_NO_CHOICE = ("structured_outputs", "grammar", "json_schema", "regex", "lark", "search", "suffix", "heal", "tools")
"""The fields that `guided_choice` gives way to. They exclude a grammar."""


def _read_choice(fields: dict[str, Any]) -> None:
    """Turn `guided_choice`, vLLM's older name, into `structured_outputs`. One that can't be enforced is reported."""
    choice = fields.get("guided_choice")
    if not isinstance(choice, list) or not choice or any(fields.get(name) for name in _NO_CHOICE):
        return
    if fields.get("response_format") not in (None, {}, {"type": "text"}):
        return
    if all(isinstance(text, str) and text for text in choice):
        fields["structured_outputs"] = {"choice": fields.pop("guided_choice")}


def _read_textgen(fields: dict[str, Any]) -> None:
    """Read text-generation-webui's `do_sample` and `repetition_penalty_range`, where 0 means the whole context."""
    if fields.get("do_sample") is False:
        del fields["do_sample"]
        for name in ("temperature", "dynatemp_range"):
            if name in fields:
                fields[f"{name} (do_sample is false)"] = fields.pop(name)
        fields["temperature"] = 0
    n_tokens = fields.get("repetition_penalty_range")
    if type(n_tokens) is int and 0 <= n_tokens < 1 << 31 and "repeat_last_n" not in fields:
        fields["repeat_last_n"] = fields.pop("repetition_penalty_range") or -1


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not valid Text: half a surrogate pair at character {error.start}") from None
    return text


Int = Annotated[int, BeforeValidator(not_a_bool)]
Seed = Annotated[int, BeforeValidator(not_a_bool), AfterValidator(_as_seed)]
Float = Annotated[float, BeforeValidator(not_a_bool), Field(allow_inf_nan=False)]
Strings = Annotated[list[str], BeforeValidator(as_list, json_schema_input_type=str | list[str])]
Stops = Annotated[
    list[str], BeforeValidator(lambda value: _filled(as_list(value)), json_schema_input_type=str | list[str])
]
StopIds = Annotated[list[Int], BeforeValidator(_filled)]
TokenIds = Annotated[list[Any], BeforeValidator(_as_ids, json_schema_input_type=str | list[Any])]
Phrases = Annotated[list[str], BeforeValidator(_as_phrases, json_schema_input_type=str | list[str])]
Breakers = Annotated[list[str], BeforeValidator(_as_breakers, json_schema_input_type=str | list[str])]
Text = Annotated[str, AfterValidator(_check_unicode)]
Id = Annotated[Int, Field(ge=0, le=MAX_ID)]


def without_nulls(data: Any) -> Any:
    """Return an object of a body without the fields that are null; anything else as it is."""
    return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


class PartFields(BaseModel):
    """The fields of an object in a body. Null is the same as absent."""

    _clean = model_validator(mode="before")(without_nulls)


class BodyFields(BaseModel):
    """The fields of any body. They may be absent or null, and numbers may be strings.

    Unknown fields are kept, so that they can be reported.
    """

    model_config = ConfigDict(extra="allow", defer_build=True)  # most bodies of a vendor are never sent

    own_names: ClassVar[frozenset[str]] = frozenset()
    """The names in `ALIASES` that the format's own server has. They count if a body has the other name, too."""

    @model_validator(mode="before")
    @classmethod
    def _clean(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = without_nulls(data)
        for alias, name in ALIASES.items():
            if name not in cls.model_fields:  # it is reported by the name that was sent
                continue
            if alias in fields and name in fields and alias in cls.own_names:
                fields[f"{name} ({alias} is used)"] = fields.pop(name)
            if alias in fields and name not in fields:
                fields[name] = fields.pop(alias)
        _read_dynatemp(fields)
        _read_choice(fields)
        _read_textgen(fields)
        return fields

    _left_out: list[str] = PrivateAttr(default_factory=list)
    """What was changed or left out of the known fields, for `unread`."""

    def leave_out(self, *names: str) -> None:
        """Remove fields that have no effect. `unread` names those that ask for something."""
        for name in names:
            value = getattr(self, name)
            if value or type(value) in (int, float):
                self._left_out.append(name)
            setattr(self, name, None)
            self.model_fields_set.discard(name)

    def unread(self, model: str = "") -> list[str]:
        """Return the names of the unknown fields, and what was left out of the others."""
        return [*(self.model_extra or ()), *self._left_out]


class ModelFields(BodyFields):
    """The fields of a body that may name a model."""

    model: str | None = Field(None, description="the server has one model; another name is ignored, and reported.")

    def unread(self, model: str = "") -> list[str]:
        """Return what `BodyFields.unread` does, and `model` if it isn't that of the server, which is given."""
        return [*super().unread(), *(["model"] if self.model not in (None, model) else [])]


@contextmanager
def depth_refused() -> Iterator[None]:
    """Raise `InvalidRequestError` if the body that is read within this context is nested too deeply."""
    try:
        yield
    except RecursionError:  # reading a body, or quoting it in an error, recurses as deeply as the body is nested
        raise InvalidRequestError("the body is nested too deeply", code="invalid_json") from None


Fields = TypeVar("Fields", bound=BaseModel)


def read_fields(body: bytes, kind: type[Fields]) -> Fields:
    """Return the fields of a body: a JSON object, or a list for a `RootModel`. Raises `InvalidRequestError`."""
    return validate(read_json(body), kind)


@depth_refused()
def read_json(body: bytes) -> Any:
    """Return the JSON of a body. Raises `InvalidRequestError`."""

    def refuse(constant: str) -> NoReturn:
        raise InvalidRequestError(f"the body is not JSON: {constant} is no JSON number", code="invalid_json")

    try:
        return json.loads(body, parse_constant=refuse)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}", code="invalid_json") from None
    except ValueError:  # Python limits the digits of a number, since converting many is slow
        raise InvalidRequestError("the body has a number with too many digits", code="invalid_json") from None


@depth_refused()
def validate(data: Any, kind: type[Fields]) -> Fields:
    """Return the fields of a body that is already read as JSON. Raises `InvalidRequestError`."""
    wanted, name = (list, "list") if issubclass(kind, RootModel) else (dict, "object")
    if not isinstance(data, wanted):
        raise InvalidRequestError(f"the body must be a JSON {name}, got {kind_of(data)}")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param, value = "", data
        for k, part in enumerate(first["loc"]):
            is_last = k == len(first["loc"]) - 1
            part = sent_name(value, part, kind) if isinstance(part, str) else part
            if isinstance(part, int):
                param += f"[{part}]"
            elif not param or (is_last and param.endswith("]")) or (isinstance(value, dict) and part in value):
                param += f".{part}" if param else part
            else:  # pydantic's name for a member of a union, or a level that the body doesn't have
                continue
            value = _inside(value, part)
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":  # pydantic's message names the class, which clients don't know
            message = "Input should be an object"
        got = kind_of(first["input"]) if param.startswith("messages") else show(first["input"])
        raise InvalidRequestError(f"{param}: {message}, got {got}", param=param) from None


def sent_name(fields: Any, name: str, kind: type[BaseModel]) -> str:
    """Return the name that a field was read by in an object of a body: `name`, or another server's."""
    if not isinstance(fields, dict):
        return name
    own_names = kind.own_names if issubclass(kind, BodyFields) else ()
    sent = [alias for alias, each in ALIASES.items() if each == name and fields.get(alias) is not None]
    own = [alias for alias in sent if alias in own_names]
    return next(iter([*own, name] if fields.get(name) is not None else [*own, *sent, name]))


def sent_names(fields: dict[str, Any], kind: type[BaseModel]) -> dict[str, str]:
    """Return the other servers' names by which fields of a body were read, at the top or in Ollama's `options`.

    They are for errors after `validate`, which names fields itself.
    """
    names: dict[str, str] = {}
    for each in (fields.get("options"), fields):
        aliases = ALIASES.keys() & without_nulls(each) if isinstance(each, dict) else ()
        names |= {ALIASES[alias]: sent_name(each, ALIASES[alias], kind) for alias in aliases}
    return names


def _inside(value: Any, part: str | int) -> Any:
    """Return the value at this place of an object or a list, or None."""
    try:
        return value[part]
    except (LookupError, TypeError):
        return None


def kind_of(value: Any) -> str:
    """Return the JSON type of a value, in words. Errors name it in place of a prompt, because errors are logged."""
    names = {list: "a list", str: "a string", dict: "an object", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def show(value: Any) -> str:
    """Return a value as error messages quote it, in up to 60 characters."""
    text = repr(value) if not isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
