"""Reads image files, with Pillow, which knows the size of an image before it is decoded."""

import io
import warnings

from srb.errors import InvalidRequestError, ModelLoadError
from srb.options.extras import pip_install

MAX_PIXELS = 7680 * 4320
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
_LEAST_READS, _BYTES_PER_READ = 10_000, 100  # Pillow reads each part of a file in Python, and parts may be empty
_MAX_PROFILES = 10  # Pillow decompresses each one, which takes a thousand times as long as any other chunk
_LONGEST = 200  # one side may be so many times as long as the other; some projectors would shrink that to nothing


def check_pillow() -> None:
    """Raises `ModelLoadError` if Pillow isn't installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        command = pip_install("'llama-srb[media]'")
        raise ModelLoadError(f"--mmproj needs Pillow to read images: {command}") from None


def read_image(file: bytes) -> tuple[int, int, bytes]:
    """The width, the height, and the pixels of an image, three bytes (RGB) for each, line by line from its upper left.

    If the file has several images, the first one is read. It is turned upright if the file says how (EXIF). Raises
    `InvalidRequestError`.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large or odd images; too large ones are refused here
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
            f"an image can't be read: {_reason(error)}; it must be a file of one of these kinds: {known}",
            code="invalid_media",
        ) from None
    return upright.width, upright.height, upright.tobytes()


class _File(io.BytesIO):
    """A file that can be read only so many times. One that consists of small or empty parts needs more."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._most = self._left = _LEAST_READS + len(data) // _BYTES_PER_READ

    def read(self, size: int | None = -1) -> bytes:
        """Raises `InvalidRequestError` if the file was read too often."""
        self._left -= 1
        if self._left < 0:
            raise _too_many("parts", self._most)
        return super().read(size)


def _too_many(things: str, most: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"an image can't be read: its file has more than {most} {things}; save it anew, as a JPEG or a PNG without "
        "metadata",
        code="invalid_media",
    )


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return "the file is of another kind" if "cannot identify" in text else text


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise InvalidRequestError(
            f"an image has {width} x {height} pixels; the limit is {MAX_PIXELS} in all; make it smaller",
            code="invalid_media",
        )
    if max(width, height) > _LONGEST * min(width, height):
        raise InvalidRequestError(
            f"an image has {width} x {height} pixels; one side may be {_LONGEST} times as long as the other at most",
            code="invalid_media",
        )
