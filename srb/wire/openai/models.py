"""The server's one model, as OpenAI lists models, and as two other servers do. Pure functions."""

from typing import Any

from srb.errors import NotFoundError
from srb.wire.serving import Serving, Told


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
