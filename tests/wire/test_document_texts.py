import pytest

from srb.wire.documents import from_pandoc, to_pandoc

PROSE = [
    ("- No, she said.", r"\- No, she said."),
    ("1986. A year.", r"1986\. A year."),
    ("-", r"\-"),
    ("====", r"\===="),
    ("[Note]: he lies", r"\[Note]: he lies"),
    ("[^1]: nothing refers to this", r"\[^1]: nothing refers to this"),
    ("a[^1]\n[^1]: a note", "a[^1]\n[^1]: a note"),
    ("\tindented\n    indented", "indented\nindented"),
    ("***\n- - -\n___", "\n* * *\n\n\n* * *\n\n\n* * *\n"),
    ("**bold** *italic*\n# The boat\n> quoted", "**bold** *italic*\n# The boat\n> quoted"),
    ("a\x00b\x0bc", "abc"),
]


@pytest.mark.parametrize(("text", "escaped"), PROSE)
def test_prose_is_escaped_for_pandoc(text: str, escaped: str) -> None:
    assert to_pandoc(text) == escaped


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"3 \< 4 \> 2, \[Note\]: x, a \* b", "3 < 4 > 2, [Note]: x, a * b"),
        (r"\[Note\] and \[a\](b) \[^1\]", r"[Note] and \[a\](b) \[^1\]"),
        ("\\- No\n\n1986\\. x\n\n\\# no heading\n\n\\> no quote", "- No\n\n1986. x\n\n\\# no heading\n\n\\> no quote"),
        (r"\*no emphasis\* C:\\<x", r"\*no emphasis\* C:\\<x"),
    ],
)
def test_escapes_that_the_page_does_not_need_are_removed(written: str, text: str) -> None:
    assert from_pandoc(written) == text
