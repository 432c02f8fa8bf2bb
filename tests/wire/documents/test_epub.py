"""Books for e-readers: notes come to their references, and nothing else is lost."""

import io
import re
import zipfile
from collections.abc import Collection, Mapping

import pytest

from srb.wire.documents.archive import Document
from srb.wire.documents.epub import read_epub


def epub(pages: Mapping[str, str | bytes], *, not_in_order: Collection[str] = ()) -> bytes:
    """A book with these pages."""
    items = "".join(f'<item id="{name}" href="{name}" media-type="application/xhtml+xml"/>' for name in pages)
    order = "".join(f'<itemref idref="{name}" linear="no"/>' for name in pages if name not in not_in_order)
    package = (
        f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{order}</spine></package>'
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("META-INF/container.xml", '<c xmlns="x"><rootfile full-path="text/book.opf"/></c>')
        archive.writestr("text/book.opf", package)
        for name, body in pages.items():
            names = 'xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"'
            page = body if isinstance(body, bytes) else f"<html {names}><body>{body}</body></html>"
            archive.writestr(f"text/{name}", page)
    return file.getvalue()


def written(document: Document) -> list[str]:
    """The pages that pandoc reads. A note is in brackets where pandoc puts it."""
    with zipfile.ZipFile(io.BytesIO(document.data)) as archive:
        pages = [archive.read(name).decode() for name in archive.namelist() if "html" in name]
    shown = []
    for page in pages:
        body = "".join(re.findall(r"(?s)<body>(.*)</body>", page))
        for key, note in re.findall(r'<aside epub:type="footnote" id="([^"]*)">(.*?)</aside>', body):
            body = body.replace(f'<a epub:type="noteref" href="#{key}" />', f"[{note}]")
        body = re.sub(r"<aside epub:type=.*?</aside>", "", body)
        shown.append(re.sub(r"</?(?:div|span|section|nav)( /)?>", "", body))
    return [page for page in shown if page]


REFERRED = '<p>The moon<a epub:type="noteref" id="r" href="n.xhtml#n">1</a> rose.</p>'
PLAIN = '<p>The moon<sup><a id="r" href="n.xhtml#n">1</a></sup> rose.</p>'


@pytest.mark.parametrize(
    ("notes", "note"),
    [
        ('<aside epub:type="footnote" id="n"><p>1. Full.</p></aside>', "<p>Full.</p>"),
        ('<h2>Notes</h2><div epub:type="rearnote" id="n">Full.</div>', "Full."),
        ('<h2>Notes</h2><hr/><p id="n"><a href="c.xhtml#r">1</a>) Full 1 x.</p>', "<p>Full 1 x.</p>"),
        ('<ol><li><p id="n">Full. <a href="c.xhtml#r">↩</a></p></li></ol>', "<p>Full. </p>"),
        ('<dl><dt id="n">1</dt><dd><a href="c.xhtml#r">^</a> Full.</dd></dl>', "Full."),
        ('<p id="n">1984 was full.</p>', "<p>1984 was full.</p>"),
    ],
)
def test_a_note_comes_to_its_reference(notes: str, note: str) -> None:
    document = read_epub(epub({"c.xhtml": REFERRED, "n.xhtml": notes}))
    assert written(document) == [f"<p>The moon[{note}] rose.</p>"]
    assert document.left_out == []
    if "href" in notes:  # a link back shows that a number is of a note
        assert written(read_epub(epub({"c.xhtml": PLAIN, "n.xhtml": notes}))) == [
            f"<p>The moon<sup>[{note}]</sup> rose.</p>"
        ]


@pytest.mark.parametrize(
    ("page", "notes", "expected"),
    [
        (REFERRED, "<p>no note</p>", ["<p>The moon<sup>1</sup> rose.</p>", "<p>no note</p>"]),
        (REFERRED.replace("1", " see"), '<p id="n">Full.</p>', ["<p>The moon see[<p>Full.</p>] rose.</p>"]),
        ("<p>x</p>", '<aside epub:type="footnote" id="n">Alone.</aside>', ["<p>x</p>", '<aside id="n">Alone.</aside>']),
        (
            '<p>Chapter <a id="r" href="n.xhtml#n">1</a></p>',
            '<h2 id="n"><a href="c.xhtml#r">1</a></h2><p>x</p>',
            ["<p>Chapter 1</p>", '<h2 id="n">1</h2><p>x</p>'],
        ),
    ],
)
def test_what_is_no_note_stays(page: str, notes: str, expected: list[str]) -> None:
    assert written(read_epub(epub({"c.xhtml": page, "n.xhtml": notes}))) == expected


def test_a_notes_heading_goes_with_all_its_notes_only() -> None:
    rest = "<h1>Next</h1><p>x</p>"
    notes = f'<hr/><h2>Notes</h2><ol><li id="n">Full.</li>{{}}</ol>{rest}'
    page = f'<p>Two<a epub:type="noteref" href="#n">1</a></p>{notes}'
    assert written(read_epub(epub({"c.xhtml": page.format("")}))) == [f"<p>Two[Full.]</p>{rest}"]
    (left,) = written(read_epub(epub({"c.xhtml": page.format("<li>Alone.</li>")})))
    assert left == f"<p>Two[Full.]</p><hr /><h2>Notes</h2><ol><li>Alone.</li></ol>{rest}"


def test_readings_page_numbers_and_the_table_of_contents() -> None:
    contents = '<nav epub:type="toc"><h1>Contents</h1><a href="c.xhtml">One</a></nav>'
    page = '<p>wo<span epub:type="pagebreak">12</span>rd <ruby>月<rt>つき</rt></ruby></p>'
    document = read_epub(epub({"c.xhtml": contents + page}))
    assert written(document) == ["<p>word <ruby>月<rt>\uff08つき\uff09</rt></ruby></p>"]
    assert document.left_out == ["the table of contents (2 words)"]
    assert document.lost("word 月\uff08つき\uff09") == []


def test_pages_outside_the_order_give_their_notes_and_are_counted() -> None:
    notes = '<aside epub:type="footnote" id="n">Full.</aside><p>Other words</p>'
    document = read_epub(epub({"c.xhtml": REFERRED, "n.xhtml": notes}, not_in_order=["n.xhtml"]))
    assert written(document)[0] == "<p>The moon[Full.] rose.</p>"
    assert document.left_out == ["pages outside the book's order (2 words)"]
    assert document.lost("The moon rose.") == ["1 word that pandoc didn't read: Full"]


def test_pages_in_other_encodings_and_with_faults_are_read() -> None:
    russian = b'<?xml version="1.0" encoding="windows-1251"?><html><body><p>%s&nbsp;x</p></body></html>'
    pages = {"c.xhtml": russian % "Луна".encode("cp1251"), "d.xhtml": b"<html><body><p>not <b>well</p></html>"}
    document = read_epub(epub(pages))
    assert written(document)[0] == "<p>Луна\xa0x</p>"
    assert document.lost("Луна x not well") == []


def test_a_book_without_pages_is_left_to_pandoc() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("META-INF/container.xml", "")
    assert read_epub(file.getvalue()).lost("") == []
