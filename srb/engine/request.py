"""`CompletionRequest`: what a caller asks of all alternatives. `SamplingParams` has what it asks of each one."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from srb.engine.media import Media
from srb.engine.sampling_params import MAX_BANNED_CHARS_IN_ALL, SamplingParams
from srb.engine.validation.exclusions import check_ahead, check_combination
from srb.engine.validation.fields import Text, check_ranges, check_text, check_types, described, documented
from srb.errors import InvalidRequestError

# `Explore`: what a caller asks who wants the tree of likely continuations of a prompt, and no text.

MAX_LOGPROBS = 100
MAX_PATH = 128
"""The most tokens of a text that is explored."""

EXPLORE_RANGES: dict[str, tuple[float, float]] = {
    "depth": (1, MAX_PATH),
    "top_k": (1, MAX_LOGPROBS),
    "min_probability": (0, 1),
    "max_nodes": (1, 10_000),
    "min_entropy": (0, 100),
}
"""The lowest and the highest value of each number in `Explore`, both allowed."""


@documented
@dataclass(frozen=True, slots=True)
class Explore:
    """The tree of likely continuations that a request asks for: its nodes come in the order of their probability.

    What a field means stands behind its default; `help(Explore)` shows it. `EXPLORE_RANGES` has the limits.
    Raises `InvalidRequestError` for a value out of range.
    """

    depth: int = described(4, "how many nodes there may be from the prompt to the end of a text.")
    top_k: int = described(5, "how many tokens may follow a node: the likeliest ones.")
    min_probability: float = described(0.01, "tokens that are less likely than this at their place are left out.")
    max_nodes: int = described(100, "how many nodes the answer has: the likeliest of all.")
    min_entropy: float = described(
        0.0,
        "fork only where the entropy of what follows is at least so many nats. Where it isn't, the text runs on with "
        f"the likeliest token, so that a node has all tokens up to the next fork; a text has at most {MAX_PATH}. "
        "0: fork everywhere.",
    )

    def __post_init__(self) -> None:
        check_types(self)
        check_ranges(self, EXPLORE_RANGES)

    @property
    def max_path(self) -> int:
        """The most tokens that a text of the tree may have."""
        return MAX_PATH if self.min_entropy else self.depth


DEFAULT_BEAMS = 4
"""How many beams a beam search has if `beams` is left out, and it isn't asked for more texts."""

DEFAULT_CANDIDATES = 8
"""How many candidates a bridge has if the request doesn't say, and isn't asked for more texts."""

SUFFIX_TOKENS = 64
"""How many of the suffix's first tokens a bridge scores."""

MAX_REST = 16
"""Where a stop string begins within a token, the text before it is so many tokens at most, or it isn't scored."""


def new_request_id() -> str:
    """A fresh `cmpl-...` id."""
    return f"cmpl-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Resumed:
    """What an alternative has already, in a request that goes on after it was interrupted.

    tokens: the generated tokens that events have told.
    sum_logprob: the sum of their log-probabilities, if the request asks for these.
    finished: the alternative's length, if it has ended. It gets no more tokens, and no `StopEvent`.
    nodes: if the request explores, the text of each node that was told, in tokens, from the end of the prompt on.
    fingerprint: the one that all who have told this had in common, or empty; see `Backend.fingerprint`.
    """

    tokens: tuple[int, ...] = ()
    sum_logprob: float = 0.0
    finished: int | None = None
    nodes: tuple[tuple[int, ...], ...] = ()
    fingerprint: str = ""


@documented
@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One or more prompts, each continued once for every branch.

    The alternative number k of prompt number p has the index p * len(branches) + k.
    What a field means stands behind it; `help(CompletionRequest)` shows it.
    Raises `InvalidRequestError` if there is nothing to do, or for a value out of range.
    """

    prompts: tuple[Text, ...] = field(
        metadata={"meaning": "the prompts: each a text, or the ids of its tokens. An engine makes tokens of the texts."}
    )
    branches: tuple[SamplingParams, ...] = field(
        metadata={
            "meaning": "the parameters of each alternative; `SamplingParams.alternatives` makes n of one kind. A seed "
            "of -1 is drawn here."
        }
    )
    distinct: bool = described(
        False,
        "the alternatives of a prompt begin with different tokens, if the samplers leave enough of them.",
    )
    heal: bool = described(
        False,
        "for a prompt that ends with a space, or within a word: its last token is taken back, and the first token "
        "that is drawn begins with the text of that token. This text isn't said again. Nothing is "
        "taken back if no other token begins with it. Not with a grammar, a search, or echo with logprobs.",
    )
    search: str = described(
        "sample",
        "how texts are found. sample: they are drawn token by token. beam: beam search, the most probable texts, the "
        "best one first; it uses the model's probabilities after logit_bias, and no samplers.",
    )
    beams: int | None = described(
        None,
        f"of a beam search, how many texts go on side by side, at least n. Left out: {DEFAULT_BEAMS}, or n if that is "
        "more.",
    )
    length_penalty: float = described(
        1.0,
        "for a beam search: texts are compared by their log-probability divided by their number of tokens to the "
        "power of this. A higher penalty prefers longer texts.",
    )
    early_stopping: bool | str = described(
        False,
        "when a beam search ends. true: when it has found as many texts as it has beams. false: when the best "
        'beam wouldn\'t be better if it ended now. "never": when no beam can become better.',
    )
    suffix: Text | None = described(
        None,
        "the text that comes after the alternatives, or the ids of its tokens. A model with tokens for infill reads it "
        "first, unless n_candidates or stop_at_suffix asks for a bridge. For any other model, candidates are drawn "
        "from the prompt alone, and the n are returned after which the suffix is the most probable. Most suffixes "
        "should begin with a space.",
    )
    stop_at_suffix: bool = described(
        False,
        "of a bridge: a candidate ends after the sentence that the beginning of the suffix follows best, once it "
        "follows the next two sentences less well.",
    )
    n_candidates: int | None = described(
        None,
        "of a bridge, how many candidates are drawn, at least n; the n best are returned. Left out: "
        f"{DEFAULT_CANDIDATES}, or n if that is more, or fewer if fewer can run at once.",
    )
    most_tokens: int | None = described(
        None,
        "how many tokens an alternative with a max_tokens of -1 may have before the context is full. Left out: no "
        "limit.",
    )
    logprobs: int | None = described(
        None,
        "report each generated token with its log-probability, and this many of the likeliest tokens at its "
        "place, 0 to 100. Left out: off.",
    )
    post_sampling_probs: bool = described(
        False, "report the probabilities that the samplers left, and not the model's own."
    )
    echo: bool = described(
        False, "each alternative's text begins with its prompt; with `logprobs`, the prompt's tokens are reported, too."
    )
    return_tokens: bool = described(False, "report the ids of the tokens with their text.")
    special_tokens: bool = described(
        False, "show the control tokens among those generated in the text, with their names."
    )
    return_progress: bool = described(False, "report how much of the prompts is evaluated, while they are evaluated.")
    cache_prompt: bool = described(
        True, "begin with what other requests have evaluated, and keep what this request evaluates for others."
    )
    shared_within: str = described(
        "",
        "a name of those who share what this request evaluates: only requests with the same name begin with it. It may "
        "itself begin with what requests without a name have evaluated, too. Empty: it is shared with all.",
    )
    context_shift: bool = described(
        False,
        "a prompt or a text that is longer than the context goes on without a part of it: the first n_keep tokens of "
        "the prompt stay, and the n_discard tokens behind them are left out. With a max_tokens of -1 only the model "
        "then ends a text.",
    )
    n_keep: int = described(
        0, "for context_shift: how many of the prompt's first tokens stay, beside its BOS token; -1: all of them."
    )
    n_discard: int = described(
        0, "for context_shift: how many tokens are left out each time; 0: half of those behind n_keep."
    )
    slot: int = described(
        0,
        "the number under which the tokens of its first alternative are remembered, for `Engine.ask`; the other "
        "alternatives have the next numbers.",
    )
    explore: Explore | None = described(
        None,
        "answer with the tree of likely continuations of the one prompt, and generate no text. The one branch "
        "then has nothing but its `max_tokens`. `CompletionRequest.exploring` makes such a request.",
    )
    candidates: tuple[tuple[int, ...], ...] = described(
        (),
        "the tokens of each alternative, by index, if they are given: no token is drawn, and with `logprobs` the given "
        "ones are reported with their log-probabilities. `CompletionRequest.scoring` makes such a request.",
    )
    media: tuple[Media, ...] = described(
        (),
        "the images and sounds whose placeholders are in the prompts; `Engine.tokenize_parts` makes them from files. "
        "Not with echo or story.",
    )
    ahead: int = described(
        0,
        "how many further alternatives may be drawn when this request has ended, while nobody waits: those with the "
        "next seeds. Who then asks for the same with the next seed, or with any_seed, gets them at once. An "
        "`Engine`, which has no time of its own, doesn't do so.",
    )
    any_seed: bool = described(
        False, "the first seed was drawn, so that it may be replaced by the next one of what was drawn ahead."
    )
    id: str = field(default_factory=new_request_id, metadata={"meaning": "unique among the requests of an engine."})
    resumed: tuple[Resumed, ...] = described(
        (),
        "what each alternative has already, by index, if the request goes on after it was interrupted. Its events "
        "are those that would have followed, behind one more `StartEvent`: no text is said twice, and `length` and "
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
        if self.most_tokens is not None and self.most_tokens < 1:
            raise InvalidRequestError(
                f"most_tokens must be at least 1, got {self.most_tokens}; leave it out for no limit",
                param="most_tokens",
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
        if self.ahead:
            check_ahead(self)

    @classmethod
    def exploring(cls, prompt: Text, explore: Explore) -> "CompletionRequest":
        """A request for the tree of likely continuations of a prompt."""
        return cls((prompt,), (SamplingParams(max_tokens=explore.max_path, seed=0),), explore=explore)

    @classmethod
    def scoring(cls, prompt: Text, candidates: Sequence[tuple[int, ...]]) -> "CompletionRequest":
        """A request for the log-probabilities of the tokens of candidates behind a prompt, which is evaluated once."""
        branches = tuple(SamplingParams(max_tokens=len(each), seed=0) for each in candidates)
        return cls((prompt,), branches, logprobs=0, candidates=tuple(candidates))

    @property
    def count(self) -> int:
        """How many alternatives there are in all."""
        return len(self.prompts) * len(self.branches)

    def params(self, index: int) -> SamplingParams:
        """The parameters of an alternative."""
        return self.branches[index % len(self.branches)]

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each prompt, which an engine has made of the texts."""
        return cast(tuple[tuple[int, ...], ...], self.prompts)

    @property
    def n_rows(self) -> int:
        """How many rows each prompt has: its beams or candidates. 0: each of its alternatives has its own."""
        n = len(self.branches)
        if self.suffix is not None:
            return self.n_candidates or max(n, DEFAULT_CANDIDATES)
        if self.search == "sample":
            return 0
        return self.beams or max(n, DEFAULT_BEAMS)

    @property
    def cells_behind(self) -> int:
        """How many cells each row needs after its text: for the suffix that is scored there, and what a stop string
        has left of a token."""
        n_suffix = len(self.scored_suffix)
        return n_suffix + MAX_REST if n_suffix and self.branches[0].stop else n_suffix

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        """The tokens of the suffix, which an engine has made of the text; empty without one."""
        return cast(tuple[int, ...], self.suffix or ())

    @property
    def scored_suffix(self) -> tuple[int, ...]:
        """The tokens of the suffix that are scored after each candidate of a bridge."""
        return self.suffix_ids[:SUFFIX_TOKENS]

    @property
    def guided(self) -> tuple[int, ...]:
        """The indices of the alternatives with a negative prompt. Each of them takes two sequences."""
        branches = self.branches * len(self.prompts)
        return tuple(index for index, params in enumerate(branches) if params.is_guided)

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own tokens must be reported with their log-probabilities."""
        return self.echo and self.logprobs is not None and not self.resumed

    @property
    def is_joint(self) -> bool:
        """Whether the text of an alternative depends on its siblings, so that all must run on the same machine."""
        depends = any(params.diversity or params.avoid is not None for params in self.branches)
        return self.distinct or self.n_rows > 0 or depends

    @property
    def reports_tokens(self) -> bool:
        """Whether tokens are reported with the text."""
        return self.return_tokens or self.logprobs is not None

    @property
    def prompt_tokens(self) -> int:
        """The length of all prompts together, in tokens."""
        return sum(map(len, self.prompts))
