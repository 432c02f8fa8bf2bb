"""Word documents. pandoc reads runs in paragraphs, and drops much of what wraps runs, such as text boxes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from copy import deepcopy
from xml.etree import ElementTree as ET

from srb.wire.documents.archive import (
    READING,
    Document,
    count,
    counted,
    parse_xml,
    read_archive,
    refused,
    words_of,
    write_archive,
)
from srb.wire.documents.markdown import keep_spaces

_NAMESPACES = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "v": "urn:schemas-microsoft-com:vml",
    "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
    "r": "http://schemas.openxmlformats.org/officeDocument/2006/relationships",
    "wp": "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing",
    "pic": "http://schemas.openxmlformats.org/drawingml/2006/picture",
    "o": "urn:schemas-microsoft-com:office:office",
}
for _prefix, _uri in _NAMESPACES.items():
    ET.register_namespace(_prefix, _uri)  # pandoc goes by prefixes

_STRICT = {
    b"http://purl.oclc.org/ooxml/wordprocessingml/": b"http://schemas.openxmlformats.org/wordprocessingml/2006/",
    b"http://purl.oclc.org/ooxml/officeDocument/": b"http://schemas.openxmlformats.org/officeDocument/2006/",
    b"http://purl.oclc.org/ooxml/drawingml/": b"http://schemas.openxmlformats.org/drawingml/2006/",
}
"""The namespaces of what Word calls a Strict Open XML Document, and the usual ones."""


def _tags(names: str) -> frozenset[str]:
    """Names with prefixes, as ElementTree has them."""
    return frozenset(f"{{{_NAMESPACES[prefix]}}}{name}" for prefix, name in (each.split(":") for each in names.split()))


def _tag(name: str) -> str:
    return next(iter(_tags(name)))


_P, _R, _T, _RPR, _TBL, _TAB, _BR = map(_tag, ("w:p", "w:r", "w:t", "w:rPr", "w:tbl", "w:tab", "w:br"))
_ALTERNATE = _tag("mc:AlternateContent")
_HOLDERS = _tags("w:body w:footnote w:endnote")
_GONE = _tags("w:del w:moveFrom w:delText")
"""What tracked changes have removed."""

_ABOUT = _tags("w:rPr w:sdtPr w:sdtEndPr w:customXmlPr w:smartTagPr w:tblPr w:tblGrid w:tblPrEx w:trPr w:tcPr")
_KEPT = _tags("w:pPr w:sectPr w:bookmarkStart w:bookmarkEnd m:oMath m:oMathPara")
_SHAPES = _tags("w:drawing w:pict w:object")
_ALONE = _SHAPES | _tags("w:fldChar w:instrText w:footnoteReference w:endnoteReference")
"""What has a run of its own: pandoc doesn't read the rest of its run."""

_IN_RUNS = _tags("w:t w:tab w:br w:sym w:noBreakHyphen w:softHyphen w:footnoteRef w:endnoteRef") | _ALONE
_AS = {_tag("w:ptab"): _TAB, _tag("w:cr"): _BR}
"""Elements that pandoc doesn't know, and those that it knows."""

_FRAME = f"{_tag('w:pPr')}/{_tag('w:framePr')}"
_PARAGRAPHS = {_P, _tag("a:p")}
_TEXTS = {_T, _tag("a:t")}
_SIGNS = {_tag("w:noBreakHyphen"): "\u2011", _tag("w:softHyphen"): "\u00ad"}
_SPACES = {_TAB, _BR, *_AS}
_ONCE = {"title", "subtitle", "date"}
"""Styles of which pandoc keeps the last paragraph only."""

_LEFT_OUT = {
    "headers and footers": ("header", "footer"),
    "comments": ("comments",),
    "diagrams and charts": ("diagramData", "chart"),
}
"""What a text has no place for, and the kinds of parts that have it."""


def read_docx(data: bytes) -> Document:
    """Unwrap a Word document, so that pandoc finds all its words. Raises `InvalidRequestError`."""
    files = read_archive(data, "docx")
    parts = _parts(files)
    document = Document(b"")
    n_embedded = 0
    for name in [each for kind in ("document", "footnotes", "endnotes") for each in parts[kind]]:
        root = _parse(files[name])
        if root is None:
            raise refused(f"the docx is damaged: {name} is no XML; open it in the program that made it, and save it")
        n_embedded += sum(1 for _ in root.iter(_tag("w:altChunk")))
        document.words += words_of(_text(root))
        for text in root.iter(_T):
            text.text = keep_spaces(text.text or "")
        _keep_titles(root, _style_names(files, parts["styles"]))
        for holder in [each for each in root.iter() if each.tag in _HOLDERS]:
            holder[:] = _blocks(holder)
        files[name] = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    if n_embedded:
        document.left_out.append(count(n_embedded, "embedded document"))
    for what, kinds in _LEFT_OUT.items():
        roots = [_parse(files[name]) for kind in kinds for name in parts[kind]]
        if n_words := counted(_text(root) for root in roots if root is not None):
            document.left_out.append(f"{what} ({count(n_words, 'word')})")
    document.data = write_archive(files)
    return document


def _parts(files: dict[str, bytes]) -> dict[str, list[str]]:
    """The names of the parts by their kinds, as the list of contents has them."""
    parts = defaultdict(list)
    types = parse_xml(files["[Content_Types].xml"])
    for each in types if types is not None else ():
        name, kind = each.get("PartName", "").lstrip("/"), each.get("ContentType", "")
        if name in files and not name.startswith("word/glossary/"):
            parts["document" if ".main" in kind else kind.removesuffix("+xml").rpartition(".")[2]].append(name)
    for kind in ("document", "styles"):  # the list may have them by their ending
        if not parts[kind] and (name := f"word/{kind}.xml") in files:
            parts[kind] = [name]
    return parts


def _parse(data: bytes) -> ET.Element | None:
    for strict, usual in _STRICT.items():
        data = data.replace(strict, usual)
    return parse_xml(data)


def _style_names(files: dict[str, bytes], parts: Iterable[str]) -> dict[str, str]:
    """The names of styles by their ids."""
    roots = [root for name in parts if (root := _parse(files[name])) is not None]
    value = _tag("w:val")
    return {
        style.get(_tag("w:styleId"), ""): name.get(value, "").lower()
        for root in roots
        for style in root.iter(_tag("w:style"))
        if (name := style.find(_tag("w:name"))) is not None
    }


def _keep_titles(root: ET.Element, names: dict[str, str]) -> None:
    seen = set()
    for style in root.iter(_tag("w:pStyle")):
        if (name := names.get(style.get(_tag("w:val"), ""), "")) in seen:
            style.set(_tag("w:val"), "")
        elif name in _ONCE:
            seen.add(name)


def _text(root: ET.Element) -> str:
    """The text, without what tracked changes have removed."""
    lines: list[list[str]] = [[]]
    initials: list[list[str]] = []

    def read(holder: Iterable[ET.Element], line: list[str]) -> None:
        for each in holder:
            if each.tag in _PARAGRAPHS:  # may be in a box within a line
                if not initials:
                    lines.append([])
                own = initials.pop() if initials else lines[-1]
                read(each, own)
                if (frame := each.find(_FRAME)) is not None and frame.get(_tag("w:dropCap"), "none") != "none":
                    initials.append(own)
            elif each.tag == _ALTERNATE:
                read(_chosen(each), line)
            elif each.tag in _TEXTS:
                line.append(each.text or "")
            elif each.tag in _SIGNS:
                line.append(_SIGNS[each.tag])
            elif each.tag in _SPACES:
                line.append(" ")
            elif each.tag == _tag("w:ruby"):
                read(each.iter(_tag("w:rubyBase")), line)
                line.append(" ")
                read(each.iter(_tag("w:rt")), line)
                line.append(" ")
            elif each.tag not in _GONE:
                read(each, line)

    read(root, lines[0])
    return "\n".join("".join(line) for line in lines)


def _chosen(alternate: ET.Element) -> ET.Element:
    """The alternative that has most text: programs write one for newer readers, and one for older ones."""

    def size(choice: ET.Element) -> int:
        return sum(len(each.text or "") for each in choice.iter() if each.tag in _TEXTS)

    return max(alternate, key=size, default=alternate)


def _blocks(holder: Iterable[ET.Element]) -> list[ET.Element]:
    """The paragraphs and tables in an element."""
    blocks: list[ET.Element] = []
    for each in holder:
        if each.tag == _P:
            boxes: list[ET.Element] = []
            each[:] = list(_inlines(each, boxes))
            blocks += [each, *boxes]
        elif each.tag == _TBL:
            blocks += map(_row, _within(each, _tag("w:tr")))
        elif each.tag == _ALTERNATE:
            blocks += _blocks(_chosen(each))
        elif each.tag in _KEPT:
            blocks.append(each)
        elif each.tag not in _GONE | _ABOUT:
            is_inline = each.tag == _R or not any(inner.tag in (_P, _TBL) for inner in each.iter())
            blocks += _blocks([_paragraph([each])] if is_inline and next(each.iter(_T), None) is not None else each)
    return blocks


def _within(holder: ET.Element, tag: str) -> Iterator[ET.Element]:
    """Elements of this name, which wrappers may have between them and the holder."""
    for each in holder:
        if each.tag == tag:
            yield each
        elif each.tag == _ALTERNATE:
            yield from _within(_chosen(each), tag)
        elif each.tag not in _GONE:
            yield from _within(each, tag)


def _row(row: ET.Element) -> ET.Element:
    """A table of one row: pandoc drops cells where rows differ in length, and what merged cells have."""
    table, alone = ET.Element(_TBL), ET.Element(row.tag)
    table.append(alone)
    for cell in _within(row, _tag("w:tc")):
        cell[:] = _blocks(cell) or [ET.Element(_P)]
        alone.append(cell)
    return table


def _paragraph(inlines: Iterable[ET.Element]) -> ET.Element:
    paragraph = ET.Element(_P)
    paragraph.extend(inlines)
    return paragraph


def _inlines(holder: Iterable[ET.Element], boxes: list[ET.Element]) -> Iterator[ET.Element]:
    """The runs in an element. boxes: gets the paragraphs of text boxes, which follow."""
    for each in holder:
        if each.tag == _R:
            yield from _runs(each, boxes)
        elif each.tag == _ALTERNATE:
            yield from _inlines(_chosen(each), boxes)
        elif each.tag in (_P, _TBL):
            boxes += _blocks([each])
        elif each.tag == _tag("w:hyperlink") and each.attrib:
            each[:] = list(_inlines(each, boxes))
            yield each
        elif each.tag in _KEPT:
            yield each
        elif each.tag not in _GONE | _ABOUT:
            yield from _inlines(each, boxes)


def _runs(run: ET.Element, boxes: list[ET.Element]) -> Iterator[ET.Element]:
    """Runs that pandoc reads, in place of one."""
    style = run.find(_RPR)

    def styled(*contents: ET.Element) -> ET.Element:
        made = ET.Element(_R)
        made.extend([*([] if style is None else [deepcopy(style)]), *contents])
        return made

    def read(holder: ET.Element) -> Iterator[ET.Element]:
        for each in holder:
            if each.tag == _ALTERNATE:
                yield from read(_chosen(each))
            elif each.tag in _SHAPES:
                boxes.extend(_boxes(each))
                if any(inner.tag in _PICTURES or inner.get(_tag("o:hr")) for inner in each.iter()):
                    yield styled(each)
            elif each.tag in _AS:
                yield styled(ET.Element(_AS[each.tag]))
            elif each.tag in _IN_RUNS:
                yield styled(each)
            elif each.tag == _tag("w:ruby"):
                base, reading = ([*_inlines(each.iter(_tag(part)), boxes)] for part in ("w:rubyBase", "w:rt"))
                yield from [*base, _run(READING[0]), *reading, _run(READING[1])]
            elif each.tag == _R:
                yield from _runs(each, boxes)
            elif each.tag not in _GONE | _ABOUT:
                yield from read(each)

    return read(run)


_PICTURES = _tags("a:blip v:imagedata")
_BOX = _tag("w:txbxContent")


def _boxes(shape: ET.Element) -> list[ET.Element]:
    """The paragraphs of the text boxes in a shape, which loses them."""
    blocks: list[ET.Element] = []
    for each in list(shape):
        if each.tag == _ALTERNATE:
            blocks += _boxes(_chosen(each))
        elif each.tag == _BOX:
            blocks += _blocks(each)
        elif each.tag == _tag("a:p"):
            blocks.append(_paragraph([_run("".join(text.text or "" for text in each.iter(_tag("a:t"))))]))
        elif each.tag == _tag("v:textpath"):
            blocks.append(_paragraph([_run(each.get("string", ""))]))
        else:
            blocks += _boxes(each)
            continue
        shape.remove(each)
    return blocks


def _run(text: str) -> ET.Element:
    run = ET.Element(_R)
    ET.SubElement(run, _T).text = text
    return run
