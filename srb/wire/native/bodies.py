"""The bodies of the routes for slots and adapters."""

from pydantic import Field, RootModel

from srb.errors import InvalidRequestError
from srb.wire.request.body_fields import BodyFields
from srb.wire.request.fields import AdapterScale
from srb.wire.request.read import depth_refused, read_fields, show
from srb.wire.tokens import check_text

_NOT_IN_NAMES = '/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff'
"""Characters that names of files must not have. Here or on another system they may lead out of a folder, or look so."""

_LONGEST_NAME = 255
"""How many bytes the name of a file may have."""


class SlotFields(BodyFields):
    """The body of `POST /slots/{id_slot}`."""

    filename: str = Field(description="the file in `--slot-save-path`: a name without slashes, colons and the like.")


class AdapterFields(RootModel[list[AdapterScale]]):
    """The body of `POST /lora-adapters`."""


def parse_adapters(data: bytes) -> tuple[tuple[int | str, float], ...]:
    """Reads the body of `POST /lora-adapters`: adapters, and their scales. Raises `InvalidRequestError`."""
    with depth_refused():
        fields = read_fields(data, AdapterFields)
    return tuple(each.asked for each in fields.root)


def parse_filename(data: bytes) -> str:
    """The name of the file that a slot is saved to. Raises `InvalidRequestError` if it might be outside of its folder.

    The same names are refused as by llama-server, and those with half a surrogate pair.
    """
    with depth_refused():
        name = check_text(read_fields(data, SlotFields).filename, "filename")
    bad = next((char for char in name if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or char in _NOT_IN_NAMES), None)
    if bad is not None or ".." in name or name.endswith((" ", ".")) or name.startswith(" ") or not name:
        raise InvalidRequestError(
            f"filename must be the name of a file, without slashes, '..' and {_NOT_IN_NAMES[2:9]}, got {show(name)}",
            param="filename",
        )
    if len(name.encode()) > _LONGEST_NAME:
        raise InvalidRequestError(
            f"filename has {len(name.encode())} bytes; the limit is {_LONGEST_NAME}", param="filename"
        )
    return name
