# needs: guidance openai
import os

from guidance import assistant, gen, models, user

lm = models.OpenAI(os.environ["MODEL"], base_url=f"{os.environ['HOST']}/openai/v1", api_key="none", echo=False)
with user():
    lm += "Say hello"
with assistant():
    lm += gen("answer", max_tokens=8)
assert lm["answer"]
