"""`CompletionRequest`: the prompts, the parameters of each alternative, and what applies to all alternatives."""

import uuid
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from math import inf
from typing import cast

from srb.engine.media import Media
from srb.engine.sampling_params import MAX_BANNED_CHARS_IN_ALL, SamplingParams
from srb.engine.validation.exclusions import check_exclusions
from srb.engine.validation.fields import Text, check_fields, check_text, described, documented
from srb.errors import InvalidRequestError

SEARCHES = ("sample", "beam")
"""The values of `CompletionRequest.search`."""

EARLY_STOPPING = (True, False, "never")
"""The values of `CompletionRequest.early_stopping`."""

MAX_LOGPROBS = 100

MAX_PROMPT_LOGPROBS = 200_000
"""The most log-probabilities that a request with `prompt_logprobs` may have: they take about 50 MB of memory."""

MAX_PATH = 128
"""The most tokens of a text that is explored."""

DEFAULT_BEAMS = 4
"""The number of beams of a beam search without `beams`, if n isn't more."""

DEFAULT_CANDIDATES = 8
"""The number of candidates of a bridge without `n_candidates`, if n isn't more."""

SUFFIX_TOKENS = 64
"""How many of the suffix's first tokens a bridge scores."""

MAX_REST = 16
"""If a stop string begins within a token, the most tokens that the text before it in this token may have. A bridge
doesn't score texts with more."""


@documented
@dataclass(frozen=True, slots=True)
class Explore:
    """The tree of likely continuations that a request asks for. Its nodes come in the order of their probability.

    `help(Explore)` shows what each field means.

    Raises:
        InvalidRequestError: a value has a wrong type, or is out of range.
    """

    depth: int = described(4, "the most nodes from the prompt to the end of a text.", (1, MAX_PATH))
    top_k: int = described(5, "the most tokens that may follow a node: the most probable ones.", (1, MAX_LOGPROBS))
    min_probability: float = described(
        0.01, "leave out tokens that are less probable than this at their place.", (0, 1)
    )
    max_nodes: int = described(100, "the most nodes of the answer: the most probable ones.", (1, 10_000))
    min_entropy: float = described(
        0.0,
        "fork only where the entropy of the next token is at least this, in nats. Elsewhere the text goes on with the "
        f"most probable token, so a node has all tokens up to the next fork; a text has at most {MAX_PATH} tokens. "
        "0: fork everywhere.",
        (0, 100),
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def max_path(self) -> int:
        """The most tokens that a text of the tree may have."""
        return MAX_PATH if self.min_entropy else self.depth


def new_request_id() -> str:
    """Return a new `cmpl-...` id."""
    return f"cmpl-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Resumed:
    """What an alternative already has, in a request that continues after an interruption.

    Attributes:
        tokens: the generated tokens that events have reported.
        sum_logprob: the sum of their log-probabilities, if the request asks for these.
        finished: the alternative's length, if it has ended. It gets no more tokens, and no `StopEvent`.
        nodes: if the request explores, the text of each reported node, in tokens, from the end of the prompt on.
        fingerprint: the `Backend.fingerprint` that all reports had in common, or empty.
        replayed: tokens that are sampled again, because the samplers' states depend on how they were.
    """

    tokens: tuple[int, ...] = ()
    sum_logprob: float = 0.0
    finished: int | None = None
    nodes: tuple[tuple[int, ...], ...] = ()
    fingerprint: str = ""
    replayed: tuple[int, ...] = ()


LOWEST_PRIORITY = 2**31 - 1
"""The `priority` of a request for which nobody waits."""


@documented
@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One or more prompts, each continued once for every branch.

    Alternative k of prompt p has the index p * len(branches) + k. `help(CompletionRequest)` shows what the fields mean.

    Raises:
        InvalidRequestError: there is nothing to do, a value has a wrong type or is out of range, or fields exclude each
            other.
    """

    prompts: tuple[Text, ...] = described(
        MISSING, "the prompts: each a text, which an engine tokenizes, or its token ids."
    )
    branches: tuple[SamplingParams, ...] = described(
        MISSING,
        "the parameters of each alternative; `SamplingParams.alternatives` makes n of them. A seed of -1 becomes a "
        "random one.",
    )
    distinct: bool = described(
        False, "the alternatives of a prompt begin with different tokens, if the samplers leave enough of them."
    )
    heal: bool = described(
        False,
        "token healing, for a prompt that ends with a space or within a word: take its last token back, and sample a "
        "first token that begins with this token's text, which isn't repeated. Nothing is taken back if no other token "
        "begins with it. Not with a grammar, a beam search, or echo with logprobs.",
    )
    search: str = described(
        "sample",
        "how texts are found. sample: token by token, at random. beam: beam search, the most probable texts, the best "
        "one first; it uses the model's probabilities after logit_bias, and no samplers.",
        choices=SEARCHES,
    )
    beams: int | None = described(
        None,
        f"for a beam search: how many texts it follows at a time, at least n. Left out: {DEFAULT_BEAMS}, or n if that "
        "is more.",
    )
    length_penalty: float = described(
        1.0,
        "for a beam search: texts are compared by their log-probability divided by their number of tokens to the "
        "power of this. A higher penalty prefers longer texts.",
        (-10, 10),
    )
    early_stopping: bool | str = described(
        False,
        "when a beam search ends. true: when it has as many texts as beams. false: when the best beam would be no "
        'better if it ended now. "never": when no beam can become better.',
        choices=EARLY_STOPPING,
    )
    suffix: Text | None = described(
        None,
        "the text after the alternatives, or its token ids. A model with tokens for infill reads it first, unless "
        "n_candidates or stop_at_suffix asks for a bridge. With other models, candidates are sampled from the prompt "
        "alone, and the n that make the suffix most probable are returned. Most suffixes should begin with a space.",
    )
    stop_at_suffix: bool = described(
        False,
        "for a bridge: a candidate ends after the sentence that the beginning of the suffix follows best, once it "
        "follows the next two sentences less well.",
    )
    n_candidates: int | None = described(
        None,
        "for a bridge: how many candidates are sampled, at least n; the n best are returned. Left out: "
        f"{DEFAULT_CANDIDATES}, or n if that is more, or fewer if fewer can run at once.",
    )
    most_tokens: int | None = described(
        None,
        "how many tokens an alternative with a max_tokens of -1 may have before the context is full. Left out: no "
        "limit.",
        (1, inf),
    )
    logprobs: int | None = described(
        None,
        f"report each token's log-probability, and those of this many most probable tokens at its place, 0 to "
        f"{MAX_LOGPROBS}. Left out: off.",
        (0, MAX_LOGPROBS),
    )
    post_sampling_probs: bool = described(
        False, "report the probabilities after the samplers, instead of the model's own."
    )
    echo: bool = described(
        False, "each alternative's text begins with its prompt; with logprobs, the prompt's tokens are reported, too."
    )
    prompt_logprobs: int | None = described(
        None,
        "report the log-probabilities of the prompt's own tokens, and of this many of the top tokens at each position, "
        f"0 to {MAX_LOGPROBS}. Left out: off.",
        (0, MAX_LOGPROBS),
    )
    return_tokens: bool = described(False, "report token ids with their text.")
    special_tokens: bool = described(False, "show the names of generated control tokens in the text.")
    hidden_stop: tuple[str, ...] = described(
        (), "stop strings that aren't part of the text even with include_stop_str_in_output: those of a chat template."
    )
    return_progress: bool = described(False, "report how much of the prompts is evaluated.")
    cache_prompt: bool = described(
        True, "prefix caching: start from what other requests have evaluated, and keep this prompt's state for others."
    )
    shared_within: str = described(
        "",
        "prefix caching within a group: only requests with the same name here can start from what this request "
        "evaluates. This request can also start from what requests without a name have evaluated. Empty: shared with "
        "all.",
    )
    context_shift: bool = described(
        False,
        "if a prompt or a text becomes longer than the context, drop a part of it and go on: the first n_keep tokens "
        "of the prompt stay, and the next n_discard tokens are dropped. With a max_tokens of -1, only the model then "
        "ends a text.",
    )
    n_keep: int = described(
        0, "for context_shift: how many of the prompt's first tokens stay, besides BOS; -1: all of them.", (-1, inf)
    )
    n_discard: int = described(
        0, "for context_shift: how many tokens are dropped at a time; 0: half of those after n_keep.", (0, inf)
    )
    slot: int = described(
        0,
        "the slot that remembers the tokens of the first alternative, for `Engine.ask`; the other alternatives have "
        "the next slots.",
    )
    direction_at: int | None = described(
        None,
        "how many tokens of each prompt come before the `direction` of an alternative. Left out: all but the last "
        "line.",
        (0, inf),
    )
    explore: Explore | None = described(
        None,
        "answer with the tree of likely continuations of one prompt, and generate no text. The only branch then has "
        "nothing but its max_tokens. `CompletionRequest.exploring` makes such a request.",
    )
    candidates: tuple[tuple[int, ...], ...] = described(
        (),
        "the tokens of each alternative, by index. No token is sampled; with logprobs, the log-probabilities of these "
        "tokens are reported. `CompletionRequest.scoring` makes such a request.",
    )
    media: tuple[Media, ...] = described(
        (),
        "the images and sounds whose placeholders are in the prompts; `Engine.tokenize_parts` makes them from files. "
        "Not with echo or story.",
    )
    priority: int = described(
        0,
        "which requests run first, as in vLLM: those with the lowest priority that there is. Others wait, also if they "
        "have begun, until these have ended.",
        (-(2**31), LOWEST_PRIORITY),
    )
    ahead: int = described(
        0,
        "how many further alternatives to prefetch while the server is idle, after this request has ended: those with "
        "the next seeds. The same request with the next seed, or with any_seed, then gets them at once. An `Engine` "
        "alone doesn't prefetch.",
        (0, inf),
    )
    any_seed: bool = described(False, "the first seed was random, so the request may take prefetched alternatives.")
    id: str = field(default_factory=new_request_id, metadata={"meaning": "unique among the requests of an engine."})
    resumed: tuple[Resumed, ...] = described(
        (),
        "what each alternative already has, by index, if the request continues after an interruption. After one more "
        "`StartEvent`, its events are those that would have followed: no text is repeated, and `length` and `usage` "
        "count all tokens.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if wrong := [each for each in self.branches if not isinstance(each, SamplingParams)]:
            raise InvalidRequestError(f"branches takes SamplingParams, got {wrong[0]!r:.60}", param="branches")
        if not self.branches:
            raise InvalidRequestError("n must be at least 1, got 0", param="n")
        if not self.prompts:
            raise InvalidRequestError("prompt must not be an empty list", param="prompt")
        for k, prompt in enumerate(self.prompts):
            if prompt != "":  # for models that add BOS
                check_text(self.prompt_name(k), prompt)
        if self.suffix is not None:
            check_text("suffix", self.suffix)
        if self.resumed and (len(self.resumed) != self.count or None not in {each.finished for each in self.resumed}):
            raise InvalidRequestError(
                f"resumed must have an entry for each of the {self.count} alternatives, one of them not finished",
                param="resumed",
            )
        object.__setattr__(self, "branches", tuple(params.with_seed() for params in self.branches))
        check_exclusions(self)
        lists = {each for params in self.branches for each in (params.banned_strings, params.bad_words)}
        banned = sum(sum(map(len, strings)) for strings in lists)
        if banned > MAX_BANNED_CHARS_IN_ALL:
            raise InvalidRequestError(
                f"banned_strings and bad_words of all branches have {banned} characters; the limit is "
                f"{MAX_BANNED_CHARS_IN_ALL}; the same list in several branches counts once",
                param="banned_strings",
            )

    @classmethod
    def exploring(cls, prompt: Text, explore: Explore) -> "CompletionRequest":
        """Return a request for the tree of likely continuations of a prompt."""
        return cls((prompt,), (SamplingParams(max_tokens=explore.max_path, seed=0),), explore=explore)

    @classmethod
    def scoring(cls, prompt: Text, candidates: Sequence[tuple[int, ...]]) -> "CompletionRequest":
        """Return a request for the log-probabilities of candidates given a prompt, which is evaluated once."""
        branches = tuple(SamplingParams(max_tokens=len(each), seed=0) for each in candidates)
        return cls((prompt,), branches, logprobs=0, candidates=tuple(candidates))

    @property
    def count(self) -> int:
        """The number of alternatives of all prompts."""
        return len(self.prompts) * len(self.branches)

    def prompt_name(self, number: int) -> str:
        """Return the name of a prompt in errors."""
        return "prompt" if len(self.prompts) == 1 else f"prompt[{number}]"

    def params(self, index: int) -> SamplingParams:
        """Return the parameters of an alternative."""
        return self.branches[index % len(self.branches)]

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each prompt, once an engine has tokenized the texts."""
        return cast(tuple[tuple[int, ...], ...], self.prompts)

    @property
    def n_rows(self) -> int:
        """The number of rows of each prompt's beams or candidates. 0: each alternative has a row of its own."""
        n = len(self.branches)
        if self.suffix is not None:
            return self.n_candidates or max(n, DEFAULT_CANDIDATES)
        if self.search == "sample":
            return 0
        return self.beams or max(n, DEFAULT_BEAMS)

    @property
    def cells_after(self) -> int:
        """The cells that each row needs after its text: for the suffix to score, and the rest of a token before a stop
        string."""
        n_suffix = len(self.scored_suffix)
        return n_suffix + MAX_REST if n_suffix and self.branches[0].stop else n_suffix

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        """The tokens of the suffix, once an engine has tokenized it; empty without one."""
        return cast(tuple[int, ...], self.suffix or ())

    @property
    def scored_suffix(self) -> tuple[int, ...]:
        """The tokens of the suffix that a bridge scores after each candidate."""
        return self.suffix_ids[:SUFFIX_TOKENS]

    @property
    def guided(self) -> tuple[int, ...]:
        """The indices of the alternatives with guidance. Each of them takes two sequences."""
        branches = self.branches * len(self.prompts)
        return tuple(index for index, params in enumerate(branches) if params.is_guided)

    @property
    def scored_top(self) -> int | None:
        """How many top tokens are reported at each position of the prompt. None: its tokens aren't scored."""
        wanted = [each for each in (self.logprobs if self.echo else None, self.prompt_logprobs) if each is not None]
        return None if self.resumed else max(wanted, default=None)

    @property
    def is_joint(self) -> bool:
        """Whether the text of an alternative depends on its siblings, so all must run on the same machine."""
        depends = any(params.diversity or params.avoid is not None for params in self.branches)
        return self.distinct or self.n_rows > 0 or depends

    @property
    def reports_tokens(self) -> bool:
        """Whether tokens are reported with the text."""
        return self.return_tokens or self.logprobs is not None

    @property
    def prompt_tokens(self) -> int:
        """The length of all prompts together, in tokens. Each direction makes a prompt of its own."""
        directions = {params.direction_ids for params in self.branches}
        return sum(len(prompt) + len(direction) for prompt in self.prompts for direction in directions)

    @property
    def longest_prompt(self) -> int:
        """The length of the longest prompt, with its direction, in tokens."""
        return max(map(len, self.prompts)) + max(len(params.direction_ids) for params in self.branches)
