"""Typed text is never overwritten or lost."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import Story

pytestmark = pytest.mark.web

Start = Callable[..., Scripted]

KEPT = """async () => {
    const done = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
    const database = await done(indexedDB.open("srb"));
    const all = (name) => done(database.transaction(name).objectStore(name).getAll());
    const [nodes, pages] = [await all("nodes"), await all("page")];
    database.close();
    const texts = nodes.flatMap(({ pieces, passage, behind }) => [pieces.map((piece) => piece.text), passage, behind]);
    return [...texts.flat(), ...pages.map((each) => each.text)].join("\\n");
}"""
"""All texts of nodes, and all drafts, that the browser has kept."""

TAKE = """() => {
    document.querySelector("#talk textarea")?.setSelectionRange(0, 9);
    document.querySelector("#talk [value=take]")?.click();
}"""
"""Inserts a passage of an editor's answer into the text."""

BUTTONS = """([selector, chance]) => {
    const isThere = (each) => !each.disabled && each.getClientRects().length;
    const all = [...document.querySelectorAll(selector)].filter(isThere);
    const each = all[Math.floor(chance * all.length)];
    each?.scrollIntoView({ block: "center" });
    const box = each?.getBoundingClientRect();
    const place = box && [box.x + box.width / 2, box.y + box.height / 2];
    const found = place && document.elementFromPoint(...place);
    return found && (each.closest(".card") ?? each).contains(found) && place;
}"""
"""Where one of these buttons is."""

AGAIN = """([name, count]) => {
    for (let k = 0; k < count; k++) document.querySelector(`#${name}:enabled`)?.click();
}"""
"""Presses Undo or Redo so often. No card can come between a look and a click."""


def at(story: Story) -> list[Any]:
    """Return the focused element, and its cursor counted from the end."""
    found: list[Any] = story.page.evaluate(
        "(({ id, value, selectionEnd }) => [id, value?.length - selectionEnd])(document.activeElement)"
    )
    return found


def begin(story: Story, server: Scripted) -> None:
    story.open(server.url)
    story.set(n=2, max_tokens=8)
    story.find("#story").click()


def test_text_that_differs_from_the_tree_is_the_writers(start_scripted: Start, blank: Story) -> None:
    story, server = blank, start_scripted()
    begin(story, server)
    keyboard, box, path = story.page.keyboard, story.find("#story"), story.find("#path button")

    # While the prompt is read.
    keyboard.type("Once upon")
    server.going.clear()
    keyboard.press("Control+Enter")
    expect(story.cards).to_have_count(2)
    keyboard.type(" a time")
    server.going.set()
    story.wait_done()
    story.reads("Once upon a time")

    # Discarding, and Undo, by buttons and from the keyboard.
    story.press(story.cards.first, "Discard")
    expect(story.cards).to_have_count(1)
    keyboard.type(", there")
    story.find("#undo").click()
    story.reads("Once upon a time")
    expect(story.cards).to_have_count(1)
    story.find("#undo").click()
    expect(story.cards).to_have_count(2)
    story.reads("Once upon a time")
    for _ in range(2):
        keyboard.press("Control+Shift+Z")
    expect(story.cards).to_have_count(1)
    story.reads("Once upon a time, there")
    for _ in range(2):
        keyboard.press("Control+Z")
    expect(story.cards).to_have_count(2)
    keyboard.type(", there")
    keyboard.press("Escape")
    expect(story.cards.first.locator(".text")).to_be_focused()
    keyboard.press("d")
    expect(story.cards.first.locator(".text")).to_be_focused()
    keyboard.press("u")
    expect(story.cards).to_have_count(2)
    story.reads("Once upon a time, there")

    # Keep continues from the alternative, with the keyboard in the text. What was typed meanwhile is after it.
    said = story.said(story.cards.first)
    keyboard.press("1")
    expect(box).to_have_js_property("value", "Once upon" + said + " a time, there")
    assert at(story) == ["story", 0]
    keyboard.type("Suddenly a gull")
    kept = "Once upon" + said + " a time, thereSuddenly a gull"
    story.reads(kept)
    expect(path.nth(1)).to_have_text("Once upon+ draft")

    # The path: each place has its own.
    path.nth(1).click()
    story.reads("Once upon a time, there")
    path.first.click()
    story.reads("")
    story.find("#undo").click()
    story.find("#undo").click()
    story.reads(kept)
    expect(path.last).to_have_attribute("aria-current", "true")

    # After a click elsewhere, letters go to the text, and none is a shortcut.
    story.page.mouse.click(5, 600)
    keyboard.type("Suddenly a gull")
    kept += "Suddenly a gull"
    story.reads(kept)
    with story.panel("model-view"):
        story.find("#memory").fill("Ada is ninety.")
    with story.panel("ask"):
        keyboard.type("Who?")

    # The tab ends without a word, as when the browser is killed.
    after = Story(story.page.context.new_page())
    after.page.goto(story.page.url)
    after.wait_ready()
    assert after.text == kept
    assert after.find("#memory").input_value() == "Ada is ninety."
    assert after.find("#question").input_value() == "Who?"
    after.page.close()
    with story.panel("stories"):
        story.pictures("drafts")


def test_what_is_typed_while_it_streams_stands_after_the_kept_text(story: Story, server: Scripted) -> None:
    story.set(n=2, max_tokens=12)
    box, keyboard = story.find("#story"), story.page.keyboard
    box.click()
    keyboard.type("Once upon a time")
    server.hold_after(6)
    keyboard.press("Control+Enter")
    expect(story.cards).to_have_count(2)
    keyboard.type("and then I wrote. Mine")
    for _ in range(len("Once upon a timeand then I wrote. Mine")):
        keyboard.press("ArrowLeft")
    keyboard.type("> ")
    server.go()
    story.wait_done()
    said = story.said(story.cards.first)
    space = "" if said.endswith(" ") else " "
    story.press(story.cards.first, "Keep")
    expect(story.find("#status")).to_have_text("What you typed meanwhile is still in your text.")
    kept = f"> Once upon a time{said}{space}and then I wrote. Mine"
    expect(box).to_have_js_property("value", kept)
    assert at(story) == ["story", 0]
    assert story.shaded("fresh") == [said]
    assert story.shaded("model") == [said + space]
    keyboard.press("Control+Z")
    expect(box).to_have_js_property("value", "> Once upon a timeand then I wrote. Mine")
    keyboard.press("Control+Shift+Z")
    expect(box).to_have_js_property("value", kept)
    story.reload()
    expect(box).to_have_js_property("value", kept)
    story.generate(cards=2)
    expect(box).to_have_js_property("value", kept)


def test_a_failed_save_is_reported_and_tried_again(start_scripted: Start, blank: Story) -> None:
    story, server = blank, start_scripted()
    begin(story, server)
    story.page.evaluate(
        """() => {
            window.put = IDBObjectStore.prototype.put;
            IDBObjectStore.prototype.put = () => { throw new Error("the disk is full"); };
        }"""
    )
    story.page.keyboard.type("Once")
    expect(story.find("#error")).to_contain_text("What you wrote last isn't saved yet.")
    expect(story.find("#error")).to_contain_text("Reason: the disk is full")
    story.page.evaluate("() => (IDBObjectStore.prototype.put = window.put) && null")
    expect(story.find("#error")).to_be_hidden()
    expect(story.find("#status")).to_have_text("Saved.")
    story.reload()
    story.reads("Once")


def test_drafts_move_to_the_server_with_their_story(start_scripted: Start, blank: Story, tmp_path: Path) -> None:
    story, server = blank, start_scripted(tmp_path / "stories.db", api_keys=(b"sk-1",))
    keyboard = story.page.keyboard
    story.page.route("**/health", lambda route: route.fulfill(json={"model": "fake", "n_ctx": 8192}))
    story.page.goto(server.url)
    story.wait_ready()
    story.set(n=2, max_tokens=8)
    story.find("#story").click()
    keyboard.type("Once upon")
    keyboard.press("Control+Enter")
    story.find("#key-input").fill("sk-1")
    keyboard.press("Enter")
    expect(story.find("#key")).to_be_hidden()
    story.find("#story").focus()
    keyboard.press("Control+Enter")
    expect(story.cards).to_have_count(2)
    story.wait_done()
    story.press(story.cards.first, "Keep")
    keyboard.type(" Suddenly a gull")
    kept = story.text
    with story.panel("model-view"):
        story.find("#memory").fill("Ada is ninety.")
    with story.panel("ask"):
        keyboard.type("Who?")
    story.begin()
    keyboard.type("Nothing but a draft")
    story.page.unroute("**/health")

    # The stories of a server with a key are there when the key is known.
    story.page.evaluate("sessionStorage.clear()")
    story.page.goto(server.url)
    expect(story.find("#error")).to_contain_text("API key is missing")
    story.find("#key-input").fill("sk-1")
    keyboard.press("Enter")
    story.wait_ready()
    story.find("#open-stories").click()
    story.leave("#move")
    texts, path = [], []
    for each in range(3):
        story.find("#open-stories").click()
        expect(story.find("#story-list li")).to_have_count(3)
        if each:
            story.leave(f"#story-list li:nth-child({each + 1}) a")
        texts.append((story.text, story.find("#memory").input_value(), story.find("#question").input_value()))
        path.append(story.find("#path button").count())
        story.reload()
    assert sorted(texts) == [("", "", ""), ("Nothing but a draft", "", ""), (kept, "Ada is ninety.", "Who?")]
    assert sorted(path) == [1, 1, 3]
    story.excuse("status of 401")


KEYS = 1000
"""In each of two kinds of stories; each key is another letter, so that each can be looked for."""


def test_no_key_is_lost(blank: Story, either: Scripted, tmp_path: Path) -> None:
    story, server = blank, either
    story.page.add_init_script("addEventListener('mousedown', (event) => { window.hit = event.target; }, true)")
    begin(story, server)
    story.page.on("dialog", lambda dialog: dialog.accept())
    with story.panel("ask"):
        story.find("#question").fill("Who?")
        story.find("#ask .main").click()
        expect(story.find("#talk textarea")).to_have_value(re.compile("........."))
        story.find("#ask [value=stop]").evaluate("(each) => each.click()")
        expect(story.find("#ask .main")).to_be_enabled()
    story.find("#story").click()
    page, rng = story.page, random.Random(7)
    (tmp_path / "tale.json").write_text(
        json.dumps(
            {"format": "srb-tree", "version": 2, "nodes": [{"id": "a", "parent": "root", "pieces": [["x", None]]}]}
        )
    )

    def press(selector: str) -> None:
        if place := page.evaluate(BUTTONS, [selector, rng.random()]):
            page.mouse.move(*place)
            if page.evaluate("([at, name]) => document.elementFromPoint(...at)?.closest(name)", [place, selector]):
                page.mouse.click(*place)  # else other cards have come there meanwhile
            if not page.evaluate("(name) => window.hit?.closest(name)", selector):
                story.find("#story").click()  # they came between the look and the click, and something else was hit

    def back_and_forth() -> None:
        """Undoes some steps, and does them again: all is as it was."""
        before = story.text
        count = rng.choice((1, 2, 3, 50))
        for name in ("undo", "redo"):
            page.evaluate(AGAIN, [name, count])
        assert story.text == before, f"after {done}"

    def another_device() -> None:
        if server.keeps_stories:
            assert server.request(f"{story.path}/nodes", {"text": "Meanwhile"})[0] < 300

    def reload() -> None:
        story.reload()
        story.find("#story").click()

    def load() -> None:
        story.take(tmp_path / "tale.json")
        story.find("#story").click()

    done = list[int]()  # the last actions, by their numbers
    actions: dict[Callable[[], Any], int] = {
        lambda: press("#generate"): 8,
        lambda: back_and_forth(): 6,
        lambda: press("#stop"): 2,
        lambda: press("#path button"): 6,
        lambda: page.evaluate(TAKE): 4,
        lambda: press(".card [value=keep]"): 6,
        lambda: press(".card [value=discard]"): 3,
        lambda: press(".card [value=more]"): 2,
        lambda: press(".card [value=continue]"): 1,
        lambda: page.keyboard.press(rng.choice(["Home", "End", "ArrowLeft", "Control+Enter"])): 6,
        server.going.clear: 3,
        server.going.set: 6,
        another_device: 3,
        reload: 1,
        load: 1,
    }
    typed = ""
    while len(typed) < KEYS:
        assert at(story)[0] == "story", f"what is typed goes nowhere, after {done}"
        keys = "".join(chr(0x4E00 + len(typed) + k) for k in range(rng.randrange(1, 34)))
        page.keyboard.type(keys)  # one by one, while alternatives stream
        typed += keys
        (action,) = rng.choices(list(actions), list(actions.values()))
        done.append(list(actions).index(action))
        action()
    server.going.set()
    story.wait_done()
    reload()
    kept = page.evaluate(KEPT)
    if server.keeps_stories:
        for each in json.loads(server.request("/v1/stories")[1])["data"]:
            nodes = json.loads(server.request(f"/v1/stories/{each['id']}")[1])["nodes"]
            kept += "".join(node["text"] + json.dumps(node["settings"], ensure_ascii=False) for node in nodes)
    assert [key for key in typed if key not in kept] == []
    story.excuse("status of 404")  # what Stop wanted to end had ended
