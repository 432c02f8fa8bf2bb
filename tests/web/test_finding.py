"""Bookmarks, and what is found of all that was written in a story."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import Story

pytestmark = pytest.mark.web


def test_all_that_was_written_is_found_and_a_bookmark_has_a_name(
    start_scripted: Callable[..., Scripted], blank: Story, tmp_path: Path
) -> None:
    story, server = blank, start_scripted(tmp_path / "stories.db")
    story.open(server.url)
    story.set(n=3, max_tokens=12, seed=1)
    story.generate("Once upon a", cards=3)
    said = [story.said(card).strip() for card in story.cards.all()]
    story.press(story.cards.nth(2), "Discard")
    expect(story.cards).to_have_count(2)
    keyboard, found = story.page.keyboard, story.find("#found li")
    story.cards.nth(1).locator(".text").focus()
    keyboard.press("f")
    expect(story.find("#status")).to_have_text("It is a bookmark, in Story.")
    keyboard.press("1")  # the others are out of sight

    # A bookmark leads back to an alternative that wasn't kept, also after a reload.
    story.reload()
    story.find("#open-shelf").click()
    story.find("#bookmarks button", has_text=said[1][:10]).click()
    expect(story.cards).to_have_count(2)
    expect(story.cards.nth(1).locator(".text")).to_be_focused()
    expect(story.cards.nth(1)).to_have_class("card favourite")

    # So does what is found; what was discarded is brought back, and Undo discards it again.
    story.find("#find").fill(f"upon a {said[2]}")
    expect(found).to_have_count(1)
    expect(found.locator("small")).to_have_text("discarded")
    story.pictures("found", axe=True)
    found.locator("button").click()
    expect(story.cards).to_have_count(3)
    expect(story.cards.nth(2).locator(".text")).to_be_focused()
    expect(found.locator("small")).to_have_text("not kept")
    story.find("#undo").click()
    story.find("#undo").click()
    expect(found.locator("small")).to_have_text("discarded")

    # A place gets a name, and the tree shows it.
    story.find("#tree li").nth(1).click()
    story.page.once("dialog", lambda dialog: dialog.accept("The beginning"))
    story.find("#bookmark").click()
    expect(story.find("#tree li").nth(1)).to_contain_text("★ The beginning")
    expect(story.find("#bookmarks button")).to_have_count(2)
    story.page.once("dialog", lambda dialog: dialog.accept(" "))
    story.find("#bookmark").click()
    expect(story.find("#bookmarks button")).to_have_count(1)
