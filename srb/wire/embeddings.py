"""Embeddings in the formats of OpenAI, llama-server and Ollama: bodies to tokens, vectors to JSON."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from srb.engine.model import Embedder, Tokenizer
from srb.errors import InvalidRequestError
from srb.wire.request.read import Int, ModelFields, read_fields, show
from srb.wire.tokens import is_token, tokens_of

MAX_INPUTS = 2_048
"""The most texts of a request, as with OpenAI. Without pooling, also the most vectors of a response."""

MAX_TOKENS = 300_000
"""The most tokens of all texts of a request, as with OpenAI."""


class EmbeddingFields(ModelFields):
    """The body of the routes for embeddings."""

    input: Any = Field(None, description="a prompt, or a list of prompts.")
    content: Any = Field(None, description="llama-server's name for `input`.")
    prompt: Any = Field(None, description="the name for `input` at /api/embeddings.")
    encoding_format: str = Field("float", description="float or base64.")
    embd_normalize: Int = Field(
        2, description="the norm by which vectors are scaled to length 1. 0: the largest number becomes 32760. -1: off."
    )
    truncate: Any = Field(
        None,
        description="false: a text that is too long is an error at /api/embed and /api/embeddings, too. Other values "
        "than true and false are ignored.",
    )


Vectors = list[list[list[float]]]
"""A list for each text, of one vector, or of one for each token."""


@dataclass(frozen=True)
class EmbeddingFormat:
    """How the bodies of a path are parsed, and its responses built.

    Attributes:
        to_json: Builds the response, for the model of this name.
        name: The field with the texts.
        per_token: Whether there may be a vector for each token.
        truncates: Whether long texts are truncated unless `truncate` is false, and no text is no error, as in Ollama.
            In other formats the texts may be in `content`, too; the response is then llama-server's.
    """

    to_json: Callable[["EmbeddingRequest", Vectors, str], Any]
    name: str = "input"
    per_token: bool = False
    truncates: bool = False


@dataclass(frozen=True)
class EmbeddingRequest:
    """A parsed body.

    Attributes:
        texts: The tokens of each text.
        format: The format of the response.
        is_base64: Whether the response has vectors in base64.
        norm: The norm that vectors are scaled by (`normalize`).
        ignored: The names of the body's fields that have no effect.
    """

    texts: list[tuple[int, ...]]
    format: EmbeddingFormat
    is_base64: bool
    norm: int
    ignored: list[str]

    def to_json(self, vectors: Vectors, model: str) -> Any:
        """The response, with scaled vectors."""
        scaled = [[normalize(vector, self.norm) for vector in each] for each in vectors]
        return self.format.to_json(self, scaled, model)


def _openai_json(request: EmbeddingRequest, vectors: Vectors, model: str) -> Any:
    shown = [_base64(vector) if request.is_base64 else vector for vector, *_ in vectors]
    n_tokens = sum(map(len, request.texts))
    return {
        "object": "list",
        "model": model,
        "data": [{"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(shown)],
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }


def _llama_server_json(_request: EmbeddingRequest, vectors: Vectors, _model: str) -> Any:
    return [{"index": i, "embedding": each} for i, each in enumerate(vectors)]


OPENAI = EmbeddingFormat(_openai_json)
LLAMA_SERVER = EmbeddingFormat(_llama_server_json, per_token=True)


def normalize(vector: list[float], p: int) -> list[float]:
    """The vector, scaled to a length of 1 in the p-norm.

    With p = 0 its largest absolute value becomes 32760. With p = -1 it isn't scaled.
    """
    values = np.asarray(vector, np.float64)
    largest = np.abs(values).max()
    if p == -1 or largest == 0:
        return vector
    if p == 0:
        return list((values / largest * 32760).tolist())
    scaled = values / largest  # so that the powers can't overflow
    return list((scaled / (np.abs(scaled) ** p).sum() ** (1 / p)).tolist())


def _base64(vector: list[float]) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


def parse_embeddings(
    data: bytes, embedder: Embedder, tokenizer: Tokenizer, model: str, form: EmbeddingFormat
) -> EmbeddingRequest:
    """Parses a body in this format. Raises `InvalidRequestError`."""
    fields = read_fields(data, EmbeddingFields)
    ignored = fields.unread(model)
    wanted = form.name
    name = "content" if getattr(fields, wanted) is None and not form.truncates else wanted
    value = getattr(fields, name)
    if form.truncates and value in (None, "", []):
        return EmbeddingRequest([], form, is_base64=False, norm=-1, ignored=ignored)
    if value is None:
        raise InvalidRequestError(f"{wanted} is missing", param=wanted)
    if name == "content":
        form = LLAMA_SERVER
    if fields.encoding_format not in ("float", "base64"):
        raise InvalidRequestError(
            f"encoding_format is float or base64, got {show(fields.encoding_format)}", param="encoding_format"
        )
    if fields.embd_normalize < -1:
        raise InvalidRequestError(
            f"embd_normalize must be at least -1, got {fields.embd_normalize!s:.60}", param="embd_normalize"
        )
    if not form.per_token and not embedder.pools:
        raise InvalidRequestError(
            "this model makes a vector for each token, not one for each text; start the server with --pooling mean, "
            "or use /embedding"
        )
    given = fields.model_fields_set
    if form is not OPENAI and "encoding_format" in given:
        ignored.append("encoding_format")
    if not embedder.pools and "embd_normalize" in given:
        ignored.append("embd_normalize")
    if fields.truncate not in ((None, False, True) if form.truncates else (None, False)):
        ignored.append("truncate")
    ignored += [each for each in ("input", "content", "prompt") if each != name and getattr(fields, each) is not None]
    entries = value if isinstance(value, list) and not any(map(is_token, value)) else [value]
    if not 1 <= len(entries) <= MAX_INPUTS:
        raise InvalidRequestError(f"{name} takes 1 to {MAX_INPUTS} texts, got {len(entries)}", param=name)
    # A single text that fits is always accepted, also if --ubatch-size is larger than the limit.
    most = MAX_TOKENS if embedder.pools else max(MAX_INPUTS, embedder.max_tokens)
    truncates = form.truncates and fields.truncate is not False
    texts: list[tuple[int, ...]] = []
    left = most
    for entry in entries:
        texts.append(_tokens(entry, name, embedder.max_tokens, tokenizer, truncates=truncates))
        left -= len(texts[-1])
        if left < 0:
            pooling = "" if embedder.pools else ", or start the server with --pooling mean"
            raise InvalidRequestError(
                f"{name} has {most - left} tokens in its first {len(texts)} texts; the limit is {most} in one request: "
                f"send fewer texts at once{pooling}",
                param=name,
            )
    norm = fields.embd_normalize if embedder.pools else -1
    return EmbeddingRequest(texts, form, fields.encoding_format == "base64", norm, ignored)


def _tokens(entry: Any, name: str, most: int, tokenizer: Tokenizer, *, truncates: bool) -> tuple[int, ...]:
    if isinstance(entry, dict) and set(entry) == {"prompt_string"}:
        entry = entry["prompt_string"]
    elif isinstance(entry, dict) and set(entry) == {"content"}:
        entry = _joined(entry["content"], name)
    parts = entry if isinstance(entry, list) else [entry]
    if not all(isinstance(part, str) or is_token(part) for part in parts):
        raise InvalidRequestError(
            f"{name} must be a string, a list of token ids and strings, or a list of such texts; got {show(entry)}",
            param=name,
        )
    tokens = tokens_of(parts, name, tokenizer, add_special=True)
    if truncates:
        tokens = tokens[:most]
    if not 1 <= len(tokens) <= most:
        raise InvalidRequestError(
            f"{name} has a text of {len(tokens)} tokens; the limit is 1 to {most} (--ubatch-size)",
            param=name,
        )
    return tokens


def _joined(parts: Any, name: str) -> str:
    """The text of content parts in the notation of chats."""
    is_part = isinstance(parts, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    if not (is_part and all(isinstance(part.get("text"), str) for part in parts)):
        raise InvalidRequestError(f"{name}.content takes parts of the type text only, got {show(parts)}", param=name)
    return "".join(part["text"] for part in parts)
