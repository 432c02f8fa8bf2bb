"""A story of the server on two devices: typed prose, place and title are on both, and nothing is overwritten."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Dialog, Route, expect
from scripted import Scripted
from web.conftest import PROMPT, Story

pytestmark = pytest.mark.web

HOUR = " The keeper counted his matches." * 40


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    server = Scripted(tmp_path_factory.mktemp("history") / "stories.db")
    yield server
    server.close()


@pytest.fixture
def server(shared: Scripted) -> Iterator[Scripted]:
    """A server that keeps stories, shared by these tests."""
    yield shared
    shared.go()


def begin(story: Story, server: Scripted) -> None:
    """A new story."""
    story.open(server.url)
    story.find("#open-stories").click()
    story.leave("#new")


def test_typed_prose_title_place_and_kept_text_are_on_the_other_device(
    blank: Story, other: Story, server: Scripted
) -> None:
    begin(blank, server)
    story = blank.page.url.partition("#")[2]
    with blank.page.expect_response("**/drafts/0", timeout=2000) as sent:
        blank.find("#story").fill(PROMPT)
    assert sent.value.request.method == "PUT"
    blank.find("#story").evaluate("(box) => box.setSelectionRange(3, 3)")
    with blank.page.expect_response(lambda each: '"cursor":6' in (each.request.post_data or ""), timeout=2000):
        blank.page.keyboard.insert_text(" so")
    other.open(blank.page.url)
    text = PROMPT.replace("The", "The so")
    assert other.text == text
    assert other.find("#story").evaluate("(box) => box.selectionStart") == len("The so")
    expect(other.find("#title")).to_have_text("The so old lighthouse keeper had one rule, and")
    other.find("#story").press("Control+End")
    other.page.keyboard.insert_text(HOUR)
    expect(blank.find("#story")).to_have_js_property("value", text + HOUR)
    assert blank.find("#story").evaluate("(box) => box.selectionStart") == len("The so")  # where its writer is
    other.set(n=2, max_tokens=6)
    other.generate(cards=2)
    expect(blank.cards).to_have_count(2)
    said = other.said(other.cards.nth(1))
    other.press(other.cards.nth(1), "Keep")
    expect(blank.find("#story")).to_have_js_property("value", text + HOUR + said)
    with other.page.expect_response("**/drafts/*"):
        other.page.keyboard.insert_text(" And so on.")
    expect(blank.find("#story")).to_have_js_property("value", text + HOUR + said + " And so on.")
    stored = json.loads(server.request(f"/v1/stories/{story}")[1])
    assert [(draft["node"], draft["text"] is None) for draft in stored["drafts"]] == [(0, True), (3, False)]


def test_both_texts_stand_if_two_devices_have_changed_one(blank: Story, other: Story, server: Scripted) -> None:
    begin(blank, server)
    with blank.page.expect_response("**/drafts/0"):
        blank.find("#story").fill(PROMPT)
    other.open(blank.page.url)
    assert other.text == PROMPT
    other.page.context.set_offline(True)
    other.find("#story").press("Control+End")
    other.page.keyboard.insert_text("x")
    with blank.page.expect_response("**/drafts/0"):
        blank.find("#story").fill(PROMPT + HOUR)
    expect(other.find("#error")).to_contain_text("isn't saved on the server yet")
    other.page.context.set_offline(False)
    expect(other.find("#error")).to_contain_text("Both are kept")
    assert (blank.text, other.text) == (PROMPT + HOUR, PROMPT + "x")
    other.page.keyboard.insert_text("y")
    other.tool("#open-search")
    other.find("#find").fill("his matches")
    expect(other.find("#found")).to_contain_text("draft")
    blank.find("#open-stories").click()
    expect(blank.find("#tree")).to_contain_text(PROMPT[:20])  # the other's text is a node
    other.excuse("ERR_INTERNET_DISCONNECTED", "409")


def test_memory_note_and_lore_of_two_devices_are_merged(blank: Story, other: Story, server: Scripted) -> None:
    begin(blank, server)
    blank.tool("#open-model-view")
    with blank.page.expect_response("**/v1/stories/*"):
        blank.find("#memory").fill("Ada is ninety.")
    other.open(blank.page.url)
    other.tool("#open-model-view")
    assert other.find("#memory").input_value() == "Ada is ninety."
    other.page.context.set_offline(True)
    other.find("#note").fill("Night.")
    other.find("#memory").fill("Ada is eighty.")
    with blank.page.expect_response("**/v1/stories/*"):
        blank.find("#memory").fill("Ada is a hundred.")
        blank.find("#add-entry").click()
        blank.find("#lore [name=keys]").fill("Tom")
    blank.find("#lore [name=text]").focus()
    other.page.context.set_offline(False)
    expect(other.find(".other-version blockquote")).to_have_text("Ada is a hundred.")
    expect(blank.find(".other-version blockquote")).to_have_text("Ada is a hundred.")
    for each in (blank, other):
        expect(each.find("#memory")).to_have_value("Ada is eighty.")
        expect(each.find("#note")).to_have_value("Night.")
        expect(each.find("#lore [name=keys]")).to_have_value("Tom")
        expect(each.find("#error")).to_contain_text("Both texts are kept")
    expect(blank.find("#lore [name=text]")).to_be_focused()
    blank.find(".other-version").get_by_role("button", name="Use this version").click()
    expect(other.find("#memory")).to_have_value("Ada is a hundred.")
    other.find(".other-version").get_by_role("button", name="Delete this version").click()
    for each in (blank, other):
        expect(each.find(".other-version")).to_have_count(0)
        expect(each.find("#error")).to_be_hidden()
    other.excuse("ERR_INTERNET_DISCONNECTED", "409")


def test_a_title_that_was_given_meanwhile_is_replaced_only_by_choice(
    blank: Story, other: Story, server: Scripted
) -> None:
    begin(blank, server)
    story = blank.page.url.partition("#")[2]
    other.open(blank.page.url)
    asked = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        if dialog.type == "prompt":
            server.request(f"/v1/stories/{story}", {"title": "The keeper"}, method="PATCH")
        dialog.accept("The lamp")

    blank.page.on("dialog", answer)
    blank.find("#open-stories").click()
    blank.find("#rename").click()
    expect(other.find("#title")).to_have_text("The lamp")
    assert "was named “The keeper” meanwhile" in asked[1]
    blank.excuse("409")


def test_prose_typed_without_the_server_is_sent_by_the_next_page(blank: Story, other: Story, server: Scripted) -> None:
    begin(blank, server)

    def refuse(route: Route) -> None:
        if route.request.method == "PUT":
            route.abort()
        else:
            route.continue_()

    blank.page.route("**/drafts/*", refuse)
    blank.find("#story").fill(PROMPT)
    expect(blank.find("#error")).to_contain_text("isn't saved on the server yet")
    blank.page.unroute("**/drafts/*")
    with blank.page.expect_response("**/drafts/0"):
        blank.reload()
    other.open(blank.page.url)
    assert other.text == PROMPT
    blank.excuse("ERR_FAILED")
