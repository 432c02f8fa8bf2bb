# ruff: noqa: RUF001
"""`banned_strings` that ignore case in all formats, in all alphabets. On the fake backend."""

from typing import Any

import pytest
from fake_backend import FakeBackend
from server.conftest import Connect
from server.formats.all_formats import FORMATS, text_of, writes

from srb.llama.model.chat_template import ChatTemplate

BANNED = [
    ("(?i)σοφός", "ο ΣΟΦΌΣ ναι"),
    ("(?i)σοφόσ", "ο Σοφός ναι"),
    ("(?i)istanbul", "to İSTANBUL go"),
    ("(?i)ISTANBUL", "to ıstanbul go"),
    ("/\\bistanbul\\b/i", "to İstanbul go"),
    ("(?i)straße", "die STRASSE da"),
    ("(?i)can't", "I CAN’T go"),
    ("(?i)“yes”", 'say "YES" now'),
    ("(?i)ÉTÉ", "un été là"),
    ("(?i)ﬁsh", "a FISH swims"),
    ("(?i)ŒUVRE", "une œuvre là"),
    ("(?i)k", "at 3 K there"),  # the sign of Kelvin
]
NOT_BANNED = [
    ("can't", "I can’t go"),
    ("σοφός", "ο ΣΟΦΌΣ ναι"),
    ("(?i)strasse", "die Straße da"),
    ("(?i)fish", "a ﬁsh swims"),
    ("(?i)été", "un e\u0301te\u0301 là"),
]


def backend(text: str) -> FakeBackend:
    template = ChatTemplate("{{ messages[0].content }}>")
    return FakeBackend(n_cells=4096, chat_template=template, script=writes(text.encode()))


def in_formats(cases: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """The first case in every format, and all of them in one."""
    rows = [(name, *cases[0]) for name in FORMATS] + [("native", *case) for case in cases[1:]]
    return pytest.mark.parametrize(("name", "phrase", "text"), rows)


@in_formats(BANNED)
async def test_phrases_are_found_in_any_case(connect: Connect, name: str, phrase: str, text: str) -> None:
    client = await connect(backend(text))
    shown = await text_of(client, name, banned_strings=[phrase])
    assert shown != text
    first, last = text.split(" ", 1)[0], text.rsplit(" ", 1)[1]
    assert shown.startswith(first)
    assert shown.endswith(last)


@in_formats(NOT_BANNED)
async def test_other_phrases_are_exact(connect: Connect, name: str, phrase: str, text: str) -> None:
    fields: dict[str, Any] = {"banned_strings": [phrase]}
    if name == "kobold" and not phrase.startswith("(?i)"):
        return  # there they ignore case
    assert await text_of(await connect(backend(text)), name, **fields) == text
