"""Documents: docx and epub through pandoc."""

import io
import os
import sys
import zipfile
from typing import Any

import pytest
from fake_backend import FakeBackend
from server.conftest import Client, Connect

from srb.errors import NotSupportedError
from srb.server.run import pandoc
from srb.server.run.pandoc import find_pandoc

NOVEL = """5* in 1990: a *foreword*, C# & AT&amp;T (c).

# The boat

She said "no" -- and *left*. He **stayed**; 3 < 4 & <i>5</i>.
- No, he said.
1986. A *good*  year.
    He paused.   «\u00a0Non\u00a0»   Then:

* * *

## Below

> A letter.

\\*Not italic\\* [Note]: he lies, `x_y` and ***both***. Ünïcode 🙂 “quotes”.

[Note]: he lies

#

```
>:( ![x](y) C:\\
```
"""


def packed(files: dict[str, str]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as package:
        for name, text in files.items():
            package.writestr(name, text)
    return archive.getvalue()


DAMAGED = packed({"[Content_Types].xml": "<"})


@pytest.fixture
def _pandoc() -> None:
    try:
        find_pandoc()
    except NotSupportedError as error:
        assert not os.environ.get("CI"), "CI installs the extra documents, but pandoc isn't there"
        pytest.skip(error.message)


async def write(client: Client, **fields: Any) -> bytes:
    response = await client.post("/v1/documents/export", json=fields)
    assert response.status == 200, await response.text()
    document: bytes = await response.read()
    return document


async def read(client: Client, document: bytes, kind: str) -> dict[str, Any]:
    response = await client.post(f"/v1/documents/import?format={kind}", data=document)
    assert response.status == 200, await response.text()
    body: dict[str, Any] = await response.json()
    return body


async def error(client: Client, path: str, status: int, **options: Any) -> str:
    response = await client.post(f"/v1/documents/{path}", **options)
    assert response.status == status, await response.text()
    message: str = (await response.json())["error"]["message"]
    return message


@pytest.mark.starts
@pytest.mark.usefixtures("_pandoc")
@pytest.mark.parametrize("kind", ["docx", "epub"])
async def test_a_text_survives_there_and_back(connect: Connect, kind: str) -> None:
    client = await connect(FakeBackend())
    document = await write(client, format=kind, text=NOVEL, title="The *boat*: one", language="de-AT")
    got = await read(client, document, kind)
    about = {"object": "document", "title": "The *boat*: one", "pictures": 0, "left_out": []}
    assert got == about | {"text": got["text"]}
    assert got["text"].split() == NOVEL.split()
    assert got["text"].replace("\n\n", "\n") == NOVEL.replace("\n\n", "\n").strip()
    again = await read(client, await write(client, format=kind, text=got["text"]), kind)
    assert again["text"] == got["text"]


@pytest.mark.starts
@pytest.mark.usefixtures("_pandoc")
async def test_an_epub_has_a_file_for_each_chapter_and_the_language(connect: Connect) -> None:
    client = await connect(FakeBackend())
    document = await write(client, format="epub", text="# One\n\na\n\n# Two\n\nb", title="T & <x>", language="de-AT")
    with zipfile.ZipFile(io.BytesIO(document)) as file:
        assert {"EPUB/text/ch001.xhtml", "EPUB/text/ch002.xhtml"} <= set(file.namelist())
        about = file.read("EPUB/content.opf").decode()
    assert "<dc:language>de-AT</dc:language>" in about
    assert ">T &amp; &lt;x&gt;</dc:title>" in about


@pytest.mark.starts
@pytest.mark.usefixtures("_pandoc")
async def test_an_arabic_book_is_read_from_the_right_and_a_title_may_be_a_boolean(connect: Connect) -> None:
    client = await connect(FakeBackend())
    document = await write(client, format="docx", text="# 1. شمس\n\nقمر", title="True")
    with zipfile.ZipFile(io.BytesIO(document)) as file:
        assert file.read("word/document.xml").decode().count("<w:bidi") == 2
    assert (await read(client, document, "docx"))["title"] == "True"


BODY = """<?xml version="1.0" encoding="UTF-8"?>
<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>
<w:p><w:pPr><w:pStyle w:val="Title"/></w:pPr><w:r><w:t>The boat</w:t></w:r></w:p>
<w:p><w:pPr><w:pStyle w:val="Author"/></w:pPr><w:r><w:t>Ann Author</w:t></w:r></w:p>
<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>One</w:t></w:r></w:p>
<w:p><w:r><w:t xml:space="preserve">He </w:t></w:r><w:r><w:rPr><w:u w:val="single"/></w:rPr><w:t>ran</w:t></w:r></w:p>
<w:p><w:pPr><w:pStyle w:val="Caption"/></w:pPr><w:r><w:t>Two sides</w:t></w:r></w:p>
<w:tbl><w:tr><w:tc><w:p><w:r><w:t>left</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>right</w:t></w:r></w:p></w:tc></w:tr></w:tbl>
<w:p><w:r><w:t>Be</w:t></w:r><w:r><w:pict><w:txbxContent><w:p><w:r><w:t>BOX</w:t></w:r></w:p></w:txbxContent></w:pict></w:r>
<w:fldSimple w:instr="DATE"><w:r><w:t>fore x</w:t></w:r></w:fldSimple>
<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>12</w:t></w:r></w:p>
</w:body></w:document>"""
PACKAGE = {
    "[Content_Types].xml": """<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
<Override PartName="/word/document.xml"
ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>""",
    "_rels/.rels": """<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship
Id="r" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
Target="word/document.xml"/></Relationships>""",
    "word/styles.xml": """<w:styles xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">
<w:style w:type="paragraph" w:styleId="Title"><w:name w:val="Title"/></w:style>
<w:style w:type="paragraph" w:styleId="Caption"><w:name w:val="caption"/></w:style>
<w:style w:type="paragraph" w:styleId="Author"><w:name w:val="Author"/></w:style>
<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/></w:style></w:styles>""",
    "word/_rels/document.xml.rels": """<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
<Relationship Id="s" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/styles"
Target="styles.xml"/></Relationships>""",
    "word/document.xml": BODY,
}


@pytest.mark.starts
@pytest.mark.usefixtures("_pandoc")
async def test_what_markdown_has_no_sign_for_becomes_text(connect: Connect) -> None:
    client = await connect(FakeBackend())
    got = await read(client, packed(PACKAGE), "docx")
    text = "Ann Author\n\n# One\n\nHe *ran*\n\nTwo sides\n\nleft | right\n\nBefore x¹²\n\nBOX"
    assert (got["title"], got["text"], got["left_out"]) == ("The boat", text, [])


BOOK = {
    "META-INF/container.xml": '<c xmlns="x"><rootfiles><rootfile full-path="book.opf"/></rootfiles></c>',
    "book.opf": """<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata
xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The boat</dc:title></metadata><manifest>
<item id="c" href="c.xhtml" media-type="application/xhtml+xml"/><item id="n" href="n.xhtml"
media-type="application/xhtml+xml"/></manifest><spine><itemref idref="c"/><itemref idref="n"/></spine></package>""",
    "c.xhtml": """<html xmlns="http://www.w3.org/1999/xhtml"><body><h1>One</h1><p>The moon<a href="n.xhtml#n"
id="r"><sup>1</sup></a> rose. <img src="x.png" alt="x"/></p><svg xmlns="http://www.w3.org/2000/svg"><text>drawn</text>
</svg></body></html>""",
    "n.xhtml": """<html xmlns="http://www.w3.org/1999/xhtml"><body><h2>Notes</h2><p id="n"><a href="c.xhtml#r">1</a>.
It was full.</p></body></html>""",
}


@pytest.mark.starts
@pytest.mark.usefixtures("_pandoc")
async def test_a_book_has_its_notes_and_what_is_left_out_is_said(connect: Connect) -> None:
    client = await connect(FakeBackend())
    got = await read(client, packed(BOOK), "epub")
    assert (got["title"], got["text"]) == ("The boat", "# One\n\nThe moon[^1] rose.\n\ndrawn\n\n[^1]: It was full.")
    assert got["left_out"] == ["1 picture"]


async def test_a_text_file_is_read_in_its_encoding(connect: Connect) -> None:
    client = await connect(FakeBackend())
    assert (await read(client, "Löwe\r\n".encode(), "txt"))["encodings"] == ["UTF-8"]
    got = await read(client, "Der Löwe schlief.\r\n".encode("cp1252"), "txt")
    assert (got["text"], got["encoding"]) == ("Der Löwe schlief.\n", "Windows-1252")
    assert {"UTF-8", "KOI8-R", "GB18030"} < set(got["encodings"])
    got = await read(client, "Луна".encode("koi8-r"), "txt&encoding=koi8-r")
    assert (got["text"], got["left_out"]) == ("Луна", [])
    assert "encoding is one of UTF-8" in await error(client, "import?format=txt&encoding=x", 400, data=b"x")


@pytest.mark.starts
@pytest.mark.usefixtures("_pandoc")
async def test_a_text_reads_no_file_of_the_server_and_a_broken_document_is_refused(connect: Connect) -> None:
    client = await connect(FakeBackend())
    assert "is no docx" in await error(client, "import?format=docx", 400, data=b"no zip")
    assert "docx" in await error(client, "import?format=docx", 400, data=DAMAGED)
    document = await write(client, format="docx", text="a ![x](/etc/passwd) b")
    with zipfile.ZipFile(io.BytesIO(document)) as file:
        assert not [name for name in file.namelist() if "media/" in name]
        assert "x" in file.read("word/document.xml").decode()


async def test_without_pandoc_the_error_says_how_to_get_it(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await connect(FakeBackend())
    find_pandoc.cache_clear()
    monkeypatch.setitem(sys.modules, "pypandoc", None)
    monkeypatch.setenv("PATH", "")
    fields = {"format": "docx", "text": ""}
    for path, options in (("import?format=docx", {"data": DAMAGED}), ("export", {"json": fields})):
        assert "pip install 'llama-srb[documents]'" in await error(client, path, 501, **options)
    assert 'format is one of txt, docx, epub, got "odt"' in await error(client, "import?format=odt", 400, data=b"x")


async def test_the_conversion_is_bounded(connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    client = await connect(FakeBackend(), api_keys=(b"key",))
    assert "API key is missing" in await error(client, "import?format=docx", 401, data=b"x")
    headers = {"x-api-key": "key"}
    slow = tmp_path / "pandoc"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(pandoc, "find_pandoc", lambda: str(slow))
    monkeypatch.setattr(pandoc, "SECONDS", 0.05)
    assert "within 0.05 s" in await error(client, "import?format=docx", 400, data=DAMAGED, headers=headers)
