"""Snapshots, bookmarks and search."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import Story

pytestmark = pytest.mark.web


def test_the_search_finds_everything_and_snapshots_have_names(
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
    expect(story.find("#status")).to_contain_text("is in Story.")
    keyboard.press("1")  # the others are out of sight

    # A bookmark leads back to an alternative that wasn't kept, also after a reload.
    story.reload()
    story.find("#open-stories").click()
    story.find("#bookmarks button", has_text=said[1][:10]).click()
    expect(story.cards).to_have_count(2)
    expect(story.cards.nth(1).locator(".text")).to_be_focused()
    expect(story.cards.nth(1)).to_have_class("card favourite")

    # So do results. A discarded one is restored, and Undo discards it again.
    story.tool("#open-search")
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

    # A snapshot is compared with the text later, and gone back to.
    story.find("#open-stories").click()
    story.find("#tree li").nth(1).click()
    snapshots, names = story.find("#bookmarks li"), story.find("#bookmarks li > :first-child")
    story.page.once("dialog", lambda dialog: dialog.accept("The beginning"))
    story.find("#snapshot").click()
    expect(story.find("#tree li").nth(1)).to_contain_text("★ The beginning")
    story.find("#story").fill("Once upon the hill")
    story.page.once("dialog", lambda dialog: dialog.accept("The hill"))
    story.find("#snapshot").click()
    expect(snapshots).to_have_count(3)
    assert story.text == "Once upon the hill"
    story.find("#story").fill("Once upon a far hill")
    story.reload()
    story.find("#open-stories").click()
    expect(snapshots.filter(has_text="The hill")).to_contain_text("4 words")
    snapshots.filter(has_text="The hill").get_by_role("button", name="Compare").click()
    expect(story.find(".compared del")).to_have_text("the")
    expect(story.find(".compared ins")).to_have_text("a far")
    story.pictures("comparison", axe=True)
    story.find("#comparison .main").click()
    story.reads("Once upon the hill")
    story.find("#undo").click()
    story.reads("Once upon a far hill")

    # So is a snapshot at whose place something was typed since, or nothing is left.
    for typed in ("Once upon a hill, and a sea.", ""):
        names.filter(has_text="The hill").click()
        story.reads("Once upon the hill")
        story.find("#story").fill(typed)
        names.filter(has_text="The hill").click()
        story.reads("Once upon the hill")
        story.find("#undo").click()
        story.reads(typed)
    names.filter(has_text="The beginning").locator("xpath=..").get_by_role("button", name="Remove").press("Enter")
    expect(snapshots).to_have_count(2)
    expect(story.find("#snapshot")).to_be_focused()

    # A dialog that covers the text isn't followed by the search.
    story.find("#open-keys").click()
    story.page.keyboard.press("Control+f")
    expect(story.find("#search")).to_be_hidden()


def test_every_place_is_found_and_replaced_in_one_step(story: Story) -> None:
    box, keyboard, count = story.find("#story"), story.page.keyboard, story.find("#found-count")
    text = "\n".join(["Tom went home tomorrow, said Tom."] * 31)
    box.fill(text)
    story.set(n=1, max_tokens=8)
    story.generate(cards=1)
    story.press(story.cards.first, "Keep")
    keyboard.type(" TOM.")
    text = story.text
    keyboard.press("Control+F")
    query = story.find("#find")
    expect(query).to_be_focused()
    query.fill("tom")
    expect(count).to_have_text("94 in your text. In the tree: 2 texts.")
    query.fill("Tom")
    story.find("#find-words").check()
    expect(count).to_contain_text("63 in your text.")
    story.find("#find-case").check()
    expect(count).to_contain_text("62 in your text.")
    query.press("Shift+Enter")
    query.press("Enter")
    expect(count).to_contain_text("1 of 62 in your text.")  # after the last comes the first
    for _ in range(2):
        query.press("Enter")
    expect(count).to_contain_text("3 of 62 in your text.")
    expect(query).to_be_focused()
    assert story.shaded("fresh") == ["Tom"]
    story.find("#find-previous").click()
    expect(count).to_contain_text("2 of 62 in your text.")
    story.find("#find-next").click()

    # One is replaced, then all that remain, which Undo takes back in one step, with who wrote what.
    story.find("#replacement").fill("Benedict $&")
    story.find("#replace-one").click()
    first = text.replace("\nTom", "\nBenedict $&", 1)
    expect(box).to_have_js_property("value", first)
    expect(count).to_contain_text("3 of 61 in your text.")
    story.pictures("replace", axe=True)
    models = story.shaded("model")
    assert models
    story.find("#replace-all").click()
    every = re.sub(r"\bTom\b", "Benedict $&", first)
    expect(box).to_have_js_property("value", every)
    expect(story.find("#status")).to_have_text("61 places replaced.")
    expect(count).to_have_text("In the tree: 1 text.")
    for button, said in (("#undo", ""), ("#redo", "61 places replaced.")):
        story.find(button).click()
        expect(story.find("#status")).to_have_text(said)
    story.reload()
    expect(box).to_have_js_property("value", every)
    for button, expected in (("undo", first), ("undo", text), ("redo", first), ("redo", every), ("undo", first)):
        story.find(f"#{button}").click()
        expect(box).to_have_js_property("value", expected)
    assert story.shaded("model") == models


def test_a_selection_can_be_searched_in_other_stories(story: Story) -> None:
    story.find("#story").fill("lamp")
    story.find("#story").press("Control+A")
    story.page.keyboard.press("Control+F")
    expect(story.find("#find")).to_have_value("lamp")
    expect(story.find("#found-count")).to_contain_text("1 of 1 in your text.")
    expect(story.find("#find-in-others")).to_be_enabled()


def test_a_place_in_another_story_is_found_and_opened(blank: Story, either: Scripted) -> None:
    story = blank
    story.open(either.url)
    story.set(n=2, max_tokens=8, seed=1)
    begun = "\n".join(["A morning.", *["It rained."] * 60, "Ada lit the lamp."])
    story.generate(begun, cards=2)
    story.press(story.cards.nth(1), "Keep")
    kept = story.text
    story.begin()
    story.tool("#open-search")
    story.find("#find").fill("the LAM")
    expect(story.find("#found-count")).to_have_text("Nothing found.")
    story.find("#find").press("Enter")
    expect(story.find("#other-stories-status")).to_contain_text("1 found in other stories.")
    assert (
        "The search doesn't find" in (story.find("#other-stories-status").text_content() or "")
    ) is either.keeps_stories
    story.picture("elsewhere")
    link = story.find("#other-stories li")
    expect(link.locator("mark")).to_have_text("the lam")
    expect(link.locator("small")).to_contain_text("in “A morning.")
    story.leave("#other-stories a")
    story.reads(begun)
    assert story.page.evaluate("scrollY") > 0
    expect(story.cards).to_have_count(2)
    assert "/" not in story.page.url.partition("#")[2]  # a reload stays where one is then
    story.find("#undo").click()
    story.reads(kept)
