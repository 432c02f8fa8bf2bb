"""Documents of word processors and e-readers: the bodies of their routes, and the Markdown of the page for pandoc.

The page's Markdown has headings, bold, italics, block quotes, scene breaks, links and footnotes; a line break is a line
break. Everything else that a writer types is prose, also where Markdown has another meaning for it: a dialogue that
begins with a dash is no list, an indented paragraph no code, and "<3" no HTML.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from srb.wire.request.read import BodyFields, Text
from srb.wire.stories import MAX_TITLE_CHARS

Format = Literal["docx", "epub"]

MEDIA_TYPES: dict[Format, str] = {
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "epub": "application/epub+zip",
}

DIALECT = (
    "markdown_strict-raw_html-shortcut_reference_links-spaced_reference_links+all_symbols_escapable+escaped_line_breaks"
    "+footnotes+hard_line_breaks+intraword_underscores+space_in_atx_header+startnum"
)
"""The page's Markdown as pandoc names it."""


class DocumentFields(BodyFields):
    """The body of `POST /v1/documents/export`."""

    format: Format = Field(description="the format of the document.")
    text: Text = Field(description="the text, in Markdown.")
    title: Text = Field("", max_length=MAX_TITLE_CHARS, description="the title of the document.")
    language: str = Field(
        "",
        max_length=35,
        pattern=r"^([A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*)?$",
        description="the language of the text, such as `de` or `en-GB`. Left out: unknown.",
    )


_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")
_SCENE_BREAK = re.compile(r"([*_-])[ \t]*(?:\1[ \t]*){2,}")
_NO_PROSE = re.compile(r"\d+(?=[.)](?:\s|$))|(?=[-+*](?:\s|$)|=+$|\[[^\]^]+\]:)")
"""The beginning of a line that Markdown would read as a list, as the underline of a heading, or as a link's target."""

_FOOTNOTE = re.compile(r"\[\^[^\]\n]+\]")


def to_line(text: str) -> str:
    """The text on one line, without characters that documents can't have."""
    return " ".join(_NOT_IN_XML.sub("", text).split())


def to_pandoc(text: str) -> str:
    """The page's Markdown, escaped so that pandoc reads as prose what is prose on the page."""
    lines = _NOT_IN_XML.sub("", text.replace("\r\n", "\n")).split("\n")
    marks = Counter(_FOOTNOTE.findall(text))
    return "\n".join(_line(line.strip(" \t"), marks) for line in lines)


def _line(line: str, marks: Mapping[str, int]) -> str:
    if _SCENE_BREAK.fullmatch(line):
        return "\n* * *\n"
    note = _FOOTNOTE.match(line)
    if start := _NO_PROSE.match(line):
        at = start.end()
    elif note and marks[note[0]] == 1 and line.startswith(":", note.end()):
        at = 0  # pandoc drops the text of a footnote that nothing refers to
    else:
        return line
    return f"{line[:at]}\\{line[at:]}"


_NO_ESCAPES = re.compile(r"(?<!\\)\\(?:(?=<)|(?<!^\\)(?=>))|(?<= )\\(?=\* )|^\\(?=[-+*](?:\s|$)|=+$)", re.M)
_BRACKETS = re.compile(r"(?<!\\)\\\[((?!\^)[^\[\]\n]*)\\\](?![(\[])")
_NUMBER = re.compile(r"^(\d+)\\(?=[.)](?:\s|$))", re.M)


def from_pandoc(text: str) -> str:
    """The page's Markdown, without the escapes that `to_pandoc` writes: a model would imitate them."""
    text = _NUMBER.sub(r"\1", _NO_ESCAPES.sub("", text))
    return _BRACKETS.sub(r"[\1]", text).strip("\n")
