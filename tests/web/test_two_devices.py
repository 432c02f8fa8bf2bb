"""A story of the server on two devices: typed prose, place and title are on both, and nothing is overwritten."""

import json

import pytest
from playwright.sync_api import Dialog, expect
from scripted import Scripted
from web.conftest import PROMPT, Story

pytestmark = pytest.mark.web

HOUR = " The keeper counted his matches." * 40


def test_typed_prose_title_place_and_kept_text_are_on_the_other_device(
    blank: Story, other: Story, keeper: Scripted
) -> None:
    blank.begin(keeper.url)
    with blank.page.expect_response("**/drafts/0", timeout=2000) as sent:
        blank.find("#story").fill(PROMPT)
    assert sent.value.request.method == "PUT"
    blank.select(3)
    with blank.page.expect_response(lambda each: '"cursor":6' in (each.request.post_data or ""), timeout=2000):
        blank.page.keyboard.insert_text(" so")
    other.open(blank.page.url)
    text = PROMPT.replace("The", "The so")
    assert other.text == text
    assert other.find("#story").evaluate("(box) => box.selectionStart") == len("The so")
    expect(other.find("#title")).to_have_text("The so old lighthouse keeper had one rule, and")
    other.find("#story").press("Control+End")
    other.page.keyboard.insert_text(HOUR)
    blank.reads(text + HOUR)
    assert blank.find("#story").evaluate("(box) => box.selectionStart") == len("The so")  # where its writer is
    other.set(n=2, max_tokens=6)
    other.generate(cards=2)
    expect(blank.cards).to_have_count(2)
    said = other.said(other.cards.nth(1))
    other.press(other.cards.nth(1), "Keep")
    blank.reads(text + HOUR + said)
    with other.page.expect_response("**/drafts/*"):
        other.page.keyboard.insert_text(" And so on.")
    blank.reads(text + HOUR + said + " And so on.")
    stored = json.loads(keeper.request(blank.path)[1])
    assert [(draft["node"], draft["text"] is None) for draft in stored["drafts"]] == [(0, True), (3, False)]


def test_what_two_devices_type_in_one_text_is_merged(blank: Story, other: Story, keeper: Scripted) -> None:
    blank.begin(keeper.url)
    with blank.page.expect_response("**/drafts/0"):
        blank.find("#story").fill(PROMPT + "\n\nThe lamp was red.")
    other.open(blank.page.url)
    assert other.text == blank.text
    other.page.context.set_offline(True)
    other.find("#story").fill("Once. " + PROMPT + "\n\nThe lamp was blue.")
    with blank.page.expect_response("**/drafts/0"):
        blank.find("#story").fill(PROMPT + HOUR + "\n\nThe lamp was green.")
    expect(other.find("#error")).to_contain_text("isn't saved on the server yet")
    other.page.context.set_offline(False)
    both = "Once. " + PROMPT + HOUR + "\n\nThe lamp was blue green."
    other.reads(both)
    blank.reads(both)
    expect(other.find("#error")).to_be_hidden()
    blank.excuse("409")
    other.excuse("ERR_INTERNET_DISCONNECTED", "409")


def test_a_title_that_was_given_meanwhile_is_replaced_only_by_choice(
    blank: Story, other: Story, keeper: Scripted
) -> None:
    blank.begin(keeper.url)
    other.open(blank.page.url)
    asked = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        if dialog.type == "prompt":
            keeper.request(blank.path, {"title": "The keeper"}, method="PATCH")
        dialog.accept("The lamp")

    blank.page.on("dialog", answer)
    blank.find("#open-stories").click()
    blank.find("#rename").click()
    expect(other.find("#title")).to_have_text("The lamp")
    assert "was named “The keeper” meanwhile" in asked[1]
    blank.excuse("409")
