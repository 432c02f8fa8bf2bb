"""The same story in two tabs of a browser: nothing that was typed in one is overwritten by the other."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import PROMPT, Story

pytestmark = pytest.mark.web

HOUR = "The keeper counted his matches. " * 40

# Chromium delivers no messages to a frozen page, but runs it when it is used again.
DEAF = "BroadcastChannel.prototype.postMessage = () => {}"


def second_tab(story: Story) -> Story:
    """Another tab with the same story."""
    tab = Story(story.page.context.new_page(), story.faults)
    tab.open(story.page.url)
    return tab


def test_a_tab_follows_the_other_and_goes_on_from_there(story: Story, server: Scripted) -> None:
    story.find("#story").fill("It rained.")
    tab = second_tab(story)
    tab.reads("It rained.")
    story.find("#story").fill("It rained. " + HOUR)
    tab.reads("It rained. " + HOUR)
    tab.find("#story").press("Control+End")
    tab.page.keyboard.insert_text("!")
    story.reads("It rained. " + HOUR + "!")
    story.set(n=2, max_tokens=6)
    story.generate(cards=2)
    expect(tab.cards).to_have_count(2)
    story.tool("#open-model-view")
    story.find("#memory").fill("Ada is ninety.")
    expect(tab.find("#memory")).to_have_value("Ada is ninety.")
    tab.find("#story").press("Control+End")
    tab.page.keyboard.insert_text("?")
    story.reload()
    assert story.find("#memory").input_value() == "Ada is ninety."
    assert story.text == "It rained. " + HOUR + "!?"


def test_undo_and_the_cursor_stay_right_in_what_the_other_tab_has_typed(story: Story, server: Scripted) -> None:
    tab = second_tab(story)
    story.find("#story").focus()
    for number in range(30):
        story.page.keyboard.insert_text(f" word{number}")
    tab.reads(story.text)
    story.select(7)
    for at, added in ((0, "Once."), (29, "!"), (None, " The end.")):
        tab.find("#story").evaluate("(box, at) => box.setSelectionRange(at ?? 9999, at ?? 9999)", at)
        tab.find("#story").focus()
        tab.page.keyboard.insert_text(added)
    story.reads(tab.text)
    assert story.find("#story").evaluate("(box) => box.selectionStart") == 7 + len("Once.")
    text = story.text
    for key in ("Control+z", "Control+Shift+z"):
        for _ in range(30):
            story.find("#story").press(key)
        if key == "Control+z":
            tab.reads("Once.! The end.")
    assert story.text == text
    expect(story.find("#story")).to_be_focused()
    tab.reads(text)


def test_a_word_is_composed_while_the_other_tab_types_in_its_line(story: Story, server: Scripted) -> None:
    """With an input method, and with a dead key."""
    box = story.find("#story")
    box.fill("One. Two.")
    tab = second_tab(story)
    box.press("Control+End")
    client = story.page.context.new_cdp_session(story.page)
    text = "One. Two."
    for composing, composed in (("n", "日本"), ("\N{ACUTE ACCENT}", "é")):
        client.send("Input.imeSetComposition", {"text": composing, "selectionStart": 1, "selectionEnd": 1})
        tab.find("#story").press("Control+Home")
        tab.page.keyboard.press("ArrowRight")
        tab.page.keyboard.insert_text("nce. O")
        story.page.wait_for_timeout(300)  # the other's letters are there, and wait
        assert story.text == text + composing
        client.send("Input.insertText", {"text": composed})
        text = f"Once. {text}{composed}"
        for each in (story, tab):
            each.reads(text)


def test_memory_note_and_lore_of_two_tabs_are_merged(story: Story, server: Scripted) -> None:
    """Also while the other tab writes in another box, and if a tab could not follow."""
    tab = second_tab(story)
    for each in (story, tab):
        each.tool("#open-model-view")
    tab.find("#note").press_sequentially("Night")
    story.find("#add-entry").click()
    story.find("#lore [name=keys]").fill("Ada")
    story.find("#memory").fill("Ada is ninety.")
    expect(tab.find("#memory")).to_have_value("Ada is ninety.")
    expect(tab.find("#lore [name=keys]")).to_have_value("Ada")
    expect(tab.find("#note")).to_be_focused()
    tab.page.keyboard.insert_text(" is falling.")
    expect(story.find("#note")).to_have_value("Night is falling.")
    for each in (story, tab):
        each.page.evaluate(DEAF)
    tab.find("#memory").evaluate("(box) => box.setSelectionRange(4, 4)")
    story.find("#note").fill("Day breaks.")
    story.find("#memory").fill("Ada is a hundred.")
    tab.find("#memory").focus()
    tab.page.keyboard.insert_text("is eighty, not ")
    both = "Ada is eighty, not is a hundred."
    expect(tab.find("#memory")).to_have_value(both)
    assert tab.find("#memory").evaluate("(box) => box.selectionStart") == len("Ada is eighty, not ")
    assert tab.find("#note").input_value() == "Day breaks."
    story.reload()
    assert story.find("#memory").input_value() == both


def test_a_story_that_is_deleted_in_a_tab_has_what_is_typed_in_the_other_one(story: Story, server: Scripted) -> None:
    story.find("#story").fill(PROMPT)
    tab = second_tab(story)
    story.find("#open-stories").click()
    story.page.on("dialog", lambda dialog: dialog.accept())
    story.leave("#delete-story")
    expect(tab.find("#error")).to_contain_text("is in the trash")
    tab.find("#story").press("Control+End")
    tab.page.keyboard.insert_text(" It rained.")
    story.find("#open-stories").click()
    story.reach("#deleted-stories")
    story.find("#deleted-stories button").click()
    expect(tab.find("#error")).to_be_hidden()
    tab.page.keyboard.insert_text(" It snowed.")
    tab.reload()
    assert tab.text == PROMPT + " It rained. It snowed."


def test_the_other_tab_does_not_stop_an_answer_of_the_editor(story: Story, server: Scripted) -> None:
    story.find("#story").fill(PROMPT)
    tab = second_tab(story)
    story.tool("#open-ask")
    story.find("#question").fill("Where does it drag?")
    server.hold_after(30)
    story.find("#ask .main").click()
    answer = story.find("#talk textarea").first
    expect(answer).not_to_have_value("")
    said = answer.input_value()
    tab.find("#story").press("Control+End")
    tab.page.keyboard.insert_text("!")
    story.reads(PROMPT + "!")
    story.page.evaluate("dispatchEvent(new Event('focus'))")
    server.go()
    expect(story.find("#ask .main")).to_be_enabled()
    assert answer.input_value().startswith(said)
    expect(tab.find("#talk textarea").first).to_have_value(answer.input_value())


def test_eight_streams_hold_up_neither_saving_nor_another_tab(
    blank: Story, start_scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    """A browser has six connections to a server. The streams take none, and a hidden tab reads none of them."""
    server = start_scripted(tmp_path / "stories.db")
    blank.open(server.url)
    blank.set(n=1, max_tokens=9)
    blank.find("#story").fill(PROMPT)
    server.hold_after(3)
    for _ in range(8):
        with blank.page.expect_response("**/v1/completions"):
            blank.find("#story").press("Control+Enter")
    expect(blank.cards).to_have_count(8)
    blank.page.context.add_init_script("window.isHidden = true")
    blank.page.context.add_init_script("Object.defineProperty(document, 'hidden', { get: () => window.isHidden })")
    hidden = Story(blank.page.context.new_page(), blank.faults)
    sockets: list[str] = []
    hidden.page.on("websocket", lambda socket: sockets.append(socket.url))
    hidden.open(blank.page.url)
    tab = second_tab(blank)
    tab.page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(tab.cards).to_have_count(8)
    tab.find("#story").press("Control+End")
    with tab.page.expect_response("**/drafts/*"):
        tab.page.keyboard.insert_text(" It rained.")
    blank.reads(PROMPT + " It rained.")
    expect(hidden.cards).to_have_count(8)
    assert not [url for url in sockets if "/completions/" in url]
    server.go()
    for each in (blank, tab, hidden):
        each.wait_done()
        expect(each.cards.locator(".text:not(:empty)")).to_have_count(8)
