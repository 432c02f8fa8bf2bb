"""Text files: the encoding is detected, and what can't be read is counted."""

import pytest

from srb.errors import InvalidRequestError
from srb.wire.documents.plain_text import ENCODINGS, read_plain_text

TEXTS = {
    "GB18030": "月亮从老港口上慢慢升起、她站在窗前、想着明天会发生什么事情。",
    "Big5": "月亮從老港口上慢慢升起、她站在窗前、想著明天會發生什麼事情。",
    "Shift_JIS": "月が古い港の上にゆっくりと昇り、彼女は窓辺に立って明日のことを考えていた。",
    "EUC-JP": "月が古い港の上にゆっくりと昇り、彼女は窓辺に立って明日のことを考えていた。",
    "ISO-2022-JP": "月が古い港の上にゆっくりと昇り、彼女は窓辺に立って明日のことを考えていた。",
    "EUC-KR": "달이 오래된 항구 위로 천천히 떠올랐고, 그녀는 창가에 서서 내일을 생각했다.",
    "Windows-1251": "Луна медленно поднималась над старой гаванью, и она думала про завтрашний день.",
    "KOI8-R": "Луна медленно поднималась над старой гаванью, и она думала про завтрашний день.",
    "UTF-16LE": "The moon rose over the old harbour, and she thought of tomorrow.",
    "UTF-16BE": "Луна медленно поднималась над старой гаванью, и она думала про завтрашний день.",
    "Windows-1252": "Der Mond stieg über dem alten Hafen auf, und sie dachte an das schöne Mädchen.",
    "Windows-1250": "Měsíc pomalu stoupal nad starým přístavem a ona přemýšlela, co přinese zítřek.",
    "Windows-1254": "Güneş eski şehirde çok geç doğdu, ağaç gölgesi büyüdü, çiçekler sessizce öldü.",
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_an_encoding_is_detected_and_the_others_offered(encoding: str) -> None:
    data = (TEXTS[encoding] + "\r\n\r\n" + TEXTS[encoding]).encode(ENCODINGS[encoding])
    found = read_plain_text(data)
    assert found.text == f"{TEXTS[encoding]}\n\n{TEXTS[encoding]}"
    assert found.encodings[0] == encoding
    assert set(found.encodings) == set(ENCODINGS)
    assert found.left_out == []


def test_utf_8_and_marked_files_are_certain() -> None:
    for codec in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        assert read_plain_text("“The moon” \ufffd".encode(codec)).text == "“The moon” \ufffd"
        assert len(read_plain_text("“The moon” \ufffd".encode(codec)).encodings) == 1
    assert read_plain_text(b"").text == ""


@pytest.mark.parametrize(
    ("data", "text", "n_bad"),
    [
        ("“The moon” rose — so".encode() + b"\x93 x", "“The moon” rose — so\ufffd x", "1 byte"),
        ("“The moon”".encode()[:-1], "“The moon\ufffd", "1 byte"),
        ("“The” “moon” é".encode() + "naïve “x”".encode("cp1252"), "“The” “moon” éna\ufffdve \ufffdx\ufffd", "3 bytes"),
    ],
)
def test_utf_8_with_bad_bytes_stays_utf_8(data: bytes, text: str, n_bad: str) -> None:
    found = read_plain_text(data)
    assert (found.text, found.encodings[0]) == (text, "UTF-8")
    assert found.left_out == [f"{n_bad} that UTF-8 doesn't have: \ufffd is in their place"]
    assert len(found.encodings) > 1


def test_an_encoding_may_be_chosen() -> None:
    assert read_plain_text("Луна".encode("koi8-r"), "koi8-r").text == "Луна"
    assert read_plain_text("Луна".encode("koi8-r"), "KOI8-R").encodings == ["KOI8-R"]
    with pytest.raises(InvalidRequestError, match=r'encoding is one of UTF-8, .* got "klingon"'):
        read_plain_text(b"x", "klingon")


@pytest.mark.parametrize("start", [b"%PDF-1.7", b"PK\x03\x04", b"{\\rtf1", b"\xd0\xcf\x11\xe0"])
def test_a_file_that_is_no_text_is_refused(start: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="no text; open it in the program"):
        read_plain_text(start + b" rest")
