# needs: dspy
import os

import dspy

lm = dspy.LM(
    f"openai/{os.environ['MODEL']}",
    api_base=f"{os.environ['HOST']}/openai/v1",
    api_key="none",
    max_tokens=20,
    cache=False,
)
assert lm("Say hello")[0]
assert len(lm("Say hello", n=2, temperature=1.0)) == 2
