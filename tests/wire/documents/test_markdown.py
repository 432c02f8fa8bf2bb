import pytest

from srb.wire.documents.markdown import from_pandoc, to_pandoc

PROSE = [
    ("- No, she said.", r"\- No, she said."),
    ("1986. A year.", r"1986\. A year."),
    ("-", r"\-"),
    ("====", r"\===="),
    ("[Note]: he lies", r"\[Note]: he lies"),
    ("[^1]: nothing refers to this", r"\[^1]: nothing refers to this"),
    ("a[^1]\n[^1]: a note", "a[^1]\n[^1]: a note"),
    ("\tindented\n  two  spaces ", "\u00a0\u00a0\u00a0\u00a0indented\n\u00a0\u00a0two\u00a0 spaces"),
    ("***\n- - -\n___", "\n* * *\n\n\n* * *\n\n\n* * *\n"),
    ("**bold** *italic*\n# The boat\n> quoted", "**bold** *italic*\n# The boat\n> quoted"),
    ("a\x00b\x0bc", "abc"),
    ("&amp; & &#65;", r"\&amp; & \&#65;"),
    ("an ![x](y)!", r"an \![x](y)!"),
    ("```\na `b`\n```", "\\`\\`\\`\na `b`\n\\`\\`\\`"),
    ("C:\\\n\\\\", "C:\\\\\n\\\\"),
    ("#\n##\n####### seven\n# one", "\\#\n\\##\n\\####### seven\n# one"),
    (">:(\n> quoted\n>> twice", "\\>:(\n> quoted\n>> twice"),
]


@pytest.mark.parametrize(("text", "escaped"), PROSE)
def test_prose_is_escaped_for_pandoc(text: str, escaped: str) -> None:
    assert to_pandoc(text) == escaped


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"3 \< 4 \> 2, \[Note\]: x, a \* b", "3 < 4 > 2, [Note]: x, a * b"),
        (r"\[Note\] and \[a\](b) \[^1\]", r"[Note] and \[a\](b) [^1]"),
        ("\\- No\n\n1986\\. x\n\n\\# no heading\n\n\\> no quote", "- No\n\n1986. x\n\n\\# no heading\n\n\\> no quote"),
        (r"\*no emphasis\* C:\\<x", r"\*no emphasis\* C:\\<x"),
        (r"C\# \(c\), 5\* or 4\* \_ \&amp; \![x](y)", "C# (c), 5* or 4* _ &amp; ![x](y)"),
        ("\\*\\*\\*\n\n\\* \\* \\*\n\n\\#", "***\n\n* * *\n\n#"),  # scene breaks
        (r"5\* and *a* and 5\*, \_c\_", r"5* and *a* and 5*, \_c\_"),
        (r"*a 5\* b* \*c 5\*", r"*a 5\* b* \*c 5\*"),
        ("i\\. x\n\na\\) y\n\n\\>:(\n\nC:\\\\", "i. x\n\na) y\n\n>:(\n\nC:\\"),
        ("\\`\\`\\`\na\n\\`\\`\\`", "```\na\n```"),
        ("\\[^a\\], [^1] and \\[^1\\]\n\n[^1]: n", "[^a], [^1] and \\[^1\\]\n\n[^1]: n"),
    ],
)
def test_escapes_that_the_page_does_not_need_are_removed(written: str, text: str) -> None:
    assert from_pandoc(written) == text
