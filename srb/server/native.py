"""The native wire format: request bodies in, `start / stream / stop / done` events out. Pure functions."""

import dataclasses
import json
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent, StopEvent, StreamEvent
from srb.engine.request import CompletionRequest, SamplingParams
from srb.errors import InvalidRequestError

ALIASES = {
    "n_predict": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "stop_sequence": "stop",
    "sampler_seed": "seed",
    "ban_eos_token": "ignore_eos",
}
"""What other servers' clients call a field. Where both names are sent, the alias is ignored and reported."""


def _not_a_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not true or false")
    return value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Int = Annotated[int, BeforeValidator(_not_a_bool)]
Float = Annotated[float, BeforeValidator(_not_a_bool), Field(allow_inf_nan=False)]
Strings = Annotated[list[str], BeforeValidator(_as_list)]


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
    top_k: Int | None = None
    top_p: Float | None = None
    min_p: Float | None = None
    seed: Int | None = None
    max_tokens: Int | None = None
    stop: Strings | None = None
    ignore_eos: bool | None = None

    def given(self) -> dict[str, Any]:
        """The fields that were sent, as `SamplingParams` takes them."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        if "stop" in fields:
            fields["stop"] = tuple(fields["stop"])
        return fields


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


def parse(
    body: bytes, limits: Limits, tokenize: Callable[[str], tuple[int, ...]]
) -> tuple[CompletionRequest, list[str]]:
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
    branches = _branches(fields, limits)
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


def _branches(fields: CompletionFields, limits: Limits) -> tuple[SamplingParams, ...]:
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
    given = {name: value for name, value in fields.given().items() if name in SamplingFields.model_fields}
    common = SamplingParams(**given).alternatives(n)
    if fields.branches is None:
        return common
    return tuple(
        _override(params, branch, k) for k, (params, branch) in enumerate(zip(common, fields.branches, strict=True))
    )


def _override(params: SamplingParams, branch: BranchFields, k: int) -> SamplingParams:
    try:
        return dataclasses.replace(params, **branch.given())
    except InvalidRequestError as error:
        raise InvalidRequestError(f"branches[{k}]: {error.message}", param=f"branches[{k}].{error.param}") from None


def _prompts(
    prompt: Any, limits: Limits, n: int, tokenize: Callable[[str], tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
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


def _prompt_tokens(prompt: Any, tokenize: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
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


def to_json(event: Event, *, model: str, created: int, ignored: list[str]) -> dict[str, Any]:
    """The JSON object of an event. `created` is in seconds since 1970."""
    match event:
        case StreamEvent():
            return {"event": "stream", "index": event.index, "text": event.text}
        case StopEvent():
            return {
                "event": "stop",
                "index": event.index,
                "length": event.length,
                "stop": int(event.finish_reason == "stop"),
                "finish_reason": event.finish_reason,
                "stop_reason": event.stop_reason,
            }
        case StartEvent():
            start = {
                "event": "start",
                "count": event.count,
                "id": event.request_id,
                "created": created,
                "model": model,
                "prompt_tokens": event.prompt_tokens,
                "cached_tokens": event.cached_tokens,
                "max_tokens": event.max_tokens,
                "seeds": event.seeds,
                "ignored": ignored,
            }
            return start | ({"labels": event.labels} if any(event.labels) else {})
        case ErrorEvent():
            index = {} if event.index is None else {"index": event.index}
            return {"event": "error", **index, "error": event.error.body()}
        case DoneEvent():
            usage, timings = event.usage, event.timings
            return {
                "event": "done",
                "count": event.count,
                "id": event.request_id,
                "usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                },
                "timings": {name: round(value, 3) for name, value in dataclasses.asdict(timings).items()},
            }
