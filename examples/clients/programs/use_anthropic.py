# needs: anthropic
import os
from typing import Literal

from anthropic import Anthropic, BadRequestError
from pydantic import BaseModel

client = Anthropic(base_url=os.environ["HOST"], api_key="none")
model = os.environ["MODEL"]
messages = [{"role": "user", "content": "Say hello"}]

message = client.messages.create(model=model, max_tokens=8, messages=messages, system="Be nice", stop_sequences=["zzz"])
assert message.content[0].text
assert message.usage.output_tokens <= 8
with client.messages.stream(model=model, max_tokens=8, messages=messages) as stream:
    text = "".join(stream.text_stream)
    assert text == stream.get_final_message().content[0].text
assert client.messages.count_tokens(model=model, messages=messages).input_tokens > 5

schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
tools = [{"name": "weather", "description": "How the weather is in a city", "input_schema": schema}]
asked = {"model": model, "max_tokens": 64, "tools": tools, "tool_choice": {"type": "any"}}
question = [{"role": "user", "content": "How is the weather in Rome?"}]
called = client.messages.create(messages=question, **asked)
(call,) = [block for block in called.content if block.type == "tool_use"]
assert (call.name, called.stop_reason) == ("weather", "tool_use")
assert call.input["city"] in ("Paris", "Rome")
with client.messages.stream(messages=question, **asked) as stream:
    pieces = [event.partial_json for event in stream if event.type == "input_json"]
    assert len(pieces) > 1
    (call,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    assert call.input["city"] in ("Paris", "Rome")
turns = [
    *question,
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": called.content[-1].id, "content": "It rains"}]},
]
asked["tool_choice"] = {"type": "none"}
assert client.messages.create(messages=turns, **asked).content[0].text


class Dog(BaseModel):
    kind: Literal["dog"]
    age: int


parsed = client.messages.parse(model=model, max_tokens=60, messages=question, output_format=Dog).parsed_output
assert parsed.kind == "dog"
with client.messages.stream(model=model, max_tokens=60, messages=question, output_format=Dog) as stream:
    assert stream.get_final_message().parsed_output.kind == "dog"
assert client.models.list().data[0].display_name == model
searched = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "text", "text": "It rains"},
]
turns = [*question, {"role": "assistant", "content": searched}, *question]
assert client.messages.create(model=model, max_tokens=8, messages=turns).content[0].text

try:
    client.messages.create(model=model, max_tokens=8, messages=messages, extra_body={"top_p": 2})
except BadRequestError as error:
    refusal = str(error)
else:
    refusal = ""
assert "top_p" in refusal
