"""Makes the request that goes on where another one was interrupted, by a crash or by the loss of its machine.

Whoever records the events has everything that is needed: a `StreamEvent` names the tokens that were drawn. Inside, each
alternative that has tokens becomes a prompt of its own: the request's prompt and these tokens. So the prefix index
finds what they share and what is known of them, as for any prompts: of 16 alternatives the prompt is restored once. The
sampler sees the tokens again, and draws once for each of them, so that the random numbers that follow are those that
would have followed. The replicas of `srb.cluster` fail over in the same way as a server goes on after a restart.

Where the same request gives the same bytes (`Backend.block_size`), it is simpler and exact to begin anew: what was told
is drawn again, and left out (`srb.engine.output.logprobs`). So is the state of samplers and rules that of before.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    FinishReason,
    NodeEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Usage,
)
from srb.engine.request import CompletionRequest, Resumed
from srb.errors import InvalidRequestError, SrbError


def resume(request: CompletionRequest, events: Sequence[Event]) -> CompletionRequest | None:
    """The request that goes on behind these events, which are all that some whole steps of the engine have told.

    It has the same id. Its events are those that would have followed, behind one more `StartEvent`: each alternative
    has seen its prompt and its tokens, and draws with the next numbers of its random stream. Returns None if all
    alternatives have ended.
    Raises `InvalidRequestError` if a prompt was still being scored, because scoring can't go on in the middle.
    """
    said = Said(request)
    said.take(events)
    return said.rest()


class Said:
    """Does the same as `resume`, but takes the events one step at a time, and keeps only what is needed to go on."""

    def __init__(self, request: CompletionRequest) -> None:
        self._request = request
        self._has_begun = False
        self._scored = 0
        begun = request.resumed or [Resumed()] * request.count
        self._tokens = [list(each.tokens) for each in begun]
        self._sums = [each.sum_logprob for each in begun]
        self._finished = [each.finished for each in begun]
        self._nodes = list(begun[0].nodes)
        self._fingerprints = {begun[0].fingerprint} if request.resumed else set[str]()

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

    def take(self, events: Iterable[Event]) -> None:
        """Takes the next events of the request."""
        for event in events:
            self._has_begun = True
            if isinstance(event, StreamEvent):
                if event.drawn:
                    self._tokens[event.index] += event.drawn
                    if event.token and event.token.logprob:
                        self._sums[event.index] += event.token.logprob
                elif event.token:
                    self._scored += 1
            elif isinstance(event, NodeEvent):
                before = self._nodes[event.parent - 1] if event.parent else ()
                self._nodes.append(before + event.tokens)
            elif isinstance(event, StartEvent):
                self._fingerprints.add(event.fingerprint)
            elif isinstance(event, StopEvent):
                self._finished[event.index] = event.length

    @property
    def has_begun(self) -> bool:
        """Whether anything was told."""
        return self._has_begun

    def end(
        self,
        finish_reason: FinishReason,
        stop_reason: str | None = None,
        *,
        error: SrbError | None = None,
        index: int | None = None,
    ) -> list[Event]:
        """The events that end the request, or one alternative of it, where no engine has it.

        Args:
            finish_reason: That of the `StopEvent` of each alternative that hasn't ended.
            stop_reason: The same.
            error: What an `ErrorEvent` before these tells; None: there is none.
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

    def rest(self) -> CompletionRequest | None:
        """The request that goes on behind all events so far; see `resume`."""
        request = self._request
        if not self._has_begun:
            return request
        if not self.living:
            return None
        if request.scores_prompt and self._scored < request.prompt_tokens * len(request.branches):
            raise InvalidRequestError("echo with logprobs was interrupted in the middle of the prompt", param="echo")
        states = zip(map(tuple, self._tokens), self._sums, self._finished, strict=True)
        fingerprint = "".join(self._fingerprints) if len(self._fingerprints) == 1 else ""
        resumed = tuple(Resumed(*state, tuple(self._nodes), fingerprint) for state in states)
        return dataclasses.replace(request, resumed=resumed)


def begun_anew(request: CompletionRequest) -> CompletionRequest:
    """A resumed request that draws its tokens again from the first one on.

    An alternative that has ended is left out, unless others depend on it.
    """
    resumed = tuple(Resumed(finished=None if request.is_joint else each.finished) for each in request.resumed)
    return dataclasses.replace(request, resumed=resumed)


def groups(begun: dict[int, Resumed], *, restarts: bool = False) -> list[dict[int, Resumed]]:
    """Which alternatives of a prompt have a `Prompt` in common: all new ones; each resumed one has its own.

    A resumed alternative has tokens already, which are evaluated before its next token. What such prompts have in
    common is found as between any other prompts.
    """
    living = {index: each for index, each in begun.items() if each.finished is None}
    if restarts:
        return [living] if living else []
    new = {index: each for index, each in living.items() if not each.tokens}
    return ([new] if new else []) + [{index: each} for index, each in living.items() if each.tokens]
