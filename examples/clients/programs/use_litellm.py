# needs: litellm
import os

import litellm
from pydantic import BaseModel, Field

host, model = os.environ["HOST"], os.environ["MODEL"]
messages = [{"role": "user", "content": "Say hello"}]
openai = {"model": f"openai/{model}", "api_base": f"{host}/openai/v1", "api_key": "none"}
assert litellm.completion(messages=messages, max_tokens=8, **openai).choices[0].message.content
assert len(litellm.completion(messages=messages, max_tokens=8, n=2, **openai).choices) == 2
for name in (f"ollama_chat/{model}", f"ollama/{model}"):
    answer = litellm.completion(model=name, api_base=host, messages=messages, max_tokens=8)
    assert answer.choices[0].message.content
    chunks = litellm.completion(model=name, api_base=host, messages=messages, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


class Address(BaseModel):
    street: str = Field(max_length=12)
    zip: str = Field(pattern=r"^\d{5}$")


anthropic = {"model": f"anthropic/{model}", "api_base": host, "api_key": "none"}
for route in (openai, anthropic, {"model": f"ollama_chat/{model}", "api_base": host}):
    asked = {"messages": messages, "max_tokens": 80, "temperature": 0, "response_format": Address}
    answer = litellm.completion(**asked, **route)
    assert Address.model_validate_json(answer.choices[0].message.content).zip
    chunks = litellm.completion(**asked, stream=True, **route)
    assert Address.model_validate_json("".join(chunk.choices[0].delta.content or "" for chunk in chunks)).zip
try:
    litellm.completion(messages=messages, temperature=-1, **openai)
except litellm.BadRequestError as error:
    refusal = str(error)
else:
    refusal = ""
assert "temperature" in refusal
