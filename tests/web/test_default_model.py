"""Tests that need the default model: a space at the end, and a crash."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from real_server import Server, start, starting
from web.conftest import Story

pytestmark = [pytest.mark.web, pytest.mark.e2e]


MANY = 100
"""This many tokens take the model much longer than killing it."""


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that keep stories in the same file."""
    with starting("--history", str(tmp_path / "stories.db")) as make:
        yield make


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start()
    yield server
    server.stop()
    server.close()


def tab_to(story: Story, selector: str, keys: str = "Tab") -> None:
    """Goes there with the Tab key, as a writer does, in a few steps."""
    for _ in range(24):
        story.page.keyboard.press(keys)
        if story.find(f"{selector}:focus").count():
            return
    pytest.fail(f"{selector} is far away")


def test_a_space_at_the_end_does_no_harm(blank: Story, server: Server) -> None:
    story = blank
    story.open(server.url)
    story.set(n=4, max_tokens=6, seed=1, ignore_eos=True)
    prompt = "She opened the door and saw "
    with story.page.expect_request(lambda each: '"seed"' in (each.post_data or "")) as asked:
        story.generate(prompt, cards=4)
    assert json.loads(asked.value.post_data or "")["heal"] is True
    said = [story.said(card) for card in story.cards.all()]
    assert all(text and not text[0].isspace() for text in said)
    assert sum(text[0].isdigit() for text in said) < 2
    first = story.cards.first
    first.locator("[data-k]").first.click()
    choice = story.find("#token-preview button:not(.taken)").nth(1)
    chosen = (choice.text_content() or "").split()[0]
    assert not chosen.startswith("␣")
    with story.page.expect_request(lambda each: '"seed"' in (each.post_data or "")) as asked:
        choice.click()
    story.wait_done()
    body = json.loads(asked.value.post_data or "")
    sent = json.loads(server.request("/detokenize", {"tokens": body["prompt"]})[1])
    assert sent["content"] == prompt + chosen
    assert "heal" not in body


EXACT = ("--reproducible",)
"""Without it, evaluating a text again changes the last bits of logits, and sometimes a word."""


def test_it_continues_after_the_server_is_killed_and_restarted(
    blank: Story, start_server: Callable[..., Server]
) -> None:
    server = start_server(*EXACT)
    blank.open(server.url)
    blank.set(n=2, max_tokens=MANY, seed=5, ignore_eos=True)
    prompt = "She opened the door and saw "
    blank.generate(prompt, cards=2, wait=False)
    tokens = blank.cards.first.locator("[data-k]")
    expect(tokens.nth(5)).to_be_attached()
    server.stop(signal.SIGKILL)
    expect(blank.find("#status")).to_contain_text("connection was lost")
    seen = [blank.said(card) for card in blank.cards.all()]
    assert tokens.count() < MANY
    server = start_server(*EXACT, "--port", str(server.address[1]))
    blank.wait_done()
    said = [blank.said(card) for card in blank.cards.all()]
    for card, before, now in zip(blank.cards.all(), seen, said, strict=True):
        expect(card.locator(".numbers")).to_contain_text(f"{MANY} tokens")
        expect(card.locator(".facts")).to_contain_text("reached its length")
        assert now.startswith(before)
        assert len(now) > len(before)
    assert said == server.texts(prompt=prompt, n=2, max_tokens=MANY, seed=5, ignore_eos=True, heal=True)
    story = json.loads(server.request(f"/v1/stories/{blank.page.url.partition('#')[2]}")[1])
    assert [node["text"] for node in story["nodes"]] == [prompt, *said]
    blank.reload()
    assert [blank.said(card) for card in blank.cards.all()] == said
    blank.press(blank.cards.first, "Keep")
    blank.reads(prompt + said[0])
    expect(blank.find("#tree [role=treeitem]").nth(1)).to_contain_text(f"2 alternatives · {MANY} tokens")
    blank.page.close()  # it watches the story until the server is gone
    blank.excuse("ERR_", "503")
