# needs: inspect-ai openai
import asyncio
import json
import os
import urllib.request
from typing import Any

from inspect_ai.model import GenerateConfig, Model, ModelOutput, get_model

os.environ |= {"SRB_BASE_URL": f"{os.environ['HOST']}/openai/v1", "SRB_API_KEY": "none"}


def count(name: str) -> int:
    with urllib.request.urlopen(f"{os.environ['HOST']}/health", timeout=10) as answer:
        return json.load(answer)[name]


async def ask(model: Model, prompt: str, **settings: Any) -> ModelOutput:
    """Return eight choices of one request."""
    config = GenerateConfig(num_choices=8, temperature=1, max_tokens=6, logprobs=True, top_logprobs=2, **settings)
    asked, evaluated = count("prompt_tokens"), count("prompt_tokens_evaluated")
    output = await model.generate(prompt, config=config)
    asked, evaluated = count("prompt_tokens") - asked, count("prompt_tokens_evaluated") - evaluated
    assert output.usage is not None
    # Without the cached tokens in chats, and with them in completions.
    assert output.usage.input_tokens + (output.usage.input_tokens_cache_read or 0) == asked >= evaluated
    assert len({choice.message.text for choice in output.choices}) > 1
    for choice in output.choices:
        assert choice.stop_reason in ("max_tokens", "stop")
        assert choice.logprobs is not None
        assert all(token.logprob <= 0 and len(token.top_logprobs or ()) >= 2 for token in choice.logprobs.content)
    return output


async def main() -> None:
    chats = get_model(f"openai-api/srb/{os.environ['MODEL']}")
    texts = get_model(f"openai-api-completions/srb/{os.environ['MODEL']}")
    for model, prompt in (chats, "Name a colour."), (texts, "The harbour was quiet, until"):
        first, again = [await ask(model, prompt, seed=7) for _ in range(2)]
        assert [each.message.text for each in first.choices] == [each.message.text for each in again.choices]
        output = await ask(model, prompt, prompt_logprobs=2)
        scores = output.choices[0].prompt_logprobs
        assert scores is not None
        if model is texts:  # the first token has no log-probability
            assert prompt.endswith("".join(token.token for token in scores.content))
        assert all(-40 < token.logprob <= 0 for token in scores.content)


asyncio.run(main())
