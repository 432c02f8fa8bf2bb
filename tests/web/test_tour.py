"""The tour for the first visit."""

import pytest
from playwright.sync_api import Browser, expect
from scripted import Scripted
from web.conftest import profile

pytestmark = pytest.mark.web


def test_each_step_of_the_tour_ends_when_the_writer_did_it(browser: Browser, server: Scripted) -> None:
    with profile(browser, has_tour=True) as story:
        story.open(server.url)
        tour, box, keyboard = story.find("#tour"), story.find("#story"), story.page.keyboard
        step = tour.locator("small")
        expect(box).to_be_focused()
        expect(step).to_have_text("1 of 5")
        story.pictures("tour", axe=True)
        keyboard.type("Once")
        tour.get_by_role("button", name="Skip this").press("Escape")  # closes it until the next visit
        expect(tour).to_be_hidden()
        expect(box).to_be_focused()
        story.reload()
        story.find("#open-keys").click()
        story.find("#show-tour").click()
        expect(step).to_have_text("1 of 5")
        box.focus()
        keyboard.type(" upon")
        expect(step).to_have_text("2 of 5")
        story.set(n=8, max_tokens=12)
        story.generate(cards=8)
        expect(step).to_have_text("3 of 5")
        keep = story.cards.nth(7).get_by_role("button", name="Keep", exact=True)
        keep.scroll_into_view_if_needed()
        story.picture("tour-keep", axe=True)
        keep.click(trial=True)  # nothing covers it
        story.find("#focus").click()
        for hidden in (tour, story.find(".toured")):
            expect(hidden).to_be_hidden()
        keyboard.press("Escape")
        keep.click()
        expect(step).to_have_text("4 of 5")
        story.find("#open-stories").click()
        expect(step).to_have_text("5 of 5")
        story.find("#open-options").click()
        expect(tour).to_be_hidden()
        expect(story.find(".toured")).to_have_count(0)


def test_the_tour_is_skipped_or_ended(browser: Browser, server: Scripted) -> None:
    with profile(browser, has_tour=True) as story:
        story.open(server.url)
        tour, box = story.find("#tour"), story.find("#story")
        tour.get_by_role("button", name="Skip this").click()
        expect(tour.locator("small")).to_have_text("2 of 5")
        expect(box).to_be_focused()
        end = tour.get_by_role("button", name="Don't show again")
        end.focus()
        end.press("Enter")
        expect(tour).to_be_hidden()
        expect(box).to_be_focused()
        story.reload()
        expect(tour).to_be_hidden()


def test_a_phone_has_help_and_the_tour(browser: Browser, server: Scripted) -> None:
    with profile(browser, is_phone=True) as story:
        story.open(server.url)
        story.find("#open-keys").tap()
        expect(story.find("#keys")).to_contain_text("Swipe")
        expect(story.find("#keys dl")).to_be_hidden()
        story.picture("help-phone", axe=True)
        story.find("#show-tour").tap()
        expect(story.find("#tour small")).to_have_text("1 of 5")
