"""The samplers that narrow or reshape the distribution: one row of `TABLE` each, in llama-server's default order.

The names that requests may use, the fields without effect, and KoboldCpp's order of samplers come from these rows.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler, and what other formats call it.

    Attributes:
        name: its name in `SamplingParams.samplers`, which is llama-server's.
        fields: the fields of `SamplingParams` that only this sampler reads.
        kobold: its id in KoboldCpp's `sampler_order`. "first" or "last": KoboldCpp has no id for it, and always runs
            it before or after all samplers with an id.
        aliases: its other names in `samplers`.
    """

    name: str
    fields: tuple[str, ...]
    kobold: int | Literal["first", "last"]
    aliases: tuple[str, ...] = ()


TABLE = (
    Sampler("penalties", ("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"), 6),
    Sampler(
        "dry",
        ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        "first",
    ),
    Sampler("top_n_sigma", ("top_n_sigma",), "first"),
    Sampler("top_k", ("top_k",), 0),
    Sampler("typ_p", ("typical_p",), 4, ("typical_p",)),
    Sampler("top_p", ("top_p",), 2),
    Sampler("min_p", ("min_p",), 2),
    Sampler("xtc", ("xtc_probability", "xtc_threshold"), "last"),
    Sampler(
        "temperature",
        ("temperature", "dynatemp_range", "dynatemp_exponent", "smoothing_factor", "smoothing_curve"),
        5,
        ("temp",),
    ),
)

_TEMPERATURE_FIELDS = TABLE[-1].fields

MIROSTAT_FIELDS = ("mirostat", "mirostat_tau", "mirostat_eta")
"""The fields of mirostat, which samples the token after temperature, in place of all other samplers."""

ADAPTIVE_FIELDS = ("adaptive_target", "adaptive_decay")
"""The fields of adaptive-p, which samples the token from what the samplers leave."""

SAMPLERS = tuple(each.name for each in TABLE)
"""The names of the samplers, in their default order."""

FIELDS = (*(name for each in TABLE for name in each.fields), "samplers", "min_keep", *ADAPTIVE_FIELDS)

REPLACED_BY_BEAMS = frozenset((*FIELDS, *MIROSTAT_FIELDS, "seed"))
"""The fields without effect in a beam search, which ranks by the model's own probabilities after `logit_bias`."""

_NAMES = {name: each.name for each in TABLE for name in (each.name, *each.aliases)}

KOBOLD_IDS = range(7)
"""KoboldCpp's ids. llama.cpp has no sampler for 1 (top_a) and 3 (tfs)."""


def without_effect(samplers: Container[str], mirostat: int, temperature: float) -> frozenset[str]:
    """Return the fields of samplers that have no effect with these `SamplingParams`.

    Mirostat replaces all samplers but temperature. A temperature of 0 takes the likeliest token, whatever the samplers
    are, so nothing else about the temperature has an effect.
    """
    if mirostat:
        return frozenset(FIELDS) - {"temperature"}
    unused = {name for each in TABLE if each.name not in samplers for name in each.fields}
    if temperature == 0:
        unused = unused.union(_TEMPERATURE_FIELDS) - {"temperature"}
    return frozenset(unused)


def sampler_named(name: str) -> str | None:
    """Return the sampler with this name or alias. None: there is no such sampler."""
    return _NAMES.get(name)


def kobold_order(ids: Iterable[int]) -> tuple[str, ...]:
    """Return the names of the samplers in KoboldCpp's `sampler_order`. ids: each from `KOBOLD_IDS`."""
    return tuple(each.name for place in ("first", *ids, "last") for each in TABLE if each.kobold == place)
