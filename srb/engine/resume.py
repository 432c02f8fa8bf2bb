"""How a request goes on that was interrupted: by a crash, say, or because its machine is gone."""

import dataclasses
from collections.abc import Sequence

from srb.engine.events import Event, StopEvent, StreamEvent
from srb.engine.request import CompletionRequest, Resumed
from srb.errors import InvalidRequestError


def resume(request: CompletionRequest, events: Sequence[Event]) -> CompletionRequest | None:
    """The request that goes on behind these events, which are all that the interrupted one has said so far.

    It has the same id. Its events are those that would have followed: an alternative has seen its prompt and its
    tokens, and draws with the random numbers that come next. None if all alternatives have ended.
    Raises `InvalidRequestError` if a prompt was still being scored, as that can't go on in the middle.
    """
    if not events:
        return request
    states = list(request.resumed) or [Resumed()] * request.count
    scored = 0
    for event in events:
        if isinstance(event, StreamEvent):
            state = states[event.index]
            if event.drawn:
                logprob = event.token.logprob if event.token and event.token.logprob else 0.0
                states[event.index] = Resumed(state.tokens + event.drawn, state.sum_logprob + logprob)
            elif event.token:
                scored += 1
        elif isinstance(event, StopEvent):
            states[event.index] = dataclasses.replace(states[event.index], finished=event.length)
    if all(state.finished is not None for state in states):
        return None
    if request.scores_prompt and scored < request.prompt_tokens * len(request.branches):
        raise InvalidRequestError("echo with logprobs was interrupted in the middle of the prompt", param="echo")
    return dataclasses.replace(request, resumed=tuple(states))
