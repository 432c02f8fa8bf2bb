"""OpenAI's wire format for responses: `/v1/responses`. Pure functions."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from srb.engine.events import ErrorEvent, Event, StartEvent, StopEvent, StreamEvent
from srb.errors import InvalidRequestError, SrbError
from srb.wire.body import chat_prompt
from srb.wire.chat import content_of
from srb.wire.completion_fields import CompletionFields
from srb.wire.fields import Int, SamplingFields, show
from srb.wire.messages import Message, Text, system_message
from srb.wire.one import Answer, answer_of, parse_one, refuse_tools
from srb.wire.read import depth_refused, read_fields, validate
from srb.wire.reply import Reply, Serving
from srb.wire.tokens import Answer as Counted
from srb.wire.tokens import Vocabulary

_LOGPROBS = "message.output_text.logprobs"
"""What `include` may have."""


class InputItem(Message):
    """A message in `input`."""

    type: Literal["message"] = "message"


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponseFields(SamplingFields):
    """The body of `POST /v1/responses` and `POST /v1/responses/input_tokens`."""

    model: str | None = Field(None, description="there is one; another name is ignored, and reported.")
    input: Annotated[list[InputItem], BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem])] = Field(
        description="a user's text, or a list of messages, with texts or parts of the types input_text and output_text."
    )
    instructions: Text | None = Field(None, description="a system message before the input.")
    text: dict[str, Any] | None = Field(
        None, description='its `format`: {"type": "text"}, json_object, or json_schema with a `schema`.'
    )
    include: list[str] | None = Field(None, description=f"{_LOGPROBS} shows the tokens with their log-probabilities.")
    top_logprobs: Int | None = Field(None, description="the same, with so many of the likeliest tokens at each place.")
    stream: bool = Field(False, description="answer with events.")
    metadata: dict[str, Any] | None = Field(None, description="comes back in the response.")
    store: bool = Field(False, description="responses are not kept; true is ignored.")
    tools: list[Any] | None = Field(None, description="refused, unless empty.")
    previous_response_id: str | None = Field(None, description="refused: responses are not kept.")
    conversation: Any = Field(None, description="refused: responses are not kept.")
    background: bool = Field(False, description="refused, if true: responses are not kept.")

    @property
    def messages(self) -> list[Message]:
        """The conversation, with the instructions first."""
        return [
            *system_message(self.instructions),
            *self.input,
        ]


def create(body: bytes, serving: Serving) -> Reply:
    """Reads the body of `POST /v1/responses`."""
    with depth_refused():
        fields = read_fields(body, ResponseFields)
        _refuse_what_is_not_there(fields)
        logprobs = _LOGPROBS in (fields.include or ()) or fields.top_logprobs is not None
        parsed = parse_one(
            fields,
            fields,
            serving,
            prefix="resp_",
            messages=fields.messages,
            model=fields.model,
            stream=fields.stream,
            logprobs=logprobs,
            top_logprobs=fields.top_logprobs,
            **_response_format(fields.text),
        )
    parsed.ignored.extend(f"include.{name}" for name in fields.include or () if name != _LOGPROBS)
    parsed.ignored.extend(f"text.{name}" for name in fields.text or () if name != "format")
    parsed.ignored.extend(["store"] if fields.store else [])

    def begin() -> Callable[[list[Event]], Any]:
        out = _Out(parsed.completion.id, serving, fields, logprobs)
        return out.chunks if fields.stream else out.object

    return Reply(parsed.completion, parsed.ignored, fields.stream, begin)


def input_tokens(data: bytes, vocabulary: Vocabulary) -> Counted:
    """`POST /v1/responses/input_tokens`: how many tokens the prompt has."""
    fields = read_fields(data, ResponseFields)
    _refuse_what_is_not_there(fields)
    asked = validate({"messages": fields.messages}, CompletionFields)
    text = chat_prompt(asked, vocabulary.template)
    return {"object": "response.input_tokens", "input_tokens": len(vocabulary.encode(text, "input"))}, []


def _refuse_what_is_not_there(fields: ResponseFields) -> None:
    refuse_tools(fields.tools)
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(fields, name):
            raise InvalidRequestError(
                f"{name} is not supported: this server keeps no responses; leave it out, and send the whole "
                "conversation as input",
                param=name,
                code="unsupported_parameter",
            )


def _response_format(text: dict[str, Any] | None) -> dict[str, Any]:
    """`text.format` as chats have it."""
    form = (text or {}).get("format")
    if form is None:
        return {}
    if not isinstance(form, dict) or form.get("type") not in ("text", "json_object", "json_schema"):
        raise InvalidRequestError(
            f"text.format has the type text, json_object or json_schema; got {show(form)}", param="text.format"
        )
    if form["type"] != "json_schema":
        return {"response_format": form}
    if "schema" not in form:
        raise InvalidRequestError("text.format.schema is missing", param="text.format.schema")
    return {"response_format": {"type": "json_schema", "json_schema": form}}


class _Out:
    """A response on its way out."""

    def __init__(self, response_id: str, serving: Serving, fields: ResponseFields, logprobs: bool) -> None:
        self._item_id = response_id.replace("resp_", "msg_")
        self._logprobs = logprobs
        self._head = {
            "id": response_id,
            "object": "response",
            "created_at": int(serving.now),
            "model": serving.limits.model,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_tokens,
            "temperature": fields.temperature,
            "top_p": fields.top_p,
            "top_logprobs": fields.top_logprobs,
            "text": {"format": {"type": "text"}} | (fields.text or {}),
            "metadata": fields.metadata or {},
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            "background": False,
            "store": False,
            "previous_response_id": None,
        }
        self._answer = Answer()
        self._error: SrbError | None = None
        self._n_sent = 0

    def object(self, events: list[Event]) -> dict[str, Any]:
        """The response of a request that is over. Raises `SrbError` if it broke."""
        self._answer = answer_of(events)
        return self._over()

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The events of some of a stream's, in the order of their numbers."""
        for event in events:
            match event:
                case ErrorEvent():
                    self._error = event.error
                case _:
                    self._answer.take(event)
            for each in self._said(event):
                yield each | {"sequence_number": self._n_sent}
                self._n_sent += 1

    def _said(self, event: Event) -> Iterator[dict[str, Any]]:
        """What one event becomes."""
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        match event:
            case StartEvent():
                begun = self._response("in_progress", [])
                yield {"type": "response.created", "response": begun}
                yield {"type": "response.in_progress", "response": begun}
                item = self._item("in_progress", [])
                yield {"type": "response.output_item.added", "output_index": 0, "item": item}
                yield {"type": "response.content_part.added", **place, "part": self._part(Answer())}
            case StreamEvent(text=text) if text or event.token:
                shown = content_of([event.token]) if event.token else []
                yield {"type": "response.output_text.delta", **place, "delta": text, "logprobs": shown}
            case StopEvent() if self._answer.start:
                part = self._part(self._answer)
                done = {"text": part["text"], "logprobs": part["logprobs"]}
                yield {"type": "response.output_text.done", **place, **done}
                yield {"type": "response.content_part.done", **place, "part": part}
                item = self._item("completed" if event.finish_reason == "stop" else "incomplete", [part])
                yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        if self._answer.done:
            response = self._over()
            status = response["status"]
            ended = "incomplete" if status == "cancelled" else status  # there is no event for that
            yield {"type": f"response.{ended}", "response": response}

    def _over(self) -> dict[str, Any]:
        """The response at its end."""
        answer, stop = self._answer, self._answer.stop
        assert stop
        assert answer.done
        status = {"stop": "completed", "length": "incomplete", "abort": "cancelled"}.get(stop.finish_reason, "failed")
        item = self._item("completed" if status == "completed" else "incomplete", [self._part(answer)])
        response = self._response(status, [item] if answer.start else [])
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._error:
            response["error"] = {"code": "server_error", "message": self._error.message}
        usage = answer.done.usage
        response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return response

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        nothing = {"error": None, "incomplete_details": None, "usage": None}
        return self._head | nothing | {"status": status, "output": output}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _part(self, answer: Answer) -> dict[str, Any]:
        shown = content_of(answer.tokens) if self._logprobs else []
        return {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": shown}
