"""The fields of completion bodies: their names, types and notations. The engine checks ranges and exclusions."""

import json
import math
import typing
from collections.abc import Callable
from dataclasses import fields as fields_of
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    WithJsonSchema,
    create_model,
)

from srb.engine.model import Tokenize
from srb.engine.request import EARLY_STOPPING, SEARCHES, CompletionRequest
from srb.engine.samplers import REPLACED_BY_BEAMS, sampler_named
from srb.engine.sampling_params import (
    GRAMMAR_FIELDS,
    MAX_AVOIDED,
    MAX_BANNED_STRINGS,
    MAX_DRY_BREAKERS,
    SamplingParams,
    in_lark,
)
from srb.engine.validation.exclusions import BEAM_SEARCH, BODY_NAMES, BRIDGE, REQUIREMENTS
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.request.messages import Message
from srb.wire.request.read import (
    BodyFields,
    Breakers,
    Float,
    Id,
    Int,
    ModelFields,
    PartFields,
    Phrases,
    Seed,
    StopIds,
    Stops,
    Strings,
    Text,
    TokenIds,
    as_list,
)
from srb.wire.tokens import MAX_LOGIT_BIASES, biases_of, is_text, join_tokens, without_unknown
from srb.wire.tools.definitions import ToolList

KINDS = ("json", "json_object", "regex", "choice", "grammar")
"""The kinds of constraints in vLLM's `structured_outputs`."""


def as_schema(value: Any) -> Any:
    """Return a JSON schema as an object; `value` may also be its text. Raises `ValueError`."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"Input should be a JSON schema or its text: {error}") from None


def of_response_format(form: dict[str, Any]) -> dict[str, Any]:
    """Return OpenAI's `response_format` as fields of `SamplingParams`. Raises `InvalidRequestError`."""
    kind, inner = form.get("type"), form.get("json_schema")
    if kind == "json_object":
        return _schema_of(form.get("schema") or form.get("value") or {"type": "object"}, "response_format.schema")
    if kind == "json_schema":
        if isinstance(inner, dict) and inner.get("schema") is not None:
            return _schema_of(inner["schema"], "response_format.json_schema.schema")
        if inner is None and form.get("schema") is not None:
            return _schema_of(form["schema"], "response_format.schema")
        raise InvalidRequestError("response_format.json_schema.schema is missing", param="response_format")
    if kind != "text" and form:
        raise InvalidRequestError(
            f"response_format.type is text, json_object or json_schema, got {kind!r:.60}", param="response_format"
        )
    return {}


def _schema_of(value: Any, name: str) -> dict[str, Any]:
    """Return a JSON schema, or the text of one, as a field of `SamplingParams`. Raises `InvalidRequestError`."""
    param = name.partition(".")[0]
    try:
        schema = as_schema(value)
    except ValueError as error:
        raise InvalidRequestError(f"{name}: {error}", param=param) from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(f"{name} must be an object, got {value!r:.60}", param=param)
    return _json(schema)


def of_structured_outputs(asked: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's `structured_outputs` as fields of `SamplingParams`. Raises `InvalidRequestError`."""
    kinds = [name for name in KINDS if asked.get(name) not in (None, False)]
    if len(kinds) != 1:
        raise _wrong(f"must have one of {', '.join(KINDS)}; got {', '.join(kinds) or 'none of them'}")
    kind, value = kinds[0], asked[kinds[0]]
    if kind == "json_object":
        return _json({"type": "object"})
    if kind == "json":
        return _schema_of(value, "structured_outputs.json")
    if kind == "choice":
        if not (isinstance(value, list) and value and all(isinstance(text, str) and text for text in value)):
            raise _wrong(f".choice must be a list of texts, got {value!r:.60}")
        return {"grammar": in_lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in value))}
    if not isinstance(value, str):
        raise _wrong(f".{kind} must be a text, got {value!r:.60}")
    return {kind: value}


def _json(schema: Any) -> dict[str, Any]:
    return {"json_schema": json.dumps(schema)}


def _wrong(what: str) -> InvalidRequestError:
    separator = "" if what.startswith(".") else " "
    return InvalidRequestError(f"structured_outputs{separator}{what}", param="structured_outputs")


BEAM_FIELDS = REQUIREMENTS[BEAM_SEARCH]
"""The fields that only have an effect in a beam search."""

BRIDGE_FIELDS = tuple(BODY_NAMES.get(name, name) for name in REQUIREMENTS[BRIDGE])
"""The fields that only have an effect with a suffix."""


_KINDS: dict[Any, Any] = {int: Int, float: Float, bool: bool, str: str}


def declared(of: type, name: str, more: str = "", **instead: Any) -> Any:
    """Return the field of a body for one of the engine's: its meaning, and for `/openapi.json` its range and default.

    `more` is what its meaning is in bodies, besides. `instead` has other values for the schema; None leaves one out.
    """
    field = of.__dataclass_fields__[name]  # type: ignore[attr-defined]
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    low, high = field.metadata.get("range") or (-math.inf, math.inf)
    known: dict[str, Any] = {
        "description": f"{field.metadata['meaning']} {more}".rstrip(),
        "minimum": low,
        "maximum": high,
    }
    known |= {"default": None if of is CompletionRequest else default} | instead
    shown = {key: value for key, value in known.items() if value not in (None, [], math.inf, -math.inf)}
    return Field(None, description=shown.pop("description"), json_schema_extra=shown or None)


def with_fields_of(of: Any, without: str = "") -> type[BodyFields]:
    """Return a body with those of the engine's fields that are a number, a text or a bool."""
    kinds = {each.name: {*(typing.get_args(each.type) or (each.type,))} - {NoneType} for each in fields_of(of)}
    simple = {name: _KINDS[kind] for name, (kind, *more) in kinds.items() if not more and kind in _KINDS}
    fields: Any = {name: (kind | None, declared(of, name)) for name, kind in simple.items() if name != without}
    return create_model(of.__name__, __base__=BodyFields, **fields)


class KeptTexts(BaseModel):
    """The texts of a stored request: of one alternative, or of all."""

    model_config = ConfigDict(extra="forbid")

    request: Text = Field(description="its id.")
    index: Int | None = Field(None, description="the index of one of its alternatives. Left out: all of them.")


Avoid = Annotated[
    list[str | list[Int] | KeptTexts],
    BeforeValidator(as_list, json_schema_input_type=str | list[str | list[int] | KeptTexts]),
]


class AdapterScale(PartFields):
    """An adapter, by its number or its name, and its scale."""

    id: Int | str | None = Field(None, description="its number, counted from 0, or its name.")
    name: str | None = Field(None, description="its name, instead of `id`.")
    scale: Float = Field(1.0, description="how much it changes: 0 nothing, 1 as it was trained.")

    @property
    def asked(self) -> tuple[int | str, float]:
        """The adapter's number or name, and its scale. Raises `InvalidRequestError` if there is neither."""
        name = self.name if self.id is None else self.id
        if name is None:
            raise InvalidRequestError('lora: an adapter has an "id" or a "name"', param="lora")
        return name, self.scale


if TYPE_CHECKING:  # the engine's simple fields are declared there, and here only those that bodies write differently
    _Sampling = BodyFields
else:
    _Sampling = with_fields_of(SamplingParams, without="label")  # which only branches have


class SamplingFields(_Sampling):
    """The fields that may differ between alternatives. They mean what `SamplingParams` says, if it has them."""

    max_tokens: Int | None = declared(SamplingParams, "max_tokens")
    min_tokens: Int | None = declared(SamplingParams, "min_tokens")
    temperature: Float | None = declared(SamplingParams, "temperature")
    top_p: Float | None = declared(SamplingParams, "top_p")
    mirostat: Int | None = declared(SamplingParams, "mirostat")
    guidance_scale: Float | None = declared(SamplingParams, "guidance_scale")
    include_stop_str_in_output: bool | None = declared(SamplingParams, "include_stop_str_in_output")
    dry_sequence_breakers: Breakers | None = declared(
        SamplingParams,
        "dry_sequence_breakers",
        "A list, a list as JSON text, or a comma-separated text, maybe in quotes.",
    )
    seed: Seed | None = declared(
        SamplingParams, "seed", "Any whole number; it is taken modulo 2^32.", minimum=None, maximum=None
    )
    stop: Stops | None = declared(SamplingParams, "stop")
    stop_token_ids: StopIds | None = declared(SamplingParams, "stop_token_ids")
    bad_words: Stops | None = declared(SamplingParams, "bad_words")
    banned_strings: Phrases | None = declared(SamplingParams, "banned_strings")
    avoid: Avoid | None = declared(
        SamplingParams,
        "avoid",
        'An entry may be {"request": "cmpl-..."}, for all texts of this request, or have an `index`, too, for one of '
        "them.",
    )
    negative_prompt: str | list[int | str] | None = Field(
        None,
        description="a prompt to move away from, with guidance_scale: a text, or a list of token ids and texts. Left "
        "out: the prompt's last token alone.",
    )
    direction: str | None = Field(
        None,
        description="a line that the model reads before this alternative, and that is never part of it: what should "
        "happen, or how. Also the alternative's label, if it has none.",
    )
    lora: list[AdapterScale] | None = Field(
        None,
        description='the adapters to use, such as [{"id": 0, "scale": 0.5}]; all others are off. Left out: the '
        "server's settings.",
    )
    samplers: Strings | None = declared(SamplingParams, "samplers")
    logit_bias: dict[str, Any] | list[Any] | None = Field(
        None,
        description="numbers to add to the logits of tokens, from -100 to 100; false bans the token: "
        '{"15043": 1.0, " the": false} or [[15043, 1.0], [" the", false]]. A text stands for each of its tokens.',
    )
    banned_tokens: TokenIds | None = Field(
        None, description="a list of ids and texts, or comma-separated ids; the same as a logit_bias of false."
    )
    json_schema: Annotated[Any, BeforeValidator(as_schema)] = Field(
        None, description="a JSON schema that the text must match, or the text of one."
    )
    response_format: dict[str, Any] | None = Field(
        None,
        description="what the text must match, in OpenAI's notation; its type is text, json_object or json_schema.",
    )
    lark: str | None = Field(None, description="a grammar in llguidance's dialect of Lark that the text must match.")
    structured_outputs: dict[str, Any] | None = Field(
        None, description=f"what the text must match, in vLLM's notation: one of {', '.join(KINDS)}."
    )

    def ignored(self, unused: frozenset[str], search: str | None = None) -> list[str]:
        """Return the names of the fields and samplers that were sent and have no effect. No sampler reads `unused`."""
        unknown = BodyFields.unread(self)
        unknown += [f"samplers.{name}" for name in self.samplers or () if not sampler_named(name)]
        unknown += [f"structured_outputs.{name}" for name in self.structured_outputs or () if name not in KINDS]
        if search == "beam":
            unused = REPLACED_BY_BEAMS
        return [*unknown, *sorted(unused & self.model_fields_set)]

    def cut(self) -> None:
        """Cut what is too long for optional samplers. `ignored` reports it then."""
        for name, most in _LONGEST.items():
            value: Any = getattr(self, name) or ()
            if name == "banned_tokens":  # they are biases, too
                most -= len(self.logit_bias or ())
            if len(value) > most:
                setattr(self, name, type(value)(islice(value.items() if isinstance(value, dict) else value, most)))
                self._left_out.append(f"{name} (all but the first {most})")
        breakers = self.dry_sequence_breakers or []
        long = {k: each for k, text in enumerate(breakers) if len(each := text.encode(errors="replace")) > _DRY_BYTES}
        for k, each in long.items():
            breakers[k] = each[:_DRY_BYTES].decode(errors="ignore")
        if long:
            self._left_out.append(f"dry_sequence_breakers (all but the first {_DRY_BYTES} bytes of {len(long)})")

    @property
    def biased_texts(self) -> int:
        """The number of texts in `logit_bias` and `banned_tokens`. `given` tokenizes each of them."""
        pairs = self.logit_bias or ()
        keys = pairs if isinstance(pairs, dict) else (pair[0] for pair in pairs if isinstance(pair, list) and pair)
        return sum(is_text(key) for key in (*keys, *(self.banned_tokens or ())))

    def given(self, limits: Limits) -> dict[str, Any]:
        """Return the fields that were sent, as `SamplingParams` takes them. Raises `InvalidRequestError`.

        `ignored` reports token ids from `limits.n_vocab` on; None: all are known.
        """
        tokenize, n_vocab = limits.tokenize, limits.n_vocab
        names = {field.name for field in fields_of(SamplingParams)} & set(type(self).model_fields)
        names.discard("direction")  # `directions.py` makes tokens of it
        sent = {name: getattr(self, name) for name in self.model_fields_set & names if name != "json_schema"}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in sent.items()}
        for name in _CONVERT.keys() & given.keys():
            given[name] = _CONVERT[name](given[name])
        if "negative_prompt" in given:
            given["negative_prompt"] = joined("negative_prompt", given["negative_prompt"], tokenize, is_prompt=True)
        if "logit_bias" in given or self.banned_tokens:
            given["logit_bias"], changed = biases_of(self.logit_bias or {}, self.banned_tokens or [], tokenize, n_vocab)
            self._left_out += changed
        if "stop_token_ids" in given:
            known, unknown = without_unknown("stop_token_ids", given["stop_token_ids"], n_vocab)
            given["stop_token_ids"] = tuple(known)
            self._left_out += unknown
        return given | self._constraint(given)

    def _constraint(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the constraint that the text must match, with None for all other constraints.

        So the constraint of a branch replaces that of the request, even if it is of another kind.
        """
        found: dict[str, Any] = {name: given[name] or None for name in ("grammar", "regex") if name in given}
        if self.lark is not None:
            if self.lark and found.get("grammar"):
                raise InvalidRequestError("grammar and lark exclude each other; leave one out", param="grammar")
            found["grammar"] = in_lark(self.lark) if self.lark else found.get("grammar")
        if self.json_schema is not None:
            found["json_schema"] = json.dumps(self.json_schema)
        if self.response_format is not None:
            found |= of_response_format(self.response_format)
        if self.structured_outputs is not None:
            found |= of_structured_outputs(self.structured_outputs)
        return dict.fromkeys(GRAMMAR_FIELDS) | found if found else {}


_LONGEST = {
    "dry_sequence_breakers": MAX_DRY_BREAKERS,
    "logit_bias": MAX_LOGIT_BIASES,
    "banned_tokens": MAX_LOGIT_BIASES,
    "banned_strings": MAX_BANNED_STRINGS,
    "bad_words": MAX_BANNED_STRINGS,
    "avoid": MAX_AVOIDED,
}
"""How long the lists of optional samplers may be. `SamplingFields.cut` cuts longer ones."""

_DRY_BYTES = 40  # llama.cpp reads no more of a breaker


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "avoid": lambda entries: tuple(each if isinstance(each, str) else tuple(each) for each in entries),
    "lora": lambda adapters: tuple(each.asked for each in adapters),
    "samplers": lambda names: tuple(dict.fromkeys(filter(None, map(sampler_named, names)))),
}
"""How values of fields become those of `SamplingParams`, where they differ by more than a tuple from a list."""


def joined(name: str, parts: Any, tokenize: Tokenize, *, is_prompt: bool) -> tuple[int, ...] | None:
    """Return the tokens of a text, or of ids and texts, in the field `name`. None if they are empty.

    Some clients send an empty text if they don't use the field. Raises `InvalidRequestError`.
    """
    try:
        listed = [part for part in ([parts] if isinstance(parts, str) else parts) if part != ""]
        return tuple(join_tokens(listed, tokenize, is_prompt=is_prompt)) or None
    except InvalidRequestError as error:  # its message calls the text a prompt
        raise InvalidRequestError(f"{name}: {error.message}", param=name) from None


class BranchFields(SamplingFields):
    """One object of `branches`. Fields that it leaves out are those of the request."""

    label: str | None = declared(SamplingParams, "label")


_TEXT_OR_IDS = [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]
Prompt = Annotated[Any, WithJsonSchema({"anyOf": [*_TEXT_OR_IDS, {"type": "array", "items": {"anyOf": _TEXT_OR_IDS}}]})]
Stream = Annotated[bool | str, WithJsonSchema({"enum": ["events", True, False]})]
ToolChoice = Annotated[Any, WithJsonSchema({"anyOf": [{"enum": ["auto", "none", "required"]}, {"type": "object"}]})]
Parallel = Annotated[Any, WithJsonSchema({"type": "boolean"})]
Search = Annotated[str, WithJsonSchema({"enum": list(SEARCHES)})]
EarlyStopping = Annotated[
    str,
    BeforeValidator(lambda value: str(value).lower() if isinstance(value, bool) else value),
    WithJsonSchema({"enum": list(EARLY_STOPPING)}),
]


class CompletionFields(SamplingFields, ModelFields):
    """The body of `POST /v1/completions` and `POST /v1/chat/completions`."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}]})

    prompt: Prompt = Field(None, description="a text, a list of token ids, or a list of either.")
    messages: list[Message] | None = Field(
        None, description="a conversation instead of the prompt; the model's chat template makes a prompt of it."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables for the chat template.")
    reasoning_format: Any = Field(
        None,
        description="for chats in OpenAI's format: none keeps thoughts in the content, with their tags. auto and "
        "deepseek, the default, move them into `reasoning_content`.",
    )
    tools: ToolList | None = Field(None, description="functions that the model may call, in a chat.")
    tool_choice: ToolChoice = Field(
        None, description='"auto", "none", "required", or the only function that must be called.'
    )
    parallel_tool_calls: Parallel = Field(
        None, description="whether an answer may have several calls. Left out: if the model's template can write them."
    )
    suffix: str | list[int | str] | None = Field(
        None,
        description="the text after the alternatives, or token ids; not for chats. A model with tokens for infill "
        "reads it. With other models, candidates are sampled from the prompt alone, and those that make it most "
        "probable are returned; `infill` in `start` tells which. Most suffixes should begin with a space.",
    )
    n: Int | None = Field(
        None, description="the number of alternatives of each prompt. Left out: `--n`, or 1 in OpenAI's format."
    )
    branches: list[BranchFields] | None = Field(
        None, description="an object for each alternative, with the fields that differ for it; `n` may be left out."
    )
    directions: list[str | None] | None = Field(
        None,
        description="the `direction` of each alternative; `n` may be left out. An empty one: none.",
    )
    seed: Seed | None = declared(
        SamplingParams,
        "seed",
        minimum=None,
        maximum=None,
        description="alternative k has the seed (seed + k) mod 2^32, and random numbers of its own; -1: a random seed. "
        "Any whole number.",
    )
    distinct: bool | None = declared(CompletionRequest, "distinct")
    heal: bool | None = declared(CompletionRequest, "heal")
    search: Search | None = declared(CompletionRequest, "search")
    beams: Int | None = declared(CompletionRequest, "beams")
    length_penalty: Float | None = declared(CompletionRequest, "length_penalty")
    early_stopping: EarlyStopping | None = declared(CompletionRequest, "early_stopping")
    candidates: Int | None = declared(CompletionRequest, "n_candidates")
    stop_at_suffix: bool | None = declared(CompletionRequest, "stop_at_suffix")
    logprobs: Int | StrictBool | None = declared(CompletionRequest, "logprobs")
    top_logprobs: Int | None = Field(
        None, description="for chats, where logprobs is true or false: how many of the most probable tokens to report."
    )
    prompt_logprobs: Int | None = declared(CompletionRequest, "prompt_logprobs")
    n_probs: Int | None = declared(CompletionRequest, "logprobs", description="the same as logprobs, but 0 means off.")
    post_sampling_probs: bool | None = declared(CompletionRequest, "post_sampling_probs")
    echo: bool | None = declared(CompletionRequest, "echo")
    return_tokens: bool | None = declared(CompletionRequest, "return_tokens")
    return_progress: bool | None = declared(CompletionRequest, "return_progress")
    timings_per_token: bool | None = Field(
        None,
        description="in the streams of chats and of llama-server's routes: send `timings` with each piece of text.",
    )
    cache_prompt: bool | None = declared(CompletionRequest, "cache_prompt")
    priority: Int | None = declared(CompletionRequest, "priority")
    ahead: Int | None = declared(CompletionRequest, "ahead", "Left out: the server's `--ahead`, 0.")
    context_shift: bool | None = declared(
        CompletionRequest, "context_shift", "Left out: the server's `--context-shift`, where it is possible."
    )
    n_keep: Int | None = declared(CompletionRequest, "n_keep", "Left out: the server's `--keep`, 0.")
    n_discard: Int | None = declared(CompletionRequest, "n_discard")
    id_slot: Int | None = Field(
        None,
        description="with `--slot-save-path`: the slot of the first alternative, for POST /slots/{id_slot}; the other "
        "alternatives have the next slots. Left out, or -1: 0.",
    )
    best_of: Int | None = Field(
        None,
        description="run this many alternatives, and return the n with the highest mean log-probability; only with "
        '"stream": false. With a suffix, the same as `candidates`.',
    )
    stream_options: dict[str, Any] | None = Field(
        None, description='{"include_usage": true} adds a last chunk with the usage.'
    )
    story: Text | None = Field(
        None, description="with `--history`: the id of a story. The alternatives become its nodes as they grow."
    )
    node: Id | None = Field(
        None,
        description="the node of the story that the alternatives continue. Left out: they begin the story. Without a "
        "prompt, the prompt is the text of the path to this node.",
    )
    detach: bool | None = Field(
        None,
        description="the request goes on when its connection is closed; GET /v1/completions/{id}/events reads its "
        "events again. Otherwise closing the connection cancels the request.",
    )
    stream: Stream | None = Field(
        None,
        description="\"events\" for native events, true for OpenAI's chunks, false for OpenAI's object. Left out: "
        "native events, or OpenAI's object with a `model`, at /openai/v1, and with `--default-format openai`.",
    )

    @property
    def searches(self) -> bool:
        """Whether a beam search or a bridge finds the texts, in place of alternatives that go on alone."""
        return self.search == "beam" or bool(self.suffix)
