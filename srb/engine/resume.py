"""Resuming: makes a request that goes on where another one was interrupted, by a crash or the loss of its machine.

Recorded events are enough for it: a `StreamEvent` has the tokens that were sampled. In the engine, each alternative
that has tokens becomes a prompt of its own: the request's prompt and these tokens. So prefix caching works for them as
for any prompts: of 16 alternatives the prompt is restored once. The sampler gets the tokens again, and samples once for
each of them, so that the same random numbers follow. The replicas of `srb.cluster` fail over in the same way as a
server goes on after a restart.

Some samplers learn from the probabilities of their tokens, or use more random numbers for one than for another
(`SamplingParams.learns`). Their alternatives begin again: the same tokens are sampled from the same logits, as draft
tokens where this pays (`srb.engine.spec_decode.replay`), and what was reported is left out
(`srb.engine.output.logprobs.Replay`). Where the same request gives the same bytes (`Backend.block_size`), all do.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    FinishReason,
    NodeEvent,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Usage,
)
from srb.engine.request import CompletionRequest, Resumed
from srb.errors import InvalidRequestError, SrbError


def resume(request: CompletionRequest, events: Sequence[Event]) -> CompletionRequest | None:
    """Return the request that goes on after these events.

    It has the same id. Its events are those that would have followed, after one more `StartEvent`: each alternative
    continues its prompt and its tokens, and is sampled with the next numbers of its random stream.

    Args:
        request: The request that was interrupted.
        events: All of its events, of whole steps of the engine.

    Returns:
        The request, or None if all alternatives have ended.

    Raises:
        InvalidRequestError: A prompt was still being scored; scoring can't go on in the middle.
    """
    if not events:
        return request
    resumed = progress(request, events)
    living = [index for index, each in enumerate(resumed) if each.finished is None]
    if not living:
        return None
    if request.scored_top is not None and not request.resumed:
        n_scored = _n_scored(request, events)
        if not n_scored and not any(each.tokens or each.finished is not None for each in resumed):
            return request
        silent = [index for index in living if not resumed[index].tokens]
        if any(n_scored[index] < len(request.prompts[index // len(request.branches)]) for index in silent):
            raise InvalidRequestError(
                "the log-probabilities of a prompt were interrupted in the middle; send the request again",
                param="echo" if request.prompt_logprobs is None else "prompt_logprobs",
            )
    return dataclasses.replace(request, resumed=resumed)


def ending(
    request: CompletionRequest,
    events: Sequence[Event],
    finish_reason: FinishReason,
    stop_reason: str | None = None,
    *,
    error: SrbError | None = None,
) -> list[Event]:
    """Return the events that end a request that no engine has.

    Args:
        request: The request.
        events: All of its events so far.
        finish_reason: That of the `StopEvent` of each alternative that hasn't ended.
        stop_reason: The same.
        error: The error of an `ErrorEvent` before these; None: there is none.
    """
    resumed = progress(request, events)
    lengths = [len(each.tokens) if each.finished is None else each.finished for each in resumed]
    usage = Usage(request.prompt_tokens, sum(lengths), 0)
    return [
        *([ErrorEvent(request.id, None, error)] if error else ()),
        *(
            StopEvent(request.id, index, lengths[index], finish_reason, stop_reason)
            for index, each in enumerate(resumed)
            if each.finished is None
        ),
        DoneEvent(request.id, request.count, usage, Timings(0.0, 0, 0.0, usage.completion_tokens, 0.0)),
    ]


def beginning(request: CompletionRequest, start: StartEvent) -> StartEvent:
    """Return the `StartEvent` of a request, from one that has the same prompts in part."""
    branches = request.branches * len(request.prompts)
    return dataclasses.replace(
        start,
        request_id=request.id,
        count=request.count,
        prompt_tokens=request.prompt_tokens,
        seeds=tuple(each.seed for each in branches),
        labels=tuple(each.label for each in branches),
        guided=request.guided,
    )


def progress(request: CompletionRequest, events: Iterable[Event]) -> tuple[Resumed, ...]:
    """Return what each alternative has after these events."""
    before = request.resumed or (Resumed(),) * request.count
    tokens = [list(each.tokens) for each in before]
    sums = [each.sum_logprob for each in before]
    finished = [each.finished for each in before]
    nodes = list(before[0].nodes)
    fingerprints = {before[0].fingerprint} if request.resumed else set[str]()
    for event in events:
        if isinstance(event, StreamEvent):
            tokens[event.index] += event.sampled
            if event.sampled and event.token and event.token.logprob:
                sums[event.index] += event.token.logprob
        elif isinstance(event, NodeEvent):
            nodes.append((nodes[event.parent - 1] if event.parent else ()) + event.tokens)
        elif isinstance(event, StartEvent):
            fingerprints.add(event.fingerprint)
        elif isinstance(event, StopEvent):
            finished[event.index] = event.length
    fingerprint = "".join(fingerprints) if len(fingerprints) == 1 else ""
    states = zip(map(tuple, tokens), sums, finished, strict=True)
    return tuple(Resumed(*state, tuple(nodes), fingerprint) for state in states)


def _n_scored(request: CompletionRequest, events: Iterable[Event]) -> Counter[int]:
    """Return how many tokens of the prompt were reported, for each alternative."""
    n_scored = Counter[int]()
    for event in events:
        if isinstance(event, PromptLogprobsEvent):
            n_scored.update(dict.fromkeys(event.indices, len(event.tokens)))
        elif isinstance(event, StreamEvent) and event.token and request.prompt_logprobs is None:
            n_scored[event.index] += 1
    return +n_scored


def restarted(request: CompletionRequest) -> CompletionRequest:
    """Return a resumed request that samples its tokens again from the first one on.

    An alternative that has ended is left out, unless others depend on it.
    """
    resumed = tuple(
        Resumed(finished=None if request.is_joint else each.finished, replayed=each.tokens) for each in request.resumed
    )
    return dataclasses.replace(request, resumed=resumed)


def prompt_groups(resumed: dict[int, Resumed], *, restarts: bool = False) -> list[dict[int, Resumed]]:
    """Divide the alternatives of a prompt into those that share a `Prompt`: all new ones; each resumed one has its own.

    A resumed alternative has tokens already, which are evaluated before its next token.
    """
    living = {index: each for index, each in resumed.items() if each.finished is None}
    if restarts:
        return [living] if living else []
    new = {index: each for index, each in living.items() if not each.tokens}
    return ([new] if new else []) + [{index: each} for index, each in living.items() if each.tokens]
