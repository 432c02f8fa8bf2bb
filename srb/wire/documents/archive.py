"""The archives that docx and epub are, and the words that an import must not lose."""

import io
import re
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html.entities import html5
from xml.etree import ElementTree as ET

from srb.errors import InvalidRequestError

MAX_TEXT_BYTES = 128 << 20
"""The most bytes of all texts in an archive: documents are compressed, and may grow a thousandfold."""

WORDS_NAMED = 5

READING = "\uff08\uff09"
"""The parentheses around the reading of a Japanese word (ruby)."""

_PARTS = {"docx": "[Content_Types].xml", "epub": "META-INF/container.xml"}
"""A file that each archive has."""

_OLE = b"\xd0\xcf\x11\xe0"
"""The first bytes of old Word documents, and of new ones with a password."""

_ENCRYPTION = "META-INF/encryption.xml"
_ALGORITHM = re.compile(rb"""Algorithm\s*=\s*["']([^"']*)""")
_OF_FONTS = {b"http://www.idpf.org/2008/embedding", b"http://ns.adobe.com/pdf/enc#RC"}
_TEXTS = (".xml", ".rels", ".opf", ".ncx", ".xhtml", ".html", ".htm", ".xht")


@dataclass
class Document:
    """A document for pandoc, and what is known about it before.

    Attributes:
        data: The archive, changed so that pandoc reads all of it.
        words: The words that the result must have.
        left_out: What the result won't have, for the user.
    """

    data: bytes
    words: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)

    def lost(self, text: str) -> list[str]:
        """What pandoc has left out of its result without a word, for the user."""
        lost = self.words - words_of(text)
        if not lost:
            return []
        named = ", ".join(list(lost)[:WORDS_NAMED]) + (", …" if len(lost) > WORDS_NAMED else "")
        return [f"{count(lost.total(), 'word')} that pandoc didn't read: {named}"]


def read_archive(data: bytes, kind: str) -> dict[str, bytes]:
    """The files in a docx or an epub, by their names. Those that have no text are empty.

    Raises `InvalidRequestError`.
    """
    if data.startswith(_OLE):
        raise refused("the file is an old Word document (.doc), or has a password; save it as docx without a password")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            texts = {each.filename for each in archive.infolist() if each.filename.lower().endswith(_TEXTS)}
            if sum(each.file_size for each in archive.infolist() if each.filename in texts) > MAX_TEXT_BYTES:
                raise refused(f"the {kind} has more than {MAX_TEXT_BYTES >> 20} MiB of text; import it in parts")
            files = {name: archive.read(name) if name in texts else b"" for name in archive.namelist()}
            if kind == "epub" and "mimetype" in files:
                files["mimetype"] = b"application/epub+zip"
    except (zipfile.BadZipFile, RuntimeError, OSError, EOFError, ValueError, zlib.error, NotImplementedError) as error:
        raise refused(f"the file is no {kind}, or incomplete: {error}; open it in the program that made it") from None
    if _PARTS[kind] not in files:
        raise refused(f"the file is no {kind}: it has no {_PARTS[kind]}; save it as {kind}")
    if set(_ALGORITHM.findall(files.get(_ENCRYPTION, b""))) - _OF_FONTS:
        raise refused("the epub is encrypted (DRM), so only its shop's reader can open it; import one without DRM")
    return files


def write_archive(files: Mapping[str, bytes]) -> bytes:
    """An archive of these files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def refused(message: str) -> InvalidRequestError:
    """The error of a document that can't be imported."""
    return InvalidRequestError(message, code="document_not_converted")


def count(n: int, noun: str) -> str:
    """A number of things: `1 word`, `2 words`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


_ENTITY = re.compile(rb"&(?!(?:amp|lt|gt|quot|apos);)(\w+;)")
_PIECE = 1 << 16


def parse_xml(data: bytes) -> ET.Element | None:
    """The root of an XML file, which may use the entities of HTML; None if it can't be read.

    It is parsed in pieces, so that other threads run in between.
    """
    parser = ET.XMLParser()
    data = _ENTITY.sub(_character, data)
    try:
        for start in range(0, len(data), _PIECE):
            parser.feed(data[start : start + _PIECE])
        root: ET.Element = parser.close()
    except (ET.ParseError, LookupError, ValueError):
        return None
    return root


def _character(entity: re.Match[bytes]) -> bytes:
    return html5.get(entity[1].decode(), "\ufffd").encode("ascii", "xmlcharrefreplace")


_MARKS = re.compile(r"(?<!\\)\[\^[^\]\n]+\]:?|\]\([^)\n]*\)|[\\*_]")
_WORD = re.compile(r"\w+")


def words_of(text: str) -> Counter[str]:
    """The words of a text, without the signs of Markdown, footnotes' numbers and links' targets."""
    return Counter(_WORD.findall(unicodedata.normalize("NFKC", _MARKS.sub("", text))))


def counted(texts: Iterable[str]) -> int:
    """How many words texts have. Numbers, such as those of pages, don't count."""
    return sum(n for text in texts for word, n in words_of(text).items() if not word.isdigit())
