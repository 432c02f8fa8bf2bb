"""Working inside a text: alternatives at the cursor, a passage rewritten, and one Undo for all of it."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import PHONE, Story

pytestmark = pytest.mark.web

BEFORE, BEHIND = "The keeper slept. ", "He woke at dawn."


def begin(story: Story, server: Scripted, text: str = BEFORE + BEHIND, **settings: object) -> None:
    """Opens the page of a server, and types a text."""
    story.open(server.url)
    story.set(**settings)
    story.find("#story").click()
    story.page.keyboard.type(text)


def cursor(story: Story) -> int:
    place: int = story.find("#story").evaluate("(box) => box.selectionEnd")
    return place


def test_alternatives_are_inserted_at_the_cursor(blank: Story, either: Scripted) -> None:
    story, server = blank, either
    keyboard, box = story.page.keyboard, story.find("#story")
    begin(story, server, n=2, max_tokens=8, seed=1)
    story.select(len(BEFORE))
    server.going.clear()
    keyboard.press("Control+Enter")
    expect(story.find("#stop")).to_be_enabled()
    server.going.set()
    expect(story.cards).to_have_count(2)
    story.wait_done()
    expect(box).to_have_js_property("value", BEFORE + BEHIND)
    assert cursor(story) == len(BEFORE)
    expect(story.find("#where")).to_have_text("After “The keeper slept.”, before “He woke at dawn.”")

    # Changes further down stay; the cursor is after the kept text.
    story.select(len(BEFORE + BEHIND))
    keyboard.type(" At once.")
    said = story.said(story.cards.nth(1))
    story.press(story.cards.nth(1), "Keep")
    gap = "" if said.endswith((" ", "\n")) else " "
    expect(box).to_have_js_property("value", BEFORE + said + gap + BEHIND + " At once.")
    assert cursor(story) == len(BEFORE + said)
    assert "\n".join(story.shaded("fresh")) == said
    story.pictures("middle")
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", BEFORE + BEHIND + " At once.")
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", BEFORE + BEHIND)
    story.reload()
    for _ in range(2):
        story.find("#redo").click()
    kept = BEFORE + said + gap + BEHIND + " At once."
    expect(box).to_have_js_property("value", kept)

    # Continue: at the same place with known tokens, at the end with all of the text.
    path = story.find("#path button")
    count = path.count()
    assert cursor(story) == len(BEFORE + said)
    story.find("#story").focus()
    with story.asking() as body:
        keyboard.press("Control+Enter")
    expect(story.cards).to_have_count(2)
    story.wait_done()
    assert ("node" in body) if server.keeps_stories else (len(body["prompt"]) > len(BEFORE))
    assert path.count() == count + 1  # the text after it has changed
    story.select(len(kept))
    story.generate(cards=2)
    expect(box).to_have_js_property("value", kept)
    story.press(story.cards.first, "Keep")
    assert story.text.startswith(kept)
    assert cursor(story) == len(story.text)

    # It lasts: the tree has it, also on another device and in files.
    if server.keeps_stories:
        with story.page.context.expect_page() as opened:
            story.page.evaluate("window.open(location.href)")
        again = Story(opened.value)
        again.wait_ready()
        again.reads(story.text)
        again.page.close()
    with story.panel("stories"), story.page.expect_download() as download:
        story.reach("#export").click()
    nodes = json.loads(download.value.path().read_text())["nodes"]
    assert [node.get("behind") for node in nodes if node.get("typed")] == [
        BEHIND,
        gap + BEHIND + " At once.",
        None,
    ]


def test_a_passage_is_rewritten_and_its_versions_are_compared(blank: Story, either: Scripted) -> None:
    story, server = blank, either
    keyboard, box = story.page.keyboard, story.find("#story")
    begin(story, server, "He slept. " + BEHIND, n=2, seed=3, max_tokens=8)
    expect(story.find("#rewrite")).to_be_disabled()
    story.select(0, len("He slept. "))  # the first sentence, and a space that is no part of the passage
    expect(story.find("#rewrite")).to_be_enabled()
    keyboard.press("Control+Shift+Enter")
    expect(story.find("#rewriter blockquote")).to_have_text("He slept.")
    expect(story.find("#rewriter-how")).to_be_focused()
    story.pictures("rewriter", axe=True)
    keyboard.type("Shorter.")
    with story.asking() as body:
        keyboard.press("Enter")
    expect(story.cards).to_have_count(2)
    story.wait_done()
    story_so_far = "He slept. " + BEHIND
    assert body["prompt"] == (
        f"<user>This is a part of a story:\n\n{story_so_far}\n\nOne passage of it is to be written anew:"
        "\n\nHe slept.\n\nShorter. Answer with the new passage alone.<assistant>"
    )
    assert "heal" not in body
    assert (body.get("story") is not None) == server.keeps_stories
    expect(box).to_have_js_property("value", story_so_far)
    expect(box).to_be_focused()
    expect(story.find("#version blockquote")).to_have_text("He slept.")
    expect(story.find(".batch-title")).to_have_text("Shorter.")
    story.find("#differences").click()
    differs = "[...CSS.highlights.get('differs')].map((each) => each.toString())"
    said = story.said(story.cards.first)
    assert any(said.split(".")[0].strip() in each for each in story.page.evaluate(differs))
    story.pictures("versions", axe=True)

    story.press(story.cards.first, "Keep")
    expect(box).to_have_js_property("value", said + " " + BEHIND)
    assert cursor(story) == len(said)
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", story_so_far)
    expect(story.cards).to_have_count(2)
    keyboard.press("Control+Shift+Z")
    story.reload()
    expect(box).to_have_js_property("value", said + " " + BEHIND)
    expect(story.find("#version")).to_be_hidden()
    path = story.find("#path button")
    expect(path.nth(1)).to_have_text("Rewrite: He slept.")
    path.nth(1).click()
    expect(box).to_have_js_property("value", story_so_far)
    expect(story.find("#version")).to_be_visible()


def test_a_bridge_leads_to_the_text_after_it_and_the_best_is_first(blank: Story, either: Scripted) -> None:
    story, server = blank, either
    keyboard, box = story.page.keyboard, story.find("#story")
    begin(story, server, n=3, seed=1, max_tokens=30)
    expect(story.find("#bridge")).to_be_disabled()
    story.select(len(BEFORE))
    expect(story.find("#bridge")).to_be_enabled()
    with story.asking() as body:
        keyboard.press("Control+Alt+Enter")
    expect(story.cards).to_have_count(3)
    story.wait_done()
    assert (body["suffix"], body["n"]) == (" " + BEHIND, 3)
    assert ("node" in body) == server.keeps_stories
    expect(story.find(".follows").first).to_have_text("fits the rest best")
    marks = story.find(".follows").all_text_contents()
    assert all("the rest" in each for each in marks)
    if not server.keeps_stories:
        story.pictures("bridge", axe=True)
    said = story.said(story.cards.first)
    story.press(story.cards.first, "Keep")
    expect(box).to_have_js_property("value", BEFORE + said + " " + BEHIND)
    assert cursor(story) == len(BEFORE + said)
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", BEFORE + BEHIND)
    story.reload()
    assert story.find(".follows").all_text_contents() == marks

    # What can't go together is said.
    story.find("#unseen").evaluate("(each) => each.closest('dialog').show()")
    story.reach("#unseen").check()
    story.select(len(BEFORE))
    keyboard.press("Control+Alt+Enter")
    expect(story.find("#error")).to_contain_text("New openings only can't be combined with Bridge.")


def test_tints_of_authorship_are_stored(story: Story, tmp_path: Path) -> None:
    keyboard = story.page.keyboard
    story.set(n=1, max_tokens=12, seed=2)
    story.find("#story").click()
    keyboard.type(BEFORE)
    keyboard.press("Control+Enter")
    expect(story.cards).to_have_count(1)
    story.wait_done()
    said = story.said(story.cards.first)
    story.press(story.cards.first, "Keep")
    keyboard.type("\n\nMine.")
    story.select(len(BEFORE) + 3)
    keyboard.type("!")

    def tints() -> list[list[str]]:
        return [sorted(story.shaded(name)) for name in ("writer", "model", "changed")]

    tinted = [sorted([BEFORE, "Mine."]), sorted([said[:3], said[3:]]), ["!"]]
    assert "\n" not in said
    assert tints() == tinted
    story.reload()
    assert tints() == tinted
    story.select(len(BEFORE) + 6)
    keyboard.press("Control+Enter")  # now all of it is in the tree
    expect(story.find("#where")).to_be_visible()
    story.wait_done()
    story.reload()
    found = [sorted(set("".join(each))) for each in tints()]
    assert found == [sorted(set("".join(each))) for each in tinted]
    story.pictures("tints")

    # They are in files, also of a draft.
    keyboard.press("Control+End")
    keyboard.type(" A draft.")
    found = tints()
    story.find("#open-stories").click()
    with story.page.expect_download() as download:
        story.reach("#export").click()
    download.value.save_as(tmp_path / "story.json")
    story.take(tmp_path / "story.json")
    assert tints() == found
    colour = """() => getComputedStyle(document.querySelector("#story .model")).backgroundColor"""
    shown = story.page.evaluate(colour)
    keyboard.press("Escape")
    keyboard.press("w")
    assert story.page.evaluate(colour) != shown
    story.reload()
    expect(story.find("#tints")).not_to_be_checked()


def test_other_words_replace_a_word_of_the_text(blank: Story, server: Scripted) -> None:
    """The word may be anybody's; the text as it was stays where it is. With the keyboard alone, and with a finger."""
    story, box, keyboard = blank, blank.find("#story"), blank.page.keyboard
    begin(story, server, n=2, max_tokens=8, seed=1)
    story.select(len("The keep"))
    keyboard.press("Control+.")
    expect(story.find("#token-preview")).to_contain_text("Instead of “keeper”:")
    expect(story.find("#token-preview button").first).to_be_focused()
    story.picture("others")
    keyboard.press("Escape")
    expect(story.find("#token-preview")).to_be_hidden()
    expect(box).to_be_focused()
    assert cursor(story) == len("The keep")

    # The first list has words that fit before the rest; they replace only this one.
    keyboard.press("Control+.")
    expect(story.find("#token-preview button").first).to_be_focused()
    expect(story.find("#token-preview")).to_contain_text("Swap only this word:")
    keyboard.press("Enter")
    expect(box).to_have_text(re.compile(rf"^The (?!keeper)\w+ slept\. {BEHIND}$"))
    expect(box).to_be_focused()
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", BEFORE + BEHIND)
    story.select(len("The keep"))

    # A letter is never lost in the list.
    keyboard.press("Control+.")
    expect(story.find("#token-preview")).to_be_visible()
    keyboard.type("!x")
    expect(story.find("#token-preview")).to_be_hidden()
    expect(box).to_have_js_property("value", "The keep!xer slept. " + BEHIND)
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", BEFORE + BEHIND)

    story.page.set_viewport_size(PHONE)
    story.select(len("The keeper"))
    story.find("#more-tools").click()
    story.find("#other-words").click()
    expect(story.find("#token-preview")).to_be_in_viewport(ratio=1)
    choice = story.find("#token-preview ul:last-of-type button").nth(1)
    said = (choice.text_content() or "").strip()
    choice.click()
    expect(story.cards).to_have_count(2)
    story.wait_done()
    expect(box).to_have_text(re.compile(rf"^The ?{re.escape(said.removeprefix('-'))}$"))
    story.find("#undo").click()
    expect(box).to_have_js_property("value", BEFORE + BEHIND)
