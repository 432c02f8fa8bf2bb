"""Stories that the server keeps: begun on one device, read and continued on another."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from real_server import Server, start
from web.conftest import Story
from web.test_hour import length

pytestmark = [pytest.mark.web, pytest.mark.e2e]

PROMPT = "The old lighthouse keeper had one rule, and everybody in the village knew what it was:"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start("--history", str(tmp_path_factory.mktemp("history") / "stories.db"))
    yield server
    server.stop()
    server.close()


def begin(story: Story, server: Server) -> None:
    """A new story."""
    story.open(server.url)
    story.find("#open-shelf").click()
    story.leave("#new")
    story.end_early(False)
    expect(story.find("#title")).to_have_text("(no title)")


def test_it_grows_when_the_tab_is_closed_and_is_seen_on_another_device(
    blank: Story, other: Story, server: Server
) -> None:
    begin(blank, server)
    blank.set(n=2, max_tokens=1000)
    blank.generate(PROMPT, cards=2, wait=False)
    expect(blank.cards.first.locator("[data-k]").nth(3)).to_be_attached()
    url = blank.page.url
    blank.page.close()
    other.page.goto(url)
    other.wait_ready()
    expect(other.find("#story")).to_have_value(PROMPT)
    expect(other.find(".card.running")).to_have_count(2)
    tokens = other.cards.first.locator("[data-k]")
    expect(tokens.nth(tokens.count() + 5)).to_be_attached()
    other.find("#stop").click()
    other.wait_done()
    for card in other.cards.all():
        expect(card.locator(".facts")).to_contain_text("stopped")
    said = [other.said(card) for card in other.cards.all()]
    story = json.loads(server.request(f"/v1/stories/{url.partition('#')[2]}")[1])
    assert [node["text"] for node in story["nodes"]] == [PROMPT, *said]
    other.press(other.cards.nth(1), "Keep")
    other.reload()
    assert other.text == PROMPT + said[1]
    expect(other.find("#title")).to_have_text(PROMPT[:43])


def test_it_goes_on_when_the_server_is_killed_and_started_again(
    blank: Story, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    file = str(tmp_path / "stories.db")
    server = start_server("--history", file)
    begin(blank, server)
    blank.set(n=2, max_tokens=60, seed=5)
    prompt = "She opened the door and saw "
    blank.generate(prompt, cards=2, wait=False)
    tokens = blank.cards.first.locator("[data-k]")
    expect(tokens.nth(5)).to_be_attached()
    server.stop(signal.SIGKILL)
    expect(blank.find("#status")).to_contain_text("connection was lost")
    seen = [blank.said(card) for card in blank.cards.all()]
    assert tokens.count() < 60
    server = start_server("--history", file, "--port", str(server.address[1]))
    blank.wait_done()
    said = [blank.said(card) for card in blank.cards.all()]
    for card, before, now in zip(blank.cards.all(), seen, said, strict=True):
        expect(card.locator(".facts")).to_contain_text("60 tokens")
        expect(card.locator(".facts")).to_contain_text("reached its length")
        assert now.startswith(before)
        assert len(now) > len(before)
    assert said == server.texts(prompt=prompt, n=2, max_tokens=60, seed=5, ignore_eos=True, heal=True)
    story = json.loads(server.request(f"/v1/stories/{blank.page.url.partition('#')[2]}")[1])
    assert [node["text"] for node in story["nodes"]] == [prompt, *said]
    blank.reload()
    assert [blank.said(card) for card in blank.cards.all()] == said
    blank.press(blank.cards.first, "Keep")
    assert blank.text == prompt + said[0]
    expect(blank.find("#tree [role=treeitem]").nth(1)).to_contain_text("2 alternatives · 60 tokens")
    blank.page.close()  # it watches the story until the server is gone
    assert all("ERR_" in fault or "503" in fault for fault in blank.faults), blank.faults
    blank.faults.clear()


def test_what_two_devices_write_at_the_same_time_is_there_on_both(blank: Story, other: Story, server: Server) -> None:
    begin(blank, server)
    other.open(blank.page.url)
    for story in (blank, other):
        story.set(n=1, max_tokens=5)
        story.find("#open-shelf").click()
    blank.find(".pinned summary").click()
    blank.find("#note").fill("It is a hot summer.")  # what is sent is not what the story has
    blank.find("#story").fill("The king slept.")
    other.find("#story").fill("The queen rode.")
    blank.find("#generate").click()
    other.find("#generate").click()
    for story in (blank, other):
        expect(story.find("#tree")).to_contain_text("The king slept.")
        expect(story.find("#tree")).to_contain_text("The queen rode.")
        expect(story.cards).to_have_count(1)
        story.wait_done()
    assert (blank.text, other.text) == ("The king slept.", "The queen rode.")
    other.find("#tree [role=treeitem]", has_text="The king slept.").click()
    expect(other.cards).to_have_count(1)
    assert other.said(other.cards.first) == blank.said(blank.cards.first)
    other.press(other.cards.first, "Discard")
    expect(blank.cards).to_have_count(0)
    other.find("#undo").click()
    expect(blank.cards).to_have_count(1)
    blank.press(blank.cards.first, "Continue")
    expect(blank.cards).to_have_count(2)
    blank.wait_done()
    expect(blank.find(".title").first).to_have_text("Alternative 1, continued")
    assert blank.accessibility_faults() == []


def test_lengths_end_at_boundaries_there_too(blank: Story, other: Story, server: Server) -> None:
    begin(blank, server)
    other.open(blank.page.url)
    blank.set(n=3, max_tokens=1)
    with blank.panel("options"):
        blank.find("#length-unit").select_option("sentences")
    blank.generate(PROMPT, cards=3)
    said = [blank.said(card) for card in blank.cards.all()]
    for text in said:
        assert length(blank, text + "\n\nThe next", "sentences", 1) == len(text.encode("utf-16-le")) // 2, said
    expect(blank.cards.first.locator(".facts")).to_contain_text("reached its length")
    for card, text in zip(other.cards.all(), said, strict=True):
        expect(card.locator(".text")).to_have_text(text)
    path = f"/v1/stories/{blank.page.url.partition('#')[2]}"
    nodes = json.loads(server.request(path)[1])["nodes"]
    assert [(node["text"], node["ends_at"]) for node in nodes[1:]] == [(text, len(text)) for text in said]
    with blank.page.expect_request("**/v1/completions") as asked:
        blank.press(blank.cards.first, "More like this")
    assert json.loads(asked.value.post_data or "")["node"] == nodes[1]["id"]
    blank.wait_done()
    assert blank.text == PROMPT + said[0]
    assert server.request(f"{path}?format=markdown&node={nodes[1]['id']}")[1].endswith(f"{PROMPT}{said[0]}\n")
    with blank.panel("options"):
        blank.find("#length-unit").select_option("words")
        blank.find("#setting-max_tokens").fill("60")
    blank.generate(cards=6, wait=False)
    expect(blank.cards.first.locator("[data-k]").nth(2)).to_be_attached()
    blank.reload()
    blank.wait_done()
    for text in [blank.said(card) for card in blank.cards.all()[:3]]:
        assert length(blank, text + "\n\nThe next", "words", 60) == len(text.encode("utf-16-le")) // 2, text


V1 = """([prompt, said]) => new Promise((resolve) => {
    const opening = indexedDB.open("srb", 1);
    opening.onupgradeneeded = () => {
        const nodes = opening.result.createObjectStore("nodes", {keyPath: "id"});
        nodes.put({id: "a", parent: "root", typed: true, batch: 1, order: 0, pieces: [{text: prompt, ids: null}]});
        said.forEach((text, order) =>
            nodes.put({id: `b${order}`, parent: "a", batch: 2, order, end: "", pieces: [{text, ids: null}]}));
        opening.result.createObjectStore("page").put({current: "a", draft: prompt}, "page");
    };
    opening.onsuccess = () => { opening.result.close(); resolve(); };
})"""


def test_a_story_moves_from_the_browser_to_the_server(blank: Story, server: Server) -> None:
    # The same browser has written at another server, without a history, before it kept several stories.
    said = [" Never sleep.", " Always sleep."]
    blank.page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
    blank.page.goto(server.url + "/web/icon.svg")
    blank.page.evaluate(V1, [PROMPT, said])
    blank.page.route("**/health", lambda route: route.fulfill(json={"model": "a model"}))
    blank.open(server.url)
    expect(blank.find("#story")).to_have_value(PROMPT)
    assert [blank.said(card) for card in blank.cards.all()] == said
    blank.page.unroute("**/health")
    blank.page.goto(server.url)
    blank.wait_ready()
    blank.find("#open-shelf").click()
    blank.leave("#move")
    expect(blank.find("#title")).to_have_text(PROMPT[:43])
    expect(blank.find("#story")).to_have_value(PROMPT)
    assert [blank.said(card) for card in blank.cards.all()] == said
    expect(blank.find("#move")).to_be_hidden()
    blank.find("#open-shelf").click()
    blank.page.on("dialog", lambda dialog: dialog.accept("A keeper"))
    blank.find("#rename").click()
    expect(blank.find("#story-list [aria-current]")).to_have_text("A keeper")
    blank.page.set_viewport_size({"width": 360, "height": 740})
    assert blank.page.evaluate("document.documentElement.scrollWidth") == 360
    assert blank.accessibility_faults() == []
    blank.leave("#forget")
    blank.find("#open-shelf").click()
    expect(blank.find("#story-list")).not_to_contain_text("A keeper")
