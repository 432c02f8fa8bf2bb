"""Styles, and actions of a card other than *Keep*."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Dialog, Locator, expect
from scripted import Scripted
from web.conftest import PROMPT, Story

pytestmark = pytest.mark.web


def test_mixed_is_one_request_with_a_style_for_each_alternative(story: Story) -> None:
    story.set(n=5, max_tokens=6, seed=7)
    with story.panel("options"):
        expect(story.find("#style")).to_have_value("Default")
        story.reach("#style").select_option("Mixed")
    story.generate(PROMPT, cards=5)
    expect(story.cards.locator(".title")).to_have_text(["Careful", "Default", "Lively", "Wild", "Careful"])
    story.pictures("mixed")
    story.reload()
    expect(story.find("#style")).to_have_value("Mixed")
    with story.asking() as sent:
        story.find("#generate").click()
    assert [each.get("temperature") for each in sent["branches"]] == [0.5, None, 1, 1.3, 0.5]
    assert [each["seed"] for each in sent["branches"]] == [7, 8, 9, 10, 11]
    story.wait_done()
    with story.panel("options"):
        story.unfold("min_p").fill("0.2")
        expect(story.find("#style")).to_have_value("Your own")
        story.find("#reset").click()
        expect(story.find("#style")).to_have_value("Default")


def test_an_own_style_is_stored_for_all_stories_until_it_is_deleted(story: Story) -> None:
    names = ["Wild", "Slow", "Slower"]
    asked = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept(names.pop(0))

    story.page.on("dialog", answer)
    style, keep, forget = (story.find(each) for each in ("#style", "#save-style", "#delete-style"))
    with story.panel("options"):
        story.reach("#style")
        expect(keep).to_be_hidden()
        story.find("#setting-temperature").fill("0.3")
        story.unfold("min_p").fill("0.2")
        keep.press("Enter")
        expect(style).to_have_value("Slow")
        expect(style).to_be_focused()
        assert asked == ["Name of the style:", "Wild is one of the page's styles. Choose another name:"]
    story.reload()
    with story.panel("options"):
        story.reach("#style")
        style.select_option("Wild")
        expect(forget).to_be_hidden()
        style.select_option("Slow")
        expect(story.find("#setting-temperature")).to_have_value("0.3")
        expect(story.find("#setting-min_p")).to_have_value("0.2")
        forget.press("Enter")
        expect(style).to_have_value("Your own")
        expect(style).to_be_focused()
        expect(style.locator("option", has_text="Slow")).to_have_count(0)

        # A browser that keeps nothing says so.
        story.page.evaluate("() => void (Storage.prototype.setItem = () => { throw new Error('not allowed here') })")
        keep.click()
        expect(story.find("#error")).to_contain_text("This browser doesn't store styles: not allowed here")
        expect(style).to_have_value("Your own")


def test_more_like_this_has_the_same_beginning_and_settings(story: Story) -> None:
    story.set(n=2, max_tokens=12, temperature=0.7)
    story.generate(PROMPT, cards=2)
    like = story.said(story.cards.last)
    story.set(temperature=1.2, n=3)
    for count in (5, 8):  # what they begin with is there once
        with story.asking() as sent:
            story.press(story.cards.last, "More like this")
        expect(story.cards).to_have_count(count)
        story.wait_done()
        assert (sent["temperature"], len(sent["branches"])) == (0.7, 3)
    first = story.find(".batch[aria-label='Like alternative 2'] .card").first
    begun = first.locator(".stem-text").inner_text()
    assert begun
    assert like.strip().startswith(begun)
    assert bytes(sent["prompt"]).decode() == (PROMPT + like)[: (PROMPT + like).index(begun, len(PROMPT)) + len(begun)]
    story.pictures("more")

    # It keeps nothing. Undo hides them, and Redo shows them again.
    story.reads(PROMPT)
    story.find("#undo").click()
    story.find("#undo").click()
    expect(story.cards).to_have_count(2)
    story.find("#redo").click()
    story.find("#redo").click()
    expect(story.cards).to_have_count(8)
    text = story.said(first)
    story.press(first, "Keep")
    story.reads(bytes(sent["prompt"]).decode() + text)
    story.find("#undo").click()
    story.reads(PROMPT)
    expect(story.cards).to_have_count(8)
    story.reload()
    expect(story.cards).to_have_count(8)
    expect(story.cards.first.locator(".stem-text")).to_have_text(begun)


def test_more_like_this_is_shared_with_other_devices(
    blank: Story, other: Story, start_scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    story, server = blank, start_scripted(tmp_path / "stories.db")
    story.open(server.url)
    story.set(n=2, max_tokens=12)
    story.generate(PROMPT, cards=2)
    with story.asking() as sent:
        story.press(story.cards.last, "More like this")
    expect(story.cards).to_have_count(4)
    story.wait_done()
    like = story.find(".batch[aria-label='Like alternative 2'] .card").first
    begun, said = like.locator(".stem-text").inner_text(), story.said(like)

    def continued(sent: dict[str, Any]) -> dict[str, Any]:
        """The node that a request continues."""
        return {each["id"]: each for each in story.nodes(server)}[sent["node"]]

    stem = continued(sent)
    assert (stem["text"].strip(), stem["settings"]["stem"], stem["kept"]) == (begun, True, None)
    kept = PROMPT + stem["text"] + said
    other.open(server.url)
    other.reads(PROMPT)
    expect(other.cards).to_have_count(4)
    other.set(n=2, max_tokens=12)
    with other.asking() as sent:  # of a text that came as a whole
        other.press(other.cards.last, "More like this")
    expect(other.cards).to_have_count(6)
    assert continued(sent)["text"].strip() == begun
    other.press(other.find(".batch[aria-label='Like alternative 2'] .card").nth(2), "Keep")
    other.reads(kept)


def test_probabilities_are_shown_on_demand(story: Story) -> None:
    story.set(n=1, max_tokens=12, seed=1)
    story.generate(PROMPT, cards=1)
    chance = story.find("#token-preview li span").first

    def look() -> Locator:
        story.cards.first.locator(".title").hover()
        expect(story.find("#token-preview")).to_be_hidden()
        story.word(story.cards.first).hover()
        expect(story.find("#token-preview")).to_be_visible()
        return chance

    expect(look()).to_have_text("")
    expect(story.find("#token-preview p")).to_contain_text("Instead of ")
    story.page.keyboard.press("Escape")
    story.page.keyboard.press("l")
    expect(story.find("#shades")).to_be_checked()
    expect(look()).to_contain_text("%")
    expect(story.find("#token-preview p")).to_contain_text(" had ")


def test_an_alternative_is_kept_up_to_a_word(story: Story) -> None:
    story.set(n=1, max_tokens=12, seed=1)
    story.generate(PROMPT, cards=1)
    said = story.said(story.cards.first)
    story.word(story.cards.first).hover()
    expect(story.find("#token-preview")).to_be_visible()
    bar, menu = story.find("#bar").bounding_box(), story.find("#token-preview").bounding_box()
    assert bar
    assert menu
    assert bar["y"] + bar["height"] <= menu["y"] or menu["y"] + menu["height"] <= bar["y"]
    story.find("#token-preview .up-to").click()
    expect(story.cards).to_have_count(0)
    kept = story.text
    assert len(PROMPT) < len(kept) < len(PROMPT + said)
    assert (PROMPT + said).startswith(kept)
