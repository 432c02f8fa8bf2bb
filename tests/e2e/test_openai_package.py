"""The official `openai` package against a server on the default model.

Importing the package takes a second, so only the tests do, and not their collection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model
from real_server import Server

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
    from openai.types.responses import FunctionToolParam, ResponseInputItemParam


MODEL = "SmolLM2-135M-Instruct.Q4_1"
PROMPT = "Once upon a time,"
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "developer", "content": "Answer in one sentence."},
    {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]},
]


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    from openai import OpenAI

    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def said(chunks: list[ChatCompletionChunk], index: int) -> str:
    """The content of one choice of a stream."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.owned_by, model.object) == (MODEL, "llamacpp", "model")
    assert client.models.retrieve(MODEL) == model


def test_a_completion_and_its_stream_are_the_same(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "n": 4, "max_tokens": 12, "seed": 7, "stop": ["\n"]}
    whole = client.completions.create(**options)
    assert (whole.object, whole.model) == ("text_completion", MODEL)
    assert whole.id.startswith("cmpl-")
    assert whole.system_fingerprint
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert {choice.finish_reason for choice in whole.choices} <= {"stop", "length"}
    assert len({choice.text for choice in whole.choices}) > 1
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details is not None

    texts = [""] * 4
    ends = []
    usage = []
    for chunk in client.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "text_completion"
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason is not None:
                ends.append(choice.index)
        usage += [chunk.usage] if chunk.usage else []
    assert texts == [choice.text for choice in whole.choices]
    assert sorted(ends) == [0, 1, 2, 3]
    assert [each.completion_tokens for each in usage] == [whole.usage.completion_tokens]


def test_chat(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "n": 4, "max_completion_tokens": 24, "seed": 1}
    whole = client.chat.completions.create(**options)
    assert whole.object == "chat.completion"
    assert whole.id.startswith("chatcmpl-")
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert {choice.message.role for choice in whole.choices} == {"assistant"}
    assert any("Paris" in (choice.message.content or "") for choice in whole.choices)
    assert not any("<|im_end|>" in (choice.message.content or "") for choice in whole.choices)

    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert [said(chunks, index) for index in range(4)] == [choice.message.content for choice in whole.choices]
    firsts = [chunk.choices[0].delta.role for chunk in chunks[:4]]
    assert firsts == ["assistant"] * 4
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_tools(client: OpenAI) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["city", "days"],
        "$defs": {"City": {"type": "string", "maxLength": 20}},
    }
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Is it raining in Paris?"}],
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": parameters, "strict": True}}],
        "tool_choice": "required",
        "seed": 0,
    }
    choices = client.chat.completions.create(n=3, **asked).choices
    messages: list[Any] = [choice.message for choice in choices]
    with client.chat.completions.stream(n=3, **asked) as stream:
        streamed = stream.get_final_completion().choices
    for choice, same in zip(choices, streamed, strict=True):
        assert (choice.finish_reason, choice.message.content) == (same.finish_reason, None) == ("tool_calls", None)
        (call,), (other,) = choice.message.tool_calls or [], same.message.tool_calls or []
        arguments = json.loads(call.function.arguments)
        assert len(arguments["city"]) <= 20
        assert 1 <= arguments["days"] <= 7
        assert other.function.name == "weather"
        assert json.loads(other.function.arguments)
    result = {"role": "tool", "tool_call_id": messages[0].tool_calls[0].id, "content": "It rains."}
    answer = client.chat.completions.create(
        **asked | {"messages": [*asked["messages"], messages[0], result], "tool_choice": "none"}, max_tokens=20
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    scores: dict[Literal["x", "y"], Literal[1, 2]]
    zip: str = Field(pattern=r"^\d{5}$")
    born: date | None


def test_structured_outputs_as_pydantic_writes_them(client: OpenAI) -> None:
    """A union of references and a record; `parse` closes all objects."""
    from openai import BadRequestError, pydantic_function_tool

    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 100}
    form: Any = {"type": "json_schema", "json_schema": {"name": "owner", "schema": Owner.model_json_schema()}}
    content = client.chat.completions.create(**asked, response_format=form).choices[0].message.content
    owner = Owner.model_validate_json(content or "")
    assert owner.pet.kind in ("cat", "dog")
    assert owner.scores.keys() <= {"x", "y"}
    tool = pydantic_function_tool(Cat)
    choice = client.chat.completions.parse(**asked, tools=[tool], tool_choice="required").choices[0]
    assert choice.message.tool_calls
    (call, *_) = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Cat)
    response = client.responses.parse(model=MODEL, input="A dog", temperature=0, text_format=Dog)
    assert isinstance(response.output_parsed, Dog)
    owners = create_model("Owners", pet=Dog, tags=set[str])
    with pytest.raises(BadRequestError, match=r"properties\.tags: .*uniqueItems"):
        client.chat.completions.parse(**asked, response_format=owners)


def test_a_response_calls_a_tool_and_goes_on(client: OpenAI) -> None:
    city: dict[str, object] = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
    }
    tool: FunctionToolParam = {"type": "function", "name": "weather", "parameters": city, "strict": True}
    asked = client.responses.create(model=MODEL, input="Weather in Rome?", tools=[tool], tool_choice="required")
    (call,) = asked.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    result: ResponseInputItemParam = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains"}
    told = client.responses.create(model=MODEL, input=[result], previous_response_id=asked.id, max_output_tokens=8)
    assert told.output_text
    assert told.previous_response_id == asked.id


def test_a_response_in_the_background_outlives_its_reader(client: OpenAI) -> None:
    from openai import NotFoundError

    stream = client.responses.create(
        model=MODEL,
        input="A story",
        background=True,
        stream=True,
        max_output_tokens=60,
        extra_body={"ignore_eos": True},
    )
    events = [next(stream) for _ in range(9)]
    stream.close()
    assert events[0].type == "response.created"
    response_id = events[0].response.id
    events += client.responses.retrieve(response_id, stream=True, starting_after=events[-1].sequence_number)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == client.responses.retrieve(response_id).output_text
    client.responses.delete(response_id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(response_id)


def test_typed_errors(client: OpenAI) -> None:
    from openai import BadRequestError, NotFoundError

    with pytest.raises(BadRequestError, match="n must be from 1 to 32, got 99") as bad:
        client.completions.create(model=MODEL, prompt=PROMPT, n=99)
    assert (bad.value.param, bad.value.type, bad.value.code) == ("n", "invalid_request_error", "invalid_value")
    schema: dict[str, object] = {"type": "object", "properties": {"x": {"type": "nope"}}}
    with pytest.raises(BadRequestError, match="nope"):
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": {"name": "f", "schema": schema}},
        )
    with pytest.raises(BadRequestError, match="best_of"):
        client.completions.create(model=MODEL, prompt=PROMPT, n=1, best_of=2, stream=True)
    with pytest.raises(NotFoundError, match="there is no model gpt-4o"):
        client.models.retrieve("gpt-4o")
