# needs: pydantic-ai-slim[openai]
import os

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Dog(BaseModel):
    name: str
    age: int


provider = OpenAIProvider(base_url=f"{os.environ['HOST']}/openai/v1", api_key="none")
settings = {"temperature": 0, "max_tokens": 80}
chat = OpenAIChatModel(os.environ["MODEL"], provider=provider)
assert Agent(chat, model_settings=settings).run_sync("Say hello").output
assert Agent(chat, output_type=Dog, model_settings=settings).run_sync("Invent a dog.").output.name
responses = OpenAIResponsesModel(os.environ["MODEL"], provider=provider)
assert Agent(responses, model_settings=settings).run_sync("Say hello").output
