"""A writer's hour, with the keyboard only; asking, texts longer than the context, lengths and styles."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from real_server import Server
from web.conftest import Story
from web.test_writing import PROMPT

pytestmark = [pytest.mark.web, pytest.mark.e2e]


def length(story: Story, text: str, unit: str, count: int) -> Any:
    script = "async ([text, unit, count]) => (await import('/web/length.js')).end(text, {unit, count})"
    return story.page.evaluate(script, [text, unit, count])


def tab_to(story: Story, selector: str, keys: str = "Tab") -> None:
    """Goes there with the Tab key, as a writer does, in a few steps."""
    for _ in range(16):
        story.page.keyboard.press(keys)
        if story.find(f"{selector}:focus").count():
            return
    pytest.fail(f"{selector} is far away")


def test_a_writers_hour_with_the_keyboard_only(blank: Story, server: Server, tmp_path: Path) -> None:
    story, keyboard = blank, blank.page.keyboard
    status, text, tree = story.find("#status"), story.find("#story"), story.find("#tree [role=treeitem]")

    # Open, and write.
    story.page.goto(server.url)
    story.wait_ready()
    expect(text).to_be_focused()
    story.screenshot("hour-1-open")
    keyboard.type(PROMPT)
    expect(story.find("#openings")).to_be_hidden()
    keyboard.press("Escape")
    keyboard.press(",")
    tab_to(story, "#setting-max_tokens")
    keyboard.type("1")
    tab_to(story, "#length-unit")
    keyboard.type("sen")
    story.screenshot("hour-2-write")
    keyboard.press("Escape")
    expect(story.find("#options")).to_be_hidden()

    # Generate eight.
    keyboard.press("g")
    expect(story.cards).to_have_count(8)
    story.wait_done()
    expect(status).to_contain_text(re.compile(r"^Done: \d+ tokens"))
    story.screenshot("hour-3-eight")
    said = [story.said(card) for card in story.cards.all()]
    for each in said:
        assert length(story, each + "\n\nThe next", "sentences", 1) == len(each.encode("utf-16-le")) // 2, said

    # Fork at a word.
    keyboard.press("?")
    expect(story.find("#keys")).to_contain_text("keep that alternative")
    story.screenshot("keys")
    keyboard.press("Escape")
    keyboard.press("j")
    expect(story.cards.first.locator(".text")).to_be_focused()
    keyboard.press("j")
    second = story.cards.nth(1)
    expect(second.locator(".text")).to_be_focused()
    for _ in range(3):
        keyboard.press("ArrowRight")
    begins = "".join(second.locator("[data-k]").all_text_contents()[:2])
    word = second.locator("[data-k]").nth(2)
    expect(word).to_be_focused()
    keyboard.press("Enter")
    expect(story.find("#peek button").first).to_be_focused()
    story.screenshot("hour-4-a-word")
    keyboard.press("Escape")
    expect(story.find("#peek")).to_be_hidden()
    expect(word).to_be_focused()
    keyboard.press("Enter")
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    path = story.find("#path button")
    expect(path).to_have_count(3)
    expect(text).to_be_focused()
    expect(story.cards).to_have_count(8)
    story.wait_done()
    assert story.text.startswith(PROMPT + begins)
    story.screenshot("hour-5-forked")

    # Keep, and stop what is being written.
    forked, third = story.text, story.said(story.cards.nth(2))
    keyboard.press("Escape")
    keyboard.press("3")
    expect(text).to_have_value(forked + third)
    expect(text).to_be_focused()
    expect(story.cards).to_have_count(0)
    story.screenshot("hour-6-kept")
    keyboard.press("Escape")
    expect(path.last).to_be_focused()
    keyboard.press("g")
    expect(story.cards).to_have_count(8)
    keyboard.press("s")
    story.wait_done()
    expect(status).to_have_text("Stopped.")

    # Branch back.
    keyboard.press("t")
    expect(tree.nth(3)).to_be_focused()
    keyboard.press("ArrowLeft")
    keyboard.press("ArrowLeft")
    expect(tree.nth(1)).to_be_focused()
    keyboard.press("ArrowRight")
    expect(tree.nth(2)).to_be_focused()
    keyboard.press("ArrowUp")
    keyboard.press("Enter")
    expect(text).to_have_value(PROMPT)
    expect(story.cards).to_have_count(9)  # with the one that was forked
    expect(tree.nth(1)).to_contain_text("8 alternatives · 1 sentence")
    story.pictures("tree")
    keyboard.press("Escape")
    keyboard.press("Escape")
    expect(story.cards.first.locator(".text")).to_be_focused()

    # Compare two temperatures.
    keyboard.press(",")
    tab_to(story, "#setting-n")
    keyboard.type("2")
    tab_to(story, "summary:text('Compare')")
    keyboard.press("Enter")
    tab_to(story, "#compare-what")
    keyboard.type("a")
    tab_to(story, "#compare-values")
    keyboard.type("0.4, 1.2")
    keyboard.press("Escape")
    keyboard.press("g")
    expect(story.cards).to_have_count(13)
    story.wait_done()
    assert story.find(".title").all_text_contents()[:4] == ["Temperature 0.4", "Temperature 1.2"] * 2
    seeds = story.find(".seed").all_text_contents()
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    lefts = [each.evaluate("(card) => card.offsetLeft") for each in story.cards.all()[:4]]
    assert lefts[:2] == lefts[2:] == sorted(lefts[:2])
    story.screenshot("hour-7-compared")

    # Name it, and export it.
    story.page.once("dialog", lambda dialog: dialog.accept("The keeper's rule"))
    keyboard.press("t")
    expect(tree.nth(1)).to_contain_text(re.compile(r"4 alternatives · 1 sentence · Seed \d+ · Temperature 0.4, 1.2"))
    tab_to(story, "#rename", "Shift+Tab")
    keyboard.press("Enter")
    expect(story.find("#title")).to_have_text("The keeper's rule")
    expect(story.find("#story-list a")).to_have_text(["The keeper's rule"])
    tab_to(story, "#export")
    with story.page.expect_download() as download:
        keyboard.press("Enter")
    download.value.save_as(tmp_path / "story.json")
    file = json.loads((tmp_path / "story.json").read_text())
    assert (file["title"], len(file["nodes"])) == ("The keeper's rule", 1 + 8 + 1 + 8 + 8 + 4)
    assert file["model"]
    assert [node["settings"]["temperature"] for node in file["nodes"][-4:]] == [0.4, 1.2, 0.4, 1.2]
    story.screenshot("hour-8-named")
    keyboard.press("Escape")

    # Continue on a phone's width.
    story.page.set_viewport_size({"width": 390, "height": 844})
    keyboard.press("1")
    expect(story.cards).to_have_count(0)
    kept = story.text
    expect(text).to_be_focused()
    keyboard.type(" And then")
    keyboard.press("Control+Enter")
    expect(story.cards).to_have_count(4)
    story.wait_done()
    expect(text).to_have_value(kept + " And then")
    expect(story.cards.first).to_be_in_viewport()
    story.screenshot("hour-9-phone")
    assert story.accessibility_faults() == []
    keyboard.press("Escape")
    keyboard.press("t")
    expect(tree.last).to_contain_text("And then")
    story.screenshot("hour-10-phone-tree")

    # Another story, and back.
    tab_to(story, "#new", "Shift+Tab")
    story.page.evaluate("document.body.dataset.left = true")
    keyboard.press("Enter")
    expect(story.find("body[data-ready]:not([data-left])")).to_be_visible()
    assert story.text == ""
    expect(text).to_be_focused()
    expect(story.find("#setting-n")).to_have_value("2")
    expect(status).to_have_text("Ctrl-Enter generates.")
    keyboard.press("Escape")
    keyboard.press("t")
    expect(story.find("#story-list a")).to_have_text(["(no title)", "The keeper's rule"])
    tab_to(story, "#story-list li:nth-child(2) a", "Shift+Tab")
    keyboard.press("Enter")
    expect(text).to_have_value(kept + " And then")


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
    story.pictures("asked")
    assert story.accessibility_faults() == []
    messages = [
        {"role": "system", "content": "You are a lighthouse keeper."},
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And then?"},
    ]
    prompt = json.loads(server.request("/apply-template", {"messages": messages})[1])["prompt"]
    with story.panel("shelf"), story.page.expect_download() as download:
        story.find("#export").click()
    nodes = {node["id"]: node for node in json.loads(download.value.path().read_text())["nodes"]}
    texts, last = [], next(node for node in nodes.values() if node.get("label") == "And then?")
    while last:
        texts.append("".join(piece[0] for piece in last["pieces"]))
        last = nodes.get(last["parent"])
    assert "".join(reversed(texts)) == prompt


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
    blank.pictures("longer-than-the-context")
    blank.reload()
    expect(blank.find("#note")).to_have_value(note)


def test_lengths_end_at_boundaries(story: Story) -> None:
    assert length(story, ' He said: "Go." ', "sentences", 1) == -1, "what comes next may belong to it"
    assert length(story, ' He said: "Go." She', "sentences", 1) == len(' He said: "Go."')
    assert length(story, "One. Two. Three", "sentences", 2) == len("One. Two.")
    assert length(story, "One two three. Four. Five", "words", 4) == len("One two three. Four.")
    assert length(story, "\n\nOne. Two.\n\nThree", "paragraphs", 1) == len("\n\nOne. Two.")
    assert length(story, "\n\nOne. Two.\n", "paragraphs", 1) == -1


def test_an_alternative_goes_on_by_another_sentence(story: Story) -> None:
    story.set(n=1, max_tokens=1)
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
