"""A deleted story is in the trash for 30 days, in the browser and on a server."""

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import PROMPT, Story

pytestmark = pytest.mark.web

AGE = """(days) => new Promise((resolve) => {
    indexedDB.open("srb").onsuccess = ({ target: { result: database } }) => {
        const transaction = database.transaction("stories", "readwrite");
        const stories = transaction.objectStore("stories");
        stories.getAll().onsuccess = ({ target }) => {
            for (const story of target.result.filter(({ deleted }) => deleted))
                stories.put({ ...story, deleted: story.deleted - days * 24 * 3600 * 1000 });
        };
        transaction.oncomplete = () => { database.close(); resolve(); };
    };
})"""
"""Lets stories in the trash of the browser get older."""


def test_a_deleted_story_and_a_discarded_alternative_are_restored(blank: Story, either: Scripted) -> None:
    blank.open(either.url)
    blank.page.on("dialog", lambda dialog: dialog.accept())
    blank.set(n=2, max_tokens=6)
    blank.generate(PROMPT, cards=2)
    said = blank.said(blank.cards.first)
    blank.press(blank.cards.first, "Discard")
    blank.find("#open-stories").click()
    blank.reach("#deleted-stories")
    blank.find("#discarded button").click()
    expect(blank.cards).to_have_count(2)
    assert blank.said(blank.cards.first) == said
    expect(blank.find("#trash")).not_to_have_attribute("open", "")
    blank.tool("#open-ask")
    blank.find("#question").fill("Why?")
    blank.find("#story").press("Control+End")
    blank.page.keyboard.insert_text(" A draft.")
    if either.keeps_stories:
        blank.page.wait_for_event("response", lambda each: "/drafts/" in each.url)
    blank.leave("#delete-story")
    assert blank.text == ""
    blank.find("#open-stories").click()
    expect(blank.find("#story-list")).not_to_contain_text(PROMPT[:30])
    blank.reach("#deleted-stories")
    blank.find("#trash").scroll_into_view_if_needed()
    blank.picture(f"trash-{either.keeps_stories}", axe=True)
    blank.find("#deleted-stories button").click()
    expect(blank.find("#story-list :focus")).to_contain_text(PROMPT[:30])
    blank.leave(f"#story-list a:has-text('{PROMPT[:30]}')")
    assert blank.text == PROMPT + " A draft."
    expect(blank.cards).to_have_count(2)
    assert blank.find("#question").input_value() == "Why?"
    if either.keeps_stories:
        return
    blank.find("#open-stories").click()
    blank.leave("#delete-story")
    for days, count in ((29, 1), (2, 0)):
        blank.page.evaluate(AGE, days)
        blank.reload()
        blank.find("#open-stories").click()
        blank.reach("#deleted-stories")
        expect(blank.find("#deleted-stories li")).to_have_count(count)
