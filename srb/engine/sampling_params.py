"""`SamplingParams`: how one alternative is sampled, and when it ends.

Values are checked here, once, for the library and for every wire format, so C code never gets a bad value.
"""

import dataclasses
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, cast

from srb.engine.samplers import SAMPLERS
from srb.engine.validation.fields import (
    Text,
    check_fields,
    check_names,
    check_strings,
    check_text,
    described,
    documented,
)
from srb.engine.validation.patterns import is_pattern, patterns_of
from srb.errors import InvalidRequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LogitsProcessor = Callable[["NDArray[np.int32]", "NDArray[np.float32]"], None]
"""Changes a row of logits in place: the value of `SamplingParams.logits_processor`."""

DEFAULT_MAX_TOKENS = 128
DEFAULT_MOST_TOKENS = 1_024
"""The `max_tokens` of a chat's answer that has none. Answers end by themselves, but those of small models may not."""

MAX_SEED = 2**32 - 1
MAX_STOP_STRINGS = 1_000
MAX_STOP_CHARS = 1_000
MAX_STOP_TOKENS = 1_000
MAX_STOP_CHARS_IN_ALL = 64_000

MAX_BANNED_STRINGS = 1_000
MAX_BANNED_CHARS = 200
MAX_BANNED_CHARS_IN_ALL = MAX_BANNED_STRINGS * MAX_BANNED_CHARS
ANY_CASE = "(?i)"
"""A banned string that begins with this is found whatever its case."""

MAX_AVOIDED = 1_000
AVOIDED_CHARS = 200
"""How many characters, or token ids, of a text to avoid count: its first ones."""

MAX_LOGIT_BIAS = 100.0
MAX_DRY_BREAKERS = 128
MAX_DRY_BREAKER_CHARS = 40
MAX_DIRECTION_CHARS = 1_000
MAX_GRAMMAR_CHARS = 100_000
MAX_REGEX_CHARS = 10_000
MAX_LARK_CHARS = 1_000_000

_COUNT = 2**31 - 1

GRAMMAR_FIELDS = ("grammar", "json_schema", "regex")
"""The fields that say what a text must match. They exclude each other."""

_LARK = "%llguidance"


def in_lark(constraints: str) -> str:
    """Return the value of `grammar` for a grammar in Lark. As in llama.cpp, its first line tells it from GBNF."""
    return f"{_LARK} {{}}\n{constraints}"


def is_lark(grammar: str | None) -> bool:
    """Whether a grammar is in Lark, and not in GBNF."""
    return grammar is not None and grammar.startswith(_LARK)


@documented
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one alternative is sampled, and when it ends. Names, defaults and meanings are llama-server's.

    `help(SamplingParams)` shows what each field means.

    Raises:
        InvalidRequestError: a value has a wrong type or is out of range, or fields exclude each other.
    """

    temperature: float = described(
        0.8, "higher values flatten the distribution; 0 always takes the most probable token.", (0, 100)
    )
    dynatemp_range: float = described(
        0.0, "vary the temperature by this much, with the entropy of the distribution; 0: off.", (0, 100)
    )
    dynatemp_exponent: float = described(
        1.0,
        "how the temperature follows the entropy, with dynatemp_range: 1 in proportion, 2 with its square.",
        (0, 100),
    )
    top_k: int = described(40, "keep only the k most probable tokens; 0 or -1: off.", (-1, _COUNT))
    top_p: float = described(0.95, "keep the smallest set of tokens whose probabilities add up to p; 1: off.", (0, 1))
    min_p: float = described(0.05, "drop tokens below min_p times the top token's probability; 0: off.", (0, 1))
    typical_p: float = described(
        1.0,
        "keep the tokens whose surprise is closest to the entropy, until their probabilities add up to this; 1: off.",
        (0, 1),
    )
    top_n_sigma: float = described(
        -1.0, "drop tokens whose logit is more than n standard deviations below the highest; 0 or less: off.", (-1, 100)
    )
    smoothing_factor: float = described(
        0.0,
        "after temperature, pull the most probable tokens together and push the others away; a lower factor is "
        "wilder; 0: off.",
        (0, 100),
    )
    smoothing_curve: float = described(
        1.0,
        "for smoothing_factor: above 1, improbable tokens are pushed further away, and probable ones less.",
        (1, 10),
    )
    xtc_probability: float = described(
        0.0,
        "the probability that XTC acts at a token: it then drops all tokens above xtc_threshold but the least "
        "probable of them, unless one of these ends the text or a line; 0: off.",
        (0, 1),
    )
    xtc_threshold: float = described(
        0.1, "XTC only drops tokens whose probability is above this; more than 0.5: off.", (0, 1)
    )
    repeat_penalty: float = described(
        1.0,
        "divide the logits of the last repeat_last_n tokens by this; the prompt's tokens count, too; 1: off.",
        (0.01, 100),
    )
    repeat_last_n: int = described(64, "how many tokens back the penalties look; -1: the whole context.", (-1, _COUNT))
    presence_penalty: float = described(
        0.0,
        "subtract this from the logits of the last repeat_last_n tokens; the prompt's tokens count, too; 0: off.",
        (-100, 100),
    )
    frequency_penalty: float = described(
        0.0,
        "subtract this from a token's logit for each time it occurs in the last repeat_last_n tokens; 0: off.",
        (-100, 100),
    )
    dry_multiplier: float = described(
        0.0,
        "DRY: lower the logits of tokens that would continue a repetition longer than dry_allowed_length; 0: off.",
        (0, 100),
    )
    dry_base: float = described(
        1.75, "DRY's penalty grows by this factor with each further token of the repetition.", (0, 100)
    )
    dry_allowed_length: int = described(2, "the longest repetition that DRY doesn't penalize, in tokens.", (0, _COUNT))
    dry_penalty_last_n: int = described(64, "how many tokens back DRY looks; -1: the whole context.", (-1, _COUNT))
    dry_sequence_breakers: tuple[str, ...] = described(
        ("\n", ":", '"', "*"), "strings at which DRY lets a repetition end."
    )
    mirostat: int = described(
        0, "1 or 2 keeps the surprise near mirostat_tau, and replaces all samplers but temperature; 0: off.", (0, 2)
    )
    mirostat_tau: float = described(5.0, "the surprise that mirostat aims for, in bits.", (0, 100))
    mirostat_eta: float = described(0.1, "mirostat's learning rate.", (0, 1))
    adaptive_target: float = described(
        -1.0, "prefer tokens whose probability is near this, adapting as the text grows; negative: off.", (-1, 1)
    )
    adaptive_decay: float = described(
        0.9,
        "how slowly adaptive_target adapts: low values follow the last tokens, high values are steadier.",
        (0, 0.99),
    )
    logit_bias: tuple[tuple[int, float], ...] = described(
        (), "pairs of a token id and a number to add to its logit; -inf bans the token."
    )
    samplers: tuple[str, ...] = described(SAMPLERS, "the samplers to use, in this order; all others are off.")
    min_keep: int = described(0, "top_p, min_p, typical_p and xtc keep at least this many tokens.", (0, _COUNT))
    grammar: str | None = described(
        None,
        "a grammar in GBNF that the text must match, starting at its rule `root`. If its first line is "
        "`%llguidance {}`, it is in llguidance's dialect of Lark, and starts at its rule `start`.",
    )
    json_schema: str | None = described(
        None, "the JSON text of a JSON schema that the text must match; not with a grammar."
    )
    regex: str | None = described(
        None, "a regular expression in Rust's syntax that the whole text must match; not with a grammar."
    )
    seed: int = described(
        -1, "the seed of this alternative's random numbers; -1: a random seed for each request.", (-1, MAX_SEED)
    )
    min_tokens: int = described(0, "sample no end-of-generation or stop token before this many tokens.", (0, _COUNT))
    max_tokens: int | None = described(
        None,
        "how many tokens to generate at most. Left out: the engine's default, or less if the context is full before. "
        "-1: until the context is full. 0: evaluate the prompt, and generate nothing.",
        (-1, _COUNT),
    )
    stop: tuple[str, ...] = described(
        (),
        "strings that end the alternative; they aren't part of the text. The name of a special token ends it at that "
        "token.",
    )
    stop_token_ids: tuple[int, ...] = described((), "ids of tokens that end the alternative before their text.")
    include_stop_str_in_output: bool = described(
        False, "the text ends with the stop string, or the text of the stop token, that ended it."
    )
    bad_words: tuple[str, ...] = described(
        (),
        "words that never appear, except within longer words: when one is complete, the alternative goes back, as for "
        "banned_strings. Case counts.",
    )
    banned_strings: tuple[str, ...] = described(
        (),
        "phrases that never appear: when one is complete, the alternative goes back to where it began and samples "
        "another token there. (?i) before a phrase ignores case. /.../ or /.../i is a regular expression, in which "
        "every repetition needs a bound.",
    )
    diversity: float = described(
        0.0,
        "make alternatives differ: subtract this from a token's logit for each other alternative of the prompt that "
        "had this token after the same two tokens; 0: off.",
        (0, 10),
    )
    avoid: tuple[str | tuple[int, ...], ...] | None = described(
        None,
        "texts, or their token ids. The alternative doesn't begin with the first 8 words of any of them, nor with "
        "those of another alternative of its prompt that has such a list; if it would, it goes back and samples "
        "another token. The list may be empty. Left out: off.",
    )
    negative_prompt: Text | None = described(
        None,
        "a prompt to move away from, with guidance_scale: a text, or its token ids. Left out: the prompt's last token "
        "alone.",
    )
    guidance_scale: float = described(
        1.0,
        "classifier-free guidance (CFG): the logits are the negative prompt's + this * (the prompt's - the negative "
        "prompt's). 1: off; 1.5 to 3 is usual.",
        (0, 100),
    )
    lora: tuple[tuple[int | str, float], ...] | None = described(
        None,
        "pairs of an adapter's number or name and its scale; all other adapters are off. Left out: the server's "
        "settings.",
    )
    ignore_eos: bool = described(False, "never sample an end-of-generation token.")
    logits_processor: LogitsProcessor | None = described(
        None,
        "a Python function that is called before each token is sampled, in the engine's thread. It may change the "
        "logits in place. It gets two arrays: the token ids of the prompt and of the text so far (int32, read-only), "
        "and the logits of all tokens of the vocabulary (float32, after guidance_scale, before logit_bias and "
        "everything else). -inf bans a token; at least one logit must be finite. It returns None. An error that it "
        "raises ends only this alternative. In the library only, and not with replicas.",
    )
    direction: Text | None = described(
        None,
        "a line that only this alternative's prompt has: a text, or its token ids. It is put before the prompt's last "
        "line, or at `CompletionRequest.direction_at`, and is never part of the alternative. Alternatives share what "
        "is before it.",
    )
    label: str | None = described(None, "a name for this alternative, which `start` returns.")

    def __new__(cls, *_values: Any, **given: Any) -> Self:
        """Refuse unknown fields, before `__init__` does so with a plain `TypeError`."""
        check_names(cls, given)
        return object.__new__(cls)  # `slots` makes another class, which super() without arguments doesn't know

    def __post_init__(self) -> None:
        check_fields(self)
        check_strings("stop", self.stop, MAX_STOP_STRINGS, MAX_STOP_CHARS)
        if (n_chars := sum(map(len, self.stop))) > MAX_STOP_CHARS_IN_ALL:
            raise InvalidRequestError(
                f"stop takes at most {MAX_STOP_CHARS_IN_ALL} characters in all, got {n_chars}", param="stop"
            )
        if self.stop_token_ids:
            check_text("stop_token_ids", self.stop_token_ids)
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise InvalidRequestError(
                f"stop_token_ids takes at most {MAX_STOP_TOKENS} ids, got {len(self.stop_token_ids)}",
                param="stop_token_ids",
            )
        _check_banned(self.banned_strings)
        check_strings("bad_words", self.bad_words, MAX_BANNED_STRINGS, MAX_BANNED_CHARS)
        check_strings("dry_sequence_breakers", self.dry_sequence_breakers, MAX_DRY_BREAKERS, MAX_DRY_BREAKER_CHARS)
        if self.avoid is not None:
            if len(self.avoid) > MAX_AVOIDED:
                raise InvalidRequestError(
                    f"avoid takes at most {MAX_AVOIDED} texts, got {len(self.avoid)}", param="avoid"
                )
            object.__setattr__(self, "avoid", tuple(each[:AVOIDED_CHARS] for each in self.avoid))
        for name in self.samplers:
            if name not in SAMPLERS or self.samplers.count(name) > 1:
                raise InvalidRequestError(
                    f"samplers are {', '.join(SAMPLERS)}, each at most once; got {name!r}", param="samplers"
                )
        for pair in self.logit_bias:
            if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(each, Real) for each in pair)):
                raise InvalidRequestError(
                    f"logit_bias takes pairs of a token id and a number, got {pair!r:.60}; write a tuple such as "
                    "((15043, 1.0),)",
                    param="logit_bias",
                )
            token, bias = pair
            if not (-MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS or bias == -math.inf):
                raise InvalidRequestError(
                    f"logit_bias must be from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}, or false for a ban; "
                    f"got {bias} for token {token}",
                    param="logit_bias",
                )
        given = [name for name in GRAMMAR_FIELDS if getattr(self, name) is not None]
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
        if self.direction is not None:
            check_text("direction", self.direction)

    @property
    def direction_ids(self) -> tuple[int, ...]:
        """The tokens of the direction, after an engine has made them of a text; empty without one."""
        return cast(tuple[int, ...], self.direction or ())

    @property
    def negative_ids(self) -> tuple[int, ...]:
        """The tokens of the negative prompt, after an engine has made them of a text; empty without one."""
        return cast(tuple[int, ...], self.negative_prompt or ())

    @property
    def is_guided(self) -> bool:
        """Whether a negative prompt has an effect."""
        return self.guidance_scale != 1

    @property
    def learns(self) -> bool:
        """Whether a sampler's state depends on more than the tokens so far: on their probabilities, for example."""
        has_xtc = self.xtc_probability > 0 and "xtc" in self.samplers
        return bool(self.mirostat) or self.adaptive_target >= 0 or has_xtc or self.has_grammar

    @property
    def has_grammar(self) -> bool:
        """Whether the text must match a grammar, a schema or an expression."""
        return any(getattr(self, name) is not None for name in GRAMMAR_FIELDS)

    def directed(self, direction: str, name: str = "directions") -> "SamplingParams":
        """Return the same parameters with a direction and its label; unchanged if it is empty.

        Args:
            name: The name of its field, for errors.

        Raises:
            InvalidRequestError: It isn't a text, or too long.
        """
        if not isinstance(direction, str):
            raise InvalidRequestError(f"{name} takes texts, got {direction!r:.60}", param=name)
        if len(direction) > MAX_DIRECTION_CHARS:
            raise InvalidRequestError(
                f"{name} takes texts of up to {MAX_DIRECTION_CHARS} characters, got {len(direction)}; shorten it, or "
                "put it into the prompt",
                param=name,
            )
        if not direction.strip():
            return self
        note = f"{author_note(direction)}\n"
        return dataclasses.replace(self, direction=note, label=direction if self.label is None else self.label)

    def with_seed(self) -> "SamplingParams":
        """Return the same parameters, with a random seed if the seed is -1."""
        return self if self.seed >= 0 else dataclasses.replace(self, seed=secrets.randbelow(MAX_SEED + 1))

    def alternatives(self, n: int) -> tuple["SamplingParams", ...]:
        """Return n copies with the seeds seed, seed + 1, ... (mod 2^32). If the seed is -1, the first one is random."""
        if not isinstance(n, int) or isinstance(n, bool):
            raise InvalidRequestError(f"n takes a whole number, got {n!r:.60}", param="n")
        first = self.with_seed().seed
        return tuple(dataclasses.replace(self, seed=(first + k) % (MAX_SEED + 1)) for k in range(n))


def author_note(direction: str) -> str:
    """Return a direction as the model reads it: as writers put notes for a model into a text."""
    return f"[Author's note: {direction.strip()}]"


def _check_banned(strings: tuple[str, ...]) -> None:
    patterns = tuple(text for text in strings if isinstance(text, str) and is_pattern(text))
    phrases = tuple(
        text.removeprefix(ANY_CASE) if isinstance(text, str) else text for text in strings if text not in patterns
    )
    check_strings("banned_strings", phrases, MAX_BANNED_STRINGS, MAX_BANNED_CHARS)
    patterns_of(patterns)
