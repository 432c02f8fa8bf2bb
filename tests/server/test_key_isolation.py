"""What one API key can find out about the prompts of another one: nothing, unless `--share-prompts all`."""

import base64
import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend, FakeReader, Gate, says
from server.conftest import Client, Connect, events_of, posted

from srb.engine.backend import Backend
from srb.engine.engine import Engine
from srb.files.disk_cache import DiskCache
from srb.server.http.exchange import ENGINE

ANN, BOB = {"Authorization": "Bearer sk-ann"}, {"Authorization": "Bearer sk-bob"}
KEYS = (b"sk-ann", b"sk-bob")
SECRET = "The password of my bank is 'swordfish'."
KEPT = partial(Engine, cache_bytes=100_000)


def backend(**options: Any) -> FakeBackend:
    return FakeBackend(n_cells=1000, script=lambda _params, _tokens: 65, **options)


async def events(client: Client, path: str, body: dict[str, Any], who: dict[str, str]) -> list[dict[str, Any]]:
    async with client.post(path, json=body, headers=who) as answer:
        return events_of(await answer.text())


async def cached(client: Client, who: dict[str, str], prompt: str = SECRET) -> int:
    """How many tokens of a prompt are known to the asker."""
    body = {"prompt": prompt, "max_tokens": 2, "n": 1}
    (start,) = (each for each in await events(client, "/v1/completions", body, who) if each["event"] == "start")
    return int(start["cached_tokens"])


def contents(folder: Path) -> bytes:
    """Of all states in a folder. The key of a state could be guessed by what stands there."""
    return b"".join(path.read_bytes() for path in folder.rglob("*.state"))


def remove(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        path.unlink()


@pytest.mark.parametrize("shares", [False, True])
async def test_what_a_key_has_sent_is_known_to_it_alone(connect: Connect, shares: bool) -> None:
    client = await connect(backend(), make=KEPT, api_keys=KEYS, shares_prompts=shares)
    known = len(SECRET)
    assert await cached(client, ANN) == 0
    assert await cached(client, BOB, SECRET[:30]) == (29 if shares else 0)
    assert await cached(client, BOB) == (known if shares else 30)  # 30 are its own
    assert await cached(client, ANN) == known


@pytest.mark.parametrize(
    ("path", "body", "of"),
    [
        ("/completion", {"n_predict": 2}, lambda answer: answer["timings"]["cache_n"]),
        ("/v1/completions", {"model": "x"}, lambda answer: answer["usage"]["prompt_tokens_details"]["cached_tokens"]),
    ],
)
async def test_no_format_tells(connect: Connect, path: str, body: dict[str, Any], of: Any) -> None:
    client = await connect(backend(), make=KEPT, api_keys=KEYS)
    asked = body | {"prompt": SECRET, "max_tokens": 2}
    known = [of(await posted(client, path, asked, headers=who)) for who in (ANN, BOB, BOB)]
    assert known == [0, 0, len(SECRET)]


async def test_what_still_runs_is_not_shared_either(connect: Connect) -> None:
    gate = Gate(served := backend())
    client = await connect(served, make=KEPT, api_keys=KEYS)
    body = {"prompt": SECRET, "n": 1, "max_tokens": 9, "ignore_eos": True}
    async with client.post("/v1/completions", json=body, headers=ANN) as first:
        gate.step(2)  # Ann's prompt is evaluated, and her first token
        await first.content.readuntil(b'"stream"')
        async with client.post("/v1/completions", json=body, headers=BOB) as second:
            gate.step()
            assert b'"cached_tokens": 0' in await second.content.readline() + await second.content.readline()
            gate.open()


async def test_a_key_finds_its_prompts_in_files_after_a_restart_and_another_one_does_not(
    connect: Connect, tmp_path: Path
) -> None:
    def make(made: Backend) -> Engine:
        return Engine(made, cache_bytes=100_000, store=DiskCache(tmp_path, "fake", 1 << 20))

    client = await connect(backend(), make=make, api_keys=KEYS)
    await cached(client, ANN)
    assert client.app
    await client.app[ENGINE].stop()  # it ends when all is written
    written, digest = contents(tmp_path), hashlib.sha256(KEYS[0])
    assert SECRET.encode() in written.replace(b"\0", b"")  # as tokens
    assert not [each for each in (KEYS[0], digest.digest(), digest.hexdigest().encode()) if each in written]
    client = await connect(backend(), make=make, api_keys=KEYS[::-1])
    assert await cached(client, BOB) == 0
    assert await cached(client, ANN) == len(SECRET)


async def test_slots_and_their_files_belong_to_a_key(connect: Connect, tmp_path: Path) -> None:
    client = await connect(backend(), make=KEPT, api_keys=KEYS, slot_folder=tmp_path)

    async def act(action: str, who: dict[str, str], status: int = 200) -> Any:
        return await posted(client, f"/slots/0?action={action}", {"filename": "x"}, status, who)

    await cached(client, ANN)
    text = len(SECRET) + 1
    assert (await act("save", BOB))["n_saved"] == 0
    assert (await act("save", ANN))["n_saved"] == text
    assert (await act("restore", BOB))["n_restored"] == 0  # its own, empty one
    assert (await act("erase", BOB))["n_erased"] == 0
    await act("restore", ANN)
    assert await cached(client, ANN) == len(SECRET)
    assert (await act("erase", ANN))["n_erased"] == text
    assert await cached(client, ANN) == 0
    (tmp_path / "x").write_bytes(b"")  # a file for all, which somebody has put there
    assert (await act("restore", ANN))["n_restored"] == text
    remove(tmp_path, "*/x")
    assert "isn't the file of a slot" in (await act("restore", ANN, 400))["error"]["message"]


async def test_the_last_generation_of_another_key_is_hidden(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"ab")), api_keys=KEYS)
    await posted(client, "/api/v1/generate", {"prompt": "x", "max_length": 5, "sampler_seed": 7}, headers=ANN)
    of_ann, of_bob = [await (await client.get("/api/extra/perf", headers=who)).json() for who in (ANN, BOB)]
    assert (of_ann["total_gens"], of_ann["last_seed"], of_ann["last_token_count"]) == (1, 7, 3)
    assert (of_bob["total_gens"], of_bob["last_seed"], of_bob["last_token_count"]) == (1, -1, 0)


async def test_an_image_is_encoded_for_each_key(connect: Connect) -> None:
    reader = FakeReader()
    client = await connect(backend(media=reader), make=KEPT, api_keys=KEYS)
    image = base64.b64encode(b"\x89cat").decode()
    prompt = {"prompt_string": f"<__media__>{SECRET}", "multimodal_data": [image]}
    for who in (ANN, BOB):
        await posted(client, "/completion", {"prompt": prompt, "n_predict": 1}, headers=who)
    assert len(reader.asked) == 2
