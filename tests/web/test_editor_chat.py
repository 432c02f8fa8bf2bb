"""The chat with an editor, and texts longer than the context."""

import json
from typing import Any

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import Story

pytestmark = pytest.mark.web

TEXT = "Ada lit the lamp. The sea was calm."


def test_an_editor_is_asked_and_an_insertion_is_one_step(story: Story, server: Scripted) -> None:
    keyboard, box, talk = story.page.keyboard, story.find("#story"), story.find("#talk")
    answers, said = talk.locator(".answer"), talk.locator("textarea")
    box.fill(TEXT)
    story.tool("#open-model-view")
    story.find("#memory").fill("Ada is ninety.")
    keyboard.press("Escape")

    def ask(question: str, count: int) -> Any:
        """Ask with the keyboard, and return what was sent."""
        expect(story.find("#question")).to_be_focused()
        keyboard.type(question)
        with story.asking() as body:
            keyboard.press("Control+Enter")
        expect(answers).to_have_count(count)
        return body

    # Asked with the keyboard alone; two answers stream, and go on after a reload.
    box.press("Escape")
    keyboard.press("a")
    story.find("#answers").fill("2")
    story.find("#question").focus()
    server.hold_after(40)
    sent = ask("Where does it drag?", 2)
    told = f"This is my story so far:\n\nAda is ninety.\n\n{TEXT}\n\nThat was my story. My question:\n\nWhere does"
    assert sent["prompt"].endswith(f"<user>{told} it drag?<assistant>")
    assert (sent["n"], "story" in sent) == (2, False)
    expect(said.first).not_to_have_value("")
    story.reload()
    assert story.text == TEXT
    story.tool("#open-ask")
    expect(story.find("#ask [value=stop]")).to_be_enabled()
    server.go()
    expect(story.find("#ask .main")).to_be_enabled()
    expect(talk.locator(".question small")).to_have_text("The editor saw all 8 words of your story.")
    expect(story.find(".card")).to_have_count(0)
    expect(story.find("#tree li")).to_have_count(1)

    # An answer, or the selected passage of it, is inserted at the cursor in one step.
    passage = said.nth(1).input_value()
    story.select(17)
    answers.nth(1).get_by_role("button", name="Insert").click()
    expect(box).to_have_js_property("value", f"{TEXT[:17]} {passage.strip()}{TEXT[17:]}")
    expect(box).to_be_focused()
    keyboard.type("!")
    expect(box).to_have_js_property("value", f"{TEXT[:17]} {passage.strip()}!{TEXT[17:]}")
    for _ in range(2):
        keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", TEXT)
    said.nth(0).focus()
    keyboard.press("Control+Home")
    for _ in range(3):
        keyboard.press("Shift+ArrowRight")
    keyboard.press("Tab")
    expect(answers.nth(0).locator("[value=take]")).to_have_text("Insert selection")
    keyboard.press("Enter")
    passage = said.nth(0).input_value()[:3].strip()
    expect(box).to_have_js_property("value", f"{TEXT[:17]} {passage}{TEXT[17:]}")
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", TEXT)

    # The next question follows the chosen answer.
    answers.nth(1).get_by_role("button", name="Continue from this").click()
    chosen = said.nth(1).input_value().strip()
    story.find("#question").focus()
    assert ask("And then?", 4)["prompt"].endswith(f"<assistant>{chosen}<user>And then?<assistant>")
    story.find("#ask [value=stop]").evaluate("(button) => button.click()")  # whether it has ended or not
    expect(story.find("#ask .main")).to_be_enabled()
    story.pictures("ask", axe=True)
    story.reload()
    story.tool("#open-ask")
    expect(answers).to_have_count(4)
    story.page.once("dialog", lambda dialog: dialog.accept())
    story.find("#ask [value=clear]").click()
    expect(answers).to_have_count(0)
    story.reload()
    expect(answers).to_have_count(0)


def test_the_end_of_a_long_text_is_sent_after_the_memory(blank: Story, server: Scripted) -> None:
    blank.page.route("**/health", lambda route: route.fulfill(json={"model": "small", "n_ctx": 960}))
    blank.open(server.url)
    blank.set(n=2, max_tokens=5)
    text = "".join(f"Night {k}: the lamp burned. " for k in range(40))
    note = "The keeper is called Ada."
    with blank.panel("model-view"):
        blank.find("#memory").fill(note)
    with blank.asking() as body:
        blank.generate(text, cards=2)
    sent = json.loads(server.request("/detokenize", {"tokens": body["prompt"]})[1])
    assert sent["content"].startswith(note + "\n\n")
    assert sent["content"].endswith(text[-100:])
    assert len(body["prompt"]) <= 960 - 2 * 5
    blank.reads(text)
    expect(blank.find("#seen")).to_contain_text("The model sees the last")
    blank.pictures("longer-than-the-context")
    blank.reload()
    expect(blank.find("#memory")).to_have_value(note)
