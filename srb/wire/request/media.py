"""Reads images and sounds in bodies: files among the texts of a message, or sent with a prompt."""

import base64
import binascii
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from srb.engine.media import Media
from srb.errors import InvalidRequestError

MARKER = "<__media__>"
"""The place of a file in a `prompt_string`, as in llama-server."""

TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
"""The types of the parts that are texts, in OpenAI's chats and responses, and in Anthropic's messages."""

FILES = ("image_url", "input_image", "image", "input_audio")
"""The types of the parts that are images and sounds."""

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class File:
    """A file in a body: its contents, or the address where they are."""

    data: bytes = b""
    url: str | None = None


Part = str | File


class Mixed:
    """The content of a message or prompt that has texts and files, in order."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)

    @property
    def files(self) -> list[File]:
        """The files among the parts, in order."""
        return [part for part in self.parts if isinstance(part, File)]

    def as_text(self, marker: str) -> str:
        """Return the texts, with a marker in the place of each file.

        As in llama-server, there is a line break between two texts, but none between a text and a file.
        """
        text, before = "", None
        for part in self.parts:
            if isinstance(part, str) and isinstance(before, str) and text:
                text += "\n"
            text += part if isinstance(part, str) else marker
            before = part
        return text


Take = Callable[[Sequence[Part]], tuple[tuple[int, ...], tuple[Media, ...]]]
"""Returns the tokens of a prompt of texts and files, and the media that its placeholders stand for."""


def not_here(_parts: Sequence[Part]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
    """The `Take` for routes that accept no images. Always raises `InvalidRequestError`."""
    raise InvalidRequestError(
        "images and sounds are accepted in chats and at /completion, but not here", code="unsupported_media"
    )


def as_content(content: Any) -> Any:
    """Return the text of a content that may come in parts, or a `Mixed` if there are files. Raises `ValueError`."""
    if not isinstance(content, list):
        return content
    parts = [each for k, part in enumerate(content) if not _is_empty(part) for each in _parts(k, part)]
    mixed = Mixed(parts)
    return mixed if mixed.files else "\n".join(part for part in parts if isinstance(part, str))


def _is_empty(part: Any) -> bool:
    """Whether a part is null, or a text that is null or absent. Such a part adds no line."""
    if not isinstance(part, dict):
        return part is None
    kind = part.get("type")
    return (kind in TEXTS and part.get("text") is None) or (kind == "refusal" and part.get("refusal") is None)


def _parts(k: int, part: Any) -> list[Part]:
    """Return what a part has: one text or file, or those of Anthropic's documents and search results."""
    match part:
        case {"type": "tool_reference", "tool_name": str(name)}:
            return [name]
        case {"type": "document", "source": {"type": "text", "data": str(content)}}:
            pass
        case {"type": "document", "source": {"type": "content", "content": str() | list() as content}}:
            pass
        case {"type": "search_result", "content": str() | list() as content}:
            pass
        case {"type": "search_result"} if part.get("content") is None:
            content = ""
        case {"type": "document"}:
            raise ValueError(f"part {k} is a document whose source is neither of the type text nor content")
        case _:
            return [_part(k, part)]
    heads = [part.get(name) for name in ("title", "source", "context")]
    inner = as_content(content)
    return [*(each for each in heads if isinstance(each, str) and each), *_inner_parts(inner)]


def _inner_parts(content: Any) -> Sequence[Part]:
    return content.parts if isinstance(content, Mixed) else [content]


def _part(k: int, part: Any) -> Part:
    if not isinstance(part, dict):
        raise ValueError(f"part {k} should be an object")
    match part:
        case {"type": kind, "text": str(text)} if kind in TEXTS:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": kind} if kind in (*TEXTS, "refusal"):
            raise ValueError(f"part {k} should have a text")
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return _from_url(f"part {k}", url)
        case {"type": "input_image", "image_url": str(url)}:
            return _from_url(f"part {k}", url)
        case {"type": "image", "source": {"type": "base64", "data": str(data)}}:
            return File(_decoded(f"part {k}", data))
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return _from_url(f"part {k}", url)
        case {"type": "input_audio", "input_audio": {"data": str(data)} | {"url": str(data)}}:
            return _from_url(f"part {k}", data) if ":" in data[:5] else File(_decoded(f"part {k}", data))
        case {"type": kind} if kind in FILES:
            raise ValueError(f"part {k} lacks what a part of the type {kind} needs: see /docs")
    raise ValueError(
        f"part {k} is of the type {part.get('type')!r:.40}; this server takes text, image_url and input_audio"
    )


def _from_url(where: str, url: str) -> File:
    if head := _DATA_URL.match(url):
        return File(_decoded(where, url[head.end() :]))
    if url[:8].lower().startswith(("http://", "https://")):
        return File(url=url)
    raise ValueError(f"{where} should have a URL that begins with data:image/...;base64, or with https://")


def _decoded(where: str, data: str) -> bytes:
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{where} has data that isn't base64") from None


def split(text: str, marker: str, files: Sequence[File]) -> Mixed:
    """Return the text with a file in the place of each marker. Raises `InvalidRequestError` if the numbers differ."""
    texts = text.split(marker)
    if len(texts) != len(files) + 1:
        raise InvalidRequestError(
            f"the prompt has {len(texts) - 1} places for images and sounds, but there are {len(files)} files; write "
            f"{marker} once for each",
            param="prompt",
        )
    parts: list[Part] = [texts[0]]
    for file, following in zip(files, texts[1:], strict=True):
        parts += [file, following]
    return Mixed([part for part in parts if part != ""])


def with_data(prompt: dict[str, Any]) -> Mixed | str:
    """Read llama-server's `{"prompt_string": ..., "multimodal_data": [...]}`.

    The text has a `MARKER` for each file, and the files are in base64. Raises `InvalidRequestError`.
    """
    text, data = prompt["prompt_string"], prompt.get("multimodal_data") or []
    if not (isinstance(text, str) and isinstance(data, list) and all(isinstance(each, str) for each in data)):
        raise InvalidRequestError(
            "a prompt that is an object has a text as its prompt_string, and a list of files in base64 as its "
            "multimodal_data",
            param="prompt",
        )
    if not data:
        return text
    try:
        files = [File(_decoded(f"multimodal_data[{k}]", each)) for k, each in enumerate(data)]
    except ValueError as error:
        raise InvalidRequestError(f"prompt: {error}", param="prompt") from None
    return split(text, MARKER, files)


def new_marker() -> str:
    """Return a random marker of a place in a prompt, which nobody can write into a message."""
    return f"<__media_{secrets.token_hex(16)}__>"


def with_images(content: Any, images: Any, name: str) -> Any:
    """Return a content with Ollama's `images`, in base64, before it. Raises `InvalidRequestError`."""
    if not images:
        return content
    if not (isinstance(images, list) and all(isinstance(each, str) for each in images)):
        raise InvalidRequestError(f"{name} should be a list of files in base64", param=name)
    try:
        files: list[Part] = [File(_decoded(f"{name}[{k}]", each)) for k, each in enumerate(images)]
    except ValueError as error:
        raise InvalidRequestError(str(error), param=name) from None
    return Mixed([*files, *(content.parts if isinstance(content, Mixed) else (content,))])
