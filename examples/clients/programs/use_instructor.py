# needs: instructor openai
import os

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field


class Dog(BaseModel):
    name: str = Field(max_length=8)
    age: int


client = OpenAI(base_url=f"{os.environ['HOST']}/openai/v1", api_key="none")
messages = [{"role": "user", "content": "Invent a dog: its name and its age."}]
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    dog = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=os.environ["MODEL"], messages=messages, response_model=Dog, temperature=0, max_tokens=80
    )
    assert dog.name
