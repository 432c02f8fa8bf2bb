"""Settings: sliders and the negative prompt, with the keyboard and on a phone's width; styles; lengths."""

from typing import Any

import pytest
from playwright.sync_api import ViewportSize, expect
from scripted import Scripted
from web.conftest import DESK, PROMPT, SCHEMES, Story, length

pytestmark = pytest.mark.web

NAMES = ("diversity", "negative_prompt", "guidance_scale")
SMALL: ViewportSize = {"width": 390, "height": 800}

KEEP = """([settings, styles]) => new Promise((done) => {
    localStorage.clear();
    localStorage.setItem("srb-styles", JSON.stringify(styles));
    indexedDB.open("srb").onsuccess = ({ target: { result: database } }) => {
        const transaction = database.transaction(["stories", "page"], "readwrite");
        transaction.objectStore("stories").openCursor().onsuccess = ({ target: { result: story } }) =>
            transaction.objectStore("page").put({ settings }, story.value.id);
        transaction.oncomplete = done;
    };
})"""
"""Keeps settings in place of those of the story that was open, and styles of one's own."""


def sent(story: Story) -> dict[str, Any]:
    """Return the diversity and guidance of the next request."""
    with story.asking() as body:
        story.find("#story").press("Control+Enter")
    expect(story.find("#stop")).to_be_disabled()
    return {name: body[name] for name in (*NAMES, "ahead") if name in body}


def changed(story: Story) -> dict[str, str]:
    """Return the counts of changed settings that the visible groups show."""
    found = story.find("#options summary:visible").evaluate_all(
        "(all) => all.map((each) => [each.firstChild.textContent.trim(), each.lastElementChild.textContent])"
    )
    return {group: count for group, count in found if count}


def test_prefetched_alternatives_appear_at_once(story: Story) -> None:
    story.set(n=1, max_tokens=2, ahead=2)
    story.find("#story").fill(PROMPT)
    assert sent(story) == {"ahead": 2}
    story.set(diversity=1)
    assert sent(story) == {"diversity": 1}


def test_the_negative_prompt_brings_its_scale(story: Story) -> None:
    story.set(n=1, max_tokens=2)
    story.find("#story").fill(PROMPT)
    with story.panel("options"):
        story.unfold("negative_prompt").fill("It rains.")
        numbers = story.find("#options output[for^=setting]")
        expect(numbers).to_have_text(["0", "1.5"])
        story.find("#setting-guidance_scale").press("ArrowLeft")
    assert sent(story) == {"negative_prompt": "It rains.", "guidance_scale": 1.4}
    story.reload()
    expect(numbers).to_have_text(["0", "1.4"])
    story.set(negative_prompt="")
    expect(numbers).to_have_text(["0", "1"])
    assert sent(story) == {}


@pytest.mark.parametrize("window", [DESK, SMALL], ids=["desk", "phone"])
def test_it_opens_with_the_most_used_settings(story: Story, window: ViewportSize) -> None:
    story.page.set_viewport_size(window)
    story.find("#open-options").click()
    controls = story.find("#options :is(a, button, input, select, textarea, summary):visible")
    names = controls.evaluate_all(
        "(all) => all.map((each) => each.labels?.[0]?.textContent.trim() ?? each.ariaLabel ?? each.textContent.trim())"
    )
    first = names[: names.index("More")]
    settings = [
        "Length",
        "Unit of length",
        "Alternatives",
        "Temperature",
        "Variety",
        "Ignore case",
        "Banned phrases",
        "Memory",
    ]
    assert first == ["Close", "Search settings", *settings]
    assert len(first) <= 10
    assert names[len(first) :] == ["More", "For engineers", "Reset all settings"]
    least = 32 if window == DESK else 40
    for control in controls.all():
        box = control.evaluate("(each) => (each.closest('.tick') ?? each).getBoundingClientRect().toJSON()")
        assert box["height"] >= least, control
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= window["width"]
    for scheme in SCHEMES:
        story.page.emulate_media(color_scheme=scheme)
        story.picture(f"settings-{window['width']}-{scheme}", axe=True)


def test_settings_of_an_older_page_apply_and_count_as_changed(story: Story, server: Scripted) -> None:
    """It had other groups and titles, and settings that are gone."""
    kept: dict[str, object] = {
        "max_tokens": "4",
        "unit": "tokens",
        "n": "2",
        "diversity": "2",
        "banned_strings": "(?i)delve",
    }
    kept |= {"top_k": "30", "ignore_eos": True, "banned_tokens": "113", "guidance_scale": "1", "gone": "0.4"}
    kept |= {"unseen": False, "shades": True, "tints": True, "mixed": False}
    story.page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
    story.page.goto(server.url + "/web/app/icon.svg")  # away from the page, which would keep its own on leaving
    story.page.evaluate(KEEP, [kept, {"Slow": {"temperature": "0.3", "gone": "0.4"}}])
    story.open(server.url)
    with story.panel("options"):
        assert changed(story) == {"More": "1 changed", "For engineers": "3 changed"}
        for group in ("More", "For engineers"):
            story.find("summary", has_text=group).click()
        groups = {"Sampling": "1 changed", "Other fields": "2 changed"}
        assert changed(story) == {"More": "1 changed", "Display": "1 changed", "For engineers": "3 changed", **groups}
        expect(story.find("#style")).to_have_value("Your own")
        story.picture("changed", axe=True)
    story.find("#story").fill(PROMPT)
    with story.asking() as body:
        story.generate(cards=2)
    wanted = {"max_tokens": 4, "n": 2, "diversity": 2, "banned_strings": ["(?i)delve"]}
    wanted |= {"top_k": 30, "ignore_eos": True, "banned_tokens": ["113"]}
    assert {name: body[name] for name in body if name in kept} == wanted
    with story.panel("options"):
        story.reach("#style").select_option("Slow")
        expect(story.find("#style")).to_have_value("Slow")
        expect(story.find("#setting-temperature")).to_have_value("0.3")
        expect(story.find("#setting-top_k")).to_have_value("")


def test_the_memory_is_also_in_the_settings(story: Story) -> None:
    story.set(n=1, max_tokens=2)
    story.find("#story").fill(PROMPT)
    with story.panel("options"):
        story.find("#setting-memory").fill("Ada is ninety.")
        story.find("#reset").click()
    story.reload()
    with story.panel("model-view"):
        expect(story.find("#prompt p").first).to_have_text("Ada is ninety.")
        expect(story.find("#memory")).to_have_value("Ada is ninety.")
        story.find("#memory").fill("Ada limps.")
    expect(story.find("#setting-memory")).to_have_value("Ada limps.")


def test_the_search_finds_settings_in_all_groups(story: Story) -> None:
    with story.panel("options"):
        find, rows = story.find("#find-setting"), story.find("#options .setting:visible")
        find.fill("DRY multi")  # what the API calls it
        expect(rows.locator("label")).to_have_text(["DRY multiplier"])
        find.fill("nonsense out")  # its hint
        expect(rows.locator("label")).to_have_text(["Min P"])
        find.fill("repetition")  # its group
        expect(story.find("#found-settings")).to_contain_text(" settings")
        story.find("#setting-repeat_penalty").fill("1.1")
        story.picture("found", axe=True)
        find.fill("no such thing")
        expect(story.find("#found-settings")).to_have_text("No settings found.")
        expect(rows).to_have_count(0)
        find.fill("")
        expect(story.find("#setting-repeat_penalty")).to_be_hidden()
        assert changed(story) == {"More": "1 changed"}
        find.fill("seed")
    expect(find).to_have_value("")


def test_a_style_sets_several_settings_and_reset_restores_them(story: Story) -> None:
    story.set(max_tokens=7)
    with story.panel("options"):
        story.reach("#style").select_option("Wild")
        expect(story.find("#setting-temperature")).to_have_value("1.3")
        story.unfold("min_p").fill("0.2")
        expect(story.find("#style")).to_have_value("Your own")
        story.find("#style").select_option("Mixed")
        assert changed(story) == {"More": "1 changed"}
        story.reach("#text-size").fill("150")
        story.reach("#tints").uncheck()
        story.reach("#compare-what").select_option("setting")
        expect(story.find("#compare-name")).to_be_visible()
        assert changed(story) == {"More": "4 changed", "Compare": "1 changed", "Display": "2 changed"}
        story.find("#reset").click()
        assert changed(story) == {}
        expect(story.find("#style")).to_have_value("Default")
        expect(story.find("#compare-name")).to_be_hidden()
        expect(story.find("output[for=text-size]")).to_have_text("100 %")
    for name in ("temperature", "min_p", "max_tokens"):
        expect(story.find(f"#setting-{name}")).to_have_value("")


def test_an_alternative_continues_by_another_sentence(story: Story) -> None:
    story.set(n=1, max_tokens=1, seed=1)
    with story.panel("options"):
        story.find("#length-unit").select_option("sentences")
        expect(story.find("#setting-max_tokens")).to_have_attribute("placeholder", "3")
    story.generate(PROMPT, cards=1)
    before = story.said(story.cards.first)
    story.press(story.cards.first, "Continue")
    expect(story.cards.first.locator(".text")).not_to_have_text(before)
    story.wait_done()
    said = story.said(story.cards.first)
    assert said.startswith(before)
    more = said.removeprefix(before)
    assert length(story, more + "\n\nThe next", "sentences", 1) == len(more.encode("utf-16-le")) // 2, said
    story.excuse("status of 404")  # what was long enough had ended by itself
