"""llama-server's routes, on the default model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from real_server import Server


def post(server: Server, path: str, **body: Any) -> Any:
    status, text = server.request(path, body)
    assert status == 200, text
    return json.loads(text)


def test_a_slot_outlives_the_server(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """As llama.cpp's own test_slot_save.py does it, with a prompt that is long enough to be kept."""
    france, germany = (
        f"Tell me in a few words, as you would tell a child of six or seven: what is the capital of {name}?"
        for name in ("France", "Germany")
    )
    body = {"n_predict": 16, "temperature": 0, "ignore_eos": True}

    def complete(server: Server, prompt: str, slot: int) -> tuple[str, int]:
        result = post(server, "/completion", prompt=prompt, id_slot=slot, **body)
        return result["content"], result["timings"]["prompt_n"]

    server = start_server("--slot-save-path", str(tmp_path))
    said, n_tokens = complete(server, france, 1)
    saved = post(server, "/slots/1?action=save", filename="slot1.bin")
    assert saved["n_saved"] == n_tokens + 15
    assert saved["n_written"] == (tmp_path / "slot1.bin").stat().st_size
    about_germany, n_new = complete(server, germany, 1)
    assert n_new <= 3  # what is different in it
    server.stop()

    server = start_server("--slot-save-path", str(tmp_path))
    restored = post(server, "/slots/0?action=restore", filename="slot1.bin")
    assert (restored["n_restored"], restored["n_read"]) == (n_tokens + 15, saved["n_written"])
    assert complete(server, france, 0) == (said, 0)
    assert complete(server, germany, 1) == (about_germany, n_new)
    for slot in (0, 1):
        assert post(server, f"/slots/{slot}?action=erase")["n_erased"] == n_tokens + 15
    assert complete(server, france, 0) == (said, n_tokens)
    (tmp_path / "slot1.bin").write_bytes(b"ggsq" + bytes(1000))
    status, text = server.request("/slots/0?action=restore", {"filename": "slot1.bin"})
    assert (status, "it isn't the file of a slot" in text) == (400, True)
    assert server.health()["status"] == "ok"
