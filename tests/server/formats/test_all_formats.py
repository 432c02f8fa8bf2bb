"""What every format does alike."""

from fake_backend import FakeBackend
from server.conftest import Connect
from server.formats.all_formats import TEMPLATE, in_all_formats, text_of, writes


@in_all_formats
async def test_streams_are_ascii_since_clients_split_lines_at_other_characters(connect: Connect, name: str) -> None:
    text = "a\u2028b\u2029c\x85d \N{CRESCENT MOON}"
    client = await connect(FakeBackend(n_cells=4096, chat_template=TEMPLATE, script=writes(text.encode())))
    assert await text_of(client, name) == text
