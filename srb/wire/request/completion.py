"""Reads from a body how many alternatives it asks for, now and ahead, with which parameters, and how long."""

import dataclasses
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, WithJsonSchema

from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.validation.exclusions import SEARCHES, hinders_ahead
from srb.engine.validation.fields import meanings
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.request.body_fields import Float, Int
from srb.wire.request.fields import BEAM_FIELDS, BRIDGE_FIELDS, SamplingFields
from srb.wire.request.messages import Message
from srb.wire.request.read import show
from srb.wire.stories import Id, Text
from srb.wire.tokens import MAX_BIASED_TEXTS, Tokenize, join_tokens
from srb.wire.tools.offered import ToolFields

# The fields of `POST /v1/completions` and of `POST /v1/chat/completions`.

_TEXT_OR_IDS = [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]
Prompt = Annotated[Any, WithJsonSchema({"anyOf": [*_TEXT_OR_IDS, {"type": "array", "items": {"anyOf": _TEXT_OR_IDS}}]})]
Stream = Annotated[bool | str, WithJsonSchema({"enum": ["events", True, False]})]


def check_stream(stream: bool | str | None) -> None:
    """Raises `InvalidRequestError` if a text is sent that is no way to stream."""
    if isinstance(stream, str) and stream != "events":
        raise InvalidRequestError(f'stream must be true, false or "events", got {show(stream)}', param="stream")


_CHOICES = [{"enum": ["auto", "none", "required"]}, {"type": "object"}]
ToolChoice = Annotated[Any, WithJsonSchema({"anyOf": _CHOICES})]
Parallel = Annotated[Any, WithJsonSchema({"type": "boolean"})]

Search = Annotated[str, WithJsonSchema({"enum": list(SEARCHES)})]


def _as_text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


EarlyStopping = Annotated[str, BeforeValidator(_as_text), WithJsonSchema({"enum": [True, False, "never"]})]


class BranchFields(SamplingFields):
    """One object of `branches`. Fields that it leaves out are those of the request."""

    label: str | None = None


class CompletionFields(SamplingFields):
    """The body of `POST /v1/completions` and `POST /v1/chat/completions`."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}]})

    prompt: Prompt = Field(None, description="a text, a list of token ids, or a list of either.")
    messages: list[Message] | None = Field(
        None, description="a conversation in place of the prompt; the model's chat template makes the prompt of it."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables for the chat template.")
    tools: list[ToolFields] | None = Field(None, description="functions that the model may call, in a chat.")
    tool_choice: ToolChoice = Field(
        None, description='"auto", "none", "required", or the one function that must be called.'
    )
    parallel_tool_calls: Parallel = Field(
        None,
        description="whether one answer may have several calls. Left out: if the model's template can write several.",
    )
    functions: list[Any] | None = Field(None, description="refused, unless it is empty: send tools instead.")
    suffix: str | list[int | str] | None = Field(
        None,
        description="the text that comes after the alternatives, or token ids; not for chats. A model with tokens for "
        "infill reads it. For any other one candidates are drawn from the prompt alone, and those are returned after "
        "which it is the likeliest; `infill` in `start` says which. Most suffixes should begin with a space.",
    )
    n: Int | None = Field(
        None,
        description="how many alternatives each prompt gets. Left out: the server's `--n`, or 1 in OpenAI's format.",
    )
    branches: list[BranchFields] | None = Field(
        None,
        description="one object per alternative, with the fields that are different for this one; `n` may be left out.",
    )
    seed: Int | None = Field(
        None,
        description="alternative k has the seed (seed + k) mod 2^32, and random numbers of its own; -1: drawn.",
    )
    distinct: bool | None = None
    heal: bool | None = None
    search: Search | None = None
    beams: Int | None = None
    length_penalty: Float | None = None
    early_stopping: EarlyStopping | None = None
    candidates: Int | None = Field(None, description=meanings(CompletionRequest)["n_candidates"])
    stop_at_suffix: bool | None = None
    logprobs: Int | StrictBool | None = None
    top_logprobs: Int | None = Field(
        None, description="for chats, in which logprobs is true or false: how many of the likeliest tokens to show."
    )
    n_probs: Int | None = Field(None, description="the same as logprobs, but 0 means off.")
    post_sampling_probs: bool | None = None
    echo: bool | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = Field(
        None,
        description="in the streams of chats and of llama-server's routes: send `timings` with each piece of text.",
    )
    cache_prompt: bool | None = None
    ahead: Int | None = Field(
        None, description=f"{meanings(CompletionRequest)['ahead']} Left out: the server's `--ahead`, 0."
    )
    context_shift: bool | None = Field(
        None,
        description=f"{meanings(CompletionRequest)['context_shift']} Left out: the server's `--context-shift`, where "
        "it can be done.",
    )
    n_keep: Int | None = Field(
        None, description=f"{meanings(CompletionRequest)['n_keep']} Left out: the server's `--keep`, 0."
    )
    n_discard: Int | None = None
    id_slot: Int | None = Field(
        None,
        description="with `--slot-save-path`: the slot of the first alternative, for POST /slots/{id_slot}; "
        "the other alternatives have the next slots. Left out, or -1: 0.",
    )
    best_of: Int | None = Field(
        None,
        description="run this many alternatives, and return the n with the highest mean log-probability; "
        'only with "stream": false. With a suffix, the same as `candidates`.',
    )
    stream_options: dict[str, Any] | None = Field(
        None, description='{"include_usage": true} adds a last chunk with the usage.'
    )
    story: Text | None = Field(
        None,
        description="with `--history`: the id of a story. The alternatives become nodes of the story while they grow.",
    )
    node: Id | None = Field(
        None,
        description="the node of the story that the alternatives go on from. Left out: they begin the story. Without a "
        "prompt, the prompt is the text of the path to this node.",
    )
    detach: bool | None = Field(
        None,
        description="the request goes on when its connection is closed; GET /v1/completions/{id}/events reads it "
        "again. Without it, closing the connection cancels the request.",
    )
    model: str | None = Field(None, description="the server has one model; another name is ignored, and reported.")
    stream: Stream | None = Field(
        None,
        description="\"events\" for native events, true for OpenAI's chunks, false for OpenAI's object. Left out: "
        "native events, or OpenAI's object with a `model`, at /openai/v1, and with `--default-format openai`.",
    )

    @property
    def searches(self) -> bool:
        """Whether a beam search or a bridge finds the texts, in place of alternatives that go on alone."""
        return self.search == "beam" or bool(self.suffix)

    @property
    def search_settings(self) -> dict[str, Any]:
        """The fields of a beam search and of a bridge, as `CompletionRequest` takes them."""
        sent = {name: getattr(self, name) for name in self.search_fields}
        given = {name: value for name, value in sent.items() if value is not None}
        if self.search == "beam":
            given["search"] = "beam"
        if (stopping := given.get("early_stopping")) in ("true", "false"):
            given["early_stopping"] = stopping == "true"
        if "candidates" in given:
            given["n_candidates"] = given.pop("candidates")
        return given

    @property
    def search_fields(self) -> tuple[str, ...]:
        """The names of the fields of a beam search and of a bridge that have an effect."""
        return (BEAM_FIELDS if self.search == "beam" else ()) + (BRIDGE_FIELDS if self.suffix else ())

    def suffix_ids(self, tokenize: Tokenize) -> tuple[int, ...] | None:
        """The tokens of the suffix; None without one, or for an empty one. Raises `InvalidRequestError`."""
        parts: list[int | str] = [self.suffix] if isinstance(self.suffix, str) else self.suffix or []
        try:
            return tuple(join_tokens([part for part in parts if part != ""], tokenize, is_prompt=False)) or None
        except InvalidRequestError as error:  # its message calls the text a prompt
            raise InvalidRequestError(f"suffix: {error.message}", param="suffix") from None


def count_alternatives(fields: CompletionFields, default: int, limits: Limits) -> int:
    """The number of alternatives of each prompt. default: if the body doesn't say. Raises `InvalidRequestError`."""
    if fields.branches is not None and fields.n is not None and fields.n != len(fields.branches):
        raise InvalidRequestError(
            f"n is {fields.n!s:.60}, but branches has {len(fields.branches)}; leave n out or make them agree",
            param="n",
        )
    n = default if fields.n is None else fields.n
    name = "n"
    if fields.branches is not None:
        n, name = len(fields.branches), "the number of branches"
    if not 1 <= n <= limits.max_n:
        raise InvalidRequestError(
            f"{name} must be from 1 to {limits.max_n}, got {n!s:.60}", param="n" if name == "n" else "branches"
        )
    return n


def make_branches(fields: CompletionFields, n: int, limits: Limits, tokenize: Tokenize) -> tuple[SamplingParams, ...]:
    """The parameters of each of n alternatives. Raises `InvalidRequestError`."""
    texts = sum(each.biased_texts for each in (fields, *(fields.branches or ())))
    if texts > MAX_BIASED_TEXTS:
        raise InvalidRequestError(
            f"logit_bias and banned_tokens have {texts} texts, those of all branches together; the limit is "
            f"{MAX_BIASED_TEXTS}; send token ids instead, which /tokenize tells",
            param="logit_bias",
        )
    common = SamplingParams(**{**limits.sampling, **fields.given(tokenize)}).alternatives(n)
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


def take_all_room(fields: CompletionFields, limits: Limits) -> bool:
    """Lets answers go on until the context is full, if nothing limits their length, as llama-server does.

    Returns whether it did so unasked: a chat then has at most `DEFAULT_MOST_TOKENS`. A search keeps the usual
    `max_tokens`, because it holds cells for all tokens of each beam from the start.
    """
    if fields.max_tokens is not None or limits.max_tokens is not None or fields.searches:
        return False
    fields.max_tokens = -1
    return all(branch.max_tokens != -1 for branch in fields.branches or ())


def takes_any_seed(fields: CompletionFields) -> bool:
    """Whether a body leaves the seeds of all alternatives to the server."""
    return all(seed in (None, -1) for seed in (fields.seed, *(branch.seed for branch in fields.branches or ())))


def with_ahead(request: CompletionRequest, fields: CompletionFields, limits: Limits) -> CompletionRequest:
    """The request with the number of alternatives that are drawn ahead.

    What only the server's settings ask for is left out if it can't be done for this request. Raises
    `InvalidRequestError` if the body asks for what can't be done.
    """
    ahead = limits.ahead if fields.ahead is None else fields.ahead
    if not ahead or (fields.ahead is None and hinders_ahead(request)):
        return request
    if not 0 <= ahead <= limits.max_n:
        raise InvalidRequestError(f"ahead must be from 0 to {limits.max_n} (--max-n), got {ahead!s:.60}", param="ahead")
    return dataclasses.replace(request, ahead=ahead)
