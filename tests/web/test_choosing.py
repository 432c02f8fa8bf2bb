"""Choosing among alternatives: what a card shows, the way back, and the bar in a low window."""

import pytest
from playwright.sync_api import expect
from web.conftest import PROMPT, Story

pytestmark = pytest.mark.web

HOW = "Make it longer, with more to see and hear."

LINES = "(all) => all.map((each) => each.offsetHeight / parseFloat(getComputedStyle(each).lineHeight))"
"""How many lines elements have."""


def begin_versions(story: Story) -> None:
    story.set(n=8, seed=3)
    story.find("#story").fill(f"He slept. {PROMPT}")
    story.find("#story").evaluate("(box) => box.setSelectionRange(0, 9)")
    story.page.keyboard.press("Control+Shift+Enter")
    story.find("#rewriter input").fill(HOW)
    story.find("#rewriter .how button").click()
    expect(story.cards).to_have_count(8)
    story.wait_done()


def test_no_word_of_a_card_is_broken_and_the_instruction_is_shown_once(story: Story) -> None:
    begin_versions(story)
    for width in (1280, 1400):
        story.page.set_viewport_size({"width": width, "height": 800})
        assert max(story.find(".about summary").evaluate_all(LINES)) < 1.5, width
        story.picture(f"versions-{width}", axe=True)
    assert story.find("#cards").inner_text().count(HOW) == 1
    expect(story.find(".batch")).to_have_attribute("aria-label", HOW)
    story.page.set_viewport_size({"width": 390, "height": 844})
    story.picture("versions-390")


def test_keep_is_in_sight_on_each_card_and_so_is_the_way_back(story: Story) -> None:
    story.set(n=3, max_tokens=8, seed=1)
    story.generate(PROMPT, cards=3)
    back = story.find("#back")
    expect(back).to_be_hidden()
    story.page.mouse.move(5, 5)
    for card in story.cards.all():
        expect(card.get_by_role("button", name="Keep", exact=True)).to_be_visible()
        expect(card.get_by_role("button", name="Discard")).to_be_hidden()
    story.picture("keep")
    said = story.said(story.cards.nth(1))
    story.cards.nth(1).get_by_role("button", name="Keep", exact=True).click()
    expect(story.find("#story")).to_have_value(PROMPT + said)
    story.page.keyboard.type("\n" * 40 + "The end.")  # as high as a window
    expect(back).to_be_in_viewport(ratio=1)
    expect(back).to_have_text("Back to the 3 alternatives")
    story.picture("back", axe=True)
    story.reload()
    back.click()
    expect(story.find("#story")).to_have_value(PROMPT)
    expect(story.cards).to_have_count(3)
    expect(story.cards.nth(1).locator(".text")).to_be_focused()
    expect(back).to_be_hidden()
    story.find("#undo").click()
    expect(story.find("#story")).to_have_value(PROMPT + said + "\n" * 40 + "The end.")


def test_the_bar_folds_in_a_low_window(story: Story) -> None:
    bar, more, rewrite = story.find("#bar"), story.find("#more-tools"), story.find("#rewrite")
    expect(more).to_be_hidden()
    for width, height in ((720, 450), (683, 384), (640, 400)):  # a laptop at 200 %
        story.page.set_viewport_size({"width": width, "height": height})
        box = bar.bounding_box()
        assert box
        assert box["height"] <= height / 4, (width, height)
        for name in ("#generate", "#stop", "#undo", "#status", "#words"):
            expect(story.find(name)).to_be_visible()
    expect(rewrite).to_be_hidden()
    story.picture("folded", axe=True)
    more.click()
    expect(more).to_have_attribute("aria-expanded", "true")
    for name in ("#rewrite", "#bridge", "#explore", "#redo", "#open-model-view"):
        expect(story.find(name)).to_be_visible()
    story.picture("unfolded")
    more.click()
    expect(rewrite).to_be_hidden()

    # The keys of what is folded work as before.
    box = story.find("#story")
    box.fill("He slept. He woke.")
    box.evaluate("(box) => box.setSelectionRange(0, 9)")
    story.page.keyboard.press("Control+Shift+Enter")
    expect(story.find("#rewriter")).to_be_visible()
    story.page.keyboard.press("Escape")
    expect(box).to_be_focused()
    assert box.evaluate("(box) => [box.selectionStart, box.selectionEnd]") == [0, 9]
