# needs: anthropic
import os

from anthropic import Anthropic, BadRequestError

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
try:
    client.messages.create(model=model, max_tokens=8, messages=messages, extra_body={"top_p": 2})
except BadRequestError as error:
    refusal = str(error)
else:
    refusal = ""
assert "top_p" in refusal
