"""Books for e-readers. pandoc finds notes only in the file of their reference, and drops all others."""

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import takewhile
from posixpath import dirname, join, normpath
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from srb.wire.documents.archive import (
    READING,
    Document,
    count,
    counted,
    parse_xml,
    read_archive,
    words_of,
    write_archive,
)

_HTML = "http://www.w3.org/1999/xhtml"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_OPF = "{http://www.idpf.org/2007/opf}"
_TYPE = "{http://www.idpf.org/2007/ops}type"
ET.register_namespace("epub", _TYPE[1:].partition("}")[0])

_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_A, _BODY = "a", "body"
_MOVED = "moved"
"""Stands where a note was."""

_EXTENTS = {"p", "li", "aside", "div", "dd", "blockquote"}
"""What a note may be."""

_BLOCKS = {*_EXTENTS, "section", "article", "td", "th", "dt", "body"}
_LINES = {
    *_BLOCKS,
    *_HEADINGS,
    "tr",
    "br",
    "hr",
    "pre",
    "figure",
    "figcaption",
    "caption",
}
_UNSEEN = {
    "head",
    "script",
    "style",
    "template",
    "{http://www.w3.org/1998/Math/MathML}math",
}

_REFERENCES = {"noteref", "doc-noteref"}
_NOTES = {"footnote", "endnote", "rearnote", "note", "doc-footnote", "doc-endnote"}
_BACKLINKS = {"backlink", "doc-backlink", "referrer"}
_PAGES = {"pagebreak", "doc-pagebreak"}
_CONTENTS = {"toc", "doc-toc", "landmarks", "page-list", "doc-pagelist"}

_MARK = re.compile(r"[\[({]?\s*(\d{1,4}|[a-z]|[ivxlc]{1,6}|[*†‡§¶]{1,4})\s*[\])}]?[.:]?", re.I)
"""What refers to a note: a number, a letter or a sign."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.I)
_ASIDE = re.compile(rb"""\blinear\s*=\s*["']no["']""")
_ARROW = re.compile(r"[\s\[(]*[↩↑↵⤴⏎←^▲][\ufe0e\ufe0f\s\])]*")


def read_epub(data: bytes) -> Document:
    """Put the notes of a book where pandoc finds them, and leave out what is no text of it.

    Raises `InvalidRequestError`.
    """
    files = read_archive(data, "epub")
    document = Document(b"")
    title, pages, others = _contents(files)
    book = {name: root for name in [*pages, *others] if (root := _page(files[name])) is not None}
    n_contents = counted(_text(each) for name in pages if name in book for each in _take(book[name], _CONTENTS))
    if n_contents:
        document.left_out.append(f"the table of contents ({count(n_contents, 'word')})")
    for root in book.values():
        _drop_title(root, title)
        _take(root, _PAGES)
        _show_readings(root)
    _Notes(book).move(pages)
    for name in pages:
        if name in book:
            book[name].set("xmlns", _HTML)
            files[name] = ET.tostring(book[name], encoding="utf-8", xml_declaration=True)
            document.words += words_of(_text(book[name]))
        else:
            document.words += words_of(
                re.sub(r"(?s)<(script|style|head)\b.*?</\1\s*>|<[^>]*>", " ", _decode(files[name]))
            )
    if n_words := counted(_text(book[name]) for name in others if name in book):
        document.left_out.append(f"pages outside the book's order ({count(n_words, 'word')})")
    document.data = write_archive(files)
    return document


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _contents(files: dict[str, bytes]) -> tuple[str, list[str], list[str]]:
    """The title, the names of the pages in the book's order, and of the pages that aren't in it."""
    container = parse_xml(files["META-INF/container.xml"])
    name = next((each.get("full-path", "") for each in _iter(container) if each.tag.endswith("}rootfile")), "")
    if name in files:  # pandoc doesn't read pages that readers only show by a link
        files[name] = _ASIDE.sub(b"", files[name])
    package = parse_xml(files.get(name, b""))
    names, others = {}, []
    for item in _iter(package, _OPF + "item"):
        path = _path(name, item.get("href", ""))
        if path in files and "html" in item.get("media-type", ""):
            names[item.get("id", "")] = path
            if "nav" not in item.get("properties", "").split():
                others.append(path)
    keys = [each.get("idref", "") for each in _iter(package, _OPF + "itemref")]
    pages = list(dict.fromkeys(names[key] for key in keys if key in names))
    title = next((each.text or "" for each in _iter(package, _TITLE)), "")
    return title, pages, [each for each in others if each not in pages]


def _page(data: bytes) -> ET.Element | None:
    """A page, with HTML's names as they are."""
    root = parse_xml(data)
    for each in _iter(root):
        each.tag = each.tag.removeprefix(f"{{{_HTML}}}")
    return root


def _iter(root: ET.Element | None, tag: str | None = None) -> Iterable[ET.Element]:
    return () if root is None else root.iter(tag)


def _path(base: str, link: str) -> str:
    return normpath(join(dirname(base), unquote(link)))


def _kinds(element: ET.Element) -> set[str]:
    return set(f"{element.get(_TYPE, '')} {element.get('role', '')}".split())


def _text(root: ET.Element) -> str:
    parts: list[str] = []

    def read(element: ET.Element) -> None:
        if element.tag in _UNSEEN:
            return
        end = "\n" if element.tag in _LINES else ""
        parts.append(end + (element.text or ""))
        for each in element:
            read(each)
            parts.append(each.tail or "")
        parts.append(end)

    read(root)
    return "".join(parts)


def _strings(element: ET.Element) -> Iterator[tuple[ET.Element, str]]:
    """The elements and attributes of ElementTree that have the text, in its order."""
    yield element, "text"
    for each in element:
        yield from _strings(each)
        yield each, "tail"


def _replace(holder: ET.Element, element: ET.Element, new: ET.Element | None = None) -> None:
    """Put another element, or nothing, in the place of one. The text that follows stays."""
    at = list(holder).index(element)
    tail, element.tail = element.tail, None
    if new is not None:
        new.tail = tail
        holder[at] = new
        return
    holder.remove(element)
    if at:
        holder[at - 1].tail = (holder[at - 1].tail or "") + (tail or "")
    else:
        holder.text = (holder.text or "") + (tail or "")


def _take(root: ET.Element, kinds: set[str]) -> list[ET.Element]:
    """Take out the elements of these kinds."""
    found = [(holder, each) for holder in root.iter() for each in holder if _kinds(each) & kinds]
    for holder, each in found:
        _replace(holder, each, ET.Element("body") if each.tag == "body" else None)
    return [each for _, each in found]


def _drop_title(root: ET.Element, title: str) -> None:
    """Drop the headings that say the title once more. pandoc writes them in title pages and above untitled text."""
    for section in [
        each for each in root.iter() if "titlepage" in _kinds(each) or "unnumbered" in each.get("class", "")
    ]:
        for heading in list(section):
            if heading.tag in _HEADINGS and _text(heading).split() == title.split():
                _replace(section, heading)


def _show_readings(root: ET.Element) -> None:
    """Put the readings of words (ruby) in parentheses."""
    for ruby in root.iter("ruby"):
        if ruby.find(".//rp") is None:
            for reading in ruby.iter("rt"):
                reading.text = READING[0] + (reading.text or "")
                if len(reading):
                    reading[-1].tail = (reading[-1].tail or "") + READING[1]
                else:
                    reading.text += READING[1]


class _Notes:
    """Moves the notes of a book into the files of their references."""

    def __init__(self, book: Mapping[str, ET.Element]) -> None:
        self._book = book
        self._parents = {each: holder for root in book.values() for holder in root.iter() for each in holder}
        self._targets = {
            (name, key): each
            for name, root in book.items()
            for each in root.iter()
            for key in (each.get("id"), each.get("name"))
            if key
        }

    def move(self, pages: Iterable[str]) -> None:
        """Move the notes that these pages refer to. The others become text, which pandoc reads."""
        links = [(name, link) for name in pages for link in _iter(self._book.get(name), _A)]
        found = [(name, link, note) for name, link in links if (note := self._note(name, link)) is not None]
        texts = {link: _text(link) for _, link, _ in found}
        for _, link, note in found:
            self._clean(note, self._block(link), texts[link].strip())
        for each in self._parents:
            each.attrib.pop(_TYPE, None)  # pandoc drops notes without references, title pages and more
        asides = []
        for k, (name, link, note) in enumerate(found):
            aside = ET.Element("aside", {_TYPE: "footnote", "id": f"note-{k}"})
            copy = deepcopy(note)
            copy.tag, copy.tail, copy.attrib = "p" if note.tag == "p" else "div", None, {}
            aside.append(copy)
            asides.append((name, aside))
            self._refer(link, f"#note-{k}", "" if _MARK.fullmatch(texts[link].strip()) else texts[link])
        for note, mark in {note: texts[link].strip() for _, link, note in found}.items():
            holder = self._parents[note]
            before = holder[max(0, list(holder).index(note) - 1)]
            if before.tag == "dt" and _text(before).strip() == mark:
                _replace(holder, before)
            _replace(holder, note, ET.Element(_MOVED))
        for root in self._book.values():
            _prune(root)
        for name, aside in asides:
            next(self._book[name].iter(_BODY)).append(aside)
        for name, link in links:
            self._unlink(name, link)

    def _refer(self, link: ET.Element, target: str, words: str) -> None:
        tail, link.tail = link.tail, None
        link.clear()
        link.tag, link.text = "span", words
        ET.SubElement(link, _A, {_TYPE: "noteref", "href": target})
        link.tail = tail

    def _target(self, name: str, link: ET.Element) -> ET.Element | None:
        path, _, key = link.get("href", "").partition("#")
        return self._targets.get((_path(name, path) if path else name, unquote(key)))

    def _above(self, element: ET.Element) -> Iterator[ET.Element]:
        """The element, and all that it is in."""
        above: ET.Element | None = element
        while above is not None:
            yield above
            above = self._parents.get(above)

    def _block(self, element: ET.Element) -> ET.Element:
        return next(each for each in self._above(element) if each.tag in _LINES or each not in self._parents)

    def _before(self, link: ET.Element) -> str:
        """The text before a link in its line."""
        strings = takewhile(lambda string: string[0] is not link, _strings(self._block(link)))
        return "".join(getattr(each, part) or "" for each, part in strings)

    def _note(self, name: str, link: ET.Element) -> ET.Element | None:
        """The note that a link refers to, if it refers to one."""
        target, kinds = self._target(name, link), _kinds(link)
        if target is None or kinds & _BACKLINKS:
            return None
        is_mark = _MARK.fullmatch(_text(link).strip()) is not None
        declared = next((each for each in self._above(target) if _kinds(each) & _NOTES), None)
        note = self._extent(target) if declared is None else declared
        if note is None or link in note.iter():
            return None
        if kinds & _REFERENCES or (declared is not None and is_mark):
            return note
        if not is_mark or not self._before(link).strip() or any(each.tag in _HEADINGS for each in note.iter()):
            return None
        here = self._block(link)
        leads_back = any(
            back is not None and self._block(back) is here
            for each in note.iter(_A)
            for back in [self._target(self._name(note), each)]
        )
        return note if leads_back else None

    def _name(self, element: ET.Element) -> str:
        *_, root = self._above(element)
        return next(name for name, each in self._book.items() if each is root)

    def _extent(self, target: ET.Element) -> ET.Element | None:
        """The paragraph or item that a link's target is in, or that follows the target."""
        note = next((each for each in self._above(target) if each.tag in _BLOCKS), None)
        if note is not None and note.tag in _EXTENTS and _text(note).strip():
            return note
        holder = self._parents.get(target)
        following = list(holder or ())[list(holder or ()).index(target) + 1 :] if holder is not None else []
        note = next(iter(following), None)
        return note if note is not None and note.tag in _EXTENTS else None

    def _clean(self, note: ET.Element, here: ET.Element, mark: str) -> None:
        """Remove the number of a note, and its link back to here."""
        own = self._name(note)
        number = _MARK.fullmatch(mark)
        signs = rf"[\s\[({{]*{re.escape(number[1])}(?!\w)[\s.:\])}}]*" if number else ""
        for each in list(note.iter(_A)):
            text, back = _text(each).strip(), self._target(own, each)
            is_back = _kinds(each) & _BACKLINKS or (back is not None and self._block(back) is here)
            if (not text and not len(each)) or (is_back and (_ARROW.fullmatch(text) or _MARK.fullmatch(text))):
                _replace(self._parents[each], each)
                signs = signs or r"[\s.:\])}]+"
        for each, part in _strings(note):
            text = getattr(each, part) or ""
            if text.strip():
                setattr(each, part, re.sub(f"^(?:{signs}|[\\s.:\\])}}]+)", "", text, count=1) if signs else text)
                return

    def _unlink(self, name: str, link: ET.Element) -> None:
        """Make text of a link within the book. A number is raised: plain, it would be part of the word before it."""
        address = link.get("href", "")
        is_number = _text(link).strip().isdigit()
        is_within = address.startswith("#") or _path(name, address.partition("#")[0]) in self._book
        if link.tag == _A and not _SCHEME.match(address) and (is_number or is_within):
            is_raised = any(each.tag == "sup" for each in [*self._above(link), *link.iter()])
            is_glued = is_number and not is_raised and self._before(link)[-1:].strip()
            link.tag, link.attrib = "sup" if is_glued else "span", {}


def _prune(holder: ET.Element) -> bool:
    """Remove what held moved notes only, and the headings above it. Returns whether there were any."""
    found = False
    for each in list(holder):
        if each.tag == _MOVED:
            found = True
        elif _prune(each):
            found = True
            if not _text(each).strip() and each.tag != _BODY:
                _replace(holder, each, ET.Element(_MOVED))
    if found:
        below, is_moved = 0, False  # the level of the next heading, and whether only notes were before it
        for each in reversed(list(holder)):
            level = _level(each)
            if each.tag == _MOVED:
                is_moved = True
            elif level and is_moved and below <= level:
                _replace(holder, each, ET.Element(_MOVED))
            elif level or _text(each).strip():
                below, is_moved = level or 8, False
            if (each.tail or "").strip():
                below, is_moved = 8, False
        for each in [each for each in holder if each.tag == _MOVED]:
            _replace(holder, each)
    return found


def _level(element: ET.Element) -> int:
    """The level of a heading, which may be all that an element has; 0 if it isn't one."""
    if element.tag == "hr":
        return 7
    headings = [each for each in element.iter() if each.tag in _HEADINGS]
    if not headings or _text(element).split() != " ".join(map(_text, headings)).split():
        return 0
    return min(_HEADINGS[each.tag] for each in headings)
