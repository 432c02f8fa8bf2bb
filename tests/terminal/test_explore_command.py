"""`srb explore` on the fake backend."""

import io
import json
import math

import pytest
from rich.console import Console
from terminal.conftest import Run

from srb.terminal.explore import GrowingTree
from srb.terminal.show import one_line

OPTIONS = ("--depth", "2", "--top-k", "3", "--max-nodes", "5", "--min-probability", "0")


def test_a_line_for_each_node_the_likeliest_first(srb: Run) -> None:
    assert srb("explore", "p", *OPTIONS, "--json") == 0
    events = [json.loads(line) for line in srb.out.splitlines()]
    assert [event["event"] for event in events] == ["start", *["node"] * 5, "done"]
    assert srb("explore", "p", *OPTIONS) == 0
    out, err = srb.out, srb.err
    assert err == ""
    nodes = {event["id"]: event for event in events if event["event"] == "node"}
    assert {node["parent"] is None for node in nodes.values()} == {True, False}
    for line, node in zip(out.splitlines(), nodes.values(), strict=True):
        text = nodes[node["parent"]]["text"] + node["text"] if node["parent"] else node["text"]
        assert line == f"{math.exp(node['cumulative_logprob']):.4f} {one_line(text)}"


def test_the_tree_has_each_text_below_what_it_goes_on_from() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    with GrowingTree(console) as view:
        for number, (parent, text, chance, end) in enumerate(
            [(None, " a", 0.5, None), (1, "\x1b[2J", 0.25, None), (None, "b\n", 0.12, None), (3, "", 0.99, "stop")]
        ):
            node = {"event": "node", "id": number + 1, "parent": parent, "text": text, "logprob": math.log(chance)}
            view.show(node | {"finish_reason": end})
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line.rstrip() for line in shown.splitlines()[-4:]]
    assert lines[0].endswith(" a  50%")
    assert lines[1:] == ["└── \\x1b[2J  25%", "b\\n  12%", "└──  ■  99%"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["p", "--depth", "0"], "depth must be from 1 to 128, got 0"),
        (["p", "--url", "http://localhost:1", "--ctx-size", "9"], "--ctx-size has no effect with --url"),
        (["p", "--file", "p"], "the prompt and --file exclude each other"),
    ],
)
def test_wrong_options_are_told_before_the_model_is_loaded(srb: Run, arguments: list[str], message: str) -> None:
    assert srb("explore", *arguments) == 2
    assert message in srb.err


def test_what_has_no_room_is_told_by_its_own_name(srb: Run) -> None:
    assert srb("explore", "p" * 4000, "--depth", "128") == 2
    assert "explore with a smaller depth" in srb.err
