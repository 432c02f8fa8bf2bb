"""Sliders and the negative prompt, with the keyboard and on a phone's width."""

import json
from typing import Any

import pytest
from playwright.sync_api import expect
from web.conftest import Story
from web.test_writing import PROMPT

pytestmark = [pytest.mark.web, pytest.mark.e2e]

NAMES = ("diversity", "negative_prompt", "guidance_scale")


def sent(story: Story) -> dict[str, Any]:
    """What the next request says of diversity and of what to keep away from."""
    with story.page.expect_request("**/v1/completions", timeout=60_000) as asked:
        story.find("#story").press("Control+Enter")
    body = json.loads(asked.value.post_data or "")
    expect(story.find("#stop")).to_be_disabled()
    return {name: body[name] for name in NAMES if name in body}


def test_they_are_set_with_the_keyboard_on_a_phones_width_and_kept(story: Story) -> None:
    story.page.set_viewport_size({"width": 390, "height": 844})
    story.set(n=1, max_tokens=2)
    story.find("#story").fill(PROMPT)
    assert sent(story) == {}

    keyboard, numbers = story.page.keyboard, story.find("#options output")
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
    story.screenshot("sliders-phone")
    assert story.page.evaluate("document.documentElement.scrollWidth") == 390
    assert story.accessibility_faults() == []

    story.find("#setting-negative_prompt").fill("")
    expect(numbers).to_have_text(["0.3", "1"])
    story.find("#setting-diversity").fill("0")
    keyboard.press("Escape")
    assert sent(story) == {}
