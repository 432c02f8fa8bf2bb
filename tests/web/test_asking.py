"""Asking instead of continuing; and what the model sees of a text, where that is not all."""

import json

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import Story

pytestmark = pytest.mark.web


def test_the_model_is_asked_and_its_turns_are_in_the_tree(story: Story, server: Scripted) -> None:
    story.set(n=2, max_tokens=6, seed=31)  # the second answer ends with a space
    story.find("#ask").check()
    story.find(".system summary").click()
    story.find("#system").fill("You are a lighthouse keeper.")
    story.generate("Who are you?", cards=2)
    answer = story.said(story.cards.nth(1))
    story.press(story.cards.nth(1), "Keep")
    expect(story.find("#turns li")).to_have_text(["Who are you?", answer.strip()])
    expect(story.find("#story")).to_have_value("")
    story.generate("And then?", cards=2)
    story.reload()
    expect(story.find("#story")).to_have_value("And then?")
    story.pictures("asked", axe=True)
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


def test_of_what_is_longer_than_the_context_the_end_is_sent_behind_the_memory(blank: Story, server: Scripted) -> None:
    blank.page.route("**/health", lambda route: route.fulfill(json={"model": "small", "max_cells": 960}))
    blank.open(server.url)
    blank.set(n=2, max_tokens=5)
    text = "".join(f"Night {k}: the lamp burned. " for k in range(40))
    note = "The keeper is called Ada."
    with blank.panel("seen"):
        blank.find("#memory").fill(note)
    with blank.page.expect_request("**/v1/completions") as asked:
        blank.generate(text, cards=2)
    sent = json.loads(server.request("/detokenize", {"tokens": json.loads(asked.value.post_data or "")["prompt"]})[1])
    assert sent["content"].startswith(note + "\n\n")
    assert sent["content"].endswith(text[-100:])
    assert len(json.loads(asked.value.post_data or "")["prompt"]) <= 960 - 2 * 5
    expect(blank.find("#story")).to_have_value(text)
    expect(blank.find("#meter-words")).to_contain_text("the model sees the last")
    blank.pictures("longer-than-the-context")
    blank.reload()
    expect(blank.find("#memory")).to_have_value(note)


def test_answers_are_read_as_answers_and_tokens_are_counted(story: Story) -> None:
    story.set(n=2, max_tokens=8)
    story.find("#story").click()
    keyboard, turns = story.page.keyboard, story.find("#turns li")
    keyboard.type("Who are you?")
    story.find("label", has_text="Ask").click()
    expect(story.find("#story")).to_have_value("Who are you?")  # nothing is written yet, so that it can be asked, too
    keyboard.press("Control+Enter")
    expect(story.cards).to_have_count(2)
    story.wait_done()
    answer = story.said(story.cards.first)
    story.press(story.cards.first, "Keep")
    story.find("label", has_text="Continue").click()
    expect(turns).to_have_text(["Who are you?"])
    expect(story.find("#story")).to_have_value(answer)
    keyboard.type(" of light")
    text = f"<user>Who are you?<assistant>{answer} of light"
    expect(story.find("#meter-words")).to_have_text(f"{len(text)} of 8,192 tokens")
    with story.page.expect_request(lambda each: '"echo"' in (each.post_data or "")) as asked:
        keyboard.press("Control+Enter")
    assert json.loads(asked.value.post_data or "")["prompt"] == text
    story.wait_done()
    expect(story.find("#story")).to_have_value(answer + " of light")
    story.find("label", has_text="Ask").click()
    expect(turns).to_have_text(["Who are you?", answer + " of light"])
