# needs: litellm
import os

import litellm

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
