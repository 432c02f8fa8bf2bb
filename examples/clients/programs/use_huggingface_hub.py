# needs: huggingface_hub
import os

from huggingface_hub import InferenceClient

client = InferenceClient(base_url=f"{os.environ['HOST']}/openai/v1")
question = [{"role": "user", "content": "Hi"}]

chat = client.chat_completion(question, max_tokens=5, n=2)
assert len(chat.choices) == 2
assert chat.choices[0].message.content
schema = {"type": "json_object", "value": {"enum": ["a", "b"]}}
assert client.chat_completion(question, response_format=schema).choices[0].message.content in ('"a"', '"b"')
assert "".join(
    each.choices[0].delta.content or "" for each in client.chat_completion(question, max_tokens=5, stream=True)
)
