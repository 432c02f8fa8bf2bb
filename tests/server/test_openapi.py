"""The OpenAPI description: it is complete, and what schemathesis makes of it finds nothing."""

import asyncio
import json
import re
import sys
from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend
from server.conftest import Connect
from server.routes.test_pooling import FakeEmbedder

from srb.engine.model import SpecialTokens
from srb.engine.sampling_params import SamplingParams
from srb.history.history import History
from srb.server import openapi
from srb.server.access import OPEN
from srb.server.app import ROUTES, create_app
from srb.serving.async_engine import AsyncEngine
from srb.wire.limits import Limits
from srb.wire.request.read import ALIASES

LIMITS = Limits("fake", n=4, max_n=8)
MANY_FIELDS = 40
EXAMPLES = 6
"""How many random requests schemathesis makes of each operation, beside those at the edges of the description."""

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@cache
def description(*, keyed: bool = False) -> dict[str, Any]:
    return openapi.describe(ROUTES, LIMITS, keyed=keyed)


def operations(described: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """By method and path."""
    return {
        (method.upper(), path): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }


def test_every_route_is_described_and_nothing_else() -> None:
    app = create_app(AsyncEngine(lambda _progress: FakeBackend()), LIMITS)
    routes = {
        (route.method, route.resource.canonical.rstrip("/") or "/")
        for route in app.router.routes()
        if route.method != "HEAD" and route.resource and route.resource.canonical != "/web/{file}"
    }
    assert routes == set(operations(description()))


def test_no_two_routes_answer_to_one_path() -> None:
    there = [(route.method, path) for route in ROUTES for path in route.paths]
    assert len(there) == len(set(there))


def test_every_field_has_a_meaning_and_no_model_is_described_twice() -> None:
    schemas = description()["components"]["schemas"]
    models = {name: schema for name, schema in schemas.items() if name not in ("Error", "Message", "InputItem")}
    assert {"BranchFields", "CompletionFields", "LlamaFields", "TokenizeFields", "EmbeddingFields"} <= models.keys()
    for name, model in models.items():
        for field, schema in model.get("properties", {}).items():
            assert schema["description"].partition("Also:")[0], f"{name}.{field}"
    everything = " ".join(each["description"] for each in schemas["CompletionFields"]["properties"].values())
    assert all(alias in everything for alias in ALIASES)


def test_no_two_models_have_one_name() -> None:
    found: dict[str, Any] = {}
    for body in {route.body for route in ROUTES if route.body}:
        schema = body.model_json_schema()
        for name, each in (schema.pop("$defs", {}) | {body.__name__: schema}).items():
            assert found.setdefault(name, each) == each, name


def test_ranges_and_defaults_are_those_of_the_server() -> None:
    schemas = description()["components"]["schemas"]
    top_p = schemas["CompletionFields"]["properties"]["top_p"]
    assert (top_p["minimum"], top_p["maximum"], top_p["default"]) == (0, 1, SamplingParams().top_p)
    n = schemas["CompletionFields"]["properties"]["n"]
    assert (n["minimum"], n["maximum"]) == (1, 8)
    assert "default" not in schemas["BranchFields"]["properties"]["top_p"]
    assert schemas["CompletionFields"]["anyOf"] == [{"required": ["prompt"]}, {"required": ["messages"]}]


def test_a_key_is_asked_for_where_the_server_asks_for_one() -> None:
    described = description(keyed=True)
    assert described["security"] == [{"bearer": []}, {"x-api-key": []}]
    for (method, path), operation in operations(described).items():
        is_open = method == "GET" and path in OPEN
        assert (operation.get("security") == []) == is_open, path
        assert ("401" in operation["responses"]) != is_open, path
    assert description()["security"] == []


async def test_the_page_shows_every_path_and_field_loads_nothing_and_is_made_once(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(FakeBackend(), api_keys=(b"key",))
    response = await client.get("/docs")
    assert response.content_type == "text/html"
    assert response.headers["Content-Security-Policy"] == openapi.HEADERS["Content-Security-Policy"]
    text = await response.text()
    described = await (await client.get("/openapi.json")).json()
    assert described == description(keyed=True)
    for method, path in operations(described):
        assert f"<code>{method} {path}</code>" in text
    for schema in described["components"]["schemas"].values():
        assert all(f"<td><code>{name}</code></td>" in text for name in schema.get("properties", ()))
    assert "<td>0.01 to 100</td>" in text
    assert not any(each in text for each in ("<script", "src=", "http:", "https:", "<link", " style="))
    for module, name in ((openapi, "describe"), (openapi, "render"), (json, "dumps")):
        monkeypatch.delattr(module, name)
    assert await (await client.get("/docs")).text() == text
    assert (await client.get("/openapi.json")).status == 200


def test_the_page_escapes_what_it_shows() -> None:
    described = deepcopy(description())
    described["paths"]["/<b>"] = described["paths"].pop("/docs")
    described["info"]["title"] = "<b>"
    assert "<b>" not in openapi.render(described)


def portion(name: str) -> set[str]:
    """The paths of a part of the operations, without those that only have another path than one before them.

    ranks: on a server that ranks. alike: whose bodies have most fields from one of the rest.
    """
    names: dict[str, set[str]] = {"ranks": set(), "alike": set(), "rest": set()}
    seen: list[dict[str, Any]] = []
    for route, path, _ in openapi.described(ROUTES):
        operation = description()["paths"][path][route.method.lower()] | {"summary": route.method}
        if operation not in seen and path != "/openapi.json":
            seen.append(operation)
            is_large = route.body is not None and len(route.body.model_fields) > MANY_FIELDS
            is_alike = is_large and path != "/v1/completions"
            names["ranks" if "/rerank" in route.paths else "alike" if is_alike else "rest"].add(path)
    return names[name]


@pytest.mark.e2e  # it takes long, though it needs no model
@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("ranks", "examples,coverage,fuzzing"),
        ("alike", "examples,fuzzing"),
        ("rest", "examples,coverage"),
        pytest.param("rest", "fuzzing,stateful", marks=pytest.mark.nightly),
    ],
)
async def test_schemathesis_finds_nothing(connect: Connect, tmp_path: Path, name: str, phases: str) -> None:
    backend = FakeBackend(embedder=FakeEmbedder(rank_template="{query} {document}" if name == "ranks" else None))
    backend.tokenizer.special = SpecialTokens(fim_pre=1, fim_suf=2, fim_mid=3)
    paths = portion(name)
    with History(tmp_path / "history.db") as history:
        (slots := tmp_path / "slots").mkdir()
        client = await connect(backend, api_keys=(b"key",), history=history, slot_folder=slots)
        returncode, output = await schemathesis(str(client.make_url("/openapi.json")), paths, phases, tmp_path)
    assert returncode == 0, output
    tested = sum(path in paths for _, path, _ in openapi.described(ROUTES))
    assert re.search(rf"Tested: {tested}\b", output), output


async def schemathesis(url: str, paths: Iterable[str], phases: str, folder: Path) -> tuple[int | None, str]:
    """Its exit code, and what it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
        *("run", url, "--header", "x-api-key: key", f"--checks={CHECKS}"),
        *(f"--max-examples={EXAMPLES}", "--generation-deterministic", "--no-shrink"),
        *("--warnings=off", "--no-color", f"--phases={phases}"),
        *(f"--include-path={path}" for path in paths),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
    )
    output = (await process.communicate())[0].decode()
    return process.returncode, output
