"""A page that opens while the server can't be reached."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from scripted import Scripted
from web.conftest import PROMPT, profile

pytestmark = pytest.mark.web

STALE_PLACE = """async () => {
    const { keepCopy, readCopy } = await import("/web/story/copies.js");
    const { nodes, ...story } = await readCopy(location.hash.slice(1));
    await keepCopy({ ...story, place: { current: "1", shown: ["1"] } }, []);
}"""
"""As if this browser hadn't heard yet that the server has its last place."""


def test_a_page_without_its_server_is_written_on(
    browser: Browser, start_scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    server = start_scripted(tmp_path / "stories.db")
    with profile(browser, service_workers="allow") as story:
        story.open(server.url)
        story.set(n=2, max_tokens=6)
        story.generate(PROMPT, cards=2)
        said = story.said(story.cards.first)
        story.press(story.cards.first, "Keep")
        story.page.keyboard.insert_text(" It rained.")
        kept = "caches.open('srb-page').then((cache) => cache.keys()).then((keys) => keys.map(({ url }) => url))"
        while f"{server.url}/web/app/main.js" not in (found := story.page.evaluate(kept)):
            story.page.wait_for_timeout(50)
        assert not [url for url in found if "/v1/" in url or "/health" in url]
        copy = "import('/web/story/copies.js').then(({ readCopy }) => readCopy(location.hash.slice(1)))"
        while len(story.page.evaluate(copy)["nodes"]) < 3:  # the prompt and two alternatives, which the server tells of
            story.page.wait_for_timeout(50)
        path, end = story.path, len(story.text)
        while json.loads(server.request(path)[1])["place"].get("cursor") != end:
            story.page.wait_for_timeout(50)
        server.vanish()
        story.page.evaluate(STALE_PLACE)
        story.reload()
        story.reads(PROMPT + said + " It rained.")
        story.page.keyboard.type(" It snowed.")
        story.reload()
        story.page.keyboard.type(" Then spring came.")
        expect(story.find("#error")).to_contain_text("isn't saved on the server yet")
        story.reads(PROMPT + said + " It rained. It snowed. Then spring came.")
        server.come_back()
        text = story.text
        while text not in [each["text"] for each in json.loads(server.request(path)[1])["drafts"]]:
            story.page.wait_for_timeout(50)
        expect(story.find("#error")).to_be_hidden()
        assert story.text == text
        story.excuse("ERR_", "409")  # the server may have a draft that the copy hasn't
