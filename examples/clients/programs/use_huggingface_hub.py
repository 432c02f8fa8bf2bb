# needs: huggingface_hub
import os

from huggingface_hub import InferenceClient

host = os.environ["HOST"]
client = InferenceClient(host)

assert client.text_generation("Once upon a time,", max_new_tokens=5)
answer = client.text_generation("Once upon", max_new_tokens=5, details=True, best_of=2, do_sample=True)
assert len(answer.details.tokens) <= 5
assert len(answer.details.best_of_sequences) == 1
*texts, last = client.text_generation("Once upon", max_new_tokens=5, stream=True, details=True)
assert last.generated_text == "".join(each.token.text for each in [*texts, last])
assert set(client.text_generation("Once upon", grammar={"type": "regex", "value": "a+"}, max_new_tokens=5)) == {"a"}
chat = InferenceClient(base_url=f"{host}/openai/v1").chat_completion([{"role": "user", "content": "Hi"}], max_tokens=5)
assert chat.choices[0].message.content
