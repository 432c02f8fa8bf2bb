"""The Markdown of the page for pandoc, and the body of its export.

The page's Markdown has headings, bold, italics, block quotes, scene breaks, links and footnotes; a line break is a line
break. Everything else that a writer types is prose, also where Markdown has another meaning for it: a dialogue that
begins with a dash is no list, an indented paragraph no code, and "<3" no HTML.
"""

import re
import unicodedata
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
_NO_PROSE = re.compile(r"\d+(?=[.)](?:\s|$))|(?=[-+*](?:\s|$)|=+$|#+$|#{7}|>[^\s>]|\[[^\]^]+\]:)")
"""The beginning of a line that Markdown would read as a list, as the underline of a heading, as a heading without text,
as a quote, or as a link's target."""

_SYNTAX = re.compile(r"(?<!\\)(?:&(?=#?\w+;)|!(?=\[)|\\(?:\\\\)*$)|^`{3,}")
"""An entity, a picture, the end of a line that isn't an escape, and a fence of code."""

_FOOTNOTE = re.compile(r"\[\^[^\]\n]+\]")


_NO_BREAK = "\u00a0"
_HEAD = re.compile(r"^(?:#{1,6} +|(?:> ?)+)")
"""The signs of a heading or a quote."""

_KEPT = re.compile(rf"^{_NO_BREAK}+ ?|{_NO_BREAK}+ ", re.M)
"""What `to_pandoc` and `keep_spaces` make of spaces; not the space of a language, as in « word »."""


def keep_spaces(text: str) -> str:
    """The text with no-break spaces in place of all but the last of several spaces, which pandoc would drop."""
    return re.sub("  +", lambda spaces: f"{_NO_BREAK * (len(spaces[0]) - 1)} ", text)


def to_line(text: str) -> str:
    """The text on one line, without characters that documents can't have."""
    return " ".join(_NOT_IN_XML.sub("", text).split())


def is_from_the_right(text: str) -> bool:
    """Whether a text is read from right to left, as its first letter says."""
    sides = map(unicodedata.bidirectional, text)
    return next((side != "L" for side in sides if side in ("L", "R", "AL")), False)


def to_pandoc(text: str) -> str:
    """The page's Markdown, escaped so that pandoc reads as prose what is prose on the page."""
    lines = _NOT_IN_XML.sub("", text.replace("\r\n", "\n")).split("\n")
    marks = Counter(_FOOTNOTE.findall(text))
    return "\n".join(_line(line.expandtabs(4).rstrip(" "), marks) for line in lines)


def _line(line: str, marks: Mapping[str, int]) -> str:
    if _SCENE_BREAK.fullmatch(line.strip()):
        return "\n* * *\n"
    rest = _HEAD.sub("", line)
    words = rest.lstrip(" ")
    line = line.removesuffix(rest) + _NO_BREAK * (len(rest) - len(words)) + keep_spaces(words)
    note = _FOOTNOTE.match(line)
    at = 0
    if start := _NO_PROSE.match(line):
        at = start.end()
    elif not (note and marks[note[0]] == 1 and line.startswith(":", note.end())):
        return _SYNTAX.sub(_escape, line)  # pandoc drops the text of a footnote that nothing refers to
    return f"{line[:at]}\\{_SYNTAX.sub(_escape, line[at:])}"


def _escape(syntax: re.Match[str]) -> str:
    return f"{syntax[0]}\\" if syntax[0].startswith("\\") else "".join(f"\\{sign}" for sign in syntax[0])


_NO_ESCAPES = re.compile(
    r"(?<!\\)\\(?:(?=[<()&]|!\[)|(?<!^\\)(?=>)|(?<!^\\)(?<!> \\)(?=#))"
    r"|^\\(?=[-+*](?:\s|$)|=+$|#+$|#{7}|>[^\s>])|\\(?=\\$)",
    re.M,
)
_BRACKETS = re.compile(r"(?<!\\)\\\[((?!\^)[^\[\]\n]*)\\\](?![(\[])")
_NOTES = re.compile(r"(?<!\\)\\\[(\^[^\[\]\n]+)\\\]")
_NUMBER = re.compile(r"^(\w+)\\(?=[.)](?:\s|$))", re.M)
_FENCE = re.compile(r"^(?:\\`){3,}", re.M)
_EMPHASIS = [re.compile(rf"(?<!\\)(?:\\{sign})+|{sign}+") for sign in ("\\*", "_")]


def from_pandoc(text: str) -> str:
    """The page's Markdown, without the escapes that `to_pandoc` writes: a model would imitate them."""
    text = _KEPT.sub(lambda spaces: " " * len(spaces[0]), text)
    text = _NUMBER.sub(r"\1", _NO_ESCAPES.sub("", text))
    text = _NOTES.sub(lambda note: note[0] if f"[{note[1]}]:" in text else f"[{note[1]}]", _BRACKETS.sub(r"[\1]", text))
    text = _FENCE.sub(lambda fence: fence[0].replace("\\", ""), text)
    return "".join(map(_without_lone_signs, re.split(r"(\n{2,})", text.strip("\n"))))


def _without_lone_signs(paragraph: str) -> str:
    """The paragraph without the escapes of asterisks and underscores that can't begin or end an emphasis."""
    for pattern in _EMPHASIS:
        signs = list(pattern.finditer(paragraph))
        closes = {each.start() for each in signs if paragraph[: each.start()][-1:].strip()}
        last = max(closes, default=-1)
        needed: set[int] = set()
        n_plain, is_open = 0, False
        for each in signs:
            at, opens = each.start(), bool(paragraph[each.end() : each.end() + 1].strip())
            if not each[0].startswith("\\"):
                n_plain += 1  # pandoc writes these in pairs
                continue
            if (opens and at < last) or (at in closes and (n_plain % 2 or is_open)):
                needed.add(at)
            is_open |= opens

        def unescape(sign: re.Match[str], needed: set[int] = needed) -> str:
            return sign[0] if sign.start() in needed else sign[0].replace("\\", "")

        paragraph = pattern.sub(unescape, paragraph)
    return paragraph
