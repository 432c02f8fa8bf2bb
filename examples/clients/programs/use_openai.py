# needs: openai
import datetime
import json
import os
import time
from typing import Annotated, Literal

from openai import BadRequestError, NotFoundError, OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

client = OpenAI(base_url=f"{os.environ['HOST']}/openai/v1", api_key="none")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Say hello"}]

assert len(client.completions.create(model=model, prompt="Once upon", n=3, max_tokens=5).choices) == 3
chunks = client.completions.create(model=model, prompt="Once upon", n=2, max_tokens=5, stream=True)
assert {chunk.choices[0].index for chunk in chunks} == {0, 1}
assert client.chat.completions.create(model=model, messages=messages, max_tokens=8).choices[0].message.content
with client.responses.stream(model=model, input="Say hello", temperature=0) as stream:
    types = [event.type for event in stream]
    assert stream.get_final_response().output_text
assert (types[0], types[-1]) == ("response.created", "response.completed")
schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
schema["additionalProperties"] = False
tools = [{"type": "function", "name": "weather", "description": "The weather", "parameters": schema, "strict": True}]
asked = {"model": model, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
called = client.responses.create(input="How is the weather in Rome?", **asked)
(call,) = called.output
assert (call.type, call.name) == ("function_call", "weather")
assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
with client.responses.stream(input="How is the weather in Rome?", **asked) as stream:
    assert "response.function_call_arguments.done" in {event.type for event in stream}
    (call,) = stream.get_final_response().output
    assert call.parsed_arguments["city"] in ("Paris", "Rome")
items = [{"role": "user", "content": "How is the weather in Rome?"}, *called.output]
items.append({"type": "function_call_output", "call_id": called.output[0].call_id, "output": "It rains"})
assert client.responses.create(model=model, input=items, max_output_tokens=8).output_text

first = client.responses.create(model=model, input="Say hello", background=True, max_output_tokens=20)
while (last := client.responses.retrieve(first.id)).status in ("queued", "in_progress"):
    time.sleep(0.1)
assert last.output_text
events = list(client.responses.retrieve(first.id, stream=True))
assert list(client.responses.retrieve(first.id, stream=True, starting_after=3)) == events[4:]
second = client.responses.create(model=model, input="Again", previous_response_id=first.id, max_output_tokens=8)
assert second.usage.input_tokens > last.usage.total_tokens
long = client.responses.create(model=model, input="Tell", background=True, extra_body={"ignore_eos": True})
assert client.responses.cancel(long.id).status == "cancelled"
client.responses.delete(first.id)
try:
    client.responses.retrieve(first.id)
except NotFoundError as error:
    status = error.status_code
else:
    status = 200
assert status == 404


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    zip: str = Field(pattern=r"^\d{5}$")
    born: datetime.date | None


structured = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 200}
assert client.chat.completions.parse(**structured, response_format=Owner).choices[0].message.parsed.zip
with client.chat.completions.stream(**structured, response_format=Owner) as stream:
    assert stream.get_final_completion().choices[0].message.parsed.zip
assert client.responses.parse(model=model, input="Hi", temperature=0, text_format=Owner).output_parsed.zip
choice = client.chat.completions.parse(
    **structured, tools=[pydantic_function_tool(Owner)], tool_choice="required", parallel_tool_calls=False
).choices[0]
(call,) = choice.message.tool_calls
assert call.function.parsed_arguments.zip
result = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "ok"}]}
assert client.chat.completions.create(**structured | {"messages": [*messages, choice.message, result]}).choices

try:
    client.completions.create(model=model, prompt="p", n=0)
except BadRequestError as error:
    param = error.param
else:
    param = None
assert param == "n"
