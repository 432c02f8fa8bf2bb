# needs: outlines openai
import os

import openai
import outlines
from pydantic import BaseModel, Field


class Dog(BaseModel):
    name: str = Field(max_length=8)


client = openai.OpenAI(base_url=f"{os.environ['HOST']}/openai/v1", api_key="none")
model = outlines.from_openai(client, os.environ["MODEL"])
assert model("Say hello", max_tokens=8)
assert Dog.model_validate_json(model("Invent a dog.", Dog, max_tokens=40))
