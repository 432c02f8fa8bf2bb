"""What is typed while no story is open: as the page loads, and on the way to another story."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect
from scripted import Scripted
from web.conftest import PROMPT, Story, profile

pytestmark = pytest.mark.web


def test_letters_typed_before_a_story_is_open_are_in_it(blank: Story, server: Scripted) -> None:
    """Reload twice while the server doesn't answer, make a story, and go back to the first one."""
    held: list[Route] = []
    keyboard = blank.page.keyboard
    blank.open(server.url)
    blank.find("#story").click()
    keyboard.insert_text("It rained.")
    blank.page.route("**/health", lambda route: held.append(route), times=2)
    for typed in (" It sn", "owed."):
        blank.page.reload(wait_until="domcontentloaded")
        keyboard.type(typed)
    held[-1].continue_()
    keyboard.type(" Spring came.", delay=20)
    blank.wait_ready()
    keyboard.type(" And went.", delay=20)
    assert blank.text == "It rained. It snowed. Spring came. And went."
    expect(blank.find("#story")).to_be_focused()
    first = blank.page.url
    blank.find("#open-stories").click()
    with blank.leaving():
        blank.find("#new").click()
        keyboard.type(PROMPT, delay=20)
    assert blank.text == PROMPT
    blank.find("#open-stories").click()
    with blank.leaving():
        blank.find("#story-list a:not([aria-current])").click()
        keyboard.type(" He was old, and slept.", delay=20)
    assert (blank.page.url, blank.text) == (
        first,
        "It rained. It snowed. Spring came. And went. He was old, and slept.",
    )


TYPE = """(text) => {
    const letters = [...text];
    const timer = setInterval(() => {
        if (letters.length) document.execCommand("insertText", false, letters.shift());
        else clearInterval(timer);
    }, 20);
}"""
"""Types in the page itself: on a busy machine, keys from here may come after a pause."""


def test_a_reload_waits_until_nobody_types(browser: Browser, server: Scripted) -> None:
    with profile(browser, service_workers="allow") as story:
        story.open(server.url)
        story.page.evaluate("async () => void (await navigator.serviceWorker.ready)")
        story.reload()
        story.page.evaluate("document.body.dataset.left = true; setTimeout(() => location.reload(), 200)")
        story.page.evaluate(TYPE, PROMPT)
        expect(story.find("body[data-ready]:not([data-left])")).to_be_visible()
        assert story.text == PROMPT


def test_a_letter_that_is_composed_while_the_page_loads_is_in_it(blank: Story, server: Scripted) -> None:
    held: list[Route] = []
    blank.page.route("**/health", lambda route: held.append(route), times=1)
    with blank.page.expect_request("**/health"):
        blank.page.goto(server.url, wait_until="domcontentloaded")
    blank.page.keyboard.type("Un caf")
    client = blank.page.context.new_cdp_session(blank.page)
    client.send("Input.imeSetComposition", {"text": "\N{ACUTE ACCENT}", "selectionStart": 1, "selectionEnd": 1})
    held[0].continue_()
    blank.page.wait_for_timeout(500)
    client.send("Input.insertText", {"text": "é"})
    blank.wait_ready()
    assert blank.text == "Un café"


def test_letters_typed_for_a_story_that_cant_be_made_are_in_the_open_one(
    blank: Story, start_scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    blank.open(start_scripted(tmp_path / "stories.db").url)
    blank.page.route("**/v1/stories", lambda route: route.abort())
    blank.find("#open-stories").click()
    blank.find("#new").click()
    blank.page.keyboard.type("It rained.", delay=20)
    expect(blank.find("#error")).to_contain_text("can't be reached")
    expect(blank.find("#story")).to_be_focused()
    assert blank.text == "It rained."
    blank.excuse("ERR_FAILED")
