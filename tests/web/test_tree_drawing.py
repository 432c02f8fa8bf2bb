"""The tree of a story as a drawing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import Story

pytestmark = pytest.mark.web


def node(number: int, parent: int | None, text: str, **others: Any) -> dict[str, Any]:
    return {"id": number, "parent": parent, "text": text, **others}


def model(number: int, parent: int, text: str, **others: Any) -> dict[str, Any]:
    return node(number, parent, text, author="model", request="r", index=number, finish_reason="length", **others)


TALE = [
    node(1, None, "# The boat\n\nThe keeper slept."),
    model(2, 1, " Ada lit the lamp.", kept=True),
    model(3, 1, " Nobody came.", notes="Without Ada"),
    model(4, 1, " It rained."),
    node(5, 2, " She waited."),
]


def open_tree(story: Story, server: Scripted, nodes: list[dict[str, Any]]) -> None:
    made = json.loads(server.request("/v1/stories", {"title": "A tale", "nodes": nodes})[1])
    story.open(f"{server.url}/#{made['id']}")
    story.find("#open-stories").click()


def test_the_tree_is_drawn_and_explored(start_scripted: Callable[..., Scripted], blank: Story, tmp_path: Path) -> None:
    server = start_scripted(tmp_path / "stories.db")
    open_tree(blank, server, TALE)
    blank.set(n=3, max_tokens=12)
    blank.find("#draw").click()
    keyboard, items, words = blank.page.keyboard, blank.find("#drawing [role=treeitem]"), blank.find("#place-words")
    expect(items).to_have_count(6)
    expect(blank.find("#drawing [aria-selected=true]")).to_have_attribute("aria-label", "She waited.")
    expect(blank.find("#drawing .named text")).to_have_text("★ Without Ada")
    expect(blank.find("#drawing text", has_text="The boat")).to_have_text("The boat")
    expect(items.nth(1)).to_have_attribute("aria-label", "The boat The keeper slept., chapter The boat")
    blank.pictures("drawing", axe=True)

    # With keys: back to the lamp, and to the alternative that wasn't kept.
    blank.find("#drawing [aria-selected=true]").focus()
    keyboard.press("ArrowLeft")
    expect(words).to_have_text("Ada lit the lamp.")
    keyboard.press("Enter")
    blank.reads("# The boat\n\nThe keeper slept. Ada lit the lamp.")
    keyboard.press("ArrowDown")
    expect(words).to_have_text("Nobody came.")
    keyboard.press("ArrowDown")
    expect(words).to_have_text("It rained.")
    width = blank.find("#drawing svg").evaluate("(each) => each.clientWidth")
    keyboard.press("+")
    keyboard.press("+")
    assert blank.find("#drawing svg").evaluate("(each) => each.clientWidth") > 1.5 * width
    keyboard.press("0")
    whole = "(each) => each.scrollWidth <= each.clientWidth && each.scrollHeight <= each.clientHeight"
    assert blank.find("#drawing").evaluate(whole)
    keyboard.press("Enter")
    expect(blank.find(".card .text:focus")).to_have_text(" It rained.")

    # With the mouse: pointing shows the words, a click goes there, Ctrl and the wheel zoom.
    named = blank.find("#drawing .named circle")
    named.hover()
    expect(words).to_have_text("Nobody came.")
    size = named.bounding_box()
    keyboard.down("Control")
    blank.page.mouse.wheel(0, -200)
    keyboard.up("Control")
    larger = named.bounding_box()
    assert size
    assert larger
    assert larger["width"] > 2 * size["width"]
    assert abs(size["x"] + size["width"] / 2 - larger["x"] - larger["width"] / 2) < 5, "it stays where it was"
    blank.find("#drawing [aria-label^=She]").click()
    blank.reads("# The boat\n\nThe keeper slept. Ada lit the lamp. She waited.")

    # Drafts and running alternatives are shown.
    blank.find("#story").press_sequentially(" So")
    server.hold_after(5)
    blank.generate(cards=3, wait=False)
    expect(blank.find("#drawing .running")).to_have_count(3)
    server.go()
    expect(blank.find("#drawing .running")).to_have_count(0)
    blank.find("#story").press_sequentially(" many")
    blank.find("#drawing [aria-label^=Ada]").click()
    expect(blank.find("#drawing .draft")).to_have_attribute("aria-label", "So, with a draft")
    blank.reload()
    blank.find("#open-stories").click()
    expect(blank.find("#drawing .current")).to_be_focused()
    blank.page.keyboard.press("p")
    expect(blank.find("#tree [role=treeitem]")).to_have_count(5)

    # The list has keys, too.
    blank.find("#tree [role=treeitem]").last.focus()
    at = blank.find("#tree :focus")
    last = at.get_attribute("data-place")
    for key, back in (("ArrowLeft", "ArrowRight"), ("ArrowUp", "ArrowDown"), ("Home", "End")):
        keyboard.press(key)
        assert at.get_attribute("data-place") != last, key
        keyboard.press(back)
        assert at.get_attribute("data-place") == last, back
    keyboard.press("ArrowLeft")
    keyboard.press("Enter")
    blank.reads("# The boat\n\nThe keeper slept. Ada lit the lamp. She waited.")
