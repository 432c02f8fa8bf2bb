from srb.request_log import logfmt


def test_logfmt_quotes_what_is_not_one_plain_word() -> None:
    line = logfmt(a=1, b=1.26, c="plain:1,x", d='two "words"', e="line\nbreak", f="", g=None, h="é", i="k=v")
    assert line == 'a=1 b=1.3 c=plain:1,x d="two \\"words\\"" e="line\\nbreak" f="" h="\\u00e9" i="k=v"'
