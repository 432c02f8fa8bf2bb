# needs: openai
import os

from openai import BadRequestError, OpenAI

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
try:
    client.completions.create(model=model, prompt="p", n=0)
except BadRequestError as error:
    param = error.param
else:
    param = None
assert param == "n"
