# ruff: noqa: RUF001
"""`banned_strings` that ignore case in all formats. engine/constraints has all alphabets. On the fake backend."""

import pytest
from fake_backend import FakeBackend
from server.conftest import Connect
from server.formats.all_formats import FORMATS, text_of, writes

from srb.llama.model.chat_template import ChatTemplate


def backend(text: str) -> FakeBackend:
    template = ChatTemplate("{{ messages[0].content }}>")
    return FakeBackend(n_cells=4096, chat_template=template, script=writes(text.encode()))


@pytest.mark.parametrize("name", FORMATS)
async def test_phrases_are_found_in_any_case_if_they_ask_for_it(connect: Connect, name: str) -> None:
    client = await connect(backend("ο ΣΟΦΌΣ ναι"))
    shown = await text_of(client, name, banned_strings=["(?i)σοφός"])
    assert shown != "ο ΣΟΦΌΣ ναι"
    assert (shown[:2], shown[-4:]) == ("ο ", " ναι")
    if name != "kobold":  # there they ignore case
        assert await text_of(client, name, banned_strings=["σοφός"]) == "ο ΣΟΦΌΣ ναι"
