# needs: huggingface_hub
import os

from huggingface_hub import InferenceClient

host = os.environ["HOST"]
client = InferenceClient(base_url=f"{host}/openai/v1")
messages = [{"role": "user", "content": "Hi"}]

answer = client.chat_completion(messages, max_tokens=5)
assert answer.choices[0].message.content
*chunks, last = client.chat_completion(messages, max_tokens=5, stream=True)
assert "".join(each.choices[0].delta.content or "" for each in chunks)
assert last.choices[0].finish_reason == "length"
form = {"type": "json_object", "value": {"enum": ["yes"]}}
answer = client.chat_completion(messages, max_tokens=5, response_format=form)
assert answer.choices[0].message.content == '"yes"'
