"""Styles, and what is done with a card besides keeping it."""

import json

import pytest
from playwright.sync_api import Dialog, Locator, expect
from web.conftest import PROMPT, Story

pytestmark = pytest.mark.web


def test_mixed_is_one_request_with_a_style_for_each_alternative(story: Story) -> None:
    story.set(n=5, max_tokens=6, seed=7)
    with story.panel("options"):
        expect(story.find("#style")).to_have_value("As the server has it")
        story.find("#style").select_option("Mixed")
    story.generate(PROMPT, cards=5)
    expect(story.cards.locator(".title")).to_have_text(["Careful", "Usual", "Lively", "Wild", "Careful"])
    story.pictures("mixed")
    story.reload()
    expect(story.find("#style")).to_have_value("Mixed")
    with story.page.expect_request("**/v1/completions") as asked:
        story.find("#generate").click()
    sent = json.loads(asked.value.post_data or "")
    assert [each.get("temperature") for each in sent["branches"]] == [0.5, None, 1, 1.3, 0.5]
    assert [each["seed"] for each in sent["branches"]] == [7, 8, 9, 10, 11]
    story.wait_done()
    with story.panel("options"):
        story.unfold("p_less").check()
        expect(story.find("#style")).to_have_value("Your own")
        story.find("#reset").click()
        expect(story.find("#style")).to_have_value("As the server has it")


def test_a_style_of_ones_own_is_kept_for_all_stories_until_it_is_forgotten(story: Story) -> None:
    names = ["Wild", "Slow", "Slower"]
    asked = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept(names.pop(0))

    story.page.on("dialog", answer)
    style, keep, forget = (story.find(each) for each in ("#style", "#keep-style", "#forget-style"))
    with story.panel("options"):
        expect(keep).to_be_hidden()
        story.find("#setting-temperature").fill("0.3")
        story.unfold("p_less").check()
        keep.click()
        expect(style).to_have_value("Slow")
        assert asked == ["What is this style called?", "The page has a style Wild. What is yours called?"]
    story.reload()
    with story.panel("options"):
        style.select_option("Wild")
        expect(forget).to_be_hidden()
        style.select_option("Slow")
        expect(story.find("#setting-temperature")).to_have_value("0.3")
        expect(story.find("#setting-p_less")).to_be_checked()
        forget.click()
        expect(style).to_have_value("Your own")
        expect(style.locator("option", has_text="Slow")).to_have_count(0)

        # A browser that keeps nothing says so.
        story.page.evaluate("() => void (Storage.prototype.setItem = () => { throw new Error('not allowed here') })")
        keep.click()
        expect(story.find("#error")).to_contain_text("This browser keeps no styles: not allowed here")
        expect(style).to_have_value("Your own")


def test_shades_and_probabilities_come_on_demand(story: Story) -> None:
    story.set(n=1, max_tokens=12, seed=1)
    story.generate(PROMPT, cards=1)
    chance = story.find("#peek li span").first

    def look() -> Locator:
        story.cards.first.locator(".title").hover()
        expect(story.find("#peek")).to_be_hidden()
        story.word(story.cards.first).hover()
        expect(story.find("#peek")).to_be_visible()
        return chance

    expect(look()).to_have_text("")
    expect(story.find("#peek p")).to_contain_text("Instead of ")
    story.page.keyboard.press("Escape")
    story.page.keyboard.press("l")
    expect(story.find("#shades")).to_be_checked()
    expect(look()).to_contain_text("%")
    expect(story.find("#peek p")).to_contain_text(" had ")


def test_an_alternative_is_kept_up_to_a_word(story: Story) -> None:
    story.set(n=1, max_tokens=12, seed=1)
    story.generate(PROMPT, cards=1)
    said = story.said(story.cards.first)
    story.word(story.cards.first).hover()
    story.find("#peek .up-to").click()
    expect(story.cards).to_have_count(0)
    kept = story.text
    assert len(PROMPT) < len(kept) < len(PROMPT + said)
    assert (PROMPT + said).startswith(kept)
