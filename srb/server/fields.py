"""Request bodies: validated, and turned into what the engine takes. Pure functions.

Types are checked here; ranges are `SamplingParams`' own.
"""

import dataclasses
import json
import math
from typing import Annotated, Any, NoReturn, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from srb.engine.request import SAMPLERS, CompletionRequest, SamplingParams
from srb.errors import InvalidRequestError
from srb.llama.grammar import grammar_of_schema

ALIASES = {
    "n_predict": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "stop_sequence": "stop",
    "sampler_seed": "seed",
    "repetition_penalty": "repeat_penalty",
    "rep_pen": "repeat_penalty",
    "rep_pen_range": "repeat_last_n",
    "mirostat_mode": "mirostat",
    "ban_eos_token": "ignore_eos",
    "nsigma": "top_n_sigma",
    "typ_p": "typical_p",
    "grammar_string": "grammar",
}
"""What other servers' clients call a field. Where both names are sent, the alias is ignored and reported."""

MAX_LOGIT_BIASES = 10_000

SAMPLER_ALIASES = {"typical_p": "typ_p", "temp": "temperature"}


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


class Tokenize(Protocol):
    """`Engine.tokenize`."""

    def __call__(self, text: str, *, is_prompt: bool = True) -> tuple[int, ...]: ...


Int = Annotated[int, BeforeValidator(_not_a_bool)]
Float = Annotated[float, BeforeValidator(_not_a_bool), Field(allow_inf_nan=False)]
Strings = Annotated[list[str], BeforeValidator(_as_list)]
Breakers = Annotated[list[str], BeforeValidator(_as_breakers)]


class _Fields(BaseModel):
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
        return fields

    @property
    def unknown(self) -> list[str]:
        return list(self.model_extra or ())


class SamplingFields(_Fields):
    """What may differ between alternatives."""

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
    dry_sequence_breakers: Breakers | None = None
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
    ignore_eos: bool | None = None
    grammar: str | None = None
    samplers: Strings | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    banned_tokens: list[Any] | None = None
    json_schema: Any = None
    response_format: dict[str, Any] | None = None

    @property
    def unknown(self) -> list[str]:
        """The names in it that mean nothing here."""
        known = {*SAMPLERS, *SAMPLER_ALIASES}
        return [*super().unknown, *(f"samplers.{name}" for name in self.samplers or () if name not in known)]

    def given(self, tokenize: Tokenize) -> dict[str, Any]:
        """The fields that were sent, as `SamplingParams` takes them. Raises `InvalidRequestError`."""
        names = {field.name for field in dataclasses.fields(SamplingParams)}
        given: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set & names}
        for name in ("stop", "dry_sequence_breakers"):
            if name in given:
                given[name] = tuple(given[name])
        if given.get("grammar") == "":
            given["grammar"] = None
        if "samplers" in given:
            ordered = (SAMPLER_ALIASES.get(name, name) for name in given["samplers"])
            given["samplers"] = tuple(dict.fromkeys(name for name in ordered if name in SAMPLERS))
        if self.logit_bias or self.banned_tokens:
            given["logit_bias"] = _biases(self.logit_bias or {}, self.banned_tokens or [], tokenize)
        schema = _schema(self.json_schema, self.response_format)
        if schema is not None:
            if given.get("grammar"):
                raise InvalidRequestError("grammar and a JSON schema exclude each other", param="grammar")
            given["grammar"] = grammar_of_schema(schema)
        return given


def _biases(biases: Any, banned: list[Any], tokenize: Tokenize) -> tuple[tuple[int, float], ...]:
    """(token id, bias) pairs of llama-server's two notations: {"15043": 1.0, "text": false} and [[15043, 1.0], ...]."""
    result: dict[int, float] = {}
    for pair in biases.items() if isinstance(biases, dict) else biases:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2):
            raise InvalidRequestError(
                f"logit_bias takes pairs of a token and a number, got {_show(pair)}", param="logit_bias"
            )
        key, value = pair
        result |= dict.fromkeys(_tokens("logit_bias", key, tokenize), _bias(key, value))
    for key in banned:
        result |= dict.fromkeys(_tokens("banned_tokens", key, tokenize), -math.inf)
    if len(result) > MAX_LOGIT_BIASES:
        raise InvalidRequestError(
            f"logit_bias and banned_tokens take {MAX_LOGIT_BIASES} tokens, got {len(result)}", param="logit_bias"
        )
    return tuple(result.items())


def _bias(key: Any, value: Any) -> float:
    if value is False:
        return -math.inf
    try:
        bias = float(_not_a_bool(value))
    except (ValueError, TypeError):
        raise InvalidRequestError(
            f"logit_bias takes a number or false for {_show(key)}, got {_show(value)}", param="logit_bias"
        ) from None
    return bias if math.isfinite(bias) else math.nan  # infinite only where it is false


def _tokens(name: str, key: Any, tokenize: Tokenize) -> tuple[int, ...]:
    """The tokens that a key stands for: an id, as a number or as digits, or a text."""
    if _is_token(key):
        return (key,)
    if isinstance(key, str) and key:
        return (int(key),) if key.isascii() and key.isdecimal() and len(key) < 10 else tokenize(key, is_prompt=False)
    raise InvalidRequestError(f"{name} takes token ids and strings, got {_show(key)}", param=name)


def _schema(schema: Any, response_format: dict[str, Any] | None) -> Any:
    """The JSON schema that a request asks for in either notation, or None."""
    if response_format is None:
        return schema
    kind = response_format.get("type")
    if kind == "json_object":
        return response_format.get("schema") or {"type": "object"}
    if kind == "json_schema":
        inner = response_format.get("json_schema")
        if isinstance(inner, dict) and "schema" in inner:
            return inner["schema"]
        raise InvalidRequestError("response_format.json_schema.schema is missing", param="response_format")
    if kind != "text":
        raise InvalidRequestError(
            f"response_format.type is text, json_object or json_schema, got {_show(kind)}", param="response_format"
        )
    return schema


class BranchFields(SamplingFields):
    """One object of `branches`."""

    label: str | None = None


class CompletionFields(SamplingFields):
    """The body of `POST /v1/completions`."""

    prompt: Any = None
    n: Int | None = None
    branches: list[BranchFields] | None = None
    model: str | None = None
    stream: bool | str | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the server's settings say about requests."""

    model: str
    n: int
    max_n: int


def parse(body: bytes, limits: Limits, tokenize: Tokenize) -> tuple[CompletionRequest, list[str]]:
    """The request in a body, and the names of the fields in it that have no effect. Raises `InvalidRequestError`."""
    fields = _validate(_read_json(body))
    if isinstance(fields.stream, str) and fields.stream != "events":
        raise InvalidRequestError(f'stream must be true, false or "events", got {_show(fields.stream)}', param="stream")
    if isinstance(fields.stream, bool) or (fields.stream is None and fields.model is not None):
        raise InvalidRequestError(
            "the OpenAI format, which stream true or false or a model without stream ask for, isn't there yet; "
            'send "stream": "events" for native events',
            param="stream",
            code="unsupported_format",
        )
    branches = _branches(fields, limits, tokenize)
    prompts = _prompts(fields.prompt, limits, len(branches), tokenize)
    ignored = fields.unknown
    if fields.model not in (None, limits.model):
        ignored.append("model")
    for k, branch in enumerate(fields.branches or ()):
        ignored += [f"branches[{k}].{name}" for name in branch.unknown]
    return CompletionRequest(prompts, branches), ignored


def _read_json(body: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise InvalidRequestError(f"the body is not JSON: {constant} is no JSON number", code="invalid_json")

    try:
        return json.loads(body, parse_constant=refuse)
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply", code="invalid_json") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}", code="invalid_json") from None
    except ValueError:  # Python's guard against slow conversions
        raise InvalidRequestError("the body has a number with too many digits", code="invalid_json") from None


def _validate(data: Any) -> CompletionFields:
    if not isinstance(data, dict):
        raise InvalidRequestError(f"the body must be a JSON object, got {_show(data)}")
    try:
        return CompletionFields.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ""
        for part in first["loc"]:
            if isinstance(part, int):
                param += f"[{part}]"
            elif not param or param.endswith("]"):
                param += f".{part}" if param else part
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":  # pydantic's words name our class
            message = "Input should be an object"
        raise InvalidRequestError(f"{param}: {message}, got {_show(first['input'])}", param=param) from None


def _branches(fields: CompletionFields, limits: Limits, tokenize: Tokenize) -> tuple[SamplingParams, ...]:
    """The parameters of each alternative."""
    if fields.branches is not None and fields.n is not None and fields.n != len(fields.branches):
        raise InvalidRequestError(
            f"n is {fields.n}, but branches has {len(fields.branches)}; leave n out or make them agree",
            param="n",
        )
    n = limits.n if fields.n is None else fields.n
    name = "n"
    if fields.branches is not None:
        n, name = len(fields.branches), "the number of branches"
    if not 1 <= n <= limits.max_n:
        raise InvalidRequestError(
            f"{name} must be from 1 to {limits.max_n}, got {n}", param="n" if name == "n" else "branches"
        )
    common = SamplingParams(**fields.given(tokenize)).alternatives(n)
    if fields.branches is None:
        return common
    return tuple(
        _override(params, branch, k, tokenize)
        for k, (params, branch) in enumerate(zip(common, fields.branches, strict=True))
    )


def _override(params: SamplingParams, branch: BranchFields, k: int, tokenize: Tokenize) -> SamplingParams:
    try:
        return dataclasses.replace(params, **branch.given(tokenize))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"branches[{k}]: {error.message}", param=f"branches[{k}].{error.param}") from None


def _prompts(prompt: Any, limits: Limits, n: int, tokenize: Tokenize) -> tuple[tuple[int, ...], ...]:
    """The token ids of each prompt."""
    if prompt is None:
        raise InvalidRequestError("prompt is missing", param="prompt")
    if not isinstance(prompt, list) or (prompt and _is_token(prompt[0])):
        prompt = [prompt]
    if len(prompt) * n > limits.max_n:
        raise InvalidRequestError(
            f"{len(prompt)} prompts with n = {n} make {len(prompt) * n} alternatives; the limit is {limits.max_n} "
            "(--max-n); send fewer prompts or a smaller n",
            param="prompt",
        )
    return tuple(_prompt_tokens(item, tokenize) for item in prompt)


def _prompt_tokens(prompt: Any, tokenize: Tokenize) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tokenize(prompt)
    if isinstance(prompt, list) and all(map(_is_token, prompt)):
        return tuple(prompt)
    raise InvalidRequestError(
        "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids; "
        f"got {_show(prompt)}",
        param="prompt",
    )


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _show(value: Any) -> str:
    """A value as an error message quotes it."""
    text = repr(value) if not isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
