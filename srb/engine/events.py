"""The events in which the engine answers a request.

A request gets its events in this order: one `StartEvent` when it is admitted; `ProgressEvent`s and
`PromptLogprobsEvent`s, if it asked for them; `StreamEvent`s, or `NodeEvent`s if it explores; one `StopEvent` per index,
after that index's last `StreamEvent`; one `DoneEvent`. A failure adds an `ErrorEvent`; the `StopEvent`s and the
`DoneEvent` still come. A request that is aborted before it was admitted has no `StartEvent`. A request that is resumed
after an interruption gets one more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from srb.errors import SrbError

FinishReason = Literal["stop", "length", "abort", "error"]
"""Why an alternative ended. `stop`: by itself; `length`: at a limit; `abort`: it was aborted; `error`: it failed."""

StopReason = str | int | None
"""Which stop string or stop token ended an alternative, or why it was aborted."""

AbortReason = Literal["cancelled", "timeout", "shutdown", "ahead"]
"""Why a sequence was aborted. `ahead`: it was prefetched, and its place is needed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request, over all its prompts and alternatives.

    cached_tokens: how many of the prompts' tokens weren't evaluated, because they were cached (prefix caching).
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in milliseconds, and for how many tokens.

    queued_ms: from its arrival to its admission.
    prompt_ms: from its admission until its last prompt was evaluated; prompt_n: how many prompt tokens were evaluated.
    predicted_ms: from then to its end; predicted_n: how many tokens were generated.
    n_cut: how many tokens of the prompt were left out because the context has no room for them.
    n_drafted, n_accepted: how many draft tokens were evaluated, and how many of them were sampled.
    """

    queued_ms: float
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    n_truncated: int = 0
    n_drafted: int = 0
    n_accepted: int = 0


@dataclass(frozen=True, slots=True)
class StartEvent:
    """The request was admitted.

    max_tokens: the most that any of its alternatives may generate.
    guided: the indices of the alternatives that have a negative prompt, and so two rows in each step.
    n_cut: how many tokens of the prompt are left out because the context has no room for them.
    fingerprint: `Backend.fingerprint`.
    infill: how the text before a suffix is found. model: by the model's tokens for infill. bridge: as the best of
        several candidates. None: there is no suffix.
    """

    request_id: str
    count: int
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    seeds: tuple[int, ...]
    labels: tuple[str | None, ...]
    guided: tuple[int, ...] = ()
    n_truncated: int = 0
    fingerprint: str = ""
    infill: str | None = None


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """How many tokens of the prompts of a request with `return_progress` are evaluated.

    Of the `total` prompt tokens, `cached` were cached, and `evaluated` have been evaluated since then.
    """

    request_id: str
    evaluated: int
    cached: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """A token, with how probable the model found it.

    piece: its bytes, which may be a part of a character. A special token has its name here.
    logprob: the natural logarithm of its probability; None for the first token of a prompt.
    top_logprobs: the most probable tokens at its place, the most probable first.
    rank: how many tokens are at least as probable at its place, itself included. Only tokens of a prompt have it.
    """

    id: int
    piece: bytes
    logprob: float | None
    top_logprobs: tuple["Token", ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class PromptLogprobsEvent:
    """The next tokens of a prompt with their log-probabilities, for a request with `prompt_logprobs`.

    indices: the alternatives that have this prompt. Each prompt's tokens come in order, and before its alternatives.
    """

    request_id: str
    indices: tuple[int, ...]
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """More text of one alternative: whole characters, and never a part of a stop string.

    A request with `logprobs` gets one event for each token, with the `token`. The event's text is empty if only a later
    token completes it. A request with `return_tokens` gets the ids of the `tokens` that the text came from. Only such
    requests may get a last event with an empty text, for the tokens of a stop string or the end token.

    sampled: the tokens that were generated since the alternative's last event; `resume` needs them.
    """

    request_id: str
    index: int
    text: str
    tokens: tuple[int, ...] = ()
    token: Token | None = None
    sampled: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A node of the tree that a request explores. Each is at most as probable as the one before it.

    id: 1, 2, 3 and so on. parent: the id of the node that it continues; None: it continues the prompt.
    text: the whole characters that it adds. The nodes that complete an incomplete character have it.
    tokens: the ids of the tokens that it adds. An end token is among them, if one ends the node.
    logprob: of the tokens that it adds. cumulative_logprob: of all tokens after the prompt.
    entropy: that of the distribution of the next token, in nats: how uncertain the model is after this node.
        None: this wasn't evaluated, because no node continues it.
    finish_reason: `stop`: it ends with an end token. `length`: it is as deep as allowed, or its text is as long as
        allowed. None: other nodes may continue it.
    """

    request_id: str
    id: int
    parent: int | None
    text: str
    tokens: tuple[int, ...]
    logprob: float
    cumulative_logprob: float
    entropy: float | None
    finish_reason: Literal["stop", "length"] | None


@dataclass(frozen=True, slots=True)
class StopEvent:
    """One alternative ended after `length` generated tokens.

    stop_reason: the stop string that matched, the id of the stop token, or why the alternative was aborted, else None.
    mean_logprob: the mean of the generated tokens' logprobs, if the request asked for these.
    rewinds, rewound_tokens: how often it went back because of `banned_strings` or `avoid`, and how many tokens were
        dropped; None if it has neither. For a resumed alternative, only those since it was resumed.
    rewinds_exhausted: whether it went back as often as it may, or no other token could be sampled. From there on it may
        contain a banned string.
    logprob: in a beam search, the natural logarithm of the probability of the text and its end.
    suffix_logprob: of a bridge, the natural logarithm of the probability of the suffix after the prompt and this text.
    rank: of a bridge, the place of the alternative among its siblings by `suffix_logprob`; 1 is the best.
    truncated: whether a part of its prompt or text was discarded, because of `context_shift`.
    timings: of this alternative and its prompt alone; None if the engine has failed.
    """

    request_id: str
    index: int
    length: int
    finish_reason: FinishReason
    stop_reason: StopReason
    mean_logprob: float | None = None
    rewinds: int | None = field(default=None, compare=False)
    rewound_tokens: int | None = field(default=None, compare=False)
    rewinds_exhausted: bool = field(default=False, compare=False)
    logprob: float | None = None
    suffix_logprob: float | None = None
    rank: int | None = None
    truncated: bool = field(default=False, compare=False)
    timings: Timings | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An error in one alternative, or in the whole request if `index` is None."""

    request_id: str
    index: int | None
    error: SrbError


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The request is over; nothing comes after this."""

    request_id: str
    count: int
    usage: Usage
    timings: Timings


Event = StartEvent | ProgressEvent | PromptLogprobsEvent | StreamEvent | NodeEvent | StopEvent | ErrorEvent | DoneEvent


def by_request(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Return the events of each request, in their order."""
    batches: dict[str, list[Event]] = {}
    for event in events:
        batches.setdefault(event.request_id, []).append(event)
    return batches
