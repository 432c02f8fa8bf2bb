"""The server's one model, as OpenAI lists models, and as TabbyAPI and text-generation-webui do."""

from typing import Any

from srb.errors import NotFoundError
from srb.wire.context import JsonAnswer, RequestContext


def models(_body: bytes, context: RequestContext) -> JsonAnswer:
    """List the server's one model."""
    return {"object": "list", "data": [_model(context)]}, []


def one_model(_body: bytes, context: RequestContext) -> JsonAnswer:
    """Show the model of this name."""
    model, name = _model(context), context.path_params["id"]
    if model["id"] not in (name, name.removesuffix("/")):
        raise NotFoundError(f"there is no model {name}; there is {model['id']}", param="model", code="model_not_found")
    return model, []


def model_card(_body: bytes, context: RequestContext) -> JsonAnswer:
    """Show the model with the size of its context, as in TabbyAPI."""
    return _model(context) | {"parameters": {"max_seq_len": context.engine.model.n_cells}}, []


def model_info(_body: bytes, context: RequestContext) -> JsonAnswer:
    """Show the model's name, as in text-generation-webui.

    SillyTavern asks for it before it counts tokens.
    """
    return {"model_name": context.limits.model, "lora_names": [], "loader": "llama.cpp"}, []


def _model(context: RequestContext) -> dict[str, Any]:
    capabilities = ["completion", "multimodal"] if context.engine.model.media_kinds else ["completion"]
    known = {"id": context.limits.model, "object": "model", "created": int(context.created), "owned_by": "llamacpp"}
    return known | {"capabilities": capabilities}
