"""`POST /v1/explore`: the tree of likely continuations, as native events."""

from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from srb.engine.events import ErrorEvent, Event, NodeEvent, StartEvent, StopEvent
from srb.engine.request import CompletionRequest, Explore
from srb.errors import InvalidRequestError
from srb.wire.context import RequestContext
from srb.wire.limits import Limits
from srb.wire.native import reply as native
from srb.wire.reply import Reply
from srb.wire.request.fields import Prompt, with_fields_of
from srb.wire.request.media import not_here
from srb.wire.request.prompts import make_prompts
from srb.wire.request.read import BodyFields, ModelFields

if TYPE_CHECKING:
    _Explore = BodyFields
else:
    _Explore = with_fields_of(Explore)


class ExploreFields(ModelFields, _Explore):
    """The body of `POST /v1/explore`."""

    model_config = ConfigDict(json_schema_extra={"required": ["prompt"]})

    prompt: Prompt = Field(None, description="a text, or a list of token ids.")


def parse_explore(fields: ExploreFields, context: RequestContext) -> Reply:
    """Stream the tree of a prompt's likely continuations, the most probable nodes first."""
    return explore_reply(fields, context.limits, context.now)


def explore_reply(fields: ExploreFields, limits: Limits, now: float) -> Reply:
    """Makes the reply without a `RequestContext`. now: in seconds since 1970. Raises `InvalidRequestError`."""
    names = {each.name for each in dataclass_fields(Explore)} & fields.model_fields_set
    explore = Explore(**{name: getattr(fields, name) for name in names})
    prompts, _ = make_prompts(fields.prompt, replace(limits, take=not_here), 1, limits.tokenize)
    if len(prompts) != 1:
        raise InvalidRequestError(
            f"prompt must be one text or one list of token ids here, got {len(prompts)} prompts", param="prompt"
        )
    completion = CompletionRequest.exploring(prompts[0], explore)
    ignored = fields.unread(limits.model)

    def blame(error: InvalidRequestError) -> InvalidRequestError:
        if error.param != "max_tokens":
            return error
        return InvalidRequestError(
            f"this prompt and texts of {explore.max_path} tokens after it don't fit into the context; explore "
            f"with a smaller depth and min_entropy 0, or start with a larger --ctx-size ({error.message})",
            param="depth" if explore.max_path == explore.depth else "min_entropy",
            code=error.code,
        )

    return Reply(
        completion, ignored, stream=True, make=partial(_TreeBuilder, limits.model, int(now), ignored), blame=blame
    )


class _TreeBuilder:
    """Builds the events: `start`, a `node` for each node, maybe `error`, and `done` with the finish reason."""

    def __init__(self, model: str, created: int, ignored: list[str]) -> None:
        self._fixed: dict[str, Any] = {"model": model, "created": created, "ignored": ignored}
        self._count = 0
        self._stop: StopEvent | None = None

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The JSON objects for the next events."""
        for event in events:
            if isinstance(event, StopEvent):
                self._stop = event
                continue
            value = native.to_json(event, **self._fixed)
            if isinstance(event, NodeEvent):
                self._count += 1
            elif isinstance(event, StartEvent):
                value = {name: value[name] for name in _START}
            elif not isinstance(event, ErrorEvent):
                value["count"] = self._count
                if self._stop:
                    value |= {"finish_reason": self._stop.finish_reason, "stop_reason": self._stop.stop_reason}
            yield value


_START = ("event", "id", "created", "model", "prompt_tokens", "cached_tokens", "ignored")
