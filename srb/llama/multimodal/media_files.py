"""Reads image files with Pillow, and makes sound files safe for mtmd's reader. Pure functions.

Pillow knows the size of an image before decoding it. mtmd's reader of sounds trusts the length in a file's header, and
ends the process if it can't allocate that much memory. So a WAV gets a new header, a FLAC's header must be plausible,
and an MP3 has none.
"""

import io
import struct
import warnings

from srb.errors import InvalidRequestError, ModelLoadError
from srb.options.arguments import pip_install

MAX_PIXELS = 7680 * 4320
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
_LEAST_READS, _BYTES_PER_READ = 10_000, 100  # Pillow reads each part of a file in Python, and parts may be empty
_MAX_PROFILES = 10  # Pillow decompresses each, which takes a thousand times as long as any other chunk
_LONGEST = 200  # the largest ratio of the sides; some projectors would shrink a longer image to nothing


def check_pillow() -> None:
    """Check that Pillow is installed. Raises `ModelLoadError`."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        command = pip_install("'llama-srb[media]'")
        raise ModelLoadError(f"--mmproj needs Pillow to read images: {command}") from None


def read_image(file: bytes) -> tuple[int, int, bytes]:
    """Read the first image of a file, turned upright as its EXIF data says.

    Returns width, height, and pixels of three bytes (RGB), line by line from the upper left. Raises
    `InvalidRequestError`.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large or odd images; those that are too large are refused below
            if file.count(b"iCCP") > _MAX_PROFILES:
                raise _too_many("colour profiles", _MAX_PROFILES)
            image = Image.open(_File(file), formats=_FORMATS)
            _check_size(*image.size)
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except InvalidRequestError:
        raise
    except Exception as error:  # for damaged files, Pillow's decoders may raise any exception
        known = ", ".join(_FORMATS)
        raise InvalidRequestError(
            f"an image can't be read: {_reason(error)}; it must be one of {known}",
            code="invalid_media",
        ) from None
    return upright.width, upright.height, upright.tobytes()


class _File(io.BytesIO):
    """A file with a limited number of reads. Files of tiny or empty parts need more."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._most = self._left = _LEAST_READS + len(data) // _BYTES_PER_READ

    def read(self, size: int | None = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _too_many("parts", self._most)
        return super().read(size)


def _too_many(things: str, most: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"an image can't be read: its file has more than {most} {things}; save it again as a JPEG or a PNG without "
        "metadata",
        code="invalid_media",
    )


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return "the format is unknown" if "cannot identify" in text else text


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise InvalidRequestError(
            f"an image has {width} x {height} pixels; the limit is {MAX_PIXELS} in total; make it smaller",
            code="invalid_media",
        )
    if max(width, height) > _LONGEST * min(width, height):
        raise InvalidRequestError(
            f"an image has {width} x {height} pixels; one side may be at most {_LONGEST} times as long as the other",
            code="invalid_media",
        )


MAX_SECONDS = 1200
_MAX_MP3_BYTES = 8 << 20  # at the lowest bit rate a byte becomes 16 samples
_MAX_PARTS = 1_000  # ID3 tags, or chunks before the samples; without a limit there may be millions of empty ones
_RATES = range(4_000, 384_001)
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_BITS = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}


def is_sound(file: bytes) -> bool:
    """Return whether a file begins as a WAV, a FLAC or an MP3 does."""
    is_wav = file[:4] == b"RIFF" and file[8:12] == b"WAVE"
    return is_wav or file[:4] == b"fLaC" or file[:3] == b"ID3" or _is_mp3(file)


def safe_sound(file: bytes) -> bytes:
    """Return the sound as a file that is safe for mtmd's reader. Raises `InvalidRequestError`."""
    file = file[_end_of_tags(file) :]
    if file[:4] == b"RIFF":
        return _wav(file)
    if file[:4] == b"fLaC":
        return _flac(file)
    if not _is_mp3(file):
        raise _refused("it is neither a WAV, nor a FLAC, nor an MP3")
    if len(file) > _MAX_MP3_BYTES:
        raise _refused(f"an MP3 may have at most {_MAX_MP3_BYTES} bytes")
    return file


def _is_mp3(file: bytes) -> bool:
    return len(file) > 1 and file[0] == 0xFF and file[1] & 0xE0 == 0xE0


def _end_of_tags(file: bytes) -> int:
    """Return where the sound begins, after the ID3 tags."""
    at = 0
    for _ in range(_MAX_PARTS):
        if file[at : at + 3] != b"ID3":
            return at
        if len(file) < at + 10:
            raise _refused("the file is cut off")
        size = 0
        for byte in file[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + (10 if file[at + 5] & 0x10 else 0)
    raise _refused(f"it has {_MAX_PARTS} ID3 tags or more")


def _wav(file: bytes) -> bytes:
    """Return a WAV with the same samples and a new header."""
    at, form = 12, None
    for _ in range(_MAX_PARTS):
        if at + 8 > len(file):
            break
        name, size = file[at : at + 4], int.from_bytes(file[at + 4 : at + 8], "little")
        body = file[at + 8 : at + 8 + size]  # less than `size` if the file is cut off
        if name == b"fmt " and len(body) >= 16:
            form = struct.unpack_from("<HHIIHH", body)
            if form[0] == _EXTENSIBLE and len(body) >= 26:
                form = (int.from_bytes(body[24:26], "little"), *form[1:])
        elif name == b"data" and form:
            kind, channels, rate, _, _, bits = form
            if bits not in _BITS.get(kind, ()) or not 1 <= channels <= 8:
                raise _refused("a WAV must have uncompressed samples of 8 to 64 bits, in 1 to 8 channels")
            frame = channels * bits // 8
            _check_length(len(body) // frame, rate)
            body = body[: len(body) // frame * frame]
            head = struct.pack("<HHIIHH", kind, channels, rate, rate * frame, frame, bits)
            rest = b"WAVEfmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(body)) + body
            return b"RIFF" + struct.pack("<I", len(rest)) + rest
        at += 8 + size + size % 2
    raise _refused("the WAV has no samples")


def _flac(file: bytes) -> bytes:
    if len(file) < 42 or file[4] & 0x7F:
        raise _refused("the FLAC doesn't begin with its stream info")
    bits = int.from_bytes(file[18:26])
    rate, n_frames = bits >> 44, bits & ((1 << 36) - 1)
    _check_length(n_frames, rate)
    return file


def _check_length(n_frames: int, rate: int) -> None:
    if rate not in _RATES:
        raise _refused(f"its sample rate is {rate}; it must be from {_RATES[0]} to {_RATES[-1]}")
    if n_frames > MAX_SECONDS * rate:
        raise _refused(f"it lasts {n_frames / rate:.0f} seconds; the limit is {MAX_SECONDS}")


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"a sound can't be read: {reason}", code="invalid_media")
