"""Tests that need the default model: a writer's hour with only the keyboard, and a crash."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from real_server import Server, start
from web.conftest import PROMPT, Story, length

pytestmark = [pytest.mark.web, pytest.mark.e2e]


MANY = 100
"""This many tokens take the model much longer than killing it."""


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that keep stories in the same file."""
    servers: list[Server] = []

    def make(*options: str) -> Server:
        servers.append(start("--history", str(tmp_path / "stories.db"), *options))
        return servers[-1]

    yield make
    for server in servers:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)
        server.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start()
    yield server
    server.stop()
    server.close()


def tab_to(story: Story, selector: str, keys: str = "Tab") -> None:
    """Goes there with the Tab key, as a writer does, in a few steps."""
    for _ in range(24):
        story.page.keyboard.press(keys)
        if story.find(f"{selector}:focus").count():
            return
    pytest.fail(f"{selector} is far away")


@pytest.mark.nightly
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
    expect(status).to_have_text("Done: 8 alternatives.")
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
    for _ in range(2):  # the shortest sentence, "No.", has two tokens
        keyboard.press("ArrowRight")
    begins = second.locator("[data-k]").first.text_content() or ""
    word = second.locator("[data-k]").nth(1)
    expect(word).to_be_focused()
    keyboard.press("Enter")
    expect(story.find("#token-preview button").first).to_be_focused()
    story.screenshot("hour-4-a-word")
    keyboard.press("Escape")
    expect(story.find("#token-preview")).to_be_hidden()
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
    expect(text).to_have_js_property("value", forked + third)
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
    expect(text).to_have_js_property("value", PROMPT)
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
    for group in ("More", "Compare"):
        tab_to(story, f"summary:text('{group}')")
        keyboard.press("Enter")
    tab_to(story, "#compare-what")
    keyboard.type("v")
    tab_to(story, "#compare-values")
    keyboard.type("0.4, 1.2")
    keyboard.press("Escape")
    keyboard.press("g")
    expect(story.cards).to_have_count(13)
    story.wait_done()
    assert story.find(".title").all_text_contents()[:4] == ["Temperature 0.4", "Temperature 1.2"] * 2
    seeds = [each.rpartition(" ")[2] for each in story.find(".numbers").all_text_contents()]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    lefts = [each.evaluate("(card) => card.offsetLeft") for each in story.cards.all()[:4]]
    assert lefts[:2] == lefts[2:] == sorted(lefts[:2])
    story.screenshot("hour-7-compared")

    # Name it, and export it.
    story.page.once("dialog", lambda dialog: dialog.accept("The keeper's rule"))
    keyboard.press("t")
    expect(tree.nth(1)).to_contain_text(re.compile(r"4 alternatives · 1 sentence · Temperature 0.4, 1.2"))
    tab_to(story, "#rename", "Shift+Tab")
    keyboard.press("Enter")
    expect(story.find("#title")).to_have_text("The keeper's rule")
    expect(story.find("#story-list a")).to_have_text(["The keeper's rule"])
    tab_to(story, "#files summary")
    keyboard.press("Enter")
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
    expect(text).to_have_js_property("value", kept + " And then")
    expect(story.cards.first).to_be_in_viewport()
    story.picture("hour-9-phone", axe=True)
    keyboard.press("Escape")
    keyboard.press("t")
    expect(tree.last).to_contain_text("And then")
    story.screenshot("hour-10-phone-tree")

    # Another story, and back.
    tab_to(story, "#new", "Shift+Tab")
    with story.leaving():
        keyboard.press("Enter")
    story.reads("")
    expect(text).to_be_focused()
    expect(story.find("#setting-n")).to_have_value("2")
    expect(status).to_have_text("Ctrl-Enter writes what comes next.")
    keyboard.press("Escape")
    keyboard.press("t")
    expect(story.find("#story-list a")).to_have_text(["(no title)", "The keeper's rule"])
    tab_to(story, "#story-list li:nth-child(2) a", "Shift+Tab")
    keyboard.press("Enter")
    expect(text).to_have_js_property("value", kept + " And then")


def test_a_space_at_the_end_does_no_harm(blank: Story, server: Server) -> None:
    story = blank
    story.open(server.url)
    story.set(n=4, max_tokens=6, seed=1, ignore_eos=True)
    prompt = "She opened the door and saw "
    with story.page.expect_request(lambda each: '"seed"' in (each.post_data or "")) as asked:
        story.generate(prompt, cards=4)
    assert json.loads(asked.value.post_data or "")["heal"] is True
    said = [story.said(card) for card in story.cards.all()]
    assert all(text and not text[0].isspace() for text in said)
    assert sum(text[0].isdigit() for text in said) < 2
    first = story.cards.first
    first.locator("[data-k]").first.click()
    choice = story.find("#token-preview button:not(.taken)").nth(1)
    chosen = (choice.text_content() or "").split()[0]
    assert not chosen.startswith("␣")
    with story.page.expect_request(lambda each: '"seed"' in (each.post_data or "")) as asked:
        choice.click()
    story.wait_done()
    body = json.loads(asked.value.post_data or "")
    sent = json.loads(server.request("/detokenize", {"tokens": body["prompt"]})[1])
    assert sent["content"] == prompt + chosen
    assert "heal" not in body


EXACT = ("--reproducible",)
"""Without it, evaluating a text again changes the last bits of logits, and sometimes a word."""


def test_it_continues_after_the_server_is_killed_and_restarted(
    blank: Story, start_server: Callable[..., Server]
) -> None:
    server = start_server(*EXACT)
    blank.open(server.url)
    blank.set(n=2, max_tokens=MANY, seed=5, ignore_eos=True)
    prompt = "She opened the door and saw "
    blank.generate(prompt, cards=2, wait=False)
    tokens = blank.cards.first.locator("[data-k]")
    expect(tokens.nth(5)).to_be_attached()
    server.stop(signal.SIGKILL)
    expect(blank.find("#status")).to_contain_text("connection was lost")
    seen = [blank.said(card) for card in blank.cards.all()]
    assert tokens.count() < MANY
    server = start_server(*EXACT, "--port", str(server.address[1]))
    blank.wait_done()
    said = [blank.said(card) for card in blank.cards.all()]
    for card, before, now in zip(blank.cards.all(), seen, said, strict=True):
        expect(card.locator(".numbers")).to_contain_text(f"{MANY} tokens")
        expect(card.locator(".facts")).to_contain_text("reached its length")
        assert now.startswith(before)
        assert len(now) > len(before)
    assert said == server.texts(prompt=prompt, n=2, max_tokens=MANY, seed=5, ignore_eos=True, heal=True)
    story = json.loads(server.request(f"/v1/stories/{blank.page.url.partition('#')[2]}")[1])
    assert [node["text"] for node in story["nodes"]] == [prompt, *said]
    blank.reload()
    assert [blank.said(card) for card in blank.cards.all()] == said
    blank.press(blank.cards.first, "Keep")
    blank.reads(prompt + said[0])
    expect(blank.find("#tree [role=treeitem]").nth(1)).to_contain_text(f"2 alternatives · {MANY} tokens")
    blank.page.close()  # it watches the story until the server is gone
    blank.excuse("ERR_", "503")
