"""Places in stories, where requests go on."""

from collections.abc import Callable

from srb.errors import InvalidRequestError, NotSupportedError
from srb.wire.completion_fields import CompletionFields

PathTo = Callable[[str, int | None, bool], list[int | str]]
"""The prompt that goes on from a node of a story. The last argument: if it's needed, or the node is only checked."""


def no_stories(_story: str, _node: int | None, _is_needed: bool) -> list[int | str]:
    """A `PathTo` where there are no stories."""
    raise NotSupportedError("this server keeps no stories; start it with --history FILE", param="story")


def take_path(fields: CompletionFields, chat: bool, path_to: PathTo) -> None:
    """Makes the prompt of a request that goes on from a node of a story, if it has none of its own.

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
