"""llama-server's routes for slots (list, save, restore, erase) and for adapters (list, set scales)."""

import asyncio
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from srb.engine.kv_cache.radix import keys_of, pack
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.kv_cache.state_store import read_text, write_text
from srb.errors import InvalidRequestError, NotSupportedError, SettingsError, SrbError, UnavailableError
from srb.server.access import owner_of, shared_within
from srb.server.http.bodies import read_body
from srb.server.http.exchange import ENGINE, LIMITS
from srb.server.http.proxy import lists_of_peers
from srb.serving.event_log import EventLog
from srb.wire.request.read import show
from srb.wire.route import BOOLEAN, INTEGER, NUMBER, OBJECT, STRING, get, list_of, object_of, post
from srb.wire.slots import AdapterFields, SlotFields, parse_adapters, parse_filename, public_settings

SLOT_FOLDER: web.AppKey[Path | None] = web.AppKey("slot_folder")


def check_folder(folder: Path | None) -> Path | None:
    """The folder of `--slot-save-path`. Raises `SettingsError` if there is no such folder."""
    if folder is not None and not folder.is_dir():
        raise SettingsError(f"--slot-save-path {folder} is not a folder; make it first")
    return folder


async def slots(request: web.Request) -> web.Response:
    """List the running alternatives and their settings.

    Busy slots come first. Only those of the caller's own requests have settings.
    """
    engine = request.app[ENGINE]
    if not request.app[LIMITS].slots:
        raise NotSupportedError("slots aren't shown: the server was started with --no-slots")
    engine.check_ready()
    stats = engine.health.stats
    assert stats is not None, "there are some as soon as the model is loaded"
    busy = [
        _slot(event_log, index) if event_log.owner == owner_of(request) else {"is_processing": True}
        for event_log in engine.requests
        if event_log.started
        for index in sorted(event_log.unfinished)
    ]
    busy += [slot for slot in await lists_of_peers(request) if slot["is_processing"]]
    if len(busy) >= stats.max_sequences and request.query.get("fail_on_no_slot"):
        raise UnavailableError(f"all {stats.max_sequences} slots are in use; try again soon")
    idle: list[dict[str, Any]] = [{"is_processing": False}] * (stats.max_sequences - len(busy))
    common: dict[str, Any] = {"n_ctx": engine.model.n_cells, "speculative": False}
    return web.json_response([common | slot | {"id": number} for number, slot in enumerate([*busy, *idle])])


def _slot(event_log: EventLog, index: int) -> dict[str, Any]:
    """A running alternative as a slot."""
    request = event_log.request
    return {
        "is_processing": True,
        "request_id": request.id,
        "index": index,
        "n_prompt_tokens": len(request.prompts[index // len(request.branches)]),
        "params": public_settings(request.branches[index % len(request.branches)], request),
    }


async def change_slot(request: web.Request) -> web.Response:
    """Save the KV cache of a slot to a file, restore it, or erase it, with --slot-save-path."""
    folder, number = request.app[SLOT_FOLDER], request.match_info["id_slot"]
    if folder is None:
        raise NotSupportedError("slots can't be saved, restored or erased: start the server with --slot-save-path")
    count = request.app[LIMITS].saved_slots
    # The length is checked first, because int() fails for a very long number.
    if not (number.isascii() and number.isdecimal() and len(number) < 10 and int(number) < count):
        raise InvalidRequestError(
            f"id_slot must be from 0 to {count - 1} (--parallel), got {show(number)}", param="id_slot"
        )
    actions = {"save": _save, "restore": _restore, "erase": _erase}
    within = await shared_within(request)
    action = request.query.get("action", "")
    if action not in actions:
        raise InvalidRequestError(f"action is one of {', '.join(actions)}, got {show(action)}", param="action")
    return web.json_response({"id_slot": int(number)} | await actions[action](request, folder, int(number), within))


async def _save(request: web.Request, folder: Path, slot: int, within: str) -> dict[str, Any]:
    engine, name = request.app[ENGINE], await asyncio.to_thread(parse_filename, await read_body(request))
    began = time.monotonic()
    saved = await engine.ask(
        slot, lambda states: states.copies(states.slots.get((within, slot), pack(())), keys_of(within))
    )
    own = folder / within  # the folder itself if `within` is empty
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        n_written = await asyncio.to_thread(write_text, own / name, engine.model.identity, saved)
    except OSError as error:
        raise SrbError(
            f"{name} can't be written: {error.strerror or error}", param="filename", code="slot_not_saved"
        ) from None
    timings = {"save_ms": (time.monotonic() - began) * 1000}
    return {"filename": name, "n_saved": saved[-1].end if saved else 0, "n_written": n_written, "timings": timings}


async def _restore(request: web.Request, folder: Path, slot: int, within: str) -> dict[str, Any]:
    engine, name = request.app[ENGINE], await asyncio.to_thread(parse_filename, await read_body(request))
    began = time.monotonic()
    own = folder / within / name
    try:
        path = own if own.is_file() else folder / name
        saved, n_read = await asyncio.to_thread(read_text, path, engine.model.identity)
    except (OSError, ValueError) as error:
        problem = (isinstance(error, OSError) and error.strerror) or error
        raise InvalidRequestError(f"{name} can't be restored: {problem}", param="filename") from None

    def restore(states: StateCache) -> int:
        states.slots[within, slot] = tokens = states.put(saved, keys_of(within))
        return len(tokens)

    n_restored = await engine.ask(slot, restore)
    timings = {"restore_ms": (time.monotonic() - began) * 1000}
    return {"filename": name, "n_restored": n_restored, "n_read": n_read, "timings": timings}


async def _erase(request: web.Request, _folder: Path, slot: int, within: str) -> dict[str, Any]:
    def erase(states: StateCache) -> int:
        return states.erase(states.slots.pop((within, slot), pack(())), keys_of(within))

    return {"n_erased": await request.app[ENGINE].ask(slot, erase)}


async def adapters(request: web.Request) -> web.Response:
    """List the adapters of --lora, with their scales for requests that name none."""
    listed = enumerate(request.app[ENGINE].adapters.listed)
    return web.json_response(
        [{"id": number, "name": each.name, "path": each.path, "scale": each.scale} for number, each in listed]
    )


async def set_adapters(request: web.Request) -> web.Response:
    """Set the scales of adapters for later requests; adapters that aren't named get 0."""
    loaded, body = request.app[ENGINE].adapters, await read_body(request)
    await asyncio.to_thread(lambda: loaded.set_scales(parse_adapters(body)))
    return web.json_response({"success": True})


_ADAPTER = object_of(id=INTEGER, name=STRING, path=STRING, scale=NUMBER)

ROUTES = (
    get("/slots", slots, list_of(OBJECT), errors=(501, 503)),
    post(
        "/slots/{id_slot}",
        change_slot,
        object_of(id_slot=INTEGER),
        body=SlotFields,
        errors=(501, 503),
        query={"action": "save, restore or erase"},
    ),
    get("/lora-adapters", adapters, list_of(_ADAPTER), errors=(501, 503)),
    post("/lora-adapters", set_adapters, object_of(success=BOOLEAN), body=AdapterFields, errors=(501, 503)),
)
