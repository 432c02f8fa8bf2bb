"""Replaces entries of `avoid` that name a request by the texts of this request."""

from collections.abc import Callable, Mapping

from srb.errors import InvalidRequestError
from srb.wire.request.completion_fields import CompletionFields
from srb.wire.request.fields import KeptTexts

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
