# needs: ollama
import os
from typing import Literal

import ollama
from pydantic import BaseModel, Field

client = ollama.Client(host=os.environ["HOST"])
model = client.list().models[0].model
messages = [{"role": "user", "content": "Say hello"}]
options = {"num_predict": 8, "temperature": 0}

assert "completion" in client.show(model).capabilities
assert client.generate(model=model, prompt="Say hello", options=options).response
assert client.generate(model=model, prompt="Once upon", raw=True, options=options).eval_count <= 8
parts = list(client.chat(model=model, messages=messages, stream=True, options=options))
assert parts[-1].done
text = "".join(part.message.content for part in parts)
assert text == client.chat(model=model, messages=messages, options=options).message.content
schema = {"type": "object", "properties": {"age": {"enum": [1, 2]}}, "required": ["age"]}
answer = client.chat(model=model, messages=messages, format=schema, options={"num_predict": 40})
assert answer.message.content.lstrip().startswith("{")


class Dog(BaseModel):
    name: str = Field(max_length=8)
    kind: Literal["dog"]


given = {"format": Dog.model_json_schema(), "options": {"num_predict": 60}}
parts = client.generate(model=model, prompt="Invent a dog", stream=True, **given)
assert Dog.model_validate_json("".join(part.response for part in parts)).name
parts = client.chat(model=model, messages=messages, stream=True, **given)
assert Dog.model_validate_json("".join(part.message.content for part in parts)).name
assert client.list().models[0].details.family == "llama"


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first
        b: The second
    """
    return a + b


called = client.chat(model=model, messages=messages, tools=[add], options=options)
assert called.message.content or called.message.tool_calls
schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
tool = {"type": "function", "function": {"name": "add", "description": "Adds numbers", "parameters": schema}}
messages += [
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]},
    {"role": "tool", "tool_name": "add", "content": "3"},
]
assert client.chat(model=model, messages=messages, tools=[tool], options=options).message.role == "assistant"

try:
    client.generate(model=model, prompt="p", options={"temperature": -1})
except ollama.ResponseError as error:
    refusal = error.error
else:
    refusal = ""
assert "temperature" in refusal
