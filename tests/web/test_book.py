"""A book of two chapters, from its beginning to its export: with the keyboard alone, and with fingers on a phone.

`SRB_BOOK=http://127.0.0.1:9090` writes it on that server, which has a model and a history, and makes the pictures of
docs/using/hour.md.
"""

import base64
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driver import few
from playwright.sync_api import Browser, expect
from scripted import Scripted
from web.conftest import TWO_FRAMES, Story, profile

pytestmark = pytest.mark.web

URL = os.environ.get("SRB_BOOK")
if URL:
    expect.set_options(timeout=200_000)
PICTURES = Path(__file__).parents[2] / "docs" / "using" / "hour"

BOOK = (Path(__file__).parent / "book.md").read_text().strip()
CHAPTERS = BOOK.split("\n\n# The boat")
CLOSE = "At dusk, somebody knocked at the door."
LATER = " He counted eleven."


def shortened(chapter: str, letters: int = 1800) -> str:
    """Return a chapter's heading and last paragraphs, for the scripted model, whose tokens are characters."""
    heading, _, rest = chapter.partition("\n\n")
    return f"{heading}\n\n{rest[-letters:].partition(chr(10) * 2)[2]}"


class Hands:
    """Works with the keyboard or by touch."""

    def __init__(self, story: Story, name: str, *, has_keys: bool, count: int = 0) -> None:
        self.story, self.name, self.has_keys, self.count = story, name, has_keys, count

    def do(self, keys: str, button: str) -> None:
        if not self.has_keys:
            if button.startswith("#") and not self.story.find(button).is_visible():
                self.story.find("#more-tools").tap()
            return self.story.find(button).tap()
        for key in keys.split():
            self.story.page.keyboard.press(key)
        return None

    def tab_to(self, button: str, key: str = "Tab") -> None:
        """Presses a button, which is some steps away."""
        for _ in range(40 if self.has_keys else 0):  # a list that is redrawn starts again
            if self.story.find(f"{button}:focus").count():
                break
            self.story.page.keyboard.press(key)
        else:
            assert not self.has_keys, f"the keyboard doesn't come to {button}"
        self.do("Enter", button)

    def put_cursor(self, place: int, start: int | None = None) -> None:
        """Put the cursor after this many characters, or select from `start`; with arrow keys, if it has keys."""
        box = self.story.find("#story")
        if not self.has_keys:
            self.story.page.evaluate(TWO_FRAMES)  # Chromium tells the editor of a tapped place in the next frame
            places = [place if start is None else start, place]
            box.evaluate("(box, [start, end]) => { box.focus(); box.setSelectionRange(start, end); }", places)
            return
        if not self.story.find("#story:focus").count():
            self.do("Escape e", "")
        for to, shift in [(place, "")] if start is None else [(start, ""), (place, "Shift+")]:
            if to == len(self.story.text) and not shift:
                self.story.page.keyboard.press("Control+End")
            by = to - box.evaluate("(box) => box.selectionEnd")
            for _ in range(abs(by)):
                self.story.page.keyboard.press(f"{shift}Arrow{'Right' if by > 0 else 'Left'}")

    def keep(self) -> str:
        """Keeps the first alternative; returns it."""
        said = self.story.said(self.story.cards.first)
        self.do("Escape 1", ".card >> nth=0 >> [value=keep]")
        expect(self.story.cards).to_have_count(0)
        return said

    def show(self, name: str) -> None:
        """Makes a picture of this step, and checks it."""
        self.count += 1
        name = f"{self.name}-{self.count}-{name}"
        if not URL:
            return self.story.picture(f"book-{name}", axe=not self.has_keys)
        self.story.page.wait_for_timeout(500)  # Chromium shows for a moment what a finger has touched
        client = self.story.page.context.new_cdp_session(self.story.page)
        taken = client.send("Page.captureScreenshot", {"format": "webp", "quality": 60})
        (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))
        return None


@pytest.fixture(params=few("fingers", many=["keys"]))
def hands(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Hands]:
    with profile(browser, is_phone=request.param == "fingers") as story:
        yield Hands(story, request.param, has_keys=request.param == "keys")


def test_a_book_is_written(
    hands: Hands, browser: Browser, start_scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    story, keyboard = hands.story, hands.story.page.keyboard
    box, chapters = story.find("#story"), story.find("#chapters button")
    one, two = (CHAPTERS[0], "# The boat" + CHAPTERS[1])
    text = BOOK if URL else f"{shortened(one)}\n\n{shortened(two)}"
    address = URL or start_scripted(tmp_path / "stories.db").url
    story.open(address)
    if story.text:  # there is a book from another time
        story.find("#open-stories").click()
        story.leave("#new")
    story.set(n=4, seed=7, **({"temperature": 0.7} if URL else {"max_tokens": 24}))

    # Begin, and generate. Text typed meanwhile is a draft.
    hands.do("", "#story")
    keyboard.insert_text(text)
    hands.show("begun")
    hands.do("Control+Enter", "#generate")
    hands.do("", "#story")
    hands.put_cursor(len(text))
    keyboard.type(LATER)
    expect(story.cards).to_have_count(4)
    story.wait_done()
    assert story.text == text + LATER
    story.cards.first.scroll_into_view_if_needed()
    hands.show("alternatives")

    # Fork at a word of the second, and keep.
    second = story.cards.nth(1)
    if hands.has_keys:
        keyboard.press("Escape")
        keyboard.press("j")
        for _ in range(9):
            keyboard.press("ArrowRight")
            if story.find("[data-k]:focus", has_text=re.compile("[a-z]")).count():  # no new line before it
                break
        keyboard.press("Enter")
    else:
        story.swipe(-250)
        expect(second).to_be_in_viewport(ratio=0.99)
        story.word(second, 0).tap()
    expect(story.find("#token-preview")).to_be_visible()
    hands.show("word")
    hands.do("ArrowDown Enter", "#token-preview li:not(:has(.taken)) button >> nth=0")
    expect(story.find("#path button")).to_have_count(3)
    expect(story.cards).to_have_count(4)
    story.wait_done()
    forked = story.text
    assert forked.startswith(text)
    assert forked.endswith(LATER)
    text = forked.removesuffix(LATER) + hands.keep() + LATER  # what was typed meanwhile stays after it
    expect(box).to_have_js_property("value", text)
    expect(story.find("#path")).to_contain_text("draft")
    hands.show("kept")

    # Go to the second chapter, and bridge from the first one to it. A model may have written headings of its own.
    hands.do("Escape t", "#open-stories")
    expect(chapters).to_have_count(text.count("\n# ") + 1)
    expect(story.find("#story-list [aria-current]")).to_have_text("The lamp")
    hands.show("chapters")
    hands.tab_to("#chapters li:nth-child(2) button", "Shift+Tab")
    if hands.has_keys:  # a finger's panel covered the text, and is closed
        hands.do("Escape t", "")
    expect(story.find("#stories")).to_be_hidden()
    place = text.index("\n\n# The boat")
    hands.put_cursor(place)
    expect(story.find("#bridge")).to_be_enabled()
    hands.do("Control+Alt+Enter", "#bridge")
    expect(story.cards.first.locator(".follows")).to_contain_text("best")
    story.wait_done()
    hands.show("bridged")
    bridge = hands.keep()
    assert story.text.startswith(text[:place] + bridge)
    assert story.text.endswith(text[place:])
    text = story.text

    # Rewrite a passage, and take that back.
    passage = text.index(CLOSE)
    hands.put_cursor(passage + len(CLOSE), passage)
    expect(story.find("#rewrite")).to_be_enabled()
    hands.do("Control+Shift+Enter", "#rewrite")
    expect(story.find("#rewriter")).to_be_visible()
    keyboard.type("Make it shorter.")
    hands.do("Enter", "#rewriter .main")
    expect(story.cards).to_have_count(4)
    story.wait_done()
    assert box.evaluate("(box) => [box.selectionStart, box.selectionEnd]") == [passage, passage + len(CLOSE)]
    expect(story.cards.first).to_be_in_viewport()
    hands.show("rewritten")
    version = hands.keep()
    assert version.strip() in story.text
    assert CLOSE not in story.text.replace(version.strip(), "")
    hands.do("Control+z", "#undo")
    expect(box).to_have_js_property("value", text)

    # Show the tree as a drawing.
    hands.do("Escape t", "#open-stories")
    hands.do("p", "#draw")
    expect(story.find("#drawing .current text")).to_contain_text("Rewrite: At dusk")
    hands.show("drawn")
    hands.do("Escape", "#stories > .head button")

    # Another word in place of one that the writer typed.
    at = text.index("knocked at the door")
    hands.do("e", "#story")
    hands.put_cursor(at)
    expect(story.find("#other-words")).to_be_enabled()
    hands.do("Control+.", "#other-words")
    expect(story.find("#token-preview")).to_be_visible()
    hands.show("words")
    hands.do("Escape", "#story")
    expect(story.find("#token-preview")).to_be_hidden()
    expect(story.find("#status")).to_have_text("")
    assert story.text == text

    # Ask an editor, and take what it says.
    hands.put_cursor(len(text))
    hands.do("Escape a", "#open-ask")
    keyboard.type("What could the boat bring?")
    hands.do("Control+Enter", "#ask .main")
    expect(story.find("#ask [role=status]")).to_have_text("Done: 1 answer.")
    hands.show("asked")
    hands.tab_to("#talk [value=take]", "Shift+Tab")
    hands.do("Escape", "#ask > .head button")
    assert story.text.startswith(text)
    words = " ".join(story.text[len(text) :].split()[:4])
    assert words
    text = story.text
    hands.do("Control+Enter", "#generate")
    expect(story.find("#status")).to_have_text("Done: 4 alternatives.")
    story.page.goto("about:blank")

    # Find it on another device, from a new story there, and export it.
    with profile(browser, is_phone=hands.has_keys) as other:
        device = Hands(other, hands.name, has_keys=not hands.has_keys, count=hands.count)
        other.open(address)
        other.find("#open-stories").click()
        other.leave("#new")
        device.do("Control+f", "#open-search")
        other.page.keyboard.type(words)
        device.do("Enter", "#find-in-others")
        expect(other.find("#other-stories a")).to_have_count(1)
        other.find("#other-stories").scroll_into_view_if_needed()
        device.show("found")
        other.leave("#other-stories a")
        other.reads(text)
        expect(other.cards).to_have_count(4)
        other.wait_done()
        device.show("elsewhere")
        device.do("Escape t", "#open-stories")
        device.tab_to("#files summary", "Shift+Tab")
        with other.page.expect_download() as download:
            device.tab_to("#export-path")
        exported = download.value.path().read_text()
    assert exported == text + "\n"
    assert [line for line in exported.split("\n") if line.startswith("# The")] == ["# The lamp", "# The boat"]
