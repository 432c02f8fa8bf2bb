"""The sampler fields of a body: their names, types and notations. `SamplingParams` checks their ranges."""

import dataclasses
import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import CONSTRAINTS, SAMPLERS, SamplingParams, in_lark
from srb.engine.validation.fields import meanings
from srb.errors import InvalidRequestError
from srb.wire.request.body_fields import BodyFields, Breakers, Float, Int, Phrases, Strings, TokenIdReport, as_list
from srb.wire.request.constraints import KINDS, as_schema, of_response_format, of_structured_outputs
from srb.wire.stories import Text
from srb.wire.tokens import Tokenize, biases_of, is_text, join_tokens

REPLACED_BY_MIROSTAT = {
    *("dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "min_keep"),
    *("xtc_probability", "xtc_threshold", "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"),
    *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("adaptive_target", "adaptive_decay", "samplers"),
    *("smoothing_factor", "smoothing_curve"),
}
"""The fields that have no effect with mirostat, which replaces all samplers except temperature and biases."""

REPLACED_BY_BEAMS = REPLACED_BY_MIROSTAT | {"temperature", "mirostat", "mirostat_tau", "mirostat_eta", "seed"}
"""The fields that have no effect in a beam search, which chooses by the model's own probabilities, after biases."""

BEAM_FIELDS = ("beams", "length_penalty", "early_stopping")
"""The fields that have an effect in a beam search only."""

BRIDGE_FIELDS = ("candidates", "stop_at_suffix")
"""The fields that have an effect with a suffix only."""

SAMPLER_ALIASES = {"typical_p": "typ_p", "temp": "temperature"}

DEFAULTS = {
    each.name: list(each.default) if isinstance(each.default, tuple) else each.default
    for each in dataclasses.fields(SamplingParams)
}
"""The defaults of the fields of `SamplingParams`, as JSON has them."""


class KeptTexts(BaseModel):
    """The texts of a request that is kept: of one alternative, or of all."""

    model_config = ConfigDict(extra="forbid")

    request: Text = Field(description="its id.")
    index: Int | None = Field(None, description="the index of one of its alternatives. Left out: all of them.")


Avoid = Annotated[
    list[str | list[Int] | KeptTexts],
    BeforeValidator(as_list, json_schema_input_type=str | list[str | list[int] | KeptTexts]),
]


class AdapterScale(BaseModel):
    """An adapter, by its number or its name, and how much of it is wanted."""

    id: Int | str | None = Field(None, description="its number, counted from 0, or its name.")
    name: str | None = Field(None, description="its name, in place of `id`.")
    scale: Float = Field(1.0, description="0: the adapter has no effect; 1: the effect that it was trained for.")

    @property
    def asked(self) -> tuple[int | str, float]:
        """The adapter's number or name, and its scale. Raises `InvalidRequestError` if there is neither."""
        name = self.name if self.id is None else self.id
        if name is None:
            raise InvalidRequestError('lora: an adapter has an "id" or a "name"', param="lora")
        return name, self.scale


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The description of each field of a body: that of the model, or else of the engine's field of the same name."""
    engine = meanings(SamplingParams) | meanings(CompletionRequest)
    return {name: field.description or engine.get(name, "") for name, field in model.model_fields.items()}


class SamplingFields(BodyFields):
    """The fields that may differ between alternatives. If `SamplingParams` has the same name, it means the same."""

    temperature: Float | None = None
    dynatemp_range: Float | None = None
    dynatemp_exponent: Float | None = None
    top_k: Int | None = None
    top_p: Float | None = None
    min_p: Float | None = None
    typical_p: Float | None = None
    top_n_sigma: Float | None = None
    smoothing_factor: Float | None = None
    smoothing_curve: Float | None = None
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
    samplers: Strings | None = None
    logit_bias: dict[str, Any] | list[Any] | None = Field(
        None,
        description="numbers that are added to the logits of tokens, from -100 to 100; false bans the token: "
        '{"15043": 1.0, " the": false} or [[15043, 1.0], [" the", false]]. A text stands for each of its tokens.',
    )
    banned_tokens: TokenIdReport | None = Field(
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
    lark: str | None = Field(None, description="a grammar in llguidance's dialect of Lark that the text must match.")
    structured_outputs: dict[str, Any] | None = Field(
        None,
        description=f"what the text must match, in vLLM's notation: one of {', '.join(KINDS)}.",
    )

    def ignored(self, mirostat: int | None, search: str | None = None) -> list[str]:
        """The names of the fields and of the samplers that were sent and have no effect.

        mirostat, search: those of the alternative, since both replace other fields.
        """
        known = {*SAMPLERS, *SAMPLER_ALIASES}
        unknown = [*self._unknown, *(f"samplers.{name}" for name in self.samplers or () if name not in known)]
        unknown += [f"structured_outputs.{name}" for name in self.structured_outputs or () if name not in KINDS]
        replaced = REPLACED_BY_MIROSTAT if mirostat else set()
        if search == "beam":
            replaced = REPLACED_BY_BEAMS
        return [*unknown, *sorted(replaced & self.model_fields_set)]

    @property
    def biased_texts(self) -> int:
        """How many texts `logit_bias` and `banned_tokens` have. `given` tokenizes each of them."""
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
            given["logit_bias"] = biases_of(self.logit_bias or {}, self.banned_tokens or [], tokenize)
        given |= self._constraint(given)
        return given

    def _constraint(self, given: dict[str, Any]) -> dict[str, Any]:
        """The constraint that the text must match.

        It sets the fields of all other constraints to None. So the constraint of a branch replaces that of the request,
        also if it is of another kind.
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
        return dict.fromkeys(CONSTRAINTS) | found if found else {}


def _avoided(each: str | list[int] | KeptTexts) -> str | tuple[int, ...]:
    if isinstance(each, KeptTexts):
        raise InvalidRequestError(
            "avoid takes the id of a request at /v1/completions and in chats alone; send its texts", param="avoid"
        )
    return each if isinstance(each, str) else tuple(each)


def _negative(prompt: str | list[int | str], tokenize: Tokenize) -> tuple[int, ...] | None:
    """The tokens of a negative prompt. None for an empty one, which some clients send when they don't use it."""
    parts: list[int | str] = [prompt] if isinstance(prompt, str) else prompt
    try:
        return tuple(join_tokens([part for part in parts if part != ""], tokenize, is_prompt=True)) or None
    except InvalidRequestError as error:  # its message calls the text a prompt
        raise InvalidRequestError(f"negative_prompt: {error.message}", param="negative_prompt") from None
