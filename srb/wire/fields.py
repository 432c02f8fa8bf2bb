"""The sampler fields of a body: their names, aliases, types and notations. Their ranges are `SamplingParams`' own."""

import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from srb.engine.meanings import meanings
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import CONSTRAINTS, SAMPLERS, SamplingParams
from srb.errors import InvalidRequestError
from srb.wire.constraints import KINDS, as_schema, of_response_format, of_structured_outputs

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
"""What other servers' clients call a field. Where both names are sent, the alias is ignored and reported."""

REPLACED_BY_MIROSTAT = {
    *("dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "min_keep"),
    *("xtc_probability", "xtc_threshold", "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("adaptive_target", "adaptive_decay", "samplers"),
}
"""The fields without effect where mirostat is on: it takes the place of all samplers but temperature and biases."""

REPLACED_BY_SEARCH = REPLACED_BY_MIROSTAT | {"temperature", "mirostat", "mirostat_tau", "mirostat_eta"}
"""The fields without effect in a beam search: it goes by the model's own probabilities, after biases."""

SEARCH_FIELDS = {"beam": ("beams", "length_penalty", "early_stopping"), "stochastic_beam": ("beams",)}
"""The fields of each kind of search. They have no effect where another one is asked for, or none."""

MAX_LOGIT_BIASES = 10_000
"""Entries of one alternative's `logit_bias` and `banned_tokens`, and tokens that they stand for."""

MAX_BIASED_TEXTS = 10_000
"""Texts among the entries of a whole request, since each is tokenized: 10,000 of them take a third of a second."""

SAMPLER_ALIASES = {"typical_p": "typ_p", "temp": "temperature"}

DEFAULTS = {
    each.name: list(each.default) if isinstance(each.default, tuple) else each.default
    for each in dataclasses.fields(SamplingParams)
}
"""What the fields of `SamplingParams` are where they're left out, as JSON has them."""


def _not_a_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not true or false")
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_breakers(value: Any) -> Any:
    """Frontends send a list, a list written as JSON, or one written with commas."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.lstrip().startswith("[") else value.split(",")
    except ValueError:
        return [value]


def _as_phrases(value: Any) -> Any:
    """Frontends send a list, a list written as JSON, or a phrase on each line, in quotes or not."""
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
    """text-generation-webui's notation is ids with commas between."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _read_dynatemp(fields: dict[str, Any]) -> None:
    """Turns the lowest and the highest temperature, as text-generation-webui has it, into the middle and the range.

    What doesn't mean anything stays, to be reported: an empty range, or one beside `dynatemp_range`.
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


class Tokenize(Protocol):
    """`Engine.tokenize`."""

    def __call__(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]: ...


Int = Annotated[int, BeforeValidator(_not_a_bool)]
Float = Annotated[float, BeforeValidator(_not_a_bool), Field(allow_inf_nan=False)]
Strings = Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
Ids = Annotated[list[Any], BeforeValidator(_as_ids, json_schema_input_type=str | list[Any])]
Phrases = Annotated[list[str], BeforeValidator(_as_phrases, json_schema_input_type=str | list[str])]
Breakers = Annotated[list[str], BeforeValidator(_as_breakers, json_schema_input_type=str | list[str])]


class KeptTexts(BaseModel):
    """The texts of a request that is kept: that of one alternative, or all."""

    model_config = ConfigDict(extra="forbid")

    request: str = Field(description="its id.")
    index: Int | None = Field(None, description="the index of one of its alternatives. Left out: all of them.")


Avoid = Annotated[
    list[str | list[Int] | KeptTexts],
    BeforeValidator(_as_list, json_schema_input_type=str | list[str | list[int] | KeptTexts]),
]


class AdapterScale(BaseModel):
    """An adapter, by its number or its name, and how much of it is wanted."""

    id: Int | str | None = Field(None, description="its number, counted from 0, or its name.")
    name: str | None = Field(None, description="its name, in place of `id`.")
    scale: Float = Field(1.0, description="0: the adapter has no effect; 1: the effect that it was trained for.")

    @property
    def asked(self) -> tuple[int | str, float]:
        """Which one, and its scale. Raises `InvalidRequestError` if it isn't said which one."""
        name = self.name if self.id is None else self.id
        if name is None:
            raise InvalidRequestError('lora: an adapter has an "id" or a "name"', param="lora")
        return name, self.scale


class BodyFields(BaseModel):
    """Fields may be absent or null; numbers may come as strings; unknown fields are kept, to be reported."""

    model_config = ConfigDict(extra="allow")

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


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What each field of a body means: as the model says, or as the engine says of its own field of that name."""
    engine = meanings(SamplingParams) | meanings(CompletionRequest)
    return {name: field.description or engine.get(name, "") for name, field in model.model_fields.items()}


class SamplingFields(BodyFields):
    """What may differ between alternatives. Where `SamplingParams` has a field of the same name, it means the same."""

    temperature: Float | None = None
    dynatemp_range: Float | None = None
    dynatemp_exponent: Float | None = None
    top_k: Int | None = None
    top_p: Float | None = None
    min_p: Float | None = None
    typical_p: Float | None = None
    top_n_sigma: Float | None = None
    xtc_probability: Float | None = None
    xtc_threshold: Float | None = None
    repeat_penalty: Float | None = None
    repeat_last_n: Int | None = None
    presence_penalty: Float | None = None
    frequency_penalty: Float | None = None
    dry_multiplier: Float | None = None
    dry_base: Float | None = None
    dry_allowed_length: Int | None = None
    dry_penalty_last_n: Int | None = None
    dry_sequence_breakers: Breakers | None = Field(
        None,
        description="texts at which a repetition ends: a list, a list as JSON text, or one with commas between.",
    )
    mirostat: Int | None = None
    mirostat_tau: Float | None = None
    mirostat_eta: Float | None = None
    adaptive_target: Float | None = None
    adaptive_decay: Float | None = None
    min_keep: Int | None = None
    min_tokens: Int | None = None
    max_tokens: Int | None = None
    seed: Int | None = None
    stop: Strings | None = None
    banned_strings: Phrases | None = None
    max_rewinds: Int | None = None
    diversity: Float | None = None
    avoid: Avoid | None = Field(
        None,
        description=f"{meanings(SamplingParams)['avoid']} At /v1/completions an entry may be "
        '{"request": "cmpl-..."}, which stands for all texts of this request, or with an `index` for one of them.',
    )
    negative_prompt: str | list[int | str] | None = Field(
        None,
        description="a prompt to keep away from, with guidance_scale: a text, or a list of token ids and texts. "
        "Left out: the prompt's last token alone.",
    )
    guidance_scale: Float | None = None
    lora: list[AdapterScale] | None = Field(
        None,
        description='the adapters to use, such as [{"id": 0, "scale": 0.5}]; others are not '
        "used. Left out: as the server has set them.",
    )
    ignore_eos: bool | None = None
    grammar: str | None = None
    regex: str | None = None
    lark: str | None = None
    samplers: Strings | None = None
    logit_bias: dict[str, Any] | list[Any] | None = Field(
        None,
        description="numbers that are added to the logits of tokens, from -100 to 100; false bans the token: "
        '{"15043": 1.0, " the": false} or [[15043, 1.0], [" the", false]]. A text stands for each of its tokens.',
    )
    banned_tokens: Ids | None = Field(
        None,
        description="a list of ids and texts, or ids with commas between; the same as a logit_bias of false.",
    )
    json_schema: Annotated[Any, BeforeValidator(as_schema)] = Field(
        None,
        description="a JSON schema that the text must match, or the text of one.",
    )
    response_format: dict[str, Any] | None = Field(
        None,
        description="what the text must match, in OpenAI's notation; its type is text, json_object or json_schema.",
    )
    structured_outputs: dict[str, Any] | None = Field(
        None,
        description=f"what the text must match, in vLLM's notation: one of {', '.join(KINDS)}.",
    )

    def ignored(self, mirostat: int | None, search: str | None = None) -> list[str]:
        """The names of the fields, and of samplers, that were sent and have no effect."""
        known = {*SAMPLERS, *SAMPLER_ALIASES}
        unknown = [*self._unknown, *(f"samplers.{name}" for name in self.samplers or () if name not in known)]
        unknown += [f"structured_outputs.{name}" for name in self.structured_outputs or () if name not in KINDS]
        replaced = REPLACED_BY_MIROSTAT if mirostat else set()
        if search in SEARCH_FIELDS:
            replaced = REPLACED_BY_SEARCH | ({"seed"} if search == "beam" else set())
        return [*unknown, *sorted(replaced & self.model_fields_set)]

    @property
    def biased_texts(self) -> int:
        """How many texts `logit_bias` and `banned_tokens` have, which `given` tokenizes."""
        pairs = self.logit_bias or ()
        keys = pairs if isinstance(pairs, dict) else (pair[0] for pair in pairs if isinstance(pair, list) and pair)
        return sum(is_text(key) for key in (*keys, *(self.banned_tokens or ())))

    def given(self, tokenize: Tokenize) -> dict[str, Any]:
        """The fields that were sent, as `SamplingParams` takes them. Raises `InvalidRequestError`."""
        names = {field.name for field in dataclasses.fields(SamplingParams)} & set(type(self).model_fields)
        given: dict[str, Any] = {
            name: getattr(self, name) for name in self.model_fields_set & names if name != "json_schema"
        }
        for name in ("stop", "dry_sequence_breakers", "banned_strings"):
            if name in given:
                given[name] = tuple(given[name])
        if "avoid" in given:
            given["avoid"] = tuple(map(_avoided, given["avoid"]))
        if "negative_prompt" in given:
            given["negative_prompt"] = _negative(given["negative_prompt"], tokenize)
        if "lora" in given:
            given["lora"] = tuple(each.asked for each in given["lora"])
        if "samplers" in given:
            ordered = (SAMPLER_ALIASES.get(name, name) for name in given["samplers"])
            given["samplers"] = tuple(dict.fromkeys(name for name in ordered if name in SAMPLERS))
        if "logit_bias" in given or self.banned_tokens:
            given["logit_bias"] = _biases(self.logit_bias or {}, self.banned_tokens or [], tokenize)
        given |= self._constraint(given)
        return given

    def _constraint(self, given: dict[str, Any]) -> dict[str, Any]:
        """What the text must match; a branch's own takes the place of the request's, whichever that is."""
        found: dict[str, Any] = {name: given[name] or None for name in ("grammar", "regex", "lark") if name in given}
        if self.json_schema is not None:
            found["json_schema"] = json.dumps(self.json_schema)
        if self.response_format is not None:
            found |= of_response_format(self.response_format)
        if self.structured_outputs is not None:
            found |= of_structured_outputs(self.structured_outputs)
        return dict.fromkeys(CONSTRAINTS) | found if found else {}


def _avoided(each: str | list[int] | KeptTexts) -> str | tuple[int, ...]:
    if isinstance(each, KeptTexts):
        raise InvalidRequestError(
            "avoid takes the id of a request at /v1/completions and in chats alone; send its texts", param="avoid"
        )
    return each if isinstance(each, str) else tuple(each)


def _negative(prompt: str | list[int | str], tokenize: Tokenize) -> tuple[int, ...] | None:
    """The tokens of a negative prompt; None for an empty one, which clients send with all they don't use."""
    parts: list[int | str] = [prompt] if isinstance(prompt, str) else prompt
    try:
        return tuple(join_tokens([part for part in parts if part != ""], tokenize, is_prompt=True)) or None
    except InvalidRequestError as error:  # tokenize takes it for a prompt
        raise InvalidRequestError(f"negative_prompt: {error.message}", param="negative_prompt") from None


def join_tokens(parts: list[int | str], tokenize: Tokenize, *, is_prompt: bool) -> Iterator[int]:
    """The tokens of ids and texts, one after the other. A prompt that begins with a text gets BOS as any other."""
    for place, part in enumerate(parts):
        if isinstance(part, str):
            yield from tokenize(part, is_prompt=is_prompt and place == 0)
        else:
            yield part


def _biases(biases: Any, banned: list[Any], tokenize: Tokenize) -> tuple[tuple[int, float], ...]:
    """(token id, bias) pairs of llama-server's two notations: {"15043": 1.0, "text": false} and [[15043, 1.0], ...]."""
    n_entries = len(biases) + len(banned)
    if n_entries > MAX_LOGIT_BIASES:
        raise _too_many(f"{n_entries} entries")
    result: dict[int, float] = {}
    for pair in biases.items() if isinstance(biases, dict) else biases:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2):
            raise InvalidRequestError(
                f"logit_bias takes pairs of a token and a number, got {show(pair)}", param="logit_bias"
            )
        key, value = pair
        result |= dict.fromkeys(_tokens("logit_bias", key, tokenize), _bias(key, value))
    for key in banned:
        result |= dict.fromkeys(_tokens("banned_tokens", key, tokenize), -math.inf)
    if len(result) > MAX_LOGIT_BIASES:
        raise _too_many(f"{len(result)} tokens")
    return tuple(result.items())


def _too_many(got: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"logit_bias and banned_tokens have {got}; the limit is {MAX_LOGIT_BIASES} in all, so leave some out",
        param="logit_bias",
    )


def _bias(key: Any, value: Any) -> float:
    if value is False:
        return -math.inf
    try:
        bias = float(_not_a_bool(value))
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequestError(
            f"logit_bias takes a number or false for {show(key)}, got {show(value)}", param="logit_bias"
        ) from None
    return bias if math.isfinite(bias) else math.nan  # infinite only where it is false


def _tokens(name: str, key: Any, tokenize: Tokenize) -> tuple[int, ...]:
    """The tokens that a key stands for: an id, as a number or as digits, or a text."""
    if is_token(key):
        return (key,)
    if not (isinstance(key, str) and key):
        raise InvalidRequestError(f"{name} takes token ids and strings, got {show(key)}", param=name)
    if not is_text(key):
        return (int(key),)
    try:
        return tokenize(key, is_prompt=False)
    except InvalidRequestError as error:  # tokenize takes it for a prompt
        raise InvalidRequestError(f"{name} can't be {show(key)}: {error.message}", param=name) from None


def is_text(key: Any) -> bool:
    """Whether a key is a text to tokenize, and not an id, as a number or as digits."""
    return isinstance(key, str) and not (key.isascii() and key.isdecimal() and len(key) < 10)


def is_token(value: Any) -> bool:
    """Whether it may be a token id: true and false are no numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


def show(value: Any) -> str:
    """A value as an error message quotes it."""
    text = repr(value) if not isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
