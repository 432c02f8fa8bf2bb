"""Request bodies: read, validated and turned into what the engine takes. Pure functions."""

import dataclasses
import json
from typing import Any, NoReturn

from pydantic import ValidationError

from srb.engine.request import CompletionRequest, SamplingParams
from srb.errors import InvalidRequestError
from srb.server.fields import BranchFields, CompletionFields, Tokenize, is_token, show


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the server's settings say about requests."""

    model: str
    n: int
    max_n: int


def parse(body: bytes, limits: Limits, tokenize: Tokenize) -> tuple[CompletionRequest, list[str]]:
    """The request in a body, and the names of the fields in it that have no effect. Raises `InvalidRequestError`."""
    try:
        return _parse(_validate(_read_json(body)), limits, tokenize)
    except RecursionError:  # reading it, and quoting it in an error, go down as deep as it does
        raise InvalidRequestError("the body is nested too deeply", code="invalid_json") from None


def _parse(fields: CompletionFields, limits: Limits, tokenize: Tokenize) -> tuple[CompletionRequest, list[str]]:
    if isinstance(fields.stream, str) and fields.stream != "events":
        raise InvalidRequestError(f'stream must be true, false or "events", got {show(fields.stream)}', param="stream")
    if isinstance(fields.stream, bool) or (fields.stream is None and fields.model is not None):
        raise InvalidRequestError(
            "the OpenAI format, which stream true or false or a model without stream ask for, isn't there yet; "
            'send "stream": "events" for native events',
            param="stream",
            code="unsupported_format",
        )
    branches = _branches(fields, limits, tokenize)
    prompts = _prompts(fields.prompt, limits, len(branches), tokenize)
    ignored = fields.ignored(fields.mirostat)
    if fields.model not in (None, limits.model):
        ignored.append("model")
    for k, branch in enumerate(fields.branches or ()):
        mirostat = fields.mirostat if branch.mirostat is None else branch.mirostat
        ignored += [f"branches[{k}].{name}" for name in branch.ignored(mirostat)]
    logprobs = fields.n_probs or None if fields.logprobs is None else fields.logprobs  # n_probs 0 is llama-server's off
    if fields.post_sampling_probs and logprobs is None:
        ignored.append("post_sampling_probs")
    if fields.best_of is not None:
        if fields.best_of > len(branches):
            raise InvalidRequestError(
                f"best_of ({fields.best_of!s:.60}) can't be more than n ({len(branches)}) in a stream, which shows "
                "alternatives before the best are known; raise n, or leave best_of out",
                param="best_of",
            )
        ignored.append("best_of")
    return CompletionRequest(
        prompts,
        branches,
        distinct=bool(fields.distinct),
        logprobs=logprobs,
        post_sampling_probs=bool(fields.post_sampling_probs),
        echo=bool(fields.echo),
        return_tokens=bool(fields.return_tokens),
    ), ignored


def _read_json(body: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise InvalidRequestError(f"the body is not JSON: {constant} is no JSON number", code="invalid_json")

    try:
        return json.loads(body, parse_constant=refuse)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}", code="invalid_json") from None
    except ValueError:  # Python's guard against slow conversions
        raise InvalidRequestError("the body has a number with too many digits", code="invalid_json") from None


def _validate(data: Any) -> CompletionFields:
    if not isinstance(data, dict):
        raise InvalidRequestError(f"the body must be a JSON object, got {show(data)}")
    try:
        return CompletionFields.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ""
        for part in first["loc"]:
            if isinstance(part, int):
                param += f"[{part}]"
            elif not param or param.endswith("]"):  # elsewhere it is pydantic's name for a member of a union
                param += f".{part}" if param else part
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":  # pydantic's words name our class
            message = "Input should be an object"
        raise InvalidRequestError(f"{param}: {message}, got {show(first['input'])}", param=param) from None


def _branches(fields: CompletionFields, limits: Limits, tokenize: Tokenize) -> tuple[SamplingParams, ...]:
    """The parameters of each alternative."""
    if fields.branches is not None and fields.n is not None and fields.n != len(fields.branches):
        raise InvalidRequestError(
            f"n is {fields.n!s:.60}, but branches has {len(fields.branches)}; leave n out or make them agree",
            param="n",
        )
    n = limits.n if fields.n is None else fields.n
    name = "n"
    if fields.branches is not None:
        n, name = len(fields.branches), "the number of branches"
    if not 1 <= n <= limits.max_n:
        raise InvalidRequestError(
            f"{name} must be from 1 to {limits.max_n}, got {n!s:.60}", param="n" if name == "n" else "branches"
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
    if not isinstance(prompt, list) or (prompt and is_token(prompt[0])):
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
    if isinstance(prompt, list) and all(map(is_token, prompt)):
        return tuple(prompt)
    raise InvalidRequestError(
        "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids; "
        f"got {show(prompt)}",
        param="prompt",
    )
