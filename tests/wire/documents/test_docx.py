"""Word documents: what pandoc drops is unwrapped, and what a text has no place for is reported."""

import io
import zipfile
from collections.abc import Mapping
from xml.etree import ElementTree as ET

import pytest

from srb.errors import InvalidRequestError
from srb.wire.documents.docx import read_docx

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DECLARED = (
    f'xmlns:w="{W}" xmlns:r="r" xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    ' xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:v="urn:schemas-microsoft-com:vml"'
)
STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"
TYPES = "application/vnd.openxmlformats-officedocument."


def docx(body: str, more: Mapping[str, tuple[str, str]] | None = None, main: str = W) -> bytes:
    """A document. more: the contents and kinds of other parts, by their names."""
    document = f"<w:document {DECLARED.replace(W, main)}><w:body>{body}</w:body></w:document>"
    parts = {"word/document.xml": (document, "document.main")}
    parts |= more or {}
    types = "".join(
        f'<Override PartName="/{name}" ContentType="{TYPES}wordprocessingml.{kind}+xml"/>'
        for name, (_, kind) in parts.items()
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{types}</Types>',
        )
        for name, (text, _) in parts.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_STORED)
    return file.getvalue()


def lines(document: bytes) -> list[str]:
    """What pandoc reads: runs that are directly in paragraphs or links, each with one kind of content."""
    with zipfile.ZipFile(io.BytesIO(document)) as archive:
        root = ET.fromstring(archive.read("word/document.xml"))
    names = {"w": W}
    found = []
    for paragraph in root.iterfind(".//w:p", names):
        runs = [run for path in ("w:r", "w:hyperlink/w:r") for run in paragraph.iterfind(path, names)]
        runs.sort(key=list(paragraph.iter()).index)
        signs = {f"{{{W}}}tab": "\t", f"{{{W}}}br": "\n"}
        found.append("".join(each.text or signs.get(each.tag, "") for run in runs for each in run))
    return found


def p(*contents: str) -> str:
    return f"<w:p>{''.join(contents)}</w:p>"


def t(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


def table(*rows: str) -> str:
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"


def cell(*contents: str) -> str:
    return f"<w:tc>{''.join(contents)}</w:tc>"


def box(*contents: str) -> str:
    """A text box as Word writes it, twice."""
    content = f"<w:txbxContent>{''.join(contents)}</w:txbxContent>"
    drawn = f"<w:drawing><a:graphic>{content}</a:graphic></w:drawing>"
    pictured = f"<w:pict><v:shape><v:textbox>{content}</v:textbox></v:shape></w:pict>"
    choices = f'<mc:Choice Requires="wps">{drawn}</mc:Choice><mc:Fallback>{pictured}</mc:Fallback>'
    return f"<w:r><mc:AlternateContent>{choices}</mc:AlternateContent></w:r>"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(p(t("Be"), box(p(t("BOX"))), t("fore")), ["Before", "BOX"], id="text box"),
        pytest.param(p(t("a"), box(), t("b")), ["ab"], id="empty box"),
        pytest.param(p(box(p(t("out"), box(p(t("in")))), table(cell(p(t("c")))))), ["", "out", "in", "c"], id="boxes"),
        pytest.param(p("<w:r><w:pict><v:textpath string='ART'/></w:pict></w:r>"), ["", "ART"], id="WordArt"),
        pytest.param(
            p("<w:r><w:drawing><a:p><a:r><a:t>shape</a:t></a:r></a:p></w:drawing></w:r>"), ["", "shape"], id="shape"
        ),
        pytest.param(
            p(t("彼は"), f"<w:r><w:ruby><w:rt>{t('つき')}</w:rt><w:rubyBase>{t('月')}</w:rubyBase></w:ruby></w:r>"),
            ["彼は月\uff08つき\uff09"],
            id="ruby",
        ),
        pytest.param(
            p(*(f"<w:{name}>{t(name)}</w:{name}>" for name in ("fldSimple", "dir", "bdo", "customXml", "smartTag"))),
            ["fldSimpledirbdocustomXmlsmartTag"],
            id="wrapped",
        ),
        pytest.param(
            p(f"<w:sdt><w:sdtPr/><w:sdtContent>{t('a')}</w:sdtContent></w:sdt><w:new>{t('b')}</w:new>"),
            ["ab"],
            id="control",
        ),
        pytest.param(
            f"<w:customXml>{p(t('a'))}</w:customXml><w:new>{p(t('b'))}</w:new>", ["a", "b"], id="wrapped paragraphs"
        ),
        pytest.param(
            p(f"<w:hyperlink>{t('a')}</w:hyperlink><w:hyperlink r:id='x'><w:ins>{t('b')}</w:ins></w:hyperlink>"),
            ["ab"],
            id="links",
        ),
        pytest.param(
            p("<w:r><w:t>a</w:t><w:ptab/><w:t>b</w:t><w:cr/><w:fldChar/><w:t>c</w:t></w:r>"), ["a\tb\nc"], id="signs"
        ),
        pytest.param(
            p(f"<w:del>{t('x')}</w:del><w:moveFrom>{t('x')}</w:moveFrom><w:moveTo>{t('a')}</w:moveTo>"),
            ["a"],
            id="tracked",
        ),
        pytest.param(
            table(cell(p(t("a"))), f"<w:sdt><w:sdtContent>{cell(p(t('b')))}</w:sdtContent></w:sdt>{cell(p(t('c')))}"),
            ["a", "b", "c"],
            id="table",
        ),
    ],
)
def test_all_words_are_where_pandoc_reads_them(body: str, expected: list[str]) -> None:
    document = read_docx(docx(body))
    assert lines(document.data) == expected
    assert document.left_out == []
    assert document.lost("\n".join(expected)) == []


def test_each_row_is_a_table_and_only_the_first_title_is_one() -> None:
    styles = f"<w:styles xmlns:w='{W}'><w:style w:styleId='T'><w:name w:val='Title'/></w:style></w:styles>"
    title = p("<w:pPr><w:pStyle w:val='T'/></w:pPr>", t("x"))
    document = read_docx(docx(title * 2 + table(cell(p()), cell(p()) * 2), {"word/styles.xml": (styles, "styles")}))
    with zipfile.ZipFile(io.BytesIO(document.data)) as archive:
        written = archive.read("word/document.xml").decode()
    assert (written.count("<w:tbl>"), written.count('w:pStyle w:val="T"')) == (2, 1)


def test_what_a_text_has_no_place_for_is_counted() -> None:
    def part(*texts: str) -> str:
        return f"<w:x xmlns:w='{W}'>{''.join(p(t(text)) for text in texts)}</w:x>"

    parts = {
        "word/header1.xml": (part("The boat", "12"), "header"),
        "word/footer1.xml": (part("3"), "footer"),
        "word/comments.xml": (part("Is this so?"), "comments"),
        "word/glossary/document.xml": (part("not counted"), "document.glossary"),
    }
    document = read_docx(docx(p(t("a")) + "<w:altChunk r:id='x'/>", parts))
    assert document.left_out == ["1 embedded document", "headers and footers (2 words)", "comments (3 words)"]


def test_words_that_pandoc_drops_are_named() -> None:
    initial = p('<w:pPr><w:framePr w:dropCap="drop"/></w:pPr>', t("O"))
    document = read_docx(docx(p(t("It was *not* a_b C:\\x &amp; 3")) + initial + p(t("nce"))))
    assert document.lost("It was \\*not\\* a_b C:\\x & 3\n\n*On*ce") == []
    assert document.lost("It was") == ["6 words that pandoc didn't read: not, ab, C, x, 3, …"]


def test_strict_documents_are_read() -> None:
    body = p(box(p(t("BOX"))))
    strict = docx(body, main=STRICT)
    assert STRICT.encode() in strict
    assert lines(read_docx(strict).data) == lines(read_docx(docx(body)).data) == ["", "BOX"]


def test_a_damaged_document_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"damaged: word/document\.xml is no XML"):
        read_docx(docx("<w:p>"))
