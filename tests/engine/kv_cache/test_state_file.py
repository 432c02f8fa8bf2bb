"""The file format of the disk cache: a file of another format must never be taken for one of this format."""

from array import array
from pathlib import Path

from srb.engine.kv_cache.state_store import MAGIC, Record, entry_name, read_record, read_state, write_state

TOKENS = array("i", [5, 6, 7])
HEX = (
    "73726273746174310000000003000000030000000600000005000000000000000000000000000000000000000000000022e8"
    "53215279e8ed80fd1f2323e13533aa9b089438189623d157aefbba8991b16b65790500000006000000070000006c6f676974"
    "737374617465"
)
"""What srb 0.1 writes for the entry below. If another format can't be avoided, change `MAGIC`, which gives it a
folder of its own, and say so in docs/running/upgrading.md."""


def test_a_file_has_the_bytes_of_its_format(tmp_path: Path) -> None:
    name = entry_name(None, 0, TOKENS, "key")
    path = tmp_path / f"0-{name}.state"
    write_state(path, Record(name, None, 0, TOKENS, "key", True), memoryview(b"state"), b"logits")
    assert (MAGIC, path.read_bytes().hex()) == (b"srbstat1", HEX)


def test_a_file_of_this_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "0-898a10cf970a14b4e3cbcdaeca7201d1.state"
    path.write_bytes(bytes.fromhex(HEX))
    record = read_record(path)
    assert (record.tokens, record.key, record.parent, record.start) == (TOKENS, "key", None, 0)
    state, logits = read_state(memoryview(path.read_bytes()), verify=True)
    assert (bytes(state), logits) == (b"state", b"logits")
