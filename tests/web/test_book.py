"""A book of two chapters, from its beginning to its export: with the keyboard alone, and with fingers on a phone.

`SRB_BOOK=http://127.0.0.1:9090` writes it on that server, which has a model and a history, and makes the pictures of
docs/using/hour.md.
"""

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from scripted import Scripted
from web.conftest import PHONE, Story, profile

pytestmark = pytest.mark.web

URL = os.environ.get("SRB_BOOK")
if URL:
    expect.set_options(timeout=200_000)
PICTURES = Path(__file__).parents[2] / "docs" / "using" / "hour"

SCENES = """Ada carried the oil up the hundred and twelve steps, and rested on every thirtieth, as her father had done.
The lamp caught at the second match. Below, the village put out its lights, one window after the other.
Tom would have laughed at her. He had never believed that a light could bring anybody home.
She wrote the hour into the book: the wind from the west, the glass falling, no ship in sight.
Rain came in from the sea before midnight, and with it the gulls, who sat along the railing and said nothing.
In the morning the rocks were white with salt. She counted the boats in the harbour, and counted them again.
The boy from the bakery brought bread, and stayed for a story, which she told as if it had happened to someone else."""
ENDS = "At dusk, somebody knocked at the door.", "When she opened it, nobody was there but the sea."


def chapter(title: str, words: int, end: str) -> str:
    """A chapter of about so many words, in paragraphs."""
    scenes = SCENES.split("\n")
    count = words * len(scenes) // len(SCENES.split())
    return "\n\n".join([f"# {title}", *(scenes[k % len(scenes)] for k in range(count)), end])


class Hands:
    """What does the work: keys, or fingers."""

    def __init__(self, story: Story, name: str) -> None:
        self.story, self.name, self.count = story, name, 0
        self.has_keys = name == "keys"

    def do(self, keys: str, button: str) -> None:
        if not self.has_keys:
            return self.story.find(button).tap()
        for key in keys.split():
            self.story.page.keyboard.press(key)
        return None

    def tab_to(self, button: str, key: str = "Tab") -> None:
        """Presses a button, which is some steps away."""
        for _ in range(40 if self.has_keys else 0):  # a list that is drawn anew meanwhile begins again
            if self.story.find(f"{button}:focus").count():
                break
            self.story.page.keyboard.press(key)
        else:
            assert not self.has_keys, f"the keyboard doesn't come to {button}"
        self.do("Enter", button)

    def put_cursor(self, place: int, start: int | None = None) -> None:
        """As a finger does, or some arrows, which would be slow."""
        self.story.find("#story").evaluate(
            "(box, [start, end]) => { box.focus(); box.setSelectionRange(start, end); }",
            [place if start is None else start, place],
        )

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
        PICTURES.mkdir(exist_ok=True)
        client = self.story.page.context.new_cdp_session(self.story.page)
        taken = client.send("Page.captureScreenshot", {"format": "webp", "quality": 60})
        (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))
        return None


@pytest.fixture(params=["keys", "fingers"])
def hands(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Hands]:
    with profile(browser, is_phone=request.param == "fingers") as story:
        yield Hands(story, request.param)


def test_a_book_is_written(hands: Hands, other: Story, start_scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    story, keyboard = hands.story, hands.story.page.keyboard
    box, chapters = story.find("#story"), story.find("#chapters button")
    size = 500 if URL else 300  # words of a chapter; the scripted model's tokens are letters
    text = "\n\n".join([chapter("The lamp", size, ENDS[0]), chapter("The boat", size, ENDS[1])])
    story.open(URL or start_scripted(tmp_path / "stories.db").url)
    if story.text:  # there is a book from another time
        story.find("#open-shelf").click()
        story.leave("#new")
    story.set(n=4, max_tokens=24, temperature=0.7, seed=7)

    # Begin, and generate. What is typed meanwhile is a draft of its place.
    hands.do("", "#story")
    keyboard.insert_text(text)
    hands.show("begun")
    hands.do("Control+Enter", "#generate")
    hands.do("", "#story")
    hands.put_cursor(len(text))
    keyboard.type(" Nobody answered the knocking.")
    expect(story.cards).to_have_count(4)
    story.wait_done()
    assert story.text == text + " Nobody answered the knocking."
    story.cards.first.scroll_into_view_if_needed()
    hands.show("alternatives")

    # Fork at a word of the second, and keep.
    second = story.cards.nth(1)
    if hands.has_keys:
        for key in ("Escape", "j", "ArrowRight", "Enter"):
            keyboard.press(key)
    else:
        story.swipe(-250)
        expect(second).to_be_in_viewport(ratio=0.99)
        story.word(second, 0).tap()
    expect(story.find("#peek")).to_be_visible()
    hands.show("word")
    hands.do("ArrowDown Enter", "#peek li:not(:has(.taken)) button >> nth=0")
    expect(story.find("#path button")).to_have_count(3)
    expect(story.cards).to_have_count(4)
    story.wait_done()
    forked = story.text
    assert forked.startswith(text)
    text = forked + hands.keep()
    expect(box).to_have_value(text)
    expect(story.find("#path")).to_contain_text("draft")
    hands.show("kept")

    # Go to the second chapter, and bridge from the first one to it.
    hands.do("Escape t", "#open-shelf")
    expect(chapters).to_have_count(2)
    hands.show("chapters")
    hands.tab_to("#chapters li:last-child button", "Shift+Tab")
    if hands.has_keys:  # a finger's panel covered the text, and is closed
        hands.do("Escape t", "")
    expect(story.find("#shelf")).to_be_hidden()
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
    passage = text.index(ENDS[0])
    hands.put_cursor(passage + len(ENDS[0]), passage)
    expect(story.find("#rewrite")).to_be_enabled()
    hands.do("Control+Shift+Enter", "#rewrite")
    expect(story.find("#rewriter")).to_be_visible()
    keyboard.type("Make it shorter.")
    hands.do("Enter", "#rewriter .main")
    expect(story.cards).to_have_count(4)
    story.wait_done()
    hands.show("rewritten")
    version = hands.keep()
    assert version.strip() in story.text
    assert ENDS[0] not in story.text.replace(version.strip(), "")
    hands.do("Control+z", "#undo")
    expect(box).to_have_value(text)

    # Ask an editor, and take what it says.
    hands.do("Escape a", "#open-ask")
    keyboard.type("What could the boat bring?")
    hands.do("Control+Enter", "#ask .main")
    expect(story.find("#ask [role=status]")).to_have_text("Done: 1 answer.")
    hands.show("asked")
    hands.tab_to("#talk [value=take]", "Shift+Tab")
    hands.do("Escape", "#ask > .head button")
    assert len(story.text) > len(text)
    text = story.text
    hands.put_cursor(len(text))
    hands.do("Control+Enter", "#generate")
    expect(story.cards).to_have_count(4)
    story.wait_done()

    # Export; close; find it on another device.
    hands.do("Escape t", "#open-shelf")
    with story.page.expect_download() as download:
        hands.tab_to("#markdown")
    exported = download.value.path().read_text()
    assert exported == text + "\n"
    assert [line for line in exported.split("\n") if line.startswith("# ")] == ["# The lamp", "# The boat"]
    address = story.page.url
    story.page.goto("about:blank")
    if hands.has_keys:
        other.page.set_viewport_size(PHONE)
    other.open(address)
    expect(other.find("#story")).to_have_value(text)
    expect(other.cards).to_have_count(4)
    hands.story = other
    hands.show("elsewhere")
