"""The tour for the first visit."""

import pytest
from playwright.sync_api import Browser, expect
from scripted import Scripted
from web.conftest import profile

pytestmark = pytest.mark.web


def test_the_tour_has_five_steps_and_is_skipped_for_ever(browser: Browser, server: Scripted) -> None:
    with profile(browser, has_tour=True) as story:
        story.open(server.url)
        tour, box = story.find("#tour"), story.find("#story")
        expect(box).to_be_focused()
        steps = []
        for k in range(5):
            expect(tour.locator("small")).to_have_text(f"{k + 1} of 5")
            steps.append(tour.locator("h2").text_content())
            expect(story.find(".toured")).to_have_count(1)
            story.picture(f"tour-{k}", axe=True)
            if k < 4:
                tour.get_by_role("button", name="Next").click()
                expect(box).to_be_focused()
        assert len(set(steps)) == 5
        story.pictures("tour", axe=True)
        story.reload()
        expect(tour.locator("small")).to_have_text("1 of 5")  # it was neither skipped nor done
        tour.get_by_role("button", name="Next").press("Escape")  # closes it until the next visit
        expect(tour).to_be_hidden()
        expect(box).to_be_focused()
        story.reload()
        skip = tour.get_by_role("button", name="Skip the tour for ever")
        skip.focus()
        skip.press("Enter")
        expect(tour).to_be_hidden()
        expect(story.find(".toured")).to_have_count(0)
        expect(box).to_be_focused()
        story.reload()
        expect(tour).to_be_hidden()

        # The keys are as before, and the tour is there to be seen again.
        box.press("Escape")
        story.page.keyboard.press("?")
        story.find("#show-tour").click()
        expect(tour.locator("small")).to_have_text("1 of 5")
        for _ in range(4):
            tour.get_by_role("button", name="Next").click()
        tour.get_by_role("button", name="Done").click()
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
