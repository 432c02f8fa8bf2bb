"""Routes that read docx, epub and text files as Markdown, and write Markdown as docx and epub."""

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from srb.errors import InvalidRequestError
from srb.server.http.bodies import read_body
from srb.server.http.exchange import ENGINE, ignored_header, json_response
from srb.server.run import pandoc
from srb.server.run.pandoc import Pandoc
from srb.wire.documents.archive import Document, count
from srb.wire.documents.docx import read_docx
from srb.wire.documents.epub import read_epub
from srb.wire.documents.markdown import (
    DIALECT,
    MEDIA_TYPES,
    DocumentFields,
    from_pandoc,
    is_from_the_right,
    to_line,
    to_pandoc,
)
from srb.wire.documents.plain_text import read_plain_text
from srb.wire.request.read import depth_refused, read_fields, show
from srb.wire.route import INTEGER, STRING, list_of, object_of, post

PANDOC = web.AppKey("pandoc", Pandoc)

MAX_DOCUMENT_BYTES = 32 << 20

_FILTER = Path(pandoc.__file__).with_name("plain_text.lua")


_READERS = {"docx": read_docx, "epub": read_epub}


async def import_document(request: web.Request) -> web.Response:
    """Read a document as Markdown, and say what the text doesn't have.

    The body is the file.
    """
    kind, kinds = request.query.get("format", ""), ("txt", *_READERS)
    if kind not in kinds:
        raise InvalidRequestError(f"format is one of {', '.join(kinds)}, got {show(kind)}", param="format")
    data = await read_body(request, MAX_DOCUMENT_BYTES)
    if kind == "txt":
        plain = await asyncio.to_thread(read_plain_text, data, request.query.get("encoding", ""))
        encodings = {"encoding": plain.encodings[0], "encodings": plain.encodings}
        return json_response(_document(plain.text, plain.left_out) | encodings)

    def read() -> Document:
        with depth_refused():
            return _READERS[kind](data)

    document = await asyncio.to_thread(read)
    options = ("--wrap=none", f"--lua-filter={_FILTER}", f"--metadata=from:{kind}")
    output = await request.app[PANDOC].convert(
        request.app[ENGINE], document.data, f"--from={kind}", f"--to={DIALECT}", *options
    )
    title, pictures, text = (*output.decode().split("\n", 2), "")[:3]

    def finish() -> tuple[str, list[str]]:
        markdown = from_pandoc(text)
        return markdown, document.left_out + document.lost(f"{title}\n{markdown}")

    markdown, left_out = await asyncio.to_thread(finish)
    if int(pictures):
        left_out = [count(int(pictures), "picture"), *left_out]
    return json_response(_document(markdown, left_out, title.strip(), int(pictures)))


def _document(text: str, left_out: list[str], title: str = "", pictures: int = 0) -> dict[str, Any]:
    return {"object": "document", "title": title, "text": text, "pictures": pictures, "left_out": left_out}


async def export_document(request: web.Request) -> web.Response:
    """Write Markdown as a document."""
    body = await read_body(request, MAX_DOCUMENT_BYTES)

    def read() -> tuple[DocumentFields, bytes]:
        fields = read_fields(body, DocumentFields)
        return fields, to_pandoc(fields.text).encode()

    fields, text = await asyncio.to_thread(read)
    title = to_line(fields.title)
    if title.lower() in ("true", "false"):
        title += " "  # pandoc would read a boolean, and a docx would have no title
    about = [f"--metadata={name}:{value}" for name, value in (("title", title), ("lang", fields.language)) if value]
    if is_from_the_right(fields.text):
        about += ["--metadata=dir:rtl", "--metadata=page-progression-direction:rtl"]
    document = await request.app[PANDOC].convert(
        request.app[ENGINE], text, f"--from={DIALECT}", f"--to={fields.format}", *about
    )
    headers = ignored_header(list(fields.model_extra or ()))
    return web.Response(body=document, content_type=MEDIA_TYPES[fields.format], headers=headers)


_DOCUMENT = object_of(
    object={"const": "document"}, title=STRING, text=STRING, pictures=INTEGER, left_out=list_of(STRING)
)
_DOCUMENT["properties"] |= {"encoding": STRING, "encodings": list_of(STRING)}
_FILE = {"type": "string", "format": "binary"}

ROUTES = (
    post(
        "/v1/documents/import",
        import_document,
        _DOCUMENT,
        other_bodies=dict.fromkeys(("application/octet-stream", *MEDIA_TYPES.values()), _FILE),
        errors=(429, 501),
        query={"format": "docx, epub or txt", "encoding": "of a txt; left out: detected"},
    ),
    post(
        "/v1/documents/export",
        export_document,
        other_schemas=dict.fromkeys(MEDIA_TYPES.values(), _FILE),
        body=DocumentFields,
        errors=(429, 501),
    ),
)
