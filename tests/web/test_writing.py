"""Writing: generating, keeping, continuing, forking, comparing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_backend import says
from playwright.sync_api import Route, expect
from scripted import Scripted
from web.conftest import PROMPT, WATCH, Story

pytestmark = pytest.mark.web

STORED = """async () => {
    const done = (request) => new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
    const database = await done(indexedDB.open("srb"));
    return JSON.stringify(await done(database.transaction("nodes").objectStore("nodes").getAll())).length;
}"""
"""How long the nodes are that the browser keeps."""


def evaluated(server: Scripted) -> int:
    count: int = server.health()["prompt_tokens_evaluated"]
    return count


def test_eight_alternatives_are_shown_and_one_is_stopped(story: Story, server: Scripted) -> None:
    story.set(max_tokens=900)
    server.hold_after(60)
    openings = story.find("#openings")
    openings.evaluate("(each) => (each.hidden = true)")
    cards = story.find("#cards").bounding_box()
    assert cards
    story.page.mouse.move(60, cards["y"] + 80)  # where text is going to come
    openings.evaluate("(each) => (each.hidden = false)")
    story.find("#openings button").first.press("Enter")
    expect(story.cards).to_have_count(8)
    first = story.cards.first
    expect(story.find("#openings")).to_be_hidden()
    expect(first.locator("[data-k]").nth(5)).to_be_attached()
    story.page.evaluate(WATCH)
    expect(story.find("[data-k]:hover")).to_be_attached()
    story.page.wait_for_timeout(150)  # longer than a pointer has to rest on a word
    expect(story.find("#token-preview")).to_be_hidden()  # nobody has pointed at a word
    boxes = [each.bounding_box() for each in story.cards.all()]
    assert all(box and box["y"] + box["height"] <= 900 for box in boxes)
    with story.page.expect_response("**/choices/0"):
        first.get_by_role("button", name="Stop").press("Enter")
    server.hold_after(10)
    expect(first.locator(".facts")).to_contain_text("stopped")
    expect(first.locator(".text")).to_be_focused()  # its button is gone
    expect(story.find(".card.running")).to_have_count(7)
    story.find("#stop").click()
    server.go()
    story.wait_done()
    expect(story.find("#generate")).to_be_focused()
    assert story.find(".card.running").count() == 0
    story.page.mouse.move(0, 0)
    expect(first.get_by_role("button", name="Discard")).to_be_hidden()
    first.scroll_into_view_if_needed()  # so that pointing at it doesn't scroll
    boxes = [each.bounding_box() for each in story.cards.all()]
    first.hover()
    expect(first.get_by_role("button", name="Discard")).to_be_visible()
    assert [each.bounding_box() for each in story.cards.all()] == boxes
    assert story.jumps() == []
    is_whole = "(all) => all.every((each) => each.scrollHeight <= each.clientHeight + 1)"
    assert story.find(".card .text").evaluate_all(is_whole)
    story.pictures("stopped")


def test_an_alternative_is_continued_without_evaluating_it_again(story: Story, server: Scripted) -> None:
    story.set(n=2, max_tokens=20, seed=3)
    story.generate(PROMPT, cards=2)
    first = story.cards.first
    before = evaluated(server), story.said(first)
    story.press(first, "Continue")
    expect(first.locator(".numbers")).to_contain_text("40 tokens")
    story.wait_done()
    assert evaluated(server) - before[0] <= 2
    assert story.said(first).startswith(before[1])
    assert len(story.said(first)) > len(before[1])


def test_a_stop_string_is_not_part_of_the_continuation(blank: Story, start_scripted: Callable[..., Scripted]) -> None:
    story = blank
    story.open(start_scripted(script=says(b" Yes.", b" Yes. No.", prompt=len(PROMPT))).url)
    # Where ". N" would end it, the full stop waits for what comes next, and comes with the end.
    for ends, seed, stop in (("its end", 0, ""), ("its end", 0, ". N"), ('ended at ". N"', 1, ". N")):
        story.set(n=1, seed=seed, stop=stop, grammar="root ::= ...")  # so that nothing is healed
        story.generate(PROMPT, cards=1)
        expect(story.cards.locator(".facts")).to_contain_text(ends)
        assert story.said(story.cards) == (" Yes" if seed else " Yes.")
        with story.asking() as body:
            story.press(story.cards.first, "Continue")
        story.wait_done()
        assert body["prompt"] == (PROMPT + " Yes" if seed else [*(PROMPT + " Yes.").encode()])
        story.press(story.cards.first, "Discard")


def test_choosing_another_token_forks_the_alternative(story: Story, server: Scripted) -> None:
    story.set(n=2, max_tokens=12, seed=1)
    story.generate(PROMPT, cards=2)
    story.find("#shades").evaluate("(each) => each.click()")
    token = story.word(story.cards.first)
    place = int(token.get_attribute("data-k") or 0)
    each = "(all) => all.map((one) => [Number(one.dataset.k), one.textContent])"
    said = story.cards.first.locator("[data-k]").evaluate_all(each)
    begins = "".join(text for k, text in said if k < place)
    token.hover()
    peek = story.find("#token-preview")
    expect(peek.locator("li button")).to_have_count(8)
    other = peek.locator("li button:not(.taken)").first
    chosen = (other.text_content() or "").rsplit(" ", 2)[0].replace("␣", " ").replace("⏎", "\n")
    before = evaluated(server)
    other.click()
    story.reads(PROMPT + begins + chosen)
    expect(story.cards).to_have_count(2)
    story.wait_done()
    assert evaluated(server) - before <= 2


def test_new_openings_only(story: Story) -> None:
    story.set(n=3, max_tokens=24, temperature=0)
    story.generate(PROMPT, cards=3)
    seen = [story.said(card) for card in story.cards.all()]
    assert len(set(seen)) == 1
    story.press(story.cards.first, "Discard")
    expect(story.cards).to_have_count(2)
    with story.panel("options"):
        story.reach("#unseen").check()
    story.reload()
    assert story.find("#unseen").is_checked()
    for count in (5, 8):
        with story.asking() as body:
            story.generate(cards=count)
        assert body["avoid"] == seen
        new = [story.said(card) for card in story.cards.all()[:3]]
        assert len({*seen, *new}) == len({*seen}) + 3
        seen += new


def test_two_texts_are_compared(story: Story) -> None:
    story.set(n=2, max_tokens=10)
    story.find("#story").fill(PROMPT)
    with story.panel("options"):
        story.reach("#compare-what").select_option("prompts")
        story.find("#compare-prompts textarea").fill(PROMPT + " always")
    story.generate(cards=4)
    assert story.find(".title").all_text_contents() == ["Text 1", "Text 2"] * 2
    seeds = [each.rpartition(" ")[2] for each in story.find(".numbers").all_text_contents()]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    story.press(story.cards.nth(1), "Keep")
    assert story.text.startswith(PROMPT + " always")
    story.reload()
    expect(story.find("#compare-prompts textarea")).to_have_value(PROMPT + " always")


def test_errors_are_shown(story: Story) -> None:
    story.find("#generate").click()
    expect(story.find("#error")).to_contain_text("Write how your story begins.")
    story.set(n=99)
    story.find("#story").fill(PROMPT)
    story.find("#generate").click()
    expect(story.find("#error")).to_contain_text("Alternatives: n must be from 1 to 32, got 99")
    expect(story.cards).to_have_count(0)
    story.excuse("status of 400")
    story.find("#error button").click()
    expect(story.find("#generate")).to_be_focused()
    story.set(n=1, max_tokens=5)
    with story.panel("options"):
        story.reach("#compare-what").select_option("setting")
        story.find("#compare-values").fill("0.4")
    story.find("#generate").click()
    expect(story.find("#error")).to_contain_text("two or more values")
    story.pictures("error", axe=True)
    with story.panel("options"):
        story.find("#compare-what").select_option("")
    story.generate(cards=1)
    expect(story.find("#error")).to_be_hidden()


def test_a_page_that_is_opened_while_the_model_loads_begins_when_it_can(blank: Story, server: Scripted) -> None:
    page, refused = blank.page, ["/openapi.json", "/health"]
    loading = {"status": "loading model", "model": "fake", "error": {"message": "The model is loading."}}

    def answer(route: Route) -> None:
        is_refused = any(route.request.url.endswith(each) for each in refused)
        return route.fulfill(status=503, json=loading) if is_refused else route.continue_()

    page.route("**/*", answer)
    page.clock.install()  # the page looks every two seconds
    page.goto(server.url)
    expect(blank.find("#error")).to_contain_text("The model is loading.")
    refused.remove("/openapi.json")
    with page.expect_response("**/health"):
        page.clock.fast_forward(2000)
    expect(blank.find("#error")).to_be_visible()
    refused.clear()
    with page.expect_navigation():
        page.clock.fast_forward(2000)

    refused.append("/health")  # the page begins without the size of the context
    blank.reload()
    blank.find("#story").fill(PROMPT)
    expect(blank.find("#seen")).to_be_empty()
    refused.clear()
    page.clock.fast_forward(3000)
    expect(blank.find("#seen")).to_have_text("The model sees all 16 words")
    blank.excuse("503")


def test_running_alternatives_continue_after_a_reload(story: Story, server: Scripted) -> None:
    story.set(n=2, max_tokens=50, seed=5)
    server.hold_after(30)
    story.generate(PROMPT, cards=2, wait=False)
    expect(story.cards.first.locator("[data-k]").nth(5)).to_be_attached()
    story.reload()
    expect(story.find(".card.running")).to_have_count(2)
    server.go()
    story.wait_done()
    expect(story.cards.first.locator(".numbers")).to_contain_text("50 tokens")
    expect(story.cards.nth(1).locator(".numbers")).to_contain_text("50 tokens")
    assert [story.said(card) for card in story.cards.all()] == server.texts(
        prompt=PROMPT, n=2, max_tokens=50, seed=5, heal=True
    )


def test_a_lost_connection_loses_nothing(blank: Story, start_scripted: Callable[..., Scripted]) -> None:
    server = start_scripted()
    blank.open(server.url)
    blank.set(n=2, max_tokens=40, seed=5)
    server.hold_after(20)
    blank.generate(PROMPT, cards=2, wait=False)
    expect(blank.cards.first.locator("[data-k]").nth(5)).to_be_attached()
    server.vanish()
    expect(blank.find("#status")).to_contain_text("connection was lost")
    server.come_back()
    server.go()
    blank.wait_done()
    texts = server.texts(prompt=PROMPT, n=2, max_tokens=40, seed=5, heal=True)
    assert [blank.said(card) for card in blank.cards.all()] == texts
    blank.excuse("ERR_")


def test_text_that_arrived_stays_if_the_server_lost_the_request(
    blank: Story, start_scripted: Callable[..., Scripted]
) -> None:
    server = start_scripted()
    blank.open(server.url)
    blank.set(n=2, max_tokens=1000)
    server.hold_after(60)
    blank.generate(PROMPT, cards=2, wait=False)
    expect(blank.cards.first.locator("[data-k]").nth(5)).to_be_attached()
    server.vanish()
    expect(blank.find("#status")).to_contain_text("connection was lost")
    blank.pictures("lost")
    blank.find("#stop").click()
    expect(blank.cards.first.locator(".facts")).to_contain_text("connection was lost")
    expect(blank.find("#status")).to_have_text("The connection was lost. The text that arrived is here.")
    said = blank.said(blank.cards.first)
    blank.press(blank.cards.first, "Keep")
    blank.reads(PROMPT + said)
    blank.find("#generate").click()
    expect(blank.find("#error")).to_contain_text("can't be reached")
    blank.excuse("ERR_")


def test_reading_a_long_text_shows_progress_and_can_be_stopped(story: Story, server: Scripted) -> None:
    story.set(n=1, max_tokens=5)
    story.find("#story").fill("".join(f"Night {k}: the lamp burned. " for k in range(200)))
    server.hold_after(20)
    story.find("#generate").click()
    expect(story.find("#progress")).to_be_visible()
    expect(story.find("#status")).to_contain_text("Reading your text: ")
    with story.page.expect_response(lambda each: each.request.method == "DELETE"):
        story.find("#stop").click()
    server.go()
    expect(story.find("#status")).to_have_text("Stopped.")
    expect(story.find("#progress")).to_be_hidden()
    expect(story.cards.locator(".facts")).to_have_text("stopped")
    story.generate(PROMPT, cards=1)


def test_the_status_says_what_happens_after_a_text_was_read(
    blank: Story, start_scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    server = start_scripted(tmp_path / "stories.db")
    blank.open(server.url)
    blank.set(n=1, max_tokens=60)
    blank.find("#story").fill("".join(f"Night {k}: the lamp burned. " for k in range(20)))
    server.hold_after(40)
    blank.find("#generate").click()
    expect(blank.cards.first.locator("[data-k]").first).to_be_attached()
    expect(blank.find("#status")).to_have_text("One alternative being written.")
    server.go()
    blank.wait_done()
    blank.page.goto("about:blank")  # before the server ends


def test_every_state_is_accessible_and_fits(story: Story) -> None:
    """Goes once through the states that no other test looks at."""
    story.pictures("first-visit")
    story.set(n=8, max_tokens=60)
    story.generate(PROMPT, cards=8)
    story.pictures("alternatives")
    story.tool("#explore")
    expect(story.find("#explorer .status-line")).to_contain_text("continuations")
    story.pictures("explorer", axe=True)
    story.page.keyboard.press("Escape")
    story.set(n=32, max_tokens=12)
    story.generate(cards=40)
    story.pictures("32-alternatives")
    for button in ("#open-stories", "#open-options"):
        story.find(button).click()
    story.find(".panel details").evaluate_all("(all) => all.forEach((each) => (each.open = true))")
    story.find("#naming").click()
    story.find("#compare-what").select_option("prompts")
    story.word(story.cards.first).hover()
    expect(story.find("#token-preview")).to_be_visible()
    story.pictures("panels", axe=True)


def test_it_fits_a_phone(story: Story, server: Scripted) -> None:
    story.page.set_viewport_size({"width": 360, "height": 740})
    story.set(n=3, max_tokens=60)
    server.hold_after(30)
    story.generate(PROMPT, cards=3, wait=False)
    expect(story.cards.first.locator("[data-k]").nth(5)).to_be_attached()
    story.page.evaluate(WATCH)
    server.go()
    story.wait_done()
    assert story.jumps() == []
    first, second = story.cards.first, story.cards.nth(1)
    expect(first).to_be_in_viewport(ratio=0.99)
    expect(second).not_to_be_in_viewport()

    # A finger swipes to the next one.
    story.swipe(-250)
    expect(second).to_be_in_viewport(ratio=0.99)
    expect(first).not_to_be_in_viewport()
    expect(second.get_by_role("button", name="Keep", exact=True)).to_be_visible()
    story.word(second, 25).click()  # at the right
    assert_inside(story, "#token-preview")
    word, peek = box(story, ".looked-at"), box(story, "#token-preview")
    assert word["y"] + word["height"] <= peek["y"]
    assert peek["y"] + peek["height"] == 740
    story.picture("phone", axe=True)
    story.find(".title").nth(1).click()
    expect(story.find("#token-preview")).to_be_hidden()
    story.word(second).click()
    story.swipe(250)
    expect(story.find("#token-preview")).to_be_hidden()
    expect(first).to_be_in_viewport(ratio=0.99)
    story.find("#more-tools").click()
    story.tool("#explore")
    expect(story.find("#explorer .status-line")).to_contain_text("continuations")
    story.page.keyboard.press("End")
    assert_inside(story, "#explorer")
    expect(story.find("#explorer .take")).to_be_in_viewport(ratio=1)
    assert story.find(".explored").evaluate("(list) => list.scrollWidth <= list.clientWidth")
    story.picture("explorer-phone", axe=True)


def box(story: Story, selector: str) -> Any:
    found = story.find(selector).bounding_box()
    assert found
    return found


def assert_inside(story: Story, selector: str) -> None:
    expect(story.find(selector)).to_be_visible()
    at = box(story, selector)
    assert 0 <= at["x"] < at["x"] + at["width"] <= 360
