"""`SamplingParams`: how one alternative is drawn, and when it ends. Each field has its meaning and its range here.

Values are checked here, once, for the library and for every wire format. So C code never gets a bad value.
"""

import dataclasses
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from srb.engine.validation.fields import Text, check_ranges, check_text, check_types, described, documented
from srb.engine.validation.patterns import is_pattern, patterns_of
from srb.errors import InvalidRequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LogitsProcessor = Callable[["NDArray[np.int32]", "NDArray[np.float32]"], None]
"""Changes a row of logits in place; see `SamplingParams.logits_processor`."""

DEFAULT_MAX_TOKENS = 128
DEFAULT_MOST_TOKENS = 1_024
"""How long an answer in a chat may be that nobody gave a length: an answer ends by itself, but small models go on."""

MAX_SEED = 2**32 - 1
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1_000

MAX_BANNED_STRINGS = 1_000
MAX_BANNED_CHARS = 200
MAX_BANNED_CHARS_IN_ALL = MAX_BANNED_STRINGS * MAX_BANNED_CHARS
ANY_CASE = "(?i)"
"""A banned string that begins with this is found in small and capital letters alike."""

MAX_AVOIDED = 1_000
AVOIDED_CHARS = 200
"""Only so many first characters, or token ids, of a text to avoid count."""

MAX_LOGIT_BIAS = 100.0
MAX_DRY_BREAKERS = 32
MAX_DRY_BREAKER_CHARS = 40
MAX_GRAMMAR_CHARS = 100_000
MAX_REGEX_CHARS = 10_000
MAX_LARK_CHARS = 1_000_000

_COUNT = 2**31 - 1

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "dynatemp_range": (0, 100),
    "dynatemp_exponent": (0, 100),
    "top_k": (-1, _COUNT),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (-1, 100),
    "smoothing_factor": (0, 100),
    "smoothing_curve": (1, 10),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "repeat_penalty": (0.01, 100),
    "repeat_last_n": (-1, _COUNT),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
    "dry_multiplier": (0, 100),
    "dry_base": (0, 100),
    "dry_allowed_length": (0, _COUNT),
    "dry_penalty_last_n": (-1, _COUNT),
    "mirostat": (0, 2),
    "mirostat_tau": (0, 100),
    "mirostat_eta": (0, 1),
    "adaptive_target": (-1, 1),
    "adaptive_decay": (0, 0.99),
    "min_keep": (0, _COUNT),
    "diversity": (0, 10),
    "guidance_scale": (0, 100),
    "min_tokens": (0, _COUNT),
    "max_tokens": (-1, _COUNT),
    "seed": (-1, MAX_SEED),
}
"""The lowest and the highest value of each number in `SamplingParams`, both allowed."""

SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
"""The samplers that narrow or reshape the distribution: llama-server's, in its default order."""

CONSTRAINTS = ("grammar", "json_schema", "regex")
"""The fields that say what a text must match. Only one of them may be given."""


_LARK = "%llguidance"


def in_lark(constraints: str) -> str:
    """The value of `grammar` for these rules in Lark. llama.cpp tells Lark from GBNF by the same first line."""
    return f"{_LARK} {{}}\n{constraints}"


def is_lark(grammar: str | None) -> bool:
    """Whether a grammar is in Lark, and not in GBNF."""
    return grammar is not None and grammar.startswith(_LARK)


@documented
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one alternative is drawn, and when it ends. Names, defaults and meanings are llama-server's.

    What a field means stands behind its default; `help(SamplingParams)` shows it. `RANGES` has the limits of numbers.
    Raises `InvalidRequestError` for a value out of range.
    """

    temperature: float = described(0.8, "0 always takes the likeliest token; higher is wilder.")
    dynatemp_range: float = described(
        0.0, "how much the temperature varies with the entropy of the distribution; 0: off."
    )
    dynatemp_exponent: float = described(
        1.0, "how the temperature follows the entropy: 1 in proportion to the entropy, 2 to its square."
    )
    top_k: int = described(40, "draw from the k likeliest tokens; 0 or -1: off.")
    top_p: float = described(0.95, "draw from the smallest set of tokens whose probabilities add up to p; 1: off.")
    min_p: float = described(0.05, "drop tokens that are less likely than min_p times the likeliest; 0: off.")
    typical_p: float = described(
        1.0, "keep the tokens closest to the expected surprise, until their probabilities add up to this; 1: off."
    )
    top_n_sigma: float = described(
        -1.0, "drop tokens whose logit is more than n standard deviations below the highest; 0 or less: off."
    )
    smoothing_factor: float = described(
        0.0,
        "behind temperature, bring the likeliest tokens closer together and the others further away: the lower the "
        "factor, the wilder; 0: off.",
    )
    smoothing_curve: float = described(
        1.0, "for smoothing_factor: above 1, unlikely tokens are moved further away, and likely ones less."
    )
    xtc_probability: float = described(
        0.0,
        "how often XTC takes effect: with this probability, all tokens above xtc_threshold but the least likely "
        "of them are dropped; 0: off.",
    )
    xtc_threshold: float = described(0.1, "XTC may drop tokens whose probability is above this; more than 0.5: off.")
    repeat_penalty: float = described(
        1.0, "make the last repeat_last_n tokens less likely by this factor; the prompt's tokens count, too; 1: off."
    )
    repeat_last_n: int = described(64, "how many tokens back the penalties look; -1: the whole context.")
    presence_penalty: float = described(
        0.0, "subtract this from the logits of the last repeat_last_n tokens; the prompt's tokens count, too; 0: off."
    )
    frequency_penalty: float = described(
        0.0, "subtract this from a token's logit for each time that it is among the last repeat_last_n tokens; 0: off."
    )
    dry_multiplier: float = described(
        0.0, "DRY makes it less likely that a repetition goes on, once it is longer than dry_allowed_length; 0: off."
    )
    dry_base: float = described(1.75, "DRY's penalty grows by this factor with each further token of the repetition.")
    dry_allowed_length: int = described(2, "the longest repetition that has no penalty from DRY, in tokens.")
    dry_penalty_last_n: int = described(64, "how many tokens back DRY looks; -1: the whole context.")
    dry_sequence_breakers: tuple[str, ...] = described(
        ("\n", ":", '"', "*"), "texts at which a repetition ends, for DRY."
    )
    mirostat: int = described(
        0,
        "1 or 2 keeps the surprise near mirostat_tau, in place of all narrowing samplers; 0: off.",
    )
    mirostat_tau: float = described(5.0, "the surprise that mirostat aims at, in bits.")
    mirostat_eta: float = described(0.1, "how fast mirostat learns.")
    adaptive_target: float = described(
        -1.0, "prefer tokens whose probability is near this, and adapt while the text grows; negative: off."
    )
    adaptive_decay: float = described(
        0.9, "how slowly adaptive_target adapts: low values follow the last tokens, high values are steadier."
    )
    logit_bias: tuple[tuple[int, float], ...] = described(
        (), "pairs of a token id and what is added to its logit; -inf bans it."
    )
    samplers: tuple[str, ...] = described(SAMPLERS, "the narrowing samplers to use, in this order; all others are off.")
    min_keep: int = described(0, "top_p, min_p, typical_p and xtc leave at least this many tokens.")
    grammar: str | None = described(
        None,
        "a grammar in GBNF that the text must match, beginning with its rule `root`. If its first line is "
        "`%llguidance {}`, it is in llguidance's dialect of Lark, and begins with its rule `start`.",
    )
    json_schema: str | None = described(
        None, "the JSON text of a JSON schema that the text must match; not together with a grammar."
    )
    regex: str | None = described(
        None, "a regular expression that the whole text must match, in Rust's syntax; not together with a grammar."
    )
    seed: int = described(-1, "the seed of this alternative's random numbers; -1: drawn when the request is made.")
    min_tokens: int = described(0, "draw no end-of-generation token before the alternative has this many tokens.")
    max_tokens: int | None = described(
        None,
        "how many tokens may be generated. Left out: the engine's default, or less if the context is full before. "
        "-1: until the context is full. 0: the prompt is evaluated, and nothing is generated.",
    )
    stop: tuple[str, ...] = described(
        (), "strings that end the alternative; the string itself isn't shown in the text."
    )
    banned_strings: tuple[str, ...] = described(
        (),
        "phrases that never come: when a phrase is complete, the alternative goes back to where the phrase began, "
        "and draws another token there. With (?i) before it, a phrase is found with small and capital letters "
        "alike. /.../ or /.../i is a regular expression, in which every repetition has a bound.",
    )
    diversity: float = described(
        0.0,
        "makes alternatives differ: subtract this from a token's logit for each other alternative of the prompt "
        "that went on with this token after the same two tokens; 0: off.",
    )
    avoid: tuple[str | tuple[int, ...], ...] | None = described(
        None,
        "texts, or their token ids: the alternative doesn't begin with the first 8 words of one of them, nor with "
        "those of another alternative of its prompt that has such a list. If it would, it goes back, and draws "
        "another token. The list may be empty. Left out: off.",
    )
    negative_prompt: Text | None = described(
        None,
        "a prompt to keep away from, with guidance_scale: a text, or the ids of its tokens. Left out: the "
        "prompt's last token alone.",
    )
    guidance_scale: float = described(
        1.0,
        "how far to keep away from the negative prompt: the logits are the negative ones + this * (the prompt's "
        "own - the negative ones). 1: off; 1.5 to 3 are usual.",
    )
    lora: tuple[tuple[int | str, float], ...] | None = described(
        None,
        "pairs of an adapter's number or name and its scale; adapters that aren't named aren't used. Left out: as "
        "the server has set them.",
    )
    ignore_eos: bool = described(False, "never draw an end-of-generation token.")
    logits_processor: LogitsProcessor | None = described(
        None,
        "a Python function that is called before each token is drawn, in the engine's thread. It may change the "
        "logits in place. It gets two arrays: the token ids of the prompt and of the text so far (int32, can't be "
        "changed), and the logits of all tokens of the vocabulary (float32: the model's, after guidance_scale "
        "and before logit_bias and everything else). -inf bans a token; at least one logit must be finite. It "
        "returns None. An error that it raises ends only this alternative. Only in the library, and not with "
        "replicas.",
    )
    label: str | None = described(None, "a name for this alternative; it comes back in `start`.")

    def __post_init__(self) -> None:
        check_types(self)
        check_ranges(self, RANGES)
        _check_strings("stop", self.stop, MAX_STOP_STRINGS, MAX_STOP_CHARS)
        _check_banned(self.banned_strings)
        if self.avoid is not None:
            if len(self.avoid) > MAX_AVOIDED:
                raise InvalidRequestError(
                    f"avoid takes at most {MAX_AVOIDED} texts, got {len(self.avoid)}", param="avoid"
                )
            object.__setattr__(self, "avoid", tuple(each[:AVOIDED_CHARS] for each in self.avoid))
        _check_strings("dry_sequence_breakers", self.dry_sequence_breakers, MAX_DRY_BREAKERS, MAX_DRY_BREAKER_CHARS)
        for name in self.samplers:
            if name not in SAMPLERS or self.samplers.count(name) > 1:
                raise InvalidRequestError(
                    f"samplers are {', '.join(SAMPLERS)}, each at most once; got {name!r}", param="samplers"
                )
        for token, bias in self.logit_bias:
            if not (-MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS or bias == -math.inf):
                raise InvalidRequestError(
                    f"logit_bias must be from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}, or false for a ban; "
                    f"got {bias} for token {token}",
                    param="logit_bias",
                )
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidRequestError(f"{' and '.join(given)} exclude each other; leave one out", param=given[0])
        longest = MAX_LARK_CHARS if is_lark(self.grammar) else MAX_GRAMMAR_CHARS
        for name, most in (("grammar", longest), ("regex", MAX_REGEX_CHARS)):
            if (text := getattr(self, name)) is not None and len(text) > most:
                raise InvalidRequestError(f"{name} has {len(text)} characters; the limit is {most}", param=name)
        if self.logits_processor is not None and not callable(self.logits_processor):
            raise InvalidRequestError(
                f"logits_processor must be a function, got {self.logits_processor!r:.60}", param="logits_processor"
            )
        if self.negative_prompt is not None:
            check_text("negative_prompt", self.negative_prompt)

    @property
    def negative_ids(self) -> tuple[int, ...]:
        """The tokens of the negative prompt, after an engine has made them of a text; empty without one."""
        return cast(tuple[int, ...], self.negative_prompt or ())

    @property
    def is_guided(self) -> bool:
        """Whether a negative prompt has an effect."""
        return self.guidance_scale != 1

    @property
    def is_constrained(self) -> bool:
        """Whether the text must match a grammar, a schema or an expression."""
        return any(getattr(self, name) is not None for name in CONSTRAINTS)

    def with_seed(self) -> "SamplingParams":
        """The same parameters, with a drawn seed if the seed is -1."""
        return self if self.seed >= 0 else dataclasses.replace(self, seed=secrets.randbelow(MAX_SEED + 1))

    def alternatives(self, n: int) -> tuple["SamplingParams", ...]:
        """n copies with the seeds seed, seed + 1, ... (mod 2^32). If the seed is -1, the first one is drawn."""
        if not isinstance(n, int) or isinstance(n, bool):
            raise InvalidRequestError(f"n takes a whole number, got {n!r:.60}", param="n")
        first = self.with_seed().seed
        return tuple(dataclasses.replace(self, seed=(first + k) % (MAX_SEED + 1)) for k in range(n))


def _check_banned(strings: tuple[str, ...]) -> None:
    patterns = tuple(text for text in strings if isinstance(text, str) and is_pattern(text))
    phrases = tuple(
        text.removeprefix(ANY_CASE) if isinstance(text, str) else text for text in strings if text not in patterns
    )
    _check_strings("banned_strings", phrases, MAX_BANNED_STRINGS, MAX_BANNED_CHARS)
    patterns_of(patterns)


def _check_strings(name: str, strings: tuple[str, ...], most: int, longest: int) -> None:
    if len(strings) > most:
        raise InvalidRequestError(f"{name} takes at most {most} strings, got {len(strings)}", param=name)
    for text in strings:
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name} takes texts, got {text!r:.60}", param=name)
        if not 1 <= len(text) <= longest:
            raise InvalidRequestError(f"{name} takes strings of 1 to {longest} characters, got {len(text)}", param=name)
