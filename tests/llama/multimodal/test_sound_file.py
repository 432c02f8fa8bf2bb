"""How sound files are checked before C reads them, without C."""

import io
import struct
import wave
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_projector import wav

from srb.errors import InvalidRequestError
from srb.llama.multimodal.media_files import MAX_SECONDS, is_sound, safe_sound


def with_header(
    kind: int, channels: int, rate: int, bits: int, *, size: int | None = None, samples: int = 400
) -> bytes:
    data = bytes(samples)
    head = struct.pack("<HHIIHH", kind, channels, rate, 1 << 31, 0, bits)
    claimed = len(data) if size is None else size
    junk = b"LIST\x03\0\0\0abc\0"
    return (
        b"RIFF\xff\xff\xff\xffWAVE"
        + junk
        + b"fmt "
        + struct.pack("<I", 16)
        + head
        + b"data"
        + struct.pack("<I", claimed)
    ) + data


def test_a_wav_gets_a_header_that_is_true() -> None:
    same = wav(1, 0.5, channels=2)
    assert safe_sound(same) == same
    for size in (0xFFFFFFFF, 1 << 30):  # of a stream, and a lie
        with wave.open(io.BytesIO(safe_sound(with_header(1, 2, 16_000, 16, size=size)))) as file:
            assert (file.getnframes(), file.getnchannels(), file.getframerate()) == (100, 2, 16_000)
    with wave.open(io.BytesIO(safe_sound(with_header(1, 1, 8_000, 16, samples=401)))) as file:
        assert file.getnframes() == 200


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_header(2, 1, 16_000, 4),  # ADPCM
        lambda: with_header(1, 0, 16_000, 16),
        lambda: with_header(1, 1, 1, 16),  # each sample would become 16,000
        lambda: with_header(1, 1, 16_000, 64),
        lambda: with_header(3, 1, 16_000, 16),
        lambda: with_header(1, 1, 4_000, 16, samples=2 * 4_000 * (MAX_SECONDS + 1)),
        lambda: b"RIFF\0\0\0\0WAVE",
        lambda: b"\xff\xfb" + bytes(9 << 20),
        lambda: b"ID3" + bytes(7) + b"fLaC" + bytes(50),
        lambda: b"ID3" + bytes(7) + b"OggS",
        lambda: (b"ID3" + bytes(7)) * 3_000_000 + b"\xff\xfb",  # an hour, if each tag took a copy
        lambda: b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 4_000_000,
    ],
)
def test_what_is_refused(make: Callable[[], bytes]) -> None:
    """The files are made here: some are large, and each process that collects the tests would make them."""
    file = make()
    assert is_sound(file)
    with pytest.raises(InvalidRequestError, match="a sound can't be read"):
        safe_sound(file)


def test_tags_are_taken_off() -> None:
    mp3 = b"\xff\xfb\x90\x00" + bytes(100)
    tag = b"ID3\x04\0\0\0\0\x01\x02" + bytes(130)
    assert safe_sound(tag + tag + mp3) == mp3


def test_pictures_are_no_sounds() -> None:
    assert not any(map(is_sound, (b"", b"\xff", b"\xff\xd8\xff\xe0", b"\x89PNG", b"RIFF\0\0\0\0WEBPVP8 ", b"GIF89a")))


@given(
    st.binary(max_size=80),
    st.sampled_from([b"RIFF\0\0\0\0WAVEfmt ", b"fLaC", b"ID3", wav(1, 0.01)]),
    st.integers(0, 60),
)
def test_any_bytes_are_refused_or_become_a_true_file(junk: bytes, head: bytes, at: int) -> None:
    try:
        made = safe_sound(head[:at] + junk + head[at:])
    except InvalidRequestError:
        return
    if made[:4] == b"RIFF":
        (size,) = struct.unpack_from("<I", made, 40)
        assert size == len(made) - 44
        assert np.frombuffer(made[28:36], "<u4")[0]  # bytes for each second
