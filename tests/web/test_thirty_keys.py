"""At each step of a book, thirty random keys are typed while alternatives stream: none is lost."""

import random
import string
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect
from scripted import Scripted
from web.conftest import Story

pytestmark = pytest.mark.web

TEXT = "# The lamp\n\nAda waited for Tom.\n\n# The boat\n\nTom rowed."


class Typist:
    """Types random keys, and knows what the box must contain."""

    def __init__(self, story: Story) -> None:
        self.story, self.rng = story, random.Random(7)

    def keys(self) -> str:
        """Thirty keys, of which the first is no space, as that presses a button."""
        keys = "".join(self.rng.choices(string.ascii_letters + string.digits + string.punctuation + "   ", k=30))
        keys = "x" + keys[1:]
        self.story.page.keyboard.type(keys)
        return keys

    def write(self, step: str, start: int | None = None, end: int | None = None) -> str:
        """Type at the end of the text, or replace a range. Return the text."""
        before = self.story.text
        start = len(before) if start is None else start
        expected = [before[:start], before[start if end is None else end :]]
        after = expected[0] + self.keys() + expected[1]
        expect(self.story.find("#stop")).to_be_enabled()  # it still streams
        assert self.story.text == after, step
        return after

    def fill(self, step: str, field: str) -> None:
        """Types into a field of a panel."""
        keys = self.keys()
        assert self.story.find(field).input_value() == keys, step


def test_thirty_keys_at_each_step(
    start_scripted: Callable[..., Scripted], blank: Story, other: Story, tmp_path: Path
) -> None:
    story, page, keyboard = blank, blank.page, blank.page.keyboard
    server = start_scripted(tmp_path / "stories.db")
    typist = Typist(story)
    box, cards = story.find("#story"), story.cards

    # Routed from the start: Chromium may miss requests right after `route`.
    held, is_held = list[Route](), threading.Event()
    page.route(
        "**/nodes",
        lambda route: held.append(route) if is_held.is_set() and route.request.method == "POST" else route.continue_(),
    )

    # Something streams in the background until the end: 60 s, of which a quiet machine needs 12.
    server.go(pace=0.02)
    story.open(server.url)
    story.set(n=2, max_tokens=3000)
    box.click()
    keyboard.insert_text("It begins")
    keyboard.press("Control+Enter")
    typist.write("generate, while the text is read")
    expect(cards).to_have_count(2)
    expect(cards.first.locator("[data-k]").nth(3)).to_be_visible()
    typist.write("generate, while it streams")

    # Begin; and look at a word, with the pointer.
    story.set(n=2, max_tokens=12)
    box.fill(TEXT)
    typist.write("begin")
    keyboard.press("Control+Enter")
    expect(cards).to_have_count(2)
    expect(cards.first.locator("[value=keep]")).to_be_enabled()
    story.word(cards.first).hover()
    expect(story.find("#token-preview")).to_be_visible()
    typist.write("look at a word")

    # On an alternative, letters are shortcuts and change no text: "e" goes to the text.
    keyboard.press("Escape")
    before = story.text
    keyboard.type("uruenly")
    assert story.text == before + "nly", "on an alternative"

    # Fork with the keyboard. Text typed before the server has the fork stays in its place.
    is_held.set()
    for key in ("Escape", "ArrowRight", "Enter", "Enter"):
        keyboard.press(key)
    typed = typist.write("fork, until it's there")
    expect(story.find("#token-preview")).to_be_hidden()
    assert len(held) == 1
    is_held.clear()
    held.pop().continue_()
    expect(box).not_to_have_js_property("value", typed)
    expect(cards).to_have_count(2)
    typist.write("fork")

    # Keep.
    expect(cards.first.locator("[value=keep]")).to_be_enabled()
    keyboard.press("Escape")
    keyboard.press("1")
    expect(cards).to_have_count(0)
    typist.write("keep")

    # Chapters and search.
    keyboard.press("Control+F")
    typist.fill("find", "#find")
    keyboard.press("Escape")
    keyboard.press("Escape")
    keyboard.press("t")
    story.find("#chapters button").first.click()
    typist.write("chapters", len("# The lamp"))
    story.reach("#export-path").focus()
    typist.write("a button of a panel", len("# The lamp") + 30)
    story.find("#stories > .head button").click()

    # Bridge.
    place = story.text.index("\n\n# The boat")
    story.select(place)
    expect(story.find("#bridge")).to_be_enabled()
    keyboard.press("Control+Alt+Enter")
    typist.write("bridge", place)
    expect(cards.first.locator(".follows")).not_to_be_empty()

    # Rewrite. Typing replaces the selection, as in any text.
    place = story.text.index("Ada waited")
    story.select(place, place + 10)
    expect(story.find("#rewrite")).to_be_enabled()
    keyboard.press("Control+Shift+Enter")
    typist.fill("rewrite: how", "#rewriter-how")
    keyboard.press("Enter")
    expect(story.find("#rewriter")).to_be_hidden()
    typist.write("rewrite", place, place + 10)

    # Ask, and take.
    keyboard.press("Escape")
    keyboard.press("a")
    typist.fill("ask", "#question")
    keyboard.press("Control+Enter")
    expect(story.find("#talk .question")).to_have_count(1)
    typist.fill("ask, while it's answered", "#question")
    expect(story.find("#talk textarea")).not_to_have_value("")
    story.select(len(story.text))
    story.find("#talk [value=take]").click()
    expect(box).to_be_focused()
    typist.write("take")
    keyboard.press("Control+z")
    typist.write("undo")

    # Export has all; after a reload, and on another device, one writes on.
    story.find("#open-stories").click()
    with page.expect_download() as download:
        story.reach("#export-path").click()
    assert download.value.path().read_text() == story.text + "\n"
    text = story.text
    story.reload()
    assert story.text == text
    typist.write("reload")
    other.open(page.url)
    other.reads(story.text)
    elsewhere = Typist(other)
    other.find("#story").focus()
    elsewhere.write("elsewhere", other.find("#story").evaluate("(box) => box.selectionEnd"))
    server.go()
