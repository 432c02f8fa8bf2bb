"""Makes the prompts of requests that continue a node of a story."""

from collections.abc import Callable

from srb.errors import InvalidRequestError, NotSupportedError
from srb.wire.request.completion_fields import CompletionFields

PathTo = Callable[[str, int | None, bool], list[int | str]]
"""Returns the prompt that continues a node of a story. The last argument: false if the node only has to be checked."""


def no_stories(_story: str, _node: int | None, _is_needed: bool) -> list[int | str]:
    """The `PathTo` for servers without stories. Always raises `NotSupportedError`."""
    raise NotSupportedError("this server keeps no stories; start it with --history FILE", param="story")


def take_path(fields: CompletionFields, chat: bool, path_to: PathTo) -> None:
    """Sets the prompt of a request that continues a node of a story, if the request has none of its own.

    Raises `InvalidRequestError`, and what `path_to` raises.
    """
    if fields.story is None:
        if fields.node is not None:
            raise InvalidRequestError("node goes with story, which is missing", param="node")
        return
    if fields.echo:
        raise InvalidRequestError("echo and story exclude each other: a node has only what is new", param="echo")
    is_needed = fields.prompt is None and not chat
    path = path_to(fields.story, fields.node, is_needed)
    if is_needed:
        if not path:
            raise InvalidRequestError("there is no text before this place: name a node, or send a prompt", param="node")
        fields.prompt = path
