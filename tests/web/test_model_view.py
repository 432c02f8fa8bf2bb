"""The background of a story (memory, author's note, lorebook), and what the model sees."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from scripted import Scripted
from web.conftest import TWO_FRAMES, Story

pytestmark = pytest.mark.web

TEXT = "The keeper slept.\n\nAda lit the lamp.\n\nA boat came in.\n\nShe heard it"
LORE = {
    "entries": {"0": {"key": ["Ada"], "content": "Ada limps.", "order": 1, "probability": 50, "comment": "Her leg"}}
}


def shown(story: Story) -> list[str]:
    """The parts of the prompt as the panel has them."""
    return story.find("#prompt p").all_text_contents()


def test_the_background_is_sent_but_not_part_of_the_story(blank: Story, either: Scripted, tmp_path: Path) -> None:
    story, server = blank, either
    story.open(server.url)
    story.set(n=2, max_tokens=6)
    story.find("#story").fill(TEXT)
    (tmp_path / "lore.json").write_text(json.dumps(LORE))
    with story.panel("model-view"):
        story.find("#memory").fill("Ada is ninety.")
        story.find("#note").fill("[Night.]")
        story.find("#note-depth").fill("2")
        story.find("#import-lore").set_input_files(tmp_path / "lore.json")
        told = "1 entry imported. Ignored, because this page doesn't support it: a probability (1)."
        expect(story.find("#lore-status")).to_have_text(told)
        expect(story.find("#prompt p")).to_have_count(5)
        before, after = TEXT[: TEXT.index("A boat")].strip(), TEXT[TEXT.index("A boat") :]
        assert shown(story) == ["Ada is ninety.", "Ada limps.", before, "[Night.]", after]
        expect(story.find("#costs li").last).to_have_text(f"Author's note {len('[Night.]') + 2} tokens")
        story.find(".entry summary").click()
        story.pictures("model-view", axe=True)

    def sent(press: Callable[[], Any]) -> str:
        with story.asking() as body:
            press()
        return str(json.loads(server.request("/detokenize", {"tokens": body["prompt"]})[1])["content"])

    prompt = f"Ada is ninety.\n\nAda limps.\n\n{before}\n\n[Night.]\n\n{after}"
    assert sent(lambda: story.generate(cards=2)) == prompt
    said = story.said(story.cards.first)
    story.press(story.cards.first, "Keep")
    assert sent(lambda: story.generate(cards=2)) == prompt + said
    assert story.text == TEXT + said
    story.reload()
    assert story.text == TEXT + said
    story.tool("#open-model-view")
    expect(story.find("#prompt p").last).to_have_text(after + said)
    if server.keeps_stories:
        nodes = story.nodes(server)
        assert [node["text"] for node in nodes if node["parent"] is None] == [TEXT]
        assert {node["text"] for node in nodes if node["kept"]} == {said}

    # The entry goes with its keyword, and is there again in the imported story.
    story.find("#story").fill("Nobody was there.")
    expect(story.find("#prompt p")).to_have_text(["Ada is ninety.", "[Night.]", "Nobody was there."])
    with story.page.expect_download() as download:
        story.find("#open-stories").click()
        story.reach("#export").click()
    download.value.save_as(tmp_path / "story.json")
    story.take(tmp_path / "story.json")
    story.tool("#open-model-view")
    expect(story.find("#memory")).to_have_value("Ada is ninety.")
    expect(story.find("#note-depth")).to_have_value("2")
    expect(story.find(".entry summary")).to_have_text("Her leg")


def test_keys_stay_in_the_memory_if_the_texts_cursor_is_where_a_line_wraps(story: Story) -> None:
    story.find("#story").fill("The keeper slept. " * 40)
    story.tool("#open-model-view")
    for key in ("Control+Home", "End"):
        story.find("#story").press(key)
    story.find("#memory").click()
    for word in ("Ada ", "is ninety."):
        story.page.evaluate(TWO_FRAMES)
        story.page.keyboard.insert_text(word)
    assert story.find("#memory").input_value() == "Ada is ninety."


def test_text_that_does_not_fit_is_dropped_at_a_paragraph(blank: Story, server: Scripted) -> None:
    story = blank
    story.page.route("**/health", lambda route: route.fulfill(json={"model": "small", "n_ctx": 800}))
    story.open(server.url)
    story.set(n=1, max_tokens=50)
    story.find("#story").fill("\n\n".join(f"Night {k}: the lamp burned, and nobody came up." for k in range(20)))
    story.tool("#open-model-view")
    story.find("#memory").fill("Ada is ninety.")
    story.find("#add-entry").click()
    story.find("[name=always]").check()
    story.find("[name=text]").fill("x" * 400)
    story.find("[name=name]").fill("Much")
    expect(story.find("#left-out")).to_have_text(
        re.compile("^The first .*left out. These lore entries don't fit: Much.$")
    )
    (first,) = re.findall(r"^Night (\d+): the lamp", shown(story)[1])
    words = 9 * int(first)
    expect(story.find("#left-out")).to_contain_text(f"The first {words} words of your text don't fit")
    story.find("#memory").fill("x" * 400)
    expect(story.find("#left-out")).to_contain_text("have 402 tokens; the limit is 374")
    story.find("#generate").click()
    expect(story.find("#error")).to_contain_text("Make them shorter")
    story.find("#memory").fill("")
    story.find("[name=off]").check()
    story.generate(cards=1)
