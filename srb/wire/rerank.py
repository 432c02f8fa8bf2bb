"""Reranking: documents by their relevance to a query, in the formats of Jina, Cohere, TEI and llama-server."""

import re
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from srb.engine.model import Embedder, Tokenizer
from srb.errors import InvalidRequestError
from srb.wire.embeddings import MAX_INPUTS, MAX_TOKENS, Vectors
from srb.wire.request.read import Int, ModelFields, read_fields, show
from srb.wire.tokens import tokens_of


class RerankFields(ModelFields):
    """The body of the routes for reranking."""

    query: str | None = Field(None, description="the query that documents are ranked by.")
    documents: list[Any] | None = Field(
        None, description=f"1 to {MAX_INPUTS} texts, or objects with such a `text`; the answer has the best one first."
    )
    texts: list[Any] | None = Field(None, description="TEI's name for documents; the answer is then a list, as in TEI.")
    top_n: Int | None = Field(None, description="how many of the best documents the answer has. Left out: all.", ge=1)
    return_documents: bool = Field(False, description="whether the answer has the documents' texts, too.")
    return_text: bool = Field(False, description="TEI's name for return_documents.")


@dataclass(frozen=True)
class RerankRequest:
    """A parsed body.

    Attributes:
        documents: The texts.
        texts: The tokens to score for each document.
        top_n: How many documents the response has.
        has_texts: Whether the response has the documents' texts.
        is_tei: Whether the response has TEI's format.
        ignored: The names of the body's fields that have no effect.
    """

    documents: list[str]
    texts: list[tuple[int, ...]]
    top_n: int
    has_texts: bool
    is_tei: bool
    ignored: list[str]

    def to_json(self, vectors: Vectors, model: str) -> Any:
        """The response. vectors: one for each document, which begins with its score; higher is better."""
        scores = [vector[0] for vector, *_ in vectors]
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: self.top_n]
        if self.is_tei:
            return [
                {"index": i, "score": scores[i]} | ({"text": self.documents[i]} if self.has_texts else {}) for i in best
            ]
        n_tokens = sum(map(len, self.texts))
        return {
            "object": "list",
            "model": model,
            "results": [
                {"index": i, "relevance_score": scores[i]}
                | ({"document": {"text": self.documents[i]}} if self.has_texts else {})
                for i in best
            ],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }


def parse_rerank(data: bytes, embedder: Embedder, template: str, tokenizer: Tokenizer, model: str) -> RerankRequest:
    """Parses a body. template: `Embedder.rank_template`. Raises `InvalidRequestError`."""
    fields = read_fields(data, RerankFields)
    ignored = fields.unread(model)
    is_tei = fields.documents is None
    name = "texts" if is_tei and fields.texts is not None else "documents"
    given = getattr(fields, name)
    if not is_tei and fields.texts is not None:
        ignored.append("texts")
    if fields.query is None or given is None:
        missing = "query" if fields.query is None else "documents"
        raise InvalidRequestError(f"{missing} is missing", param=missing)
    if not 1 <= len(given) <= MAX_INPUTS:
        raise InvalidRequestError(f"{name} takes 1 to {MAX_INPUTS} texts, got {len(given)}", param=name)
    documents = [_text(each, name) for each in given]
    prompts = []
    left = MAX_TOKENS
    for i, document in enumerate(documents):
        tokens = tokens_of([_fill_in(template, query=fields.query, document=document)], name, tokenizer)
        if len(tokens) > embedder.max_tokens:
            raise InvalidRequestError(
                f"{name}: text {i} makes {len(tokens)} tokens with the query; the limit is {embedder.max_tokens} "
                "(--ubatch-size)",
                param=name,
            )
        prompts.append(tokens)
        left -= len(tokens)
        if left < 0:
            raise InvalidRequestError(
                f"{name}: the first {i + 1} texts make {MAX_TOKENS - left} tokens with the query; the limit is "
                f"{MAX_TOKENS} in one request: send fewer texts at once",
                param=name,
            )
    has_texts = fields.return_text if is_tei else fields.return_documents
    return RerankRequest(documents, prompts, fields.top_n or len(documents), has_texts, is_tei, ignored)


def _fill_in(template: str, **texts: str) -> str:
    # One pass replaces both, so that a query may have the text {document} in it.
    return re.sub(r"\{(query|document)\}", lambda found: texts[found[1]], template)


def _text(entry: Any, name: str) -> str:
    if isinstance(entry, dict) and isinstance(entry.get("text"), str):
        entry = entry["text"]
    if not isinstance(entry, str):
        raise InvalidRequestError(
            f"{name} takes strings, or objects with a string as text; got {show(entry)}", param=name
        )
    return entry
