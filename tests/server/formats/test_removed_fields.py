"""The table of removed fields in docs/http/api.md is true: a request that still has one is answered, and told so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend
from server.conftest import Connect

API = (Path(__file__).parents[3] / "docs" / "http" / "api.md").read_text(encoding="utf-8")


def removed() -> list[dict[str, Any]]:
    """What the first column of the table names, as fields of a body: `name`, or `"name": value`."""
    table = API.split("### Removed fields\n", 1)[1].split("\n#", 1)[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    parts = [cell.split(", and ")[0] for cell in first]
    names = [name for part in parts for name in re.findall(r"`([^`]+)`", part)]
    fields = [name if ":" in name else f'"{name}": 2' for name in names if re.fullmatch(r'\w+|"\w+": .+', name)]
    return [json.loads(f"{{{each}}}") for each in fields]


@pytest.mark.parametrize("fields", removed(), ids=str)
async def test_a_removed_field_is_ignored_and_reported(connect: Connect, fields: dict[str, Any]) -> None:
    client = await connect(FakeBackend())
    body = {"prompt": "p", "max_tokens": 3, "seed": 1, "stream": False}
    plain = await (await client.post("/v1/completions", json=body)).json()
    response = await client.post("/v1/completions", json=body | fields)
    assert response.status == 200
    assert response.headers["x-srb-ignored"] == ", ".join(fields)
    assert (await response.json())["choices"] == plain["choices"]
    async with client.post("/v1/completions", json={"prompt": "p", "max_tokens": 3} | fields) as stream:
        assert stream.headers["x-srb-ignored"] == ", ".join(fields)


def test_the_table_has_fields() -> None:
    assert len(removed()) >= 4
