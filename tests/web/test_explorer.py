"""The tree of likely continuations."""

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import PROMPT, Story

pytestmark = pytest.mark.web


def explore(story: Story) -> None:
    """Opens the tree, and waits until all of it is there."""
    story.find("#story").fill(PROMPT)
    story.tool("#explore")
    story.find("#explore-runs").uncheck()
    expect(story.find("#explorer .status-line")).to_contain_text("continuations")


def chosen(story: Story) -> str:
    return story.find("#explorer .chosen").text_content() or ""


def test_it_is_explored_with_the_keyboard_and_a_choice_continues(story: Story) -> None:
    story.set(n=1, max_tokens=4)
    explore(story)
    first = story.find(".explored [role=treeitem]").first
    expect(first).to_be_focused()
    keyboard = story.page.keyboard
    begins = chosen(story)
    keyboard.press("ArrowRight")
    expect(first).not_to_be_focused()
    assert chosen(story).startswith(begins)
    assert len(chosen(story)) > len(begins)
    keyboard.press("ArrowLeft")  # closes it, or goes up
    keyboard.press("Home")
    expect(first).to_be_focused()
    keyboard.press("ArrowLeft")
    expect(first).to_have_attribute("aria-expanded", "false")
    keyboard.press("ArrowDown")
    expect(story.find(".explored > li > div").nth(1)).to_be_focused()
    keyboard.press("ArrowUp")
    keyboard.press("ArrowRight")
    keyboard.press("ArrowRight")
    text = chosen(story)
    keyboard.press("Enter")
    expect(story.find("#explorer")).to_be_hidden()
    story.reads(PROMPT + text)
    expect(story.find("#path button")).to_have_count(3)
    with story.asking() as body:
        story.find("#story").press("Control+Enter")
    assert all(isinstance(token, int) for token in body["prompt"]), "its tokens are known"
    story.wait_done()
    story.reload()
    story.reads(PROMPT + text)


def test_it_is_explored_by_touch_up_to_where_the_model_is_unsure(story: Story) -> None:
    explore(story)
    shorter = chosen(story)
    story.find("#explore-runs").check()
    expect(story.find("#explorer .status-line")).to_contain_text("continuations")
    second = story.find(".explored > li > div").nth(1)
    second.click()
    text = chosen(story)
    assert text
    assert text != shorter
    words = story.find(".explored div > span:first-child").all_text_contents()
    assert max(map(len, words)) > 2, "a node may have several tokens"
    story.find("#explorer .take").click()
    story.reads(PROMPT + text)


def test_closing_restores_the_cursor(story: Story) -> None:
    box = story.find("#story")
    box.fill(PROMPT)
    box.press("ArrowLeft")
    story.tool("#explore")
    story.find("#explorer > .head button").click()
    expect(box).to_be_focused()
    story.page.keyboard.type("!")
    expect(box).to_have_js_property("value", f"{PROMPT[:-1]}!{PROMPT[-1]}")


def test_closing_ends_the_request_and_changes_nothing(story: Story, server: Scripted) -> None:
    story.generate(PROMPT, cards=8)  # so that the text is read
    server.hold_after(3)
    story.find("#explore-runs").evaluate("(box) => (box.checked = false)")
    with story.page.expect_websocket() as opened:
        story.tool("#explore")
    expect(story.find("#explorer .status-line")).to_have_text("Looking ahead …")
    expect(story.find(".explored [role=treeitem]").first).to_be_visible()
    with opened.value.expect_event("close"):
        story.page.keyboard.press("Escape")
    server.go()
    expect(story.find("#explorer")).to_be_hidden()
    story.reads(PROMPT)
    explore(story)
