"""Slots that are saved, restored and erased, over HTTP, on the fake backend."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend
from server.conftest import Client, Connect

from srb.engine.backend import Backend
from srb.engine.engine import Engine
from srb.errors import SettingsError
from srb.files.disk_cache import DiskCache
from srb.server.routes.slots import check_folder

PROMPT = "What is the capital of France? "
CACHE_BYTES = 100_000


@pytest.fixture(params=[None, 0, 8], ids=["full", "recurrent", "window"])
def window(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def start(connect: Connect, tmp_path: Path) -> Callable[..., Any]:
    """Starts a server that saves slots in the folder of the test."""

    def make(window: int | None = None, *, cache_bytes: int = CACHE_BYTES, identity: str = "fake") -> Any:
        backend = FakeBackend(script=lambda _params, _tokens: 65, window=window, n_parallel=4, identity=identity)
        return connect(backend, make=partial(Engine, cache_bytes=cache_bytes), slot_folder=tmp_path)

    return make


async def evaluated(client: Client, prompt: str = PROMPT, **body: Any) -> int:
    """How many tokens are evaluated of a prompt that goes on with 20 tokens."""
    async with client.post("/completion", json={"prompt": prompt, "n_predict": 20} | body) as answer:
        assert answer.status == 200, await answer.text()
        return int((await answer.json())["timings"]["prompt_n"])


async def act(client: Client, slot: int | str, action: str, name: str | None = "x.bin", status: int = 200) -> Any:
    body = {} if name is None else {"filename": name}
    async with client.post(f"/slots/{slot}?action={action}", json=body) as answer:
        text = await answer.text()
        assert answer.status == status, text
        return await answer.json()


async def test_a_slot_is_restored_in_another_process(
    start: Callable[..., Any], tmp_path: Path, window: int | None
) -> None:
    first = await start(window)
    assert await evaluated(first, id_slot=1) == len(PROMPT)
    saved = await act(first, 1, "save")
    assert saved.pop("timings")["save_ms"] > 0
    n_tokens, n_bytes = len(PROMPT) + 19, (tmp_path / "x.bin").stat().st_size
    assert saved == {"id_slot": 1, "filename": "x.bin", "n_saved": n_tokens, "n_written": n_bytes}

    second = await start(window)
    restored = await act(second, 0, "restore")
    assert restored.pop("timings")["restore_ms"] > 0
    assert restored == {"id_slot": 0, "filename": "x.bin", "n_restored": n_tokens, "n_read": n_bytes}
    assert await evaluated(second) == 0  # its logits were saved, too
    assert await evaluated(second, PROMPT + "A" * 19 + "more") == 4
    assert (await act(second, 0, "save", "y.bin"))["n_saved"] == n_tokens + 4 + 19
    assert (await act(second, 0, "restore"))["n_restored"] == n_tokens
    assert (await act(second, 0, "save", "y.bin"))["n_saved"] == n_tokens


async def test_a_text_that_a_longer_one_begins_with_is_saved_alone(start: Callable[..., Any]) -> None:
    first = await start()
    await evaluated(first)
    await evaluated(first, id_slot=1, n_predict=10)  # the same text, but shorter
    n_tokens = len(PROMPT) + 9
    assert (await act(first, 1, "save"))["n_saved"] == n_tokens
    second = await start()
    assert (await act(second, 0, "restore"))["n_restored"] == n_tokens
    assert await evaluated(second, PROMPT + "A" * 9 + "more") == 4


async def test_an_erased_slot_is_evaluated_again(start: Callable[..., Any], window: int | None) -> None:
    client = await start(window)
    await evaluated(client, id_slot=3)
    assert await act(client, 2, "erase") == {"id_slot": 2, "n_erased": 0}
    assert await evaluated(client, id_slot=3) == 0
    assert await act(client, 3, "erase", None) == {"id_slot": 3, "n_erased": len(PROMPT) + 19}
    assert await evaluated(client, id_slot=3) == len(PROMPT)
    assert await act(client, 0, "erase") == {"id_slot": 0, "n_erased": 0}


async def test_what_was_erased_is_gone_from_the_disk(connect: Connect, tmp_path: Path) -> None:
    def make(backend: Backend) -> Engine:
        return Engine(backend, store=DiskCache(tmp_path / "cache", "fake", 1 << 20))

    client = await connect(FakeBackend(script=lambda _params, _tokens: 65), make=make, slot_folder=tmp_path)
    await evaluated(client)
    assert (await act(client, 0, "save"))["n_saved"] == len(PROMPT) + 19
    assert (await act(client, 0, "erase"))["n_erased"] == len(PROMPT) + 19
    assert await evaluated(client) == len(PROMPT)
    await act(client, 0, "erase")
    assert (await act(client, 0, "restore"))["n_restored"] == len(PROMPT) + 19
    assert await evaluated(client) == 0


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


BAD_NAMES = ["../x", "a/b", "a\\b", "..", ".", "", " x", "x ", "x.", "a:b", "a\0b", "\ud800", "é" * 128]


async def test_no_name_leads_out_of_the_folder(start: Callable[..., Any], tmp_path: Path) -> None:
    client = await start()
    for action in ("save", "restore"):
        for name in BAD_NAMES:
            answer = await act(client, 0, action, name, 400)
            assert answer["error"]["param"] == "filename", name
            assert names(tmp_path) == [], name


async def test_a_name_may_have_any_letters(start: Callable[..., Any], tmp_path: Path) -> None:
    client = await start()
    await act(client, 0, "save", "été 雪.bin")
    assert names(tmp_path) == ["été 雪.bin"]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-1],
    "cut in the header": lambda content: content[:20],
    "cut after the header": lambda content: content[:44],
    "last bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "a size": lambda content: content[:60] + b"\xff\xff\xff\x7f" + content[64:],
    "more": lambda content: content + b"x",
    "twice": lambda content: content + content[40:],
    "foreign": lambda _content: b"ggsq" * 1000,
    "empty": lambda _content: b"",
}


@pytest.mark.parametrize("harm", HARMS)
async def test_a_damaged_file_is_refused(start: Callable[..., Any], tmp_path: Path, harm: str) -> None:
    client = await start()
    await evaluated(client)
    await act(client, 0, "save")
    path = tmp_path / "x.bin"
    path.write_bytes(HARMS[harm](path.read_bytes()))
    answer = await act(client, 0, "restore", status=400)
    assert answer["error"]["message"].startswith("x.bin can't be restored: it")
    is_foreign = harm in ("cut in the header", "foreign", "empty")
    assert ("it isn't the file of a slot" in answer["error"]["message"]) is is_foreign
    assert await evaluated(client) == 0  # nothing has happened


async def test_what_cannot_be_restored_is_said(start: Callable[..., Any], tmp_path: Path) -> None:
    client = await start()
    await evaluated(client)
    await act(client, 0, "save")
    assert "another model" in (await act(await start(identity="other"), 0, "restore", status=400))["error"]["message"]
    answer = await act(await start(cache_bytes=200), 0, "restore", status=400)
    assert "there is room for 0 of the 50 tokens" in answer["error"]["message"]
    assert "no such file" in (await act(client, 0, "restore", "y.bin", 400))["error"]["message"]
    (tmp_path / "folder").mkdir()
    assert "no such file" in (await act(client, 0, "restore", "folder", 400))["error"]["message"]
    answer = await act(client, 0, "save", "folder", 500)
    assert (answer["error"]["code"], answer["error"]["param"]) == ("slot_not_saved", "filename")
    assert names(tmp_path) == ["folder", "x.bin"]


@pytest.mark.parametrize("slot", ["-1", "4", "x", "9" * 5000, "\u0661"], ids=["low", "high", "x", "long", "digit"])
async def test_there_are_as_many_slots_as_alternatives_that_run(start: Callable[..., Any], slot: str) -> None:
    client = await start()
    answer = await act(client, slot, "erase", status=400)
    assert answer["error"]["message"].startswith("id_slot must be from 0 to 3 (--parallel), got")


async def test_a_wrong_slot_or_action_is_refused(start: Callable[..., Any]) -> None:
    client = await start()
    assert (await act(client, 0, "load", status=400))["error"]["param"] == "action"
    assert (await client.post("/slots/0", json={})).status == 400
    assert (await act(client, 0, "save", None, 400))["error"]["param"] == "filename"
    for slot in (4, -2, 2**70):
        async with client.post("/completion", json={"prompt": "p", "id_slot": slot}) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["param"] == "id_slot"
    assert await evaluated(client, id_slot=-1) == len(PROMPT)
    assert (await act(client, 0, "save"))["n_saved"] == len(PROMPT) + 19


async def test_without_a_folder_it_is_not_supported(connect: Connect) -> None:
    client = await connect(FakeBackend())
    answer = await act(client, 0, "save", status=501)
    assert answer["error"]["type"] == "not_supported_error"
    assert "--slot-save-path" in answer["error"]["message"]
    async with client.post("/completion", json={"prompt": "p", "n_predict": 1, "id_slot": 99}) as response:
        assert response.headers["x-srb-ignored"] == "id_slot"


def test_the_folder_must_be_there(tmp_path: Path) -> None:
    assert check_folder(None) is None
    assert check_folder(tmp_path) == tmp_path
    with pytest.raises(SettingsError, match="is not a folder"):
        check_folder(tmp_path / "none")
