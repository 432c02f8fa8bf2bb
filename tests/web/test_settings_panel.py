"""Settings: sliders and the negative prompt, with the keyboard and on a phone's width; styles; lengths."""

import json
from typing import Any

import pytest
from playwright.sync_api import expect
from web.conftest import PROMPT, Story, length

pytestmark = pytest.mark.web

NAMES = ("diversity", "negative_prompt", "guidance_scale")


def sent(story: Story) -> dict[str, Any]:
    """What the next request says of diversity and of what to keep away from."""
    with story.page.expect_request("**/v1/completions", timeout=60_000) as asked:
        story.find("#story").press("Control+Enter")
    body = json.loads(asked.value.post_data or "")
    expect(story.find("#stop")).to_be_disabled()
    return {name: body[name] for name in (*NAMES, "ahead") if name in body}


def test_what_comes_next_is_already_there(story: Story) -> None:
    story.set(n=1, max_tokens=2, ahead=2)
    story.find("#story").fill(PROMPT)
    assert sent(story) == {}, "the text is evaluated first"
    assert sent(story) == {"ahead": 2}
    story.set(diversity=1)
    assert sent(story) == {"diversity": 1}


def test_they_are_set_with_the_keyboard_on_a_phones_width_and_kept(story: Story) -> None:
    story.page.set_viewport_size({"width": 390, "height": 844})
    story.set(n=1, max_tokens=2)
    story.find("#story").fill(PROMPT)
    assert sent(story) == {}

    keyboard, numbers = story.page.keyboard, story.find("#options output[for^=setting]")
    story.find("#open-options").focus()
    keyboard.press("Enter")
    story.find("#setting-diversity").focus()
    keyboard.press("Home")
    for _ in range(3):
        keyboard.press("ArrowRight")
    story.find("summary", has_text="Keep away").focus()
    keyboard.press("Enter")
    keyboard.press("Tab")
    keyboard.type("It rains.")
    expect(numbers).to_have_text(["0.3", "1.5"])
    keyboard.press("Tab")
    keyboard.press("ArrowLeft")
    expect(numbers).to_have_text(["0.3", "1.4"])
    keyboard.press("Escape")
    assert sent(story) == {"diversity": 0.3, "negative_prompt": "It rains.", "guidance_scale": 1.4}
    expect(story.find("#error")).to_be_hidden()

    story.reload()
    expect(numbers).to_have_text(["0.3", "1.4"])
    story.find("#open-options").click()
    story.find("summary", has_text="Keep away").click()
    for name in NAMES:
        box = story.find(f"#setting-{name}").bounding_box()
        assert box
        assert box["height"] >= 32
        assert 0 <= box["x"] < box["x"] + box["width"] <= 390
    story.find("#setting-guidance_scale").scroll_into_view_if_needed()
    story.picture("sliders-phone", axe=True)

    story.find("#setting-negative_prompt").fill("")
    expect(numbers).to_have_text(["0.3", "1"])
    story.find("#setting-diversity").fill("0")
    keyboard.press("Escape")
    assert sent(story) == {}


def test_ten_settings_are_in_sight_and_the_rest_is_found(story: Story) -> None:
    with story.panel("options"):
        labels = story.find("#options .setting label:visible")
        assert labels.count() <= 10
        find, rows = story.find("#find-setting"), story.find("#options .setting:visible")
        find.fill("DRY multi")  # what the API calls it
        expect(rows.locator("label")).to_have_text(["No loops"])
        find.fill("neither odd")  # what is said of it
        expect(story.find("#setting-typical_p")).to_be_visible()
        find.fill("repetition")  # its group
        expect(story.find("#found-settings")).to_contain_text(" settings")
        story.find("#setting-repeat_penalty").fill("1.1")
        story.picture("found", axe=True)
        find.fill("no such thing")
        expect(story.find("#found-settings")).to_have_text("No setting has these words.")
        expect(rows).to_have_count(0)
        find.fill("")
        assert labels.count() <= 10
        expect(story.find("summary", has_text="Against repetition")).to_contain_text("1 set")
        find.fill("seed")
    expect(find).to_have_value("")


def test_a_style_sets_what_belongs_together_and_reset_takes_all_back(story: Story) -> None:
    story.set(max_tokens=7)
    with story.panel("options"):
        story.find("#style").select_option("Wild")
        expect(story.find("#setting-temperature")).to_have_value("1.3")
        story.unfold("min_p").fill("0.2")
        expect(story.find("#style")).to_have_value("Your own")
        story.find("#reset").click()
        expect(story.find("#style")).to_have_value("As the server has it")
    for name in ("temperature", "min_p", "max_tokens"):
        expect(story.find(f"#setting-{name}")).to_have_value("")


def test_an_alternative_goes_on_by_another_sentence(story: Story) -> None:
    story.set(n=1, max_tokens=1, seed=1)
    with story.panel("options"):
        story.find("#length-unit").select_option("sentences")
        expect(story.find("#setting-max_tokens")).to_have_attribute("placeholder", "3")
    story.generate(PROMPT, cards=1)
    before = story.said(story.cards.first)
    story.press(story.cards.first, "Continue")
    expect(story.cards.first.locator(".text")).not_to_have_text(before)
    story.wait_done()
    said = story.said(story.cards.first)
    assert said.startswith(before)
    more = said.removeprefix(before)
    assert length(story, more + "\n\nThe next", "sentences", 1) == len(more.encode("utf-16-le")) // 2, said
    story.excuse("status of 404")  # what was long enough had ended by itself
