"""Directions on the page: a line for each alternative, the writer's or the model's."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Request, expect
from scripted import Scripted, words
from web.conftest import Story

from srb.engine.sampling_params import SamplingParams

pytestmark = pytest.mark.web

PROPOSED = b'["a storm", "she lies", "slower"]'


def proposes(params: SamplingParams, tokens: tuple[int, ...]) -> int:
    """Write a list where a schema asks for one, and words elsewhere."""
    if params.json_schema is None:
        return words(params, tokens)
    said = bytes(tokens).rpartition(b"<assistant>")[2]
    return PROPOSED[len(said)] if len(said) < len(PROPOSED) else 256


@pytest.mark.parametrize("is_shared", [False, True])
def test_each_alternative_follows_its_own_direction_and_the_card_shows_it(
    start_scripted: Callable[..., Scripted], blank: Story, tmp_path: Path, is_shared: bool
) -> None:
    story = blank
    server = start_scripted(tmp_path / "stories.db" if is_shared else None, script=proposes)
    bodies: list[dict[str, object]] = []

    def ask(request: Request) -> None:
        if request.url.endswith("/v1/completions"):
            bodies.append(json.loads(request.post_data or "{}"))

    story.page.on("request", ask)
    story.open(server.url)
    story.set(n=3, max_tokens=8, seed=1)
    story.find("#story").fill("Anna waited.\n\nThe door")
    story.tool("#open-directions")
    box = story.find("#directions-lines")
    expect(box).to_be_focused()
    story.find("#directions .propose").click()
    expect(box).to_have_js_property("value", "a storm\nshe lies\nslower")
    box.fill("a visitor\nslower")  # one is the writer's
    story.find("#directions .propose").click()
    expect(box).to_have_js_property("value", "a visitor\na storm\nshe lies\nslower")
    box.fill("a storm\n\na visitor\n")
    box.press("Control+Enter")
    expect(story.find("#directions")).to_be_hidden()
    expect(story.cards).to_have_count(2)
    story.wait_done()
    expect(story.find(".card .title")).to_have_text(["a storm", "a visitor"])
    asked = [body["branches"] for body in bodies if "branches" in body]
    assert asked == [
        [
            {"direction": "a storm", "label": "a storm", "seed": 1},
            {"direction": "a visitor", "label": "a visitor", "seed": 2},
        ]
    ]
    for text in story.find(".card .text").all_inner_texts():
        assert "note" not in text
    assert story.text == "Anna waited.\n\nThe door"
    story.cards.nth(1).hover()
    story.cards.nth(1).get_by_role("button", name="More like this").click()
    expect(story.cards).to_have_count(5)
    story.wait_done()
    assert bodies[-1]["direction"] == "a visitor"
    expect(story.find(".batch[aria-label='a visitor'] .card")).to_have_count(3)  # which is shown once, above them
