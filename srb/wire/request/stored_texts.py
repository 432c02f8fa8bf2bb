"""Makes the prompts of requests that continue a node of a story."""

from collections.abc import Callable, Mapping

from srb.errors import InvalidRequestError, NotSupportedError
from srb.wire.request.completion import CompletionFields
from srb.wire.request.fields import KeptTexts

# Replaces entries of `avoid` that name a request by the texts of this request.

TextsOf = Callable[[tuple[str, ...]], Mapping[str, list[str]]]
"""Returns the texts of the alternatives of each of the requests with these ids.

Raises `InvalidRequestError` if one isn't kept.
"""

MAX_REQUESTS = 100
"""How many requests a body may name. Finding each takes time, since it may be in a file."""


def nothing_kept(request_ids: tuple[str, ...]) -> Mapping[str, list[str]]:
    """The `TextsOf` for places where no requests are kept. Always raises `InvalidRequestError`."""
    raise InvalidRequestError(f"avoid: there is no request {request_ids[0]:.100} here; send its texts", param="avoid")


def take_texts(fields: CompletionFields, texts_of: TextsOf) -> None:
    """Replaces, in the fields' `avoid`, each entry that names a request by the texts of this request.

    Raises `InvalidRequestError` if a request isn't kept, if it has no such alternative, or if there are too many.
    """
    lists = [each for each in (fields, *(fields.branches or ())) if each.avoid]
    entries = [entry for each in lists for entry in each.avoid or () if isinstance(entry, KeptTexts)]
    named = tuple(dict.fromkeys(entry.request for entry in entries))
    if len(named) > MAX_REQUESTS:
        raise InvalidRequestError(
            f"avoid names {len(named)} requests; the limit is {MAX_REQUESTS}; send their texts", param="avoid"
        )
    if not named:
        return
    texts = texts_of(named)
    for each in lists:
        avoid: list[str | list[int] | KeptTexts] = []
        for entry in each.avoid or ():
            avoid += _texts(entry, texts[entry.request]) if isinstance(entry, KeptTexts) else [entry]
        each.avoid = avoid


def _texts(entry: KeptTexts, texts: list[str]) -> list[str]:
    if entry.index is None:
        return texts
    if not 0 <= entry.index < len(texts):
        raise InvalidRequestError(
            f"avoid: request {entry.request:.100} has the alternatives 0 to {len(texts) - 1}, not {entry.index!s:.60}",
            param="avoid",
        )
    return [texts[entry.index]]


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
