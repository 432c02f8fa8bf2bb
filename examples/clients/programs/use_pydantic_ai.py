# needs: pydantic-ai-slim[anthropic,openai]
import datetime
import os
from typing import Annotated, Literal

from anthropic import AsyncAnthropic
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
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


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Fish(BaseModel):
    kind: Literal["fish"]
    salt: bool


class Owner(BaseModel):
    pet: Annotated[Cat | Fish, Field(discriminator="kind")]
    born: datetime.date


settings["max_tokens"] = 200
anthropic = AnthropicModel(
    os.environ["MODEL"],
    provider=AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=os.environ["HOST"], api_key="none")),
)
for given in (chat, responses, anthropic):
    assert Agent(given, output_type=ToolOutput(Owner), model_settings=settings).run_sync("Invent").output.pet.kind
    if given is not anthropic:  # pydantic-ai offers it there for Anthropic's own models only
        assert Agent(given, output_type=NativeOutput(Owner), model_settings=settings).run_sync("Invent").output.pet
