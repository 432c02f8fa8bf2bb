"""What every format does alike."""

from fake_backend import FakeBackend
from server.conftest import Connect
from server.formats.all_formats import FORMATS, TEMPLATE, body_of, in_all_formats, text_of, writes


@in_all_formats
async def test_streams_are_ascii_since_clients_split_lines_at_other_characters(connect: Connect, name: str) -> None:
    text = "a\u2028b\u2029c\x85d \N{CRESCENT MOON}"
    client = await connect(FakeBackend(n_cells=4096, chat_template=TEMPLATE, script=writes(text.encode())))
    assert await text_of(client, name) == text


@in_all_formats
async def test_what_can_not_be_used_of_samplers_lists_is_reported(connect: Connect, name: str) -> None:
    client = await connect(FakeBackend(n_cells=4096, chat_template=TEMPLATE, script=writes(b"a")))
    fields = {
        "logit_bias": {"97": 1000, "300": -1},
        "stop_token_ids": [-1],
        "dry_sequence_breakers": [f"{k}" for k in range(129)],
    }
    response = await client.post(FORMATS[name][0], json=body_of(name, fields))
    assert response.status == 200, await response.text()
    ignored = response.headers["x-srb-ignored"].split(", ")
    assert sorted(ignored) == [
        "dry_sequence_breakers (all but the first 128)",
        "logit_bias (beyond 100: 1000)",
        "logit_bias (unknown ids: 300)",
        "stop_token_ids (unknown ids: -1)",
    ]
