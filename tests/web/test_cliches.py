"""My clichés: what the model repeats is banned with a click."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect
from web.conftest import Story

pytestmark = pytest.mark.web

PHRASE = "A shiver ran down her spine"


def test_a_repeated_phrase_is_banned_and_the_ban_is_lifted(story: Story, tmp_path: Path) -> None:
    typed = {"id": "0", "parent": "root", "typed": True, "pieces": [["She opened the door of the house.", None]]}
    said = [f" {name} stood there. {PHRASE}. She opened the door of the house." for name in ("Tom", "Ada", "Eve")]
    nodes = [typed, *({"id": str(k + 1), "parent": "0", "pieces": [[text, None]]} for k, text in enumerate(said))]
    file = tmp_path / "tale.json"
    file.write_text(json.dumps({"format": "srb-tree", "version": 2, "nodes": nodes, "current": "0"}))
    story.take(file)
    story.set(n=1, max_tokens=8)
    story.find("#open-stories").click()
    story.find("#cliches summary").click()
    rows = story.find("#cliches li")
    expect(rows).to_have_text([f"“{PHRASE}” in 3 of 3 alternativesBan"])
    story.pictures("cliches", axe=True)
    for name, wanted in (("Ban", [f"(?i){PHRASE}"]), ("Lift the ban", None)):
        expect(rows.locator("button")).to_have_text(name)
        rows.locator("button").click()
        with story.asking() as body:
            story.find("#generate").click()
        story.wait_done()
        assert body.get("banned_strings") == wanted
        if wanted:
            story.reload()
            story.find("#open-stories").click()  # which remembers what is open in it
