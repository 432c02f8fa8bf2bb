"""`POST /v1/completions` and `POST /v1/chat/completions`, with answers in native events or OpenAI's formats.

Pure functions.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from srb.errors import NotFoundError
from srb.wire.openai.chat import ChatCompletion
from srb.wire.openai.reply import Completion
from srb.wire.reply import Reply
from srb.wire.request.body import parse
from srb.wire.serving import Serving, Told

# The server's one model, as OpenAI lists models, and as two other servers do. Pure functions.


def models(_body: bytes, serving: Serving) -> Told:
    """The model of the server, as a list of one."""
    return {"object": "list", "data": [_model(serving)]}, []


def one_model(_body: bytes, serving: Serving) -> Told:
    """The model of this name."""
    model, name = _model(serving), serving.names["id"]
    if model["id"] not in (name, name.removesuffix("/")):
        raise NotFoundError(f"there is no model {name}; there is {model['id']}", param="model", code="model_not_found")
    return model, []


def model_card(_body: bytes, serving: Serving) -> Told:
    """The model with the size of its context, as TabbyAPI has it."""
    return _model(serving) | {"parameters": {"max_seq_len": serving.engine.n_cells}}, []


def model_info(_body: bytes, serving: Serving) -> Told:
    """The model's name, as text-generation-webui has it.

    SillyTavern asks for it before it counts tokens.
    """
    return {"model_name": serving.limits.model, "lora_names": [], "loader": "llama.cpp"}, []


def _model(serving: Serving) -> dict[str, Any]:
    capabilities = ["completion", "multimodal"] if serving.engine.media_kinds else ["completion"]
    known = {"id": serving.limits.model, "object": "model", "created": int(serving.created), "owned_by": "llamacpp"}
    return known | {"capabilities": capabilities}


def read(body: bytes, serving: Serving, *, chat: bool = False, openai: bool = False) -> Reply:
    """Continue a prompt, in n alternatives: native events, OpenAI's chunks, or OpenAI's object.

    openai: a body that doesn't name a format gets OpenAI's.
    """
    limits = replace(serving.limits, openai=openai or serving.limits.openai)
    parsed = parse(
        body,
        limits,
        serving.engine.tokenize,
        serving.vocabulary.template,
        chat=chat,
        path_to=serving.path_to,
        texts_of=serving.texts_of,
        take=serving.take,
    )
    completion, created = serving.made or parsed.completion, int(serving.now)
    if parsed.format == "events":
        return Reply(completion, parsed.ignored, True, None, parsed.blame, parsed.detach, parsed.story, parsed.node)
    stream = parsed.format == "chunks"

    make = partial(
        partial(ChatCompletion, calls=parsed.calls) if chat else Completion,
        completion.id,
        model=limits.model,
        created=created,
        fingerprint=serving.fingerprint,
        per_prompt=len(completion.branches),
        n=parsed.n,
        logprobs=parsed.logprobs,
        usage=parsed.usage,
        times=parsed.times,
    )

    return Reply(completion, parsed.ignored, stream, make, parsed.blame, parsed.detach, parsed.story, parsed.node)
