"""Word count and daily goal, chapters, text size, line width, and the focus mode."""

import pytest
from playwright.sync_api import expect
from web.conftest import Story

pytestmark = pytest.mark.web

TEXT = "# One\n\nThe lamp burned.\n\n# Two\n\nShe slept"


def test_words_are_counted_and_chapters_are_listed(story: Story) -> None:
    words, box, chapters = story.find("#words"), story.find("#story"), story.find("#chapters button")
    story.set(n=1, max_tokens=12, seed=1)
    box.click()
    story.page.keyboard.insert_text(TEXT)
    expect(words).to_have_text("7 words · today: 7 yours")
    story.page.once("dialog", lambda dialog: dialog.accept("many"))
    words.click()
    expect(story.find("#error")).to_contain_text("not many")
    story.page.once("dialog", lambda dialog: dialog.accept("10"))
    words.click()
    expect(words).to_have_text("7 words · today: 7 of 10 yours")

    # Kept text counts until it is undone. Moving in the tree counts nothing.
    story.generate(cards=1)
    more = len(story.said(story.cards.first).split())
    story.press(story.cards.first, "Keep")
    count = len(story.text.replace("#", "").split())
    assert count >= 7 + more - 1
    expect(words).to_have_text(f"{count} words · today: 7 of 10 yours, {count - 7} the model's")
    expect(words).to_have_class("")
    story.find("#path button").first.click()
    expect(words).to_have_text(f"0 words · today: 7 of 10 yours, {count - 7} the model's")
    story.find("#undo").click()
    story.find("#undo").click()
    expect(words).to_have_text("7 words · today: 7 of 10 yours")
    story.find("#redo").click()
    expect(words).to_have_text(f"{count} words · today: 7 of 10 yours, {count - 7} the model's")
    story.find("#undo").click()

    story.find("#open-stories").click()
    expect(chapters).to_have_text(["One 3 words", "Two 2 words"])
    story.pictures("chapters", axe=True)
    chapters.first.click()
    expect(box).to_be_focused()
    assert box.evaluate("(box) => box.selectionEnd") == TEXT.index("\n")
    story.page.keyboard.type(" night")
    expect(chapters).to_have_text(["One night 3 words", "Two 2 words"])
    with story.page.expect_download() as download:
        story.reach("#export-path").click()
    assert download.value.path().read_text() == TEXT.replace("One", "One night") + "\n"
    story.leave("#new")
    expect(words).to_have_text("0 words · today: 8 of 10 yours")
    expect(chapters).to_have_count(0)


def test_pasted_words_are_counted_apart_and_moved_ones_stay_the_writers(story: Story) -> None:
    words, box, keyboard = story.find("#words"), story.find("#story"), story.page.keyboard
    box.click()
    keyboard.type("Ada lit the lamp. ")
    story.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    story.page.evaluate("navigator.clipboard.writeText('It was late, and nobody came.')")
    keyboard.press("Control+V")
    expect(words).to_have_text("10 words · today: 4 yours, 6 pasted")
    keyboard.press("Control+Z")
    expect(words).to_have_text("4 words · today: 4 yours")
    keyboard.press("Control+Shift+Z")
    expect(words).to_have_text("10 words · today: 4 yours, 6 pasted")
    for key in ("Home", "Control+Shift+ArrowRight", "Control+Shift+ArrowRight", "Control+X", "End", "Control+V"):
        keyboard.press(key)
    expect(box).to_have_js_property("value", " the lamp. It was late, and nobody came.Ada lit")
    expect(words).to_have_text("9 words · today: 3 yours, 6 pasted")  # “came.Ada” is one, pasted at its beginning
    story.reload()
    for key in ("Control+A", "Delete"):
        box.press(key)
    expect(words).to_have_text("0 words · today: 0 yours")


def test_text_size_line_width_and_focus(story: Story) -> None:
    box, keyboard = story.find("#story"), story.page.keyboard
    story.set(n=1, max_tokens=4)
    box.click()
    keyboard.type(TEXT)
    looks = "(box) => [getComputedStyle(box).fontSize, box.offsetWidth].map(parseFloat)"
    size, width = box.evaluate(looks)
    with story.panel("options"):
        story.reach("#text-size").fill("150")
        story.find("#line-width").fill("45")
    story.reload()
    larger, narrower = box.evaluate(looks)
    assert larger == pytest.approx(1.5 * size)
    assert narrower == pytest.approx(1.5 * width * 45 / 65, rel=0.02)
    story.pictures("large")

    box.press("Control+End")
    keyboard.press("Escape")
    keyboard.press("o")
    expect(box).to_be_focused()
    for hidden in ("#generate", "#path", "#open-stories", "#words"):
        expect(story.find(hidden)).to_be_hidden()
    keyboard.type(" well")
    story.pictures("focus", axe=True)
    keyboard.press("Escape")
    expect(story.find("#generate")).to_be_visible()
    story.find("#focus").click()
    expect(story.find("#generate")).to_be_hidden()
    keyboard.press("Control+Enter")
    expect(story.cards).to_have_count(1)
    expect(story.cards.first).to_be_visible()
    story.wait_done()
    assert story.text == TEXT + " well"


def test_the_bar_has_what_can_be_used_now_in_one_row_of_the_column(story: Story) -> None:
    places = (
        "(bar) => [...bar.children].map((each) => [each.textContent, each.getBoundingClientRect()])"
        ".filter(([, { width }]) => width).map(([name, { top, right }]) => [name, top, right])"
    )
    row = story.find("#bar .actions").first
    assert [name for name, *_ in row.evaluate(places)] == ["Generate", "More"]
    story.find("#story").fill("He slept well. He woke.")
    story.select(3, 8)
    for width in (390, 620, 740, 800, 1400, 2200):
        story.page.set_viewport_size({"width": width, "height": 900})
        found = row.evaluate(places)
        if width > 700:  # below, some are folded
            assert [name for name, *_ in found] == ["Generate", "Undo", "Other words", "Bridge", "Rewrite", "More"]
        assert len({top for _, top, _ in found}) == 1, width
        assert max(right for *_, right in found) <= row.evaluate("(row) => row.getBoundingClientRect().right")
    story.find("#words").evaluate("(words) => (words.textContent = '12,345 words of 1,234,567 '.repeat(4))")
    assert story.find("#bar .status-line").evaluate("(line) => line.children[0].offsetWidth >= line.offsetWidth / 2")
    for panel in ("stories", "options"):
        story.find(f"#open-{panel}").click()
    for width in (1280, 1400):
        story.page.set_viewport_size({"width": width, "height": 900})
        assert len({top for _, top, _ in row.evaluate(places)}) == 1, width
    assert story.find("#options").evaluate("(panel) => panel.scrollHeight <= panel.clientHeight")
