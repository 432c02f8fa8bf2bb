"""Directions: a line for each alternative that only its prompt has.

`directions` of a body becomes the `direction` of its branches. In a prompt, the engine puts it before the last line, so
that the text goes on where it ends. In a chat, it is the last line of the user's last message. What comes before is
evaluated once for all alternatives.
"""

import dataclasses

from srb.engine.model import Tokenize
from srb.engine.sampling_params import SamplingParams, author_note
from srb.errors import InvalidRequestError
from srb.wire.request.fields import BranchFields, CompletionFields, joined
from srb.wire.request.media import Mixed
from srb.wire.request.messages import Message
from srb.wire.tokens import join_tokens


def take_directions(fields: CompletionFields) -> None:
    """Replace `directions` by branches. Raises `InvalidRequestError` if other fields don't go with it."""
    directions = fields.directions
    if directions is None:
        return
    problem = None
    if not directions:
        problem = "directions must have at least one text; leave it out for none"
    elif fields.branches is not None:
        problem = "directions and branches exclude each other; give each branch a direction"
    elif fields.direction is not None:
        problem = "direction and directions exclude each other; leave one out"
    elif fields.n not in (None, len(directions)):
        problem = f"n is {fields.n!s:.60}, but directions has {len(directions)}; leave n out or make them agree"
    elif fields.best_of not in (None, len(directions)):
        problem = "directions and best_of exclude each other; leave one out"
    if problem:
        raise InvalidRequestError(problem, param="directions")
    fields.branches = [BranchFields.model_validate({"direction": each}) for each in directions]


def has_directions(fields: CompletionFields) -> bool:
    """Whether an alternative has a direction."""
    return any(each.direction and each.direction.strip() for each in (fields, *(fields.branches or ())))


def directed(
    fields: CompletionFields, branches: tuple[SamplingParams, ...], tokenize: Tokenize
) -> tuple[SamplingParams, ...]:
    """Return the parameters of the alternatives with the tokens of their directions. Raises `InvalidRequestError`."""
    if not has_directions(fields):
        return branches
    own = [each.direction for each in fields.branches or ()] or [None] * len(branches)
    name = "branches[{}].direction" if fields.directions is None else "directions[{}]"
    made = []
    for k, (params, line) in enumerate(zip(branches, own, strict=True)):
        named = "direction" if line is None else name.format(k)
        made.append(_with_tokens(params, (fields.direction if line is None else line) or "", named, fields, tokenize))
    return tuple(made)


def _with_tokens(
    params: SamplingParams, line: str, name: str, fields: CompletionFields, tokenize: Tokenize
) -> SamplingParams:
    params = params.directed(line, name)
    if not isinstance(params.direction, str):
        return params
    text = params.direction if fields.messages is None else f"\n\n{author_note(line)}"
    return dataclasses.replace(params, direction=joined(name, text, tokenize, is_prompt=False))


def marked(messages: list[Message], marker: str) -> list[Message]:
    """Return a conversation with a marker where directions are: at the end of the user's last message.

    Raises `InvalidRequestError` if the user has no message, or it isn't a text.
    """
    place = max((k for k, each in enumerate(messages) if each.role == "user"), default=None)
    if place is None:
        raise InvalidRequestError("directions need a message of the user; add one", param="directions")
    if any(isinstance(each.content, Mixed) for each in messages):
        raise InvalidRequestError("directions and images or sounds exclude each other", param="directions")
    text = str(messages[place].content or "")
    end = len(text.rstrip())  # templates that trim messages do so in alternatives without a direction, too
    changed = messages[place].model_copy(update={"content": f"{text[:end]}{marker}{text[end:]}"})
    return [*messages[:place], changed, *messages[place + 1 :]]


def divided(prompt: str, marker: str, tokenize: Tokenize) -> tuple[list[int], int]:
    """Return the tokens of a chat's prompt without the marker, and how many of them come before it.

    Raises `InvalidRequestError` if the chat template doesn't show the user's last message once.
    """
    head, *rest = prompt.split(marker)
    if len(rest) != 1:
        raise InvalidRequestError(
            "the model's chat template doesn't show the user's last message once; leave directions out",
            param="directions",
        )
    before = tuple(join_tokens([head], tokenize, is_prompt=True))
    return [*before, *join_tokens([*rest], tokenize, is_prompt=False)], len(before)
