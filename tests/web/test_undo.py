"""Undo and redo."""

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import Story

pytestmark = pytest.mark.web


def test_undo_ends_at_the_beginning_of_the_story(story: Story) -> None:
    story.find("#story").fill("Another story.")
    story.begin()
    story.set(n=2, max_tokens=8)
    story.find("#story").click()
    keyboard, box, url = story.page.keyboard, story.find("#story"), story.page.url
    keyboard.type("The old lighthouse keeper had one rule, and")
    story.generate(cards=2)
    story.press(story.cards.first, "Keep")
    keyboard.type(" he kept it.")
    said = story.text
    for _ in range(2):
        for _ in range(30):
            keyboard.press("Control+Z")
        expect(box).to_have_js_property("value", "")
        expect(box).to_be_focused()
        expect(story.find("#undo")).to_be_disabled()
        for _ in range(30):
            keyboard.press("Control+Shift+Z")
        expect(box).to_have_js_property("value", said)
        expect(box).to_be_focused()
        assert story.page.url == url

    # With the button, too, the keyboard goes nowhere else than to the text.
    story.find("#undo").focus()
    while story.find("#undo").is_enabled():
        story.find("#undo").press("Enter")
    expect(box).to_be_focused()
    assert story.text == ""


def test_a_dead_key_and_a_word_of_an_input_method_are_one_step(story: Story) -> None:
    box, keyboard = story.find("#story"), story.page.keyboard
    client = story.page.context.new_cdp_session(story.page)

    def compose(*texts: str) -> None:
        """Compose each text in place of the one before it, and commit the last."""
        for text in texts[:-1]:
            place = {"selectionStart": len(text), "selectionEnd": len(text)}
            client.send("Input.imeSetComposition", {"text": text, **place})
        client.send("Input.insertText", {"text": texts[-1]})

    box.click()
    keyboard.type("Un caf")
    compose("\N{ACUTE ACCENT}", "é")
    keyboard.type(" ")
    compose("n", "に", "日", "日本")
    expect(box).to_have_js_property("value", "Un café 日本")
    story.reload()
    box.click()
    for expected in ("Un café ", ""):
        keyboard.press("Control+Z")
        expect(box).to_have_js_property("value", expected)
    for expected in ("Un café ", "Un café 日本"):
        keyboard.press("Control+Shift+Z")
        expect(box).to_have_js_property("value", expected)


def test_a_composition_that_another_place_ends_is_undone_there(story: Story, server: Scripted) -> None:
    story.set(n=2, max_tokens=8)
    story.generate("Once upon", cards=2)
    box, keyboard = story.find("#story"), story.page.keyboard
    box.click()
    client = story.page.context.new_cdp_session(story.page)
    client.send("Input.imeSetComposition", {"text": " `", "selectionStart": 2, "selectionEnd": 2})
    expect(box).to_have_js_property("value", "Once upon `")
    story.page.evaluate("document.querySelector('.card [value=keep]').click()")
    kept = story.text
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", "Once upon `")
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", "Once upon")
    keyboard.press("Control+Shift+Z")
    keyboard.press("Control+Shift+Z")
    expect(box).to_have_js_property("value", kept)
