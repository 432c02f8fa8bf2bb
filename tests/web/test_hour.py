"""A writer's hour, with the keyboard only, and what the status line and lengths in sentences say meanwhile."""

import json
import re
from typing import Any

import pytest
from e2e.conftest import Server
from playwright.sync_api import expect
from web.conftest import Story
from web.test_writing import PROMPT

pytestmark = [pytest.mark.web, pytest.mark.e2e]


def length(story: Story, text: str, unit: str, count: int) -> Any:
    script = "async ([text, unit, count]) => (await import('/web/length.js')).end(text, {unit, count})"
    return story.page.evaluate(script, [text, unit, count])


def test_a_writers_hour_with_the_keyboard_only(story: Story) -> None:
    keyboard, status = story.page.keyboard, story.find("#status")
    keyboard.press(",")
    story.find("#setting-n").focus()
    keyboard.type("3")
    keyboard.press("Tab")
    keyboard.type("1")
    keyboard.press("Tab")
    keyboard.type("sen")  # of the units
    keyboard.press("Escape")
    expect(story.find("#options")).to_be_hidden()
    keyboard.press("e")
    expect(story.find("#story")).to_be_focused()
    keyboard.type(PROMPT)
    keyboard.press("Control+Enter")
    expect(story.cards).to_have_count(3)
    story.wait_done()
    expect(status).to_contain_text(re.compile(r"^Done: \d+ tokens"))
    said = [story.said(card) for card in story.cards.all()]
    for text in said:
        assert length(story, text + "\n\nThe next", "sentences", 1) == len(text.encode("utf-16-le")) // 2, said

    keyboard.press("Escape")
    expect(story.cards.first.locator(".text")).to_be_focused()
    keyboard.press("j")
    expect(story.cards.nth(1).locator(".text")).to_be_focused()
    keyboard.press("?")
    expect(story.find("#keys")).to_contain_text("keep that alternative")
    story.screenshot("keys")
    keyboard.press("Escape")
    keyboard.press("3")
    expect(story.find("#story")).to_have_value(PROMPT + said[2])
    expect(story.cards).to_have_count(0)

    keyboard.press("g")
    expect(story.cards).to_have_count(3)
    keyboard.press("s")
    story.wait_done()
    expect(status).to_have_text("Stopped.")
    keyboard.press("t")
    tree = story.find("#tree [role=treeitem]")
    tree.nth(2).focus()
    expect(tree.nth(2)).to_contain_text("3 alternatives")
    expect(story.find("#story-list a")).to_have_text([PROMPT[:43]])
    keyboard.press("ArrowUp")
    expect(tree.nth(1)).to_be_focused()
    keyboard.press("ArrowRight")
    keyboard.press("ArrowLeft")
    keyboard.press("Enter")
    expect(story.find("#story")).to_have_value(PROMPT)
    expect(story.cards).to_have_count(3)
    story.pictures("tree")

    story.find("#new").focus()
    story.page.evaluate("document.body.dataset.left = true")
    keyboard.press("Enter")
    expect(story.find("body[data-ready]:not([data-left])")).to_be_visible()
    assert story.text == ""
    expect(story.find("#setting-n")).to_have_value("3")
    expect(status).to_have_text("Ctrl-Enter generates.")
    keyboard.press("t")
    expect(story.find("#story-list a")).to_have_text(["(no title)", PROMPT[:43]])
    story.find("#story-list a").nth(1).focus()
    keyboard.press("Enter")
    expect(story.find("#story")).to_have_value(PROMPT)


def test_the_model_is_asked_and_its_turns_are_in_the_tree(story: Story, server: Server) -> None:
    story.set(n=2, max_tokens=6)
    story.find("#ask").check()
    story.find(".system summary").click()
    story.find("#system").fill("You are a lighthouse keeper.")
    story.generate("Who are you?", cards=2)
    answer = story.said(story.cards.nth(1))
    story.press(story.cards.nth(1), "Keep")
    expect(story.find("#turns li")).to_have_text(["Who are you?", answer.strip()])
    assert story.text == ""
    story.generate("And then?", cards=2)
    story.reload()
    assert story.text == "And then?"
    assert story.accessibility_faults() == []
    messages = [
        {"role": "system", "content": "You are a lighthouse keeper."},
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And then?"},
    ]
    story.find("#continue").check()
    assert story.text == json.loads(server.request("/apply-template", {"messages": messages})[1])["prompt"]


def test_of_what_is_longer_than_the_context_the_end_is_sent_behind_a_note(blank: Story, server: Server) -> None:
    blank.page.route("**/health", lambda route: route.fulfill(json={"model": "small", "max_cells": 96}))
    blank.open(server.url)
    blank.set(n=2, max_tokens=5)
    text = "".join(f"Night {k}: the lamp burned. " for k in range(40))
    blank.find(".pinned summary").click()
    note = "The keeper is called Ada."
    blank.find("#note").fill(note)
    with blank.page.expect_request("**/v1/completions") as asked:
        blank.generate(text, cards=2)
    sent = json.loads(server.request("/detokenize", {"tokens": json.loads(asked.value.post_data or "")["prompt"]})[1])
    assert sent["content"].startswith(note + "\n\n")
    assert sent["content"].endswith(text[-100:])
    assert len(json.loads(asked.value.post_data or "")["prompt"]) <= 96 - 2 * 5
    assert blank.text == text
    expect(blank.find("#meter-words")).to_contain_text("the model sees the last")
    blank.screenshot("longer-than-the-context")
    blank.reload()
    expect(blank.find("#note")).to_have_value(note)


def test_lengths_end_at_boundaries(story: Story) -> None:
    assert length(story, ' He said: "Go." ', "sentences", 1) == -1, "what comes next may belong to it"
    assert length(story, ' He said: "Go." She', "sentences", 1) == len(' He said: "Go."')
    assert length(story, "One. Two. Three", "sentences", 2) == len("One. Two.")
    assert length(story, "One two three. Four. Five", "words", 4) == len("One two three. Four.")
    assert length(story, "\n\nOne. Two.\n\nThree", "paragraphs", 1) == len("\n\nOne. Two.")
    assert length(story, "\n\nOne. Two.\n", "paragraphs", 1) == -1


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
