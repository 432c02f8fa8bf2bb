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
    progress = RequestProgress(request)
    progress.add(events)
    return progress.remainder()


class RequestProgress:
    """Does the same as `resume`, but gets the events step by step, and stores only what is needed to go on."""

    def __init__(self, request: CompletionRequest) -> None:
        self._request = request
        self.has_begun = False
        """Whether there was any event."""
        self._n_scored = [0] * request.count  # how many tokens of the prompt were reported, for each alternative
        resumed = request.resumed or [Resumed()] * request.count
        self._tokens = [list(each.tokens) for each in resumed]
        self._sums = [each.sum_logprob for each in resumed]
        self._finished = [each.finished for each in resumed]
        self._nodes = list(resumed[0].nodes)
        self._fingerprints = {resumed[0].fingerprint} if request.resumed else set[str]()

    @property
    def living(self) -> list[int]:
        """The alternatives that haven't ended."""
        return [index for index, finished in enumerate(self._finished) if finished is None]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each alternative."""
        return [
            len(tokens) if finished is None else finished
            for tokens, finished in zip(self._tokens, self._finished, strict=True)
        ]

    def add(self, events: Iterable[Event]) -> None:
        """Add the next events of the request."""
        for event in events:
            self.has_begun = True
            if isinstance(event, StreamEvent):
                if event.sampled:
                    self._tokens[event.index] += event.sampled
                    if event.token and event.token.logprob:
                        self._sums[event.index] += event.token.logprob
                elif event.token and self._request.prompt_logprobs is None:
                    self._n_scored[event.index] += 1
            elif isinstance(event, PromptLogprobsEvent):
                for index in event.indices:
                    self._n_scored[index] += len(event.tokens)
            elif isinstance(event, NodeEvent):
                before = self._nodes[event.parent - 1] if event.parent else ()
                self._nodes.append(before + event.tokens)
            elif isinstance(event, StartEvent):
                self._fingerprints.add(event.fingerprint)
            elif isinstance(event, StopEvent):
                self._finished[event.index] = event.length

    def end(
        self,
        finish_reason: FinishReason,
        stop_reason: str | None = None,
        *,
        error: SrbError | None = None,
        index: int | None = None,
    ) -> list[Event]:
        """Return the events that end a request, or one alternative of it, that no engine has.

        Args:
            finish_reason: That of the `StopEvent` of each alternative that hasn't ended.
            stop_reason: The same.
            error: The error of an `ErrorEvent` before these; None: there is none.
            index: The alternative to end; None: all of them.
        """
        request, lengths = self._request, self.lengths
        ending = [each for each in self.living if index in (None, each)]
        events: list[Event] = [ErrorEvent(request.id, index, error)] if error else []
        events += [StopEvent(request.id, each, lengths[each], finish_reason, stop_reason) for each in ending]
        if len(ending) == len(self.living):
            usage = Usage(request.prompt_tokens, sum(lengths), 0)
            timings = Timings(0.0, 0, 0.0, usage.completion_tokens, 0.0)
            events.append(DoneEvent(request.id, request.count, usage, timings))
        return events

    def remainder(self) -> CompletionRequest | None:
        """Return the request that goes on after all events so far, as `resume` does."""
        request = self._request
        if not self.has_begun:
            return request
        if not self.living:
            return None
        if request.scored_top is not None and not any(self._tokens):
            if not any(self._n_scored):
                return request
            if any(self._n_scored[k] < len(request.prompts[k // len(request.branches)]) for k in self.living):
                raise InvalidRequestError(
                    "the log-probabilities of a prompt were interrupted in the middle; send the request again",
                    param="echo" if request.prompt_logprobs is None else "prompt_logprobs",
                )
        states = zip(map(tuple, self._tokens), self._sums, self._finished, strict=True)
        fingerprint = "".join(self._fingerprints) if len(self._fingerprints) == 1 else ""
        resumed = tuple(Resumed(*state, tuple(self._nodes), fingerprint) for state in states)
        return dataclasses.replace(request, resumed=resumed)


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
