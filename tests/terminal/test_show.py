"""How events look on a terminal."""

import io
from typing import Any

import pytest
from rich.console import Console

from srb.terminal.show import Growing, PlainLines, harmless

START = {"event": "start", "count": 2, "seeds": [7, 8], "labels": [None, "wild"]}


def stop(index: int, length: int, stop_reason: str | None = None) -> dict[str, Any]:
    return {"event": "stop", "index": index, "length": length, "finish_reason": "stop", "stop_reason": stop_reason}


def shown(*events: dict[str, Any], height: int = 24) -> tuple[str, str]:
    """What a terminal shows after the events, and after the end."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=40, height=height, color_system=None, highlight=False)
    with Growing(console) as view:
        for event in events:
            view.show(event)
        with console.capture() as capture:
            console.print(view.render())
        out.truncate(0)
        out.seek(0)
    return capture.get(), out.getvalue()


def test_the_ends_of_the_texts_while_they_grow_and_all_of_them_at_the_end() -> None:
    text = " ".join(map(str, range(100)))
    during, after = shown(
        START,
        {"event": "stream", "index": 0, "text": text},
        {"event": "stream", "index": 1, "text": "[bold]x"},
        stop(1, 3, "."),
        height=7,
    )
    lines = [line.rstrip() for line in during.splitlines()]
    assert len(lines) < 7
    assert lines[0].split() == ["0", "seed", "7"]
    assert lines[2].endswith("98 99")
    assert "0 1 2" not in during
    assert lines[3].split() == ["wild", "seed", "8", "·", "3", "tokens", "·", "stop", "'.'"]
    assert lines[4] == "[bold]x"
    assert text in " ".join(after.split())


def test_one_line_each_where_there_is_no_room_for_more() -> None:
    during, _ = shown(START, {"event": "stream", "index": 0, "text": "a\nlast line"}, stop(1, 0), height=4)
    assert [line.rstrip() for line in during.splitlines()] == ["0 last line", "wild"]
    during, _ = shown(
        START,
        {"event": "stream", "index": 0, "text": "x" * 38},
        {"event": "stream", "index": 1, "text": "x" * 70},
        height=4,
    )
    assert [line.rstrip() for line in during.splitlines()] == ["0 " + "x" * 38, "wild " + "x" * 35]


def test_while_the_prompt_is_read() -> None:
    during, _ = shown(START, {"event": "progress", "evaluated": 3, "cached": 2, "total": 9})
    assert during == "reading 5 of 9 prompt tokens\n"


def test_a_text_cant_steer_the_terminal() -> None:
    assert harmless("a\x1b[2J\x07\r\x9b1m\u202eb\x00") == "a\\x1b[2J\\x07\\r\\x9b1m\\u202eb\\x00"
    assert harmless("line\n\ttab \N{ZERO WIDTH JOINER}é") == "line\n\ttab \N{ZERO WIDTH JOINER}é"


def test_the_alternatives_of_a_bridge_come_by_their_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    said = [{"event": "stream", "index": index, "text": text} for index, text in enumerate(["worse", "better"])]
    ends = [stop(index, 1) | {"rank": 2 - index, "suffix_logprob": -9.5 + index} for index in range(2)]
    with PlainLines() as view:
        for event in (START, *said, *ends):
            view.show(event)
    assert capsys.readouterr().out == "wild: better\n0: worse\n"
    assert "rank 2" in shown(START, *said, *ends)[1]
