"""The common parts of the formats whose answers have place for one alternative only."""

from dataclasses import dataclass, replace
from typing import Any

from srb.engine.asking.request import new_request_id
from srb.engine.telling.events import DoneEvent, ErrorEvent, Event, StartEvent, StopEvent
from srb.errors import InvalidRequestError
from srb.wire.request.body import Parsed, parse_fields
from srb.wire.request.body_fields import BodyFields
from srb.wire.request.completion_fields import CompletionFields
from srb.wire.request.fields import SamplingFields
from srb.wire.request.read import show, validate
from srb.wire.serving import Serving


@dataclass
class Answer:
    """What is known of the one alternative, beside its text, as far as its events have come."""

    start: StartEvent | None = None
    stop: StopEvent | None = None
    done: DoneEvent | None = None

    def take(self, event: Event) -> None:
        """Takes the next event. Raises `SrbError` if the event is an error."""
        match event:
            case StartEvent():
                self.start = event
            case StopEvent():
                self.stop = event
            case DoneEvent():
                self.done = event
            case ErrorEvent():
                raise event.error


def parse_one(
    fields: BodyFields, sampling: SamplingFields | None, serving: Serving, *, prefix: str | None = None, **given: Any
) -> Parsed:
    """Makes a request of a body, by translating the body into `CompletionFields`.

    sampling: the body's sampler fields, which have the same names there. given: the values of the other fields. If
    `messages` are among them, the request is a chat. prefix: the beginning of the request's id.
    Raises `InvalidRequestError`, also if the body asks for more than one alternative.
    """
    extra = fields.model_extra or {}
    for name in ("n", "best_of", "branches"):
        if str(extra.get(name, 1)) != "1":
            raise InvalidRequestError(
                f"{name} is {show(extra[name])}, but this format's answers have one alternative; leave it out, or use "
                "/v1/completions or /v1/chat/completions",
                param=name,
            )
    known = SamplingFields.model_fields.keys() & sampling.model_fields_set if sampling else ()
    sent = {name: getattr(sampling, name) for name in known} | given
    asked = validate({name: value for name, value in sent.items() if value is not None}, CompletionFields)
    chat = asked.messages is not None
    parsed = parse_fields(
        asked, serving.limits, serving.engine.tokenize, serving.vocabulary.template, chat=chat, take=serving.take
    )
    parsed.ignored.extend(name for name in extra if name not in ("n", "best_of", "branches"))
    if prefix:
        completion = replace(parsed.completion, id=prefix + new_request_id().removeprefix("cmpl-"))
        parsed = replace(parsed, completion=completion)
    return parsed
