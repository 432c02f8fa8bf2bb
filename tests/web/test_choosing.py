"""Choosing among alternatives: what a card shows, the way back, and the bar in a low window."""

import re

import pytest
from playwright.sync_api import Route, expect
from scripted import Scripted
from web.conftest import PROMPT, Story

pytestmark = pytest.mark.web

HOW = "Make it longer, with more to see and hear."

LINES = "(all) => all.map((each) => each.offsetHeight / parseFloat(getComputedStyle(each).lineHeight))"
"""How many lines elements have."""


def begin_versions(story: Story) -> None:
    story.set(n=8, seed=3)
    story.find("#story").fill(f"He slept. {PROMPT}")
    story.select(0, 9)
    story.page.keyboard.press("Control+Shift+Enter")
    story.find("#rewriter input").fill(HOW)
    story.find("#rewriter .how button").click()
    expect(story.cards).to_have_count(8)
    story.wait_done()


def test_no_word_of_a_card_is_broken_and_the_instruction_is_shown_once(story: Story) -> None:
    begin_versions(story)
    for width in (1280, 1400):
        story.page.set_viewport_size({"width": width, "height": 800})
        assert max(story.find(".about summary").evaluate_all(LINES)) < 1.5, width
        story.picture(f"versions-{width}", axe=True)
    assert story.find("#cards").inner_text().count(HOW) == 1
    expect(story.find(".batch")).to_have_attribute("aria-label", HOW)
    story.page.set_viewport_size({"width": 390, "height": 844})
    story.picture("versions-390")


def test_keep_is_in_sight_on_each_card_and_so_is_the_way_back(story: Story) -> None:
    story.set(n=3, max_tokens=8, seed=1)
    story.generate(PROMPT, cards=3)
    back = story.find("#back")
    expect(back).to_be_hidden()
    story.page.mouse.move(5, 5)
    for card in story.cards.all():
        expect(card.get_by_role("button", name="Keep", exact=True)).to_be_visible()
        expect(card.get_by_role("button", name="Discard")).to_be_hidden()
    story.picture("keep")
    said = story.said(story.cards.nth(1))
    story.cards.nth(1).get_by_role("button", name="Keep", exact=True).click()
    story.reads(PROMPT + said)
    story.page.keyboard.type("\n" * 40 + "The end.")  # as high as a window
    expect(back).to_be_in_viewport(ratio=1)
    expect(back).to_have_text("Back to the 3 alternatives")
    story.picture("back", axe=True)
    story.reload()
    back.click()
    story.reads(PROMPT)
    expect(story.cards).to_have_count(3)
    expect(story.cards.nth(1).locator(".text")).to_be_focused()
    expect(back).to_be_hidden()
    story.find("#undo").click()
    story.reads(PROMPT + said + "\n" * 40 + "The end.")


def test_the_bar_folds_in_a_low_window_and_on_a_phone(story: Story) -> None:
    bar, more, rewrite = story.find("#bar"), story.find("#more-tools"), story.find("#rewrite")
    expect(story.find("#tools")).to_be_hidden()
    for width, height in ((390, 844), (720, 450), (683, 384), (640, 400)):  # a phone, and a laptop at 200 %
        story.page.set_viewport_size({"width": width, "height": height})
        box = bar.bounding_box()
        assert box
        assert box["height"] <= height / 4, (width, height)
        for name in ("#generate", "#status", "#words"):
            expect(story.find(name)).to_be_visible()
    expect(rewrite).to_be_hidden()
    story.picture("folded", axe=True)
    more.click()
    expect(more).to_have_attribute("aria-expanded", "true")
    for name in ("#rewrite", "#bridge", "#explore", "#open-model-view"):
        expect(story.find(name)).to_be_visible()
    story.picture("unfolded")
    more.click()
    expect(rewrite).to_be_hidden()

    # It folds when one of its buttons was pressed, and the keyboard comes back to it.
    more.click()
    story.tool("#open-ask")
    expect(more).to_have_attribute("aria-expanded", "false")
    story.find("#ask > .head button").click()
    expect(more).to_be_focused()

    # The keys of what is folded work as before.
    text = story.find("#story")
    text.fill("He slept. He woke.")
    story.select(0, 9)
    story.page.keyboard.press("Control+Shift+Enter")
    expect(story.find("#rewriter")).to_be_visible()
    story.page.keyboard.press("Escape")
    expect(text).to_be_focused()
    assert text.evaluate("(box) => [box.selectionStart, box.selectionEnd]") == [0, 9]


SENTENCES = """async (text) => {
    const { sentencesOf } = await import("/web/desk/combine.js");
    return sentencesOf(text).map(([from, to]) => text.slice(from, to));
}"""


def sentences(story: Story, card: int) -> list[str]:
    """The sentences of an alternative, of which there must be some."""
    found = story.page.evaluate(SENTENCES, story.said(story.cards.nth(card)))
    assert len(found) > 1
    return list(found)


def test_sentences_of_two_alternatives_are_combined(story: Story) -> None:
    keyboard, combine = story.page.keyboard, story.find("#combine")
    expect(combine).to_be_hidden()
    story.set(n=2, max_tokens=90, seed=1)
    story.find("#story").click()
    keyboard.insert_text(PROMPT)
    story.generate(cards=2)
    first, second = sentences(story, 0), sentences(story, 1)
    expect(story.cards.nth(1).get_by_role("button", name="Keep")).to_have_accessible_description("Alternative 2")
    combine.click()
    expect(story.find("#combine-hint")).to_be_visible()
    story.picture("combine", axe=True)

    # A click takes a sentence with its space, and the keyboard returns to the text.
    text = story.cards.first.locator(".text")
    token = text.locator("[data-k]").nth(2)
    token.click()
    story.reads(f"{PROMPT} {first[0]}")
    expect(story.find("#story")).to_be_focused()
    expect(story.find("#token-preview")).to_be_hidden()
    expect(story.find("#status")).to_contain_text("Added: “")

    # With the keyboard: two sentences of the other one.
    keyboard.press("Escape")
    keyboard.press("j")
    expect(story.find("#status")).to_have_text(f"Sentence 1 of {len(second)}. Enter adds it.")
    keyboard.press("ArrowRight")
    keyboard.press("ArrowLeft")
    keyboard.press("Shift+ArrowRight")
    keyboard.press("Enter")
    taken = f" {first[0]} {second[0]} {second[1]}"
    story.reads(PROMPT + taken)
    keyboard.press("i")
    expect(combine).to_have_attribute("aria-pressed", "false")
    story.find("#undo").click()
    story.reads(f"{PROMPT} {first[0]}")
    expect(story.find("#status")).not_to_contain_text("Added")
    story.find("#redo").click()

    # Who wrote what is kept, also when it is in the tree.
    tints = [[PROMPT], [taken]]
    assert [story.shaded("writer"), story.shaded("model")] == tints
    story.generate(cards=2)
    story.reload()
    assert [story.shaded("writer"), story.shaded("model")] == tints


def test_a_selected_passage_is_taken_to_the_cursor(story: Story) -> None:
    take, keyboard = story.find("#take-passage"), story.page.keyboard
    story.set(n=2, max_tokens=40, seed=1)
    story.find("#story").click()
    keyboard.insert_text("He slept. He woke.")
    story.select(9)
    story.generate(cards=2)
    words = story.said(story.cards.last).split()
    expect(take).to_be_hidden()

    def select() -> None:
        """Drag over the first two words."""
        story.find("#status").hover()
        tokens = story.cards.last.locator("[data-k]")
        letters = len(story.said(story.cards.last)) - len(story.said(story.cards.last).lstrip())
        start, end = (tokens.nth(k).bounding_box() for k in (letters, letters + len(" ".join(words[:2])) - 1))
        assert start
        assert end
        story.page.mouse.move(start["x"] + 1, start["y"] + 8)
        story.page.mouse.down()
        story.page.mouse.move(end["x"] + end["width"] - 1, end["y"] + 8, steps=5)
        story.page.mouse.up()

    select()
    expect(take).to_be_in_viewport(ratio=1)
    story.picture("selection", axe=True)
    take.click()
    story.reads(f"He slept. {words[0]} {words[1]} He woke.")
    expect(take).to_be_hidden()
    assert story.shaded("model") == [f" {words[0]} {words[1]}"]
    story.page.set_viewport_size({"width": 390, "height": 844})
    story.cards.last.scroll_into_view_if_needed()
    select()
    story.picture("selection-phone")
    keyboard.press("i")
    expect(take).to_be_hidden()
    assert len(story.text.split()) == 4 + 2 * 2


def test_blind_alternatives_have_letters_until_one_is_kept(story: Story) -> None:
    story.set(n=8, max_tokens=12, seed=7)
    with story.panel("options"):
        story.reach("#style").select_option("Mixed")
        story.reach("#blind").check()
    story.generate(PROMPT, cards=8)
    titles = story.cards.locator(".title")
    expect(titles).to_have_text(list("ABCDEFGH"))
    shown = [story.said(card) for card in story.cards.all()]
    for text in ("Careful", "Lively", "Wild"):
        assert text not in story.find("#cards").inner_html()
    expect(story.find("#cards .numbers").first).to_be_hidden()  # seeds are in the order of the styles
    story.press(story.cards.nth(1), "More like this")
    expect(story.cards).to_have_count(16)
    story.wait_done()
    expect(story.find(".batch-title")).to_have_text("Like B")
    story.find("#undo").click()
    expect(story.cards).to_have_count(8)
    story.picture("blind", axe=True)
    story.reload()
    assert [story.said(card) for card in story.cards.all()] == shown
    story.press(story.cards.nth(2), "Keep")
    expect(story.find("#status")).to_contain_text(re.compile(r"Kept C: (Careful|Default|Lively|Wild)\."))
    style = (story.find("#status").text_content() or "").removeprefix("Kept C: ").rstrip(".")
    story.find("#back").click()
    expect(titles).to_have_text(["Careful", "Default", "Lively", "Wild"] * 2)
    assert [story.said(card) for card in story.cards.all()] != shown  # the order was another
    assert sorted(story.said(card) for card in story.cards.all()) == sorted(shown)

    story.find("#open-stories").click()
    story.find("#statistics summary").click()
    expect(story.find("#statistics tbody tr").first).to_have_text(f"Style{style}1 of 250%")
    story.picture("statistics", axe=True)
    story.find("#undo").click()  # back to the kept one
    story.find("#undo").click()
    expect(titles).to_have_text(list("ABCDEFGH"))
    expect(story.find("#statistics")).to_contain_text("Nothing to compare yet.")


def test_the_widest_earlier_fork_is_gone_back_to(blank: Story, either: Scripted) -> None:
    story = blank
    story.open(either.url)
    keyboard, forks = story.page.keyboard, story.find("#earlier-forks li button")
    story.set(n=2, max_tokens=40, seed=1)
    story.generate(PROMPT, cards=2)
    kept = story.said(story.cards.first)
    story.press(story.cards.first, "Keep")
    story.generate(cards=2)
    story.select(len(PROMPT + kept))
    expect(story.find("#earlier")).to_be_visible()
    keyboard.press("Escape")
    keyboard.press("h")
    expect(forks.first).to_be_focused()
    assert 1 < forks.count() <= 6
    widths = forks.evaluate_all("(all) => all.map((each) => Number(each.style.getPropertyValue('--chance')))")
    assert widths == sorted(widths, reverse=True)
    expect(forks.locator("small").first).to_contain_text("or: ")
    story.picture("forks", axe=True)
    keyboard.press("Escape")
    expect(story.find("#earlier-forks")).to_be_hidden()
    expect(story.find("#story")).to_be_focused()

    # One in the kept alternative: it goes on from its tokens. All that was written is still in the tree.
    story.find("#earlier").click()
    expect(story.find("#earlier-forks")).to_be_visible()
    within = forks.filter(has=story.page.locator("span", has_text=re.compile(re.escape(kept.split()[0]))))
    word = within.first.locator("strong").text_content()
    assert word
    with story.asking() as body:
        within.first.click()
    expect(story.cards).to_have_count(2)
    story.wait_done()
    assert (PROMPT + kept).startswith(story.text)
    assert (PROMPT + kept)[len(story.text) :].lstrip().startswith(word)
    assert ("node" in body) if either.keeps_stories else (bytes(body["prompt"]).decode() == story.text)
    story.find("#undo").click()
    story.reads(PROMPT + kept)

    # One in typed text, whose probabilities the server is asked for. The text after the cursor stays.
    story.find("#path button").nth(1).click()
    story.reads(PROMPT)
    story.select(40)
    story.generate(cards=2)
    held: list[Route] = []
    story.page.route("**/v1/score", lambda route: held.append(route))
    with story.page.expect_request("**/v1/score"):
        story.find("#earlier").click()
    keyboard.type("x")  # somebody who writes on isn't interrupted
    held[0].continue_()
    story.page.unroute("**/v1/score")
    expect(story.find("#status")).to_have_text("")
    expect(story.find("#earlier-forks")).to_be_hidden()
    keyboard.press("Control+z")
    story.find("#earlier").click()
    expect(story.find("#earlier-forks")).to_be_visible()
    typed = forks.first.locator("strong").text_content()
    assert typed
    forks.first.click()
    expect(story.cards).to_have_count(2)
    story.wait_done()
    before, behind = story.text.removesuffix(PROMPT[40:]), PROMPT[40:]
    assert before + behind == story.text
    assert PROMPT[:40].startswith(before)
    assert PROMPT[len(before) :].lstrip().startswith(typed)
