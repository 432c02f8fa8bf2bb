"""A task for inspect-ai: how often one of a question's choices is right. All choices come from one request.

inspect eval examples/clients/inspect-ai/capitals.py --model openai-api-completions/srb/MODEL --num-choices 8
"""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState, generate

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo"}


@scorer(metrics=[mean(), stderr()])
def right_choices() -> Scorer:
    """The fraction of the choices that have the answer. inspect's own scorers look at the first choice only."""

    async def score(state: TaskState, target: Target) -> Score:
        texts = [choice.message.text for choice in state.output.choices]
        return Score(value=sum(target.text in text for text in texts) / len(texts), answer="\n".join(texts))

    return score


@task
def capitals() -> Task:
    return Task(
        dataset=[Sample(f"The capital of {land} is the city of", target=city) for land, city in CAPITALS.items()],
        solver=generate(),
        scorer=right_choices(),
        config=GenerateConfig(max_tokens=4, temperature=1),
    )
