"""What a caller asks: `SamplingParams` for each alternative, `CompletionRequest` for all of them.

Values are checked here, once, for the library and for every wire format, before C can see them.
"""

import dataclasses
import math
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from srb.engine.combinations import CONSTRAINTS as CONSTRAINTS
from srb.engine.combinations import SEARCHES as SEARCHES
from srb.engine.combinations import check_combination
from srb.engine.kinds import check_text, check_types
from srb.engine.media import Media
from srb.errors import InvalidRequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LogitsProcessor = Callable[["NDArray[np.int32]", "NDArray[np.float32]"], None]
"""Changes a row of logits in place; see `SamplingParams.logits_processor`."""

Text = str | tuple[int, ...]
"""A text, or the ids of its tokens."""

DEFAULT_MAX_TOKENS = 128
MAX_SEED = 2**32 - 1
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1_000

MAX_BANNED_STRINGS = 1_000
MAX_BANNED_CHARS = 200
MAX_BANNED_CHARS_IN_ALL = MAX_BANNED_STRINGS * MAX_BANNED_CHARS
ANY_CASE = "(?i)"
"""A banned string that begins with this is found without regard to case."""

MAX_AVOIDED = 1_000
AVOIDED_CHARS = 200
"""The characters of a text to avoid that count, and the most of its token ids that do."""

MAX_LOGIT_BIAS = 100.0
MAX_DRY_BREAKERS = 32
MAX_DRY_BREAKER_CHARS = 40
MAX_GRAMMAR_CHARS = 100_000
MAX_GRAMMAR_DEPTH = 100
MAX_REGEX_CHARS = 10_000
MAX_LARK_CHARS = 1_000_000
MAX_LOGPROBS = 100
MAX_PATH = 128
"""The most tokens of a text that is explored."""

DEFAULT_BEAMS = 4
"""Of a beam search that doesn't say how many, if it isn't asked for more texts."""

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
    "max_rewinds": (0, _COUNT),
    "diversity": (0, 10),
    "guidance_scale": (0, 100),
    "min_tokens": (0, _COUNT),
    "max_tokens": (-1, _COUNT),
    "seed": (-1, MAX_SEED),
}
"""The lowest and the highest value of each number in `SamplingParams`, both allowed."""

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama-server's samplers that narrow or reshape the distribution, in its default order."""


def new_request_id() -> str:
    """A fresh `cmpl-...` id."""
    return f"cmpl-{uuid.uuid4().hex}"


Kind = TypeVar("Kind")


def _field(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


def meanings(kind: Any) -> dict[str, str]:
    """What each field of `SamplingParams` or `CompletionRequest` means."""
    return {each.name: each.metadata["meaning"] for each in dataclasses.fields(kind)}


def _documented(kind: type[Kind]) -> type[Kind]:
    """Adds what the fields mean to the docstring, for `help`."""
    texts = "\n".join(f"    - `{name}`: {text}" for name, text in meanings(kind).items())
    kind.__doc__ = f"{kind.__doc__ or ''}\n{texts}\n"
    return kind


@_documented
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one alternative is drawn, and when it ends. Names, defaults and meanings are llama-server's.

    What a field means stands behind its default; `help(SamplingParams)` shows it. `RANGES` has the limits of numbers.
    Raises `InvalidRequestError` for a value out of range.
    """

    temperature: float = _field(0.8, "0 always takes the likeliest token; higher is wilder.")
    dynatemp_range: float = _field(0.0, "how much the temperature varies with the entropy of the distribution; 0: off.")
    dynatemp_exponent: float = _field(
        1.0, "how the temperature follows the entropy: 1 in proportion to the entropy, 2 to its square."
    )
    top_k: int = _field(40, "draw from the k likeliest tokens; 0 or -1: off.")
    top_p: float = _field(0.95, "draw from the smallest set of tokens whose probabilities add up to p; 1: off.")
    min_p: float = _field(0.05, "drop tokens that are less likely than min_p times the likeliest; 0: off.")
    typical_p: float = _field(
        1.0, "keep the tokens closest to the expected surprise, until their probabilities add up to this; 1: off."
    )
    top_n_sigma: float = _field(
        -1.0, "drop tokens whose logit is more than n standard deviations below the highest; 0 or less: off."
    )
    xtc_probability: float = _field(
        0.0,
        "how often XTC takes effect: with this probability, all tokens above xtc_threshold but the least likely "
        "of them are dropped; 0: off.",
    )
    xtc_threshold: float = _field(0.1, "XTC may drop tokens whose probability is above this; more than 0.5: off.")
    repeat_penalty: float = _field(
        1.0, "make the last repeat_last_n tokens less likely by this factor; the prompt's tokens count, too; 1: off."
    )
    repeat_last_n: int = _field(64, "how many tokens back the penalties look; -1: the whole context.")
    presence_penalty: float = _field(
        0.0, "subtract this from the logits of the last repeat_last_n tokens; the prompt's tokens count, too; 0: off."
    )
    frequency_penalty: float = _field(
        0.0, "subtract this from a token's logit for each time that it is among the last repeat_last_n tokens; 0: off."
    )
    dry_multiplier: float = _field(
        0.0, "DRY makes it less likely that a repetition goes on, once it is longer than dry_allowed_length; 0: off."
    )
    dry_base: float = _field(1.75, "DRY's penalty grows by this factor with each further token of the repetition.")
    dry_allowed_length: int = _field(2, "the longest repetition that has no penalty from DRY, in tokens.")
    dry_penalty_last_n: int = _field(64, "how many tokens back DRY looks; -1: the whole context.")
    dry_sequence_breakers: tuple[str, ...] = _field(("\n", ":", '"', "*"), "texts at which a repetition ends, for DRY.")
    mirostat: int = _field(
        0,
        "1 or 2 keeps the surprise near mirostat_tau, in place of all narrowing samplers; 0: off.",
    )
    mirostat_tau: float = _field(5.0, "the surprise that mirostat aims at, in bits.")
    mirostat_eta: float = _field(0.1, "how fast mirostat learns.")
    adaptive_target: float = _field(
        -1.0, "prefer tokens whose probability is near this, and adapt while the text grows; negative: off."
    )
    adaptive_decay: float = _field(
        0.9, "how slowly adaptive_target adapts: low values follow the last tokens, high values are steadier."
    )
    logit_bias: tuple[tuple[int, float], ...] = _field(
        (), "pairs of a token id and what is added to its logit; -inf bans it."
    )
    samplers: tuple[str, ...] = _field(SAMPLERS, "the narrowing samplers to use, in this order; all others are off.")
    min_keep: int = _field(0, "top_p, min_p, typical_p and xtc leave at least this many tokens.")
    grammar: str | None = _field(None, "a grammar in GBNF that the text must match, beginning with its rule `root`.")
    json_schema: str | None = _field(
        None, "the JSON text of a JSON schema that the text must match; not together with a grammar."
    )
    regex: str | None = _field(
        None, "a regular expression that the whole text must match, in Rust's syntax; not together with a grammar."
    )
    lark: str | None = _field(
        None,
        "a grammar in llguidance's dialect of Lark that the text must match, beginning with its rule `start`; not "
        "together with a grammar in GBNF.",
    )
    seed: int = _field(-1, "the seed of this alternative's random numbers; -1: drawn when the request is made.")
    min_tokens: int = _field(0, "draw no end-of-generation token before the alternative has this many tokens.")
    max_tokens: int | None = _field(
        None,
        "how many tokens may be generated. Left out: the engine's default, or less if the context has less room. "
        "-1: as many as the context has room for, shared between the alternatives. 0: the prompt is evaluated, "
        "and nothing is generated.",
    )
    stop: tuple[str, ...] = _field((), "strings that end the alternative; the string itself isn't shown in the text.")
    banned_strings: tuple[str, ...] = _field(
        (),
        "phrases that never come: when a phrase is complete, the alternative goes back to where the phrase began, "
        "and draws another token there. With (?i) before it, a phrase is found with small and capital letters "
        "alike.",
    )
    max_rewinds: int = _field(
        1000,
        "how often an alternative may go back for banned_strings and avoid. After that nothing is held back any "
        "more, and `stop` says so.",
    )
    diversity: float = _field(
        0.0,
        "makes alternatives differ: subtract this from a token's logit for each other alternative of the prompt "
        "that went on with this token after the same two tokens; 0: off.",
    )
    avoid: tuple[str | tuple[int, ...], ...] | None = _field(
        None,
        "texts, or their token ids: the alternative doesn't begin with the first 8 words of one of them, nor with "
        "those of another alternative of its prompt that has such a list. If it would, it goes back, and draws "
        "another token. The list may be empty. Left out: off.",
    )
    negative_prompt: Any = _field(
        None,
        "a prompt to keep away from, with guidance_scale: a text, or the ids of its tokens. Left out: the "
        "prompt's last token alone.",
    )
    guidance_scale: float = _field(
        1.0,
        "how far to keep away from the negative prompt: the logits are the negative ones + this * (the prompt's "
        "own - the negative ones). 1: off; 1.5 to 3 are usual.",
    )
    lora: tuple[tuple[int | str, float], ...] | None = _field(
        None,
        "pairs of an adapter's number or name and its scale; adapters that aren't named aren't used. Left out: as "
        "the server has set them.",
    )
    ignore_eos: bool = _field(False, "never draw an end-of-generation token.")
    logits_processor: LogitsProcessor | None = _field(
        None,
        "a Python function that is called before each token is drawn, in the engine's thread. It may change the "
        "logits in place. It gets two arrays: the token ids of the prompt and of the text so far (int32, can't be "
        "changed), and the logits of all tokens of the vocabulary (float32: the model's, after guidance_scale "
        "and before logit_bias and everything else). -inf bans a token; at least one logit must be finite. It "
        "returns None. An error that it raises ends only this alternative. Only in the library, and not with "
        "replicas.",
    )
    label: str | None = _field(None, "a name for this alternative; it comes back in `start`.")

    def __post_init__(self) -> None:
        check_types(self)
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is in no range
                raise InvalidRequestError(f"{name} must be from {low} to {high}, got {value!s:.60}", param=name)
        _check_strings("stop", self.stop, MAX_STOP_STRINGS, MAX_STOP_CHARS)
        phrases = tuple(text.removeprefix(ANY_CASE) for text in self.banned_strings)
        _check_strings("banned_strings", phrases, MAX_BANNED_STRINGS, MAX_BANNED_CHARS)
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
        if self.grammar is not None:
            check_grammar(self.grammar)
        for name, most in (("regex", MAX_REGEX_CHARS), ("lark", MAX_LARK_CHARS)):
            if (text := getattr(self, name)) is not None and len(text) > most:
                raise InvalidRequestError(f"{name} has {len(text)} characters; the limit is {most}", param=name)
        if self.logits_processor is not None and not callable(self.logits_processor):
            raise InvalidRequestError(
                f"logits_processor must be a function, got {self.logits_processor!r:.60}", param="logits_processor"
            )
        if self.negative_prompt is not None:
            check_text("negative_prompt", self.negative_prompt)

    @property
    def is_guided(self) -> bool:
        """Whether a negative prompt has a say."""
        return self.guidance_scale != 1

    def with_seed(self) -> "SamplingParams":
        """Itself, with a drawn seed where it is -1."""
        return self if self.seed >= 0 else dataclasses.replace(self, seed=secrets.randbelow(MAX_SEED + 1))

    def alternatives(self, n: int) -> tuple["SamplingParams", ...]:
        """n copies with the seeds seed, seed + 1, ... (mod 2^32), from a drawn seed where it is -1."""
        if not isinstance(n, int):
            raise InvalidRequestError(f"n takes a whole number, got {n!r:.60}", param="n")
        first = self.with_seed().seed
        return tuple(dataclasses.replace(self, seed=(first + k) % (MAX_SEED + 1)) for k in range(n))


def _check_strings(name: str, strings: tuple[str, ...], most: int, longest: int) -> None:
    if len(strings) > most:
        raise InvalidRequestError(f"{name} takes at most {most} strings, got {len(strings)}", param=name)
    for text in strings:
        if not 1 <= len(text) <= longest:
            raise InvalidRequestError(f"{name} takes strings of 1 to {longest} characters, got {len(text)}", param=name)


def check_grammar(grammar: str) -> None:
    """Refuses what would overflow the stack of llama.cpp's recursive parser. If it parses is the backend's to say.

    Raises `InvalidRequestError`.
    """
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise InvalidRequestError(
            f"grammar has {len(grammar)} characters; the limit is {MAX_GRAMMAR_CHARS}", param="grammar"
        )
    depth = deepest = 0
    for char in grammar:  # quoted parentheses are counted, too: a grammar has far fewer than the limit
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
    if deepest > MAX_GRAMMAR_DEPTH:
        raise InvalidRequestError(
            f"grammar is nested {deepest} parentheses deep; the limit is {MAX_GRAMMAR_DEPTH}", param="grammar"
        )


EXPLORE_RANGES: dict[str, tuple[float, float]] = {
    "depth": (1, MAX_PATH),
    "top_k": (1, MAX_LOGPROBS),
    "min_probability": (0, 1),
    "max_nodes": (1, 10_000),
    "min_entropy": (0, 100),
}
"""The lowest and the highest value of each number in `Explore`, both allowed."""


@_documented
@dataclass(frozen=True, slots=True)
class Explore:
    """The tree of likely continuations that a request asks for: its nodes come in the order of their probability.

    What a field means stands behind its default; `help(Explore)` shows it. `EXPLORE_RANGES` has the limits.
    Raises `InvalidRequestError` for a value out of range.
    """

    depth: int = _field(4, "how many nodes there may be from the prompt to the end of a text.")
    top_k: int = _field(5, "how many tokens may follow a node: the likeliest ones.")
    min_probability: float = _field(0.01, "tokens that are less likely than this at their place are left out.")
    max_nodes: int = _field(100, "how many nodes the answer has: the likeliest of all.")
    min_entropy: float = _field(
        0.0,
        "fork only where the entropy of what follows is at least so many nats. Where it isn't, the text runs on with "
        f"the likeliest token, so that a node has all tokens up to the next fork; a text has at most {MAX_PATH}. "
        "0: fork everywhere.",
    )

    def __post_init__(self) -> None:
        check_types(self)
        for name, (low, high) in EXPLORE_RANGES.items():
            if not low <= (value := getattr(self, name)) <= high:  # NaN is in no range
                raise InvalidRequestError(f"{name} must be from {low} to {high}, got {value!s:.60}", param=name)

    @property
    def max_path(self) -> int:
        """The most tokens of a text."""
        return MAX_PATH if self.min_entropy else self.depth


@dataclass(frozen=True, slots=True)
class Resumed:
    """What an alternative has already, in a request that goes on after it was interrupted.

    tokens: that were generated. What there is to say about them was said.
    sum_logprob: of these tokens, where the request asks for log-probabilities.
    finished: its length, if it has ended. It gets no more tokens, and no `StopEvent`.
    nodes: the texts of the nodes that were told, in tokens from the prompt on, where the request explores.
    """

    tokens: tuple[int, ...] = ()
    sum_logprob: float = 0.0
    finished: int | None = None
    nodes: tuple[tuple[int, ...], ...] = ()


@_documented
@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One or more prompts, each continued once for every branch.

    The alternative number k of prompt number p has the index p * len(branches) + k.
    What a field means stands behind it; `help(CompletionRequest)` shows it.
    Raises `InvalidRequestError` if there is nothing to do, or for a value out of range.
    """

    prompts: tuple[Any, ...] = field(
        metadata={"meaning": "the prompts: each a text, or the ids of its tokens. An engine makes tokens of the texts."}
    )
    branches: tuple[SamplingParams, ...] = field(
        metadata={
            "meaning": "the parameters of each alternative; `SamplingParams.alternatives` makes n of one kind. A seed "
            "of -1 is drawn here."
        }
    )
    distinct: bool = _field(
        False,
        "the alternatives of a prompt begin with different tokens, if the samplers leave enough of them.",
    )
    heal: bool = _field(
        False,
        "for a prompt that ends with a space, or within a word: its last token is taken back, and the first token "
        "that is drawn begins with the text of that token. This text isn't said again. Nothing is "
        "taken back if no other token begins with it. Not with a grammar, a search, or echo with logprobs.",
    )
    search: str = _field(
        "sample",
        "how texts are found. sample: they are drawn token by token. beam: the n likeliest texts that a beam "
        "search finds, the best one first. stochastic_beam: n different whole texts, drawn without replacement "
        "from all possible texts. Searches use the model's probabilities after logit_bias, and no samplers.",
    )
    beams: int | None = _field(
        None,
        f"of a beam search, how many texts go on side by side, at least n. Left out: {DEFAULT_BEAMS}, or n if that is "
        "more. A stochastic beam search has n.",
    )
    length_penalty: float = _field(
        1.0,
        "for a beam search: texts are compared by their log-probability divided by their number of tokens to the "
        "power of this. A higher penalty prefers longer texts.",
    )
    early_stopping: bool | str = _field(
        False,
        "when a beam search ends. true: when it has found as many texts as it has beams. false: when the best "
        'beam wouldn\'t be better if it ended now. "never": when no beam can become better.',
    )
    logprobs: int | None = _field(
        None,
        "report each generated token with its log-probability, and this many of the likeliest tokens at its "
        "place, 0 to 100. Left out: off.",
    )
    post_sampling_probs: bool = _field(
        False, "report the probabilities that the samplers left, and not the model's own."
    )
    echo: bool = _field(
        False, "each alternative's text begins with its prompt; with `logprobs`, the prompt's tokens are reported, too."
    )
    return_tokens: bool = _field(False, "report the ids of the tokens with their text.")
    special_tokens: bool = _field(False, "show the control tokens among those generated in the text, with their names.")
    return_progress: bool = _field(False, "report how much of the prompts is evaluated, while they are evaluated.")
    cache_prompt: bool = _field(
        True, "begin with what other requests have evaluated, and keep what this request evaluates for others."
    )
    context_shift: bool = _field(
        False,
        "a prompt or a text that is longer than the context goes on without a part of it: the first n_keep tokens of "
        "the prompt stay, and the n_discard tokens behind them are left out. With a max_tokens of -1 only the model "
        "then ends a text.",
    )
    n_keep: int = _field(
        0, "for context_shift: how many of the prompt's first tokens stay, beside its BOS token; -1: all of them."
    )
    n_discard: int = _field(
        0, "for context_shift: how many tokens are left out each time; 0: half of those behind n_keep."
    )
    n_cache_reuse: int = _field(
        0,
        "use not only what is known of the prompt's beginning, but also what is known of the text behind it from "
        "another place: it is moved, in chunks of at least this many tokens. It isn't exact. 0: off. Such requests "
        "use only what other such requests have evaluated.",
    )
    slot: int = _field(
        0,
        "the number under which the tokens of its first alternative are remembered, for `Engine.ask`; the other "
        "alternatives have the next numbers.",
    )
    explore: Explore | None = _field(
        None,
        "answer with the tree of likely continuations of the one prompt, and generate no text. The one branch "
        "then has nothing but its `max_tokens`. `CompletionRequest.exploring` makes such a request.",
    )
    media: tuple[Media, ...] = _field(
        (),
        "the images and sounds whose placeholders are in the prompts; `Engine.tokenize_parts` makes them from files. "
        "Not with echo or story.",
    )
    id: str = field(default_factory=new_request_id, metadata={"meaning": "unique among the requests of an engine."})
    resumed: tuple[Resumed, ...] = _field(
        (),
        "what each alternative has already, by index, if the request goes on after it was interrupted. Its events "
        "are those that would have followed: there is no `StartEvent`, no text is said twice, and `length` and "
        "`usage` count all tokens.",
    )

    def __post_init__(self) -> None:
        check_types(self)
        if wrong := [each for each in self.branches if not isinstance(each, SamplingParams)]:
            raise InvalidRequestError(f"branches takes SamplingParams, got {wrong[0]!r:.60}", param="branches")
        if not self.branches:
            raise InvalidRequestError("n must be at least 1, got 0", param="n")
        if not self.prompts:
            raise InvalidRequestError("prompt must not be an empty list", param="prompt")
        for prompt in self.prompts:
            check_text("prompt", prompt)
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InvalidRequestError(
                f"logprobs must be from 0 to {MAX_LOGPROBS}, got {self.logprobs!s:.60}", param="logprobs"
            )
        if self.resumed and (len(self.resumed) != self.count or None not in {each.finished for each in self.resumed}):
            raise InvalidRequestError(
                f"resumed must have an entry for each of the {self.count} alternatives, one of them not finished",
                param="resumed",
            )
        check_combination(self)
        banned = sum(sum(map(len, strings)) for strings in {params.banned_strings for params in self.branches})
        if banned > MAX_BANNED_CHARS_IN_ALL:
            raise InvalidRequestError(
                f"banned_strings have {banned} characters, those of all branches together; the limit is "
                f"{MAX_BANNED_CHARS_IN_ALL}; the same list in several branches counts once",
                param="banned_strings",
            )
        object.__setattr__(self, "branches", tuple(params.with_seed() for params in self.branches))

    @classmethod
    def exploring(cls, prompt: Text, explore: Explore) -> "CompletionRequest":
        """A request for the tree of likely continuations of a prompt."""
        return cls((prompt,), (SamplingParams(max_tokens=explore.max_path, seed=0),), explore=explore)

    @property
    def count(self) -> int:
        """How many alternatives there are in all."""
        return len(self.prompts) * len(self.branches)

    @property
    def n_beams(self) -> int:
        """How many beams each prompt has; 0: its alternatives are drawn."""
        if self.search == "sample":
            return 0
        n = len(self.branches)
        return n if self.search == "stochastic_beam" else self.beams or max(n, DEFAULT_BEAMS)

    @property
    def guided(self) -> tuple[int, ...]:
        """The indices of the alternatives that have a negative prompt, and so two sequences."""
        branches = self.branches * len(self.prompts)
        return tuple(index for index, params in enumerate(branches) if params.is_guided)

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own tokens are to be reported with their log-probabilities."""
        return self.echo and self.logprobs is not None and not self.resumed

    @property
    def is_joint(self) -> bool:
        """Whether what an alternative says depends on the others of its prompt, so that they must run together."""
        depends = any(params.diversity or params.avoid is not None for params in self.branches)
        return self.distinct or self.n_beams > 0 or depends

    @property
    def reports_tokens(self) -> bool:
        """Whether tokens are reported with the text."""
        return self.return_tokens or self.logprobs is not None

    @property
    def prompt_tokens(self) -> int:
        """The length of all prompts together, in tokens."""
        return sum(map(len, self.prompts))
