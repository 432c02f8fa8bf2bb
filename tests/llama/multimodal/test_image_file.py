"""What image files may have besides pixels: Pillow reads each part of a file in Python, one after the other."""

import io
import struct
import zlib
from functools import partial

import pytest
from PIL import Image

from srb.errors import InvalidRequestError
from srb.llama.multimodal.media_files import read_image

SIZE = 40


def chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def image(form: str, size: int = SIZE) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((size, size), 50).convert("P" if form == "GIF" else "RGB").save(file, form)
    return file.getvalue()


JPEG, PNG, GIF = map(image, ("JPEG", "PNG", "GIF"))
PIXELS, END = PNG.index(b"IDAT") - 4, PNG.index(b"IEND") - 4
FRAME = 13 + 3 * (2 << (GIF[10] & 7))
BMP = b"BM" + struct.pack("<IHHI", 0, 0, 0, 1078) + struct.pack("<IiiHHIIiiII", 40, 4000, 4000, 1, 8, 1, 0, 0, 0, 0, 0)
PROFILE = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(900_000)))

MANY = 300_000


FILES = {
    "bytes that fill up": JPEG[:2] + b"\xff" * MANY + JPEG[2:],
    "segments of a JPEG": JPEG[:2] + b"\xff\xe0\0\x02" * MANY + JPEG[2:],
    "chunks of a PNG": PNG[:PIXELS] + chunk(b"abCd") * MANY + PNG[PIXELS:],
    "empty pixels": PNG[:PIXELS] + chunk(b"IDAT") * MANY + PNG[PIXELS:],
    "texts": PNG[:END] + chunk(b"tEXt", b"a\0") * MANY + PNG[END:],
    "profiles before the pixels": PNG[:PIXELS] + PROFILE * 1_000 + PNG[PIXELS:],
    "profiles behind them": PNG[:END] + PROFILE * 1_000 + PNG[END:],
    "blocks of a GIF": GIF[:FRAME] + b"\x21\xfe\x01a\0" * MANY + GIF[FRAME:],
    "parts of a block": GIF[:FRAME] + b"\x21\xfe" + b"\x01a" * MANY + b"\0" + GIF[FRAME:],
    "runs of a BMP": BMP + bytes(1024) + b"\x01\x05" * MANY,
}


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)  # a name made of the file would have megabytes
def test_files_of_countless_parts_are_refused(file: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"more than \d+ (parts|colour profiles); save it again"):
        read_image(file)


def test_parts_as_small_as_programs_write_them_are_read() -> None:
    png, at, pixels = image("PNG", 400), PIXELS, b""
    while png[at + 4 : at + 8] == b"IDAT":
        n = int.from_bytes(png[at : at + 4])
        pixels += png[at + 8 : at + 8 + n]
        at += n + 12
    small = b"".join(chunk(b"IDAT", pixels[k : k + 1024]) for k in range(0, len(pixels), 1024))
    assert read_image(png[:PIXELS] + small + chunk(b"IEND")) == read_image(png)
    for file in map(partial(image, size=400), ("JPEG", "GIF", "BMP")):
        assert read_image(file)[:2] == (400, 400)


def test_some_profiles_and_texts_are_read() -> None:
    metadata = (PROFILE + chunk(b"tEXt", b"a\0b" * 1_000)) * 3
    assert read_image(PNG[:PIXELS] + metadata + PNG[PIXELS:]) == read_image(PNG)
