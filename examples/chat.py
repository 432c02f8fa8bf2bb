"""Stream several answers to one question with the openai package. Start the server first: ./build.sh serve

usage: python examples/chat.py [QUESTION] [N]
"""

import os
import sys

from openai import APIConnectionError, OpenAI

URL = f"http://{os.environ.get('SRB_HOST', '127.0.0.1')}:{os.environ.get('SRB_PORT', 9090)}/v1"


def main(question: str, n: int) -> None:
    """Collect the chunks of each answer by its index."""
    answers = [""] * n
    with OpenAI(base_url=URL, api_key="none") as client:
        model = client.models.list().data[0].id
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], n=n, max_tokens=40, stream=True
        )
        for chunk in stream:
            for choice in chunk.choices:
                answers[choice.index] += choice.delta.content or ""
    for index, answer in enumerate(answers):
        print(f"{index}: {' '.join(answer.split())}")


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    try:
        main(arguments.get(1, "What is the capital of France?"), int(arguments.get(2, 4)))
    except APIConnectionError:
        sys.exit(f"Cannot connect to {URL}. Start the server first: ./build.sh serve")
