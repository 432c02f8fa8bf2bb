"""Text files: their encodings, of which most say nothing themselves."""

import codecs
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from srb.errors import InvalidRequestError
from srb.wire.documents.archive import count, refused
from srb.wire.request.read import show

ENCODINGS = {
    "UTF-8": "utf-8",
    "UTF-16LE": "utf-16-le",
    "UTF-16BE": "utf-16-be",
    "UTF-32LE": "utf-32-le",
    "UTF-32BE": "utf-32-be",
    "Windows-1252": "cp1252",
    "Windows-1250": "cp1250",
    "ISO-8859-2": "iso8859-2",
    "Windows-1251": "cp1251",
    "KOI8-R": "koi8-r",
    "IBM866": "cp866",
    "ISO-8859-5": "iso8859-5",
    "Windows-1253": "cp1253",
    "Windows-1254": "cp1254",
    "Windows-1255": "cp1255",
    "Windows-1256": "cp1256",
    "Windows-1257": "cp1257",
    "Windows-1258": "cp1258",
    "GB18030": "gb18030",
    "Big5": "big5hkscs",
    "Shift_JIS": "cp932",
    "EUC-JP": "euc-jp",
    "ISO-2022-JP": "iso2022-jp",
    "EUC-KR": "cp949",
    "Macintosh": "mac-roman",
}
"""Encodings by the names that people know them by, as Python names them."""

_BY_CODEC = {codecs.lookup(codec).name: name for name, codec in ENCODINGS.items()}

_DETECTED = [codec for codec in ENCODINGS.values() if codec not in ("mac-roman", "utf-32-le", "utf-32-be")]

_MARKS = {
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF32_LE: "UTF-32LE",  # begins as UTF-16LE does
    codecs.BOM_UTF32_BE: "UTF-32BE",
    codecs.BOM_UTF16_LE: "UTF-16LE",
    codecs.BOM_UTF16_BE: "UTF-16BE",
}
"""Byte order marks."""

_ALPHABETS = {
    "Windows-1252": (
        "àâæçéèêëîïôœùûüÿ",  # French
        "äöüß",  # German
        "áéíñóúü",  # Spanish
        "ãáàâçéêíóôõú",  # Portuguese
        "àèéìíîòóùú",  # Italian
        "åäöéøæô",  # Swedish, Danish, Norwegian, Finnish
        "áðéíóúýþæö",  # Icelandic
        "àçéèíïóòúü",  # Catalan
        "áéèëíïóöúü",  # Dutch
    ),
    "Windows-1250": (
        "ąćęłńóśźż",  # Polish
        "áčďéěíňóřšťúůýž",  # Czech
        "áäčďéíĺľňóôŕšťúýž",  # Slovak
        "áéíóöőúüű",  # Hungarian
        "čćđšž",  # Croatian, Slovenian
        "ăâîşţ",  # Romanian
    ),
    "Windows-1254": ("çğ\u0131öşüâîû\u0307",),  # Turkish
    "Windows-1257": ("āčēģīķļņšūž", "ąčęėįšųūž", "äõöüšž"),  # Latvian, Lithuanian, Estonian
    "Windows-1258": ("àáâãèéêìíòóôõùúýăđĩũơưạ\u0300\u0301\u0303\u0309\u0323",),  # Vietnamese
}
_ALPHABETS["ISO-8859-2"] = _ALPHABETS["Windows-1250"]
"""The letters of languages in Latin script that ASCII doesn't have, by the encodings that were used for them."""

_SURE = 0.95
"""The least share of such letters that are in the alphabet of the text's language. The others are in names."""

_SAMPLE_BYTES = 1 << 20
_BINARY = re.compile(rb"%PDF|PK\x03\x04|\xd0\xcf\x11\xe0|\{\\rtf|\x89PNG|\xff\xd8\xff|GIF8")


@dataclass(frozen=True)
class PlainText:
    """A text file that was read.

    Attributes:
        encodings: The encoding that it was read with, and all others that it may have. One, if it is certain.
        left_out: What the text doesn't have, for the user.
    """

    text: str
    encodings: list[str]
    left_out: list[str]


def read_plain_text(data: bytes, encoding: str = "") -> PlainText:
    """Read a text file. encoding: a key of `ENCODINGS`; left out, it is detected. Raises `InvalidRequestError`."""
    if _BINARY.match(data):
        raise refused("the file is no text; open it in the program that made it, and save it as docx or txt")
    chosen = next((name for name in ENCODINGS if name.lower() == encoding.lower()), None)
    if encoding and not chosen:
        message = f"encoding is one of {', '.join(ENCODINGS)}, got {show(encoding)}"
        raise InvalidRequestError(message, param="encoding")
    mark = next((mark for mark in _MARKS if data.startswith(mark)), b"")
    likely = [chosen] if chosen else [_MARKS[mark]] if mark else _likely(data)
    name = likely[0]
    text, n_bad = _decode(data[len(mark) :] if mark and _MARKS[mark] == name else data, ENCODINGS[name])
    left_out = [f"{count(n_bad, 'byte')} that {name} doesn't have: \ufffd is in their place"] if n_bad else []
    return PlainText(text.replace("\r\n", "\n").replace("\r", "\n"), likely, left_out)


def _decode(data: bytes, codec: str) -> tuple[str, int]:
    """The text, and at how many places it couldn't be read."""
    text = data.decode(codec, "replace")
    n_own = data.count("\ufffd".encode(codec)) if codec.startswith("utf") or codec == "gb18030" else 0
    return text, text.count("\ufffd") - n_own


def _likely(data: bytes) -> list[str]:
    """The encodings that a text without a byte order mark may have, the likeliest first."""
    likely: list[str] = []
    if b"\x1b$" in data and not _decode(data, "iso2022-jp")[1]:
        likely.append("ISO-2022-JP")  # which is ASCII to others
    if b"\0" not in data:
        text, n_bad = _decode(data, "utf-8")
        if not n_bad and not likely:
            return ["UTF-8"]
        if sum(sign > "\x7f" for sign in text) >= 2 * n_bad:
            likely.append("UTF-8")
        if not likely:
            likely += _of_latin_script(data)
    if not likely:
        from charset_normalizer import from_bytes  # only if needed: it takes a while

        sample = data[:_SAMPLE_BYTES]
        if len(sample) < len(data):
            end = sample.rfind(b"\n")
            sample = sample[: end - end % 2 if b"\0" in sample else end]
        matches = from_bytes(sample, cp_isolation=_DETECTED)
        likely += [name for each in matches if (name := _BY_CODEC.get(codecs.lookup(each.encoding).name))]
        likely += [name for name, codec in ENCODINGS.items() if not _decode(sample, codec)[1]]
    return list(dict.fromkeys([*likely, *ENCODINGS]))


def _of_latin_script(data: bytes) -> list[str]:
    """The encoding of a text in Latin script: which encoding makes an alphabet of its letters."""
    rates = {}
    for name, alphabets in _ALPHABETS.items():
        signs = Counter(sign for sign in data.decode(ENCODINGS[name], "replace").lower() if sign > "\x7f")
        letters = {sign: n for sign, n in signs.items() if unicodedata.category(sign)[0] in "LMSCN"}
        known = max(sum(n for sign, n in letters.items() if sign in alphabet) for alphabet in alphabets)
        rates[name] = known / max(1, sum(letters.values()))
    best = max(rates, key=lambda name: rates[name])
    return [best] if rates[best] >= _SURE else []
