"""A server that is killed, on the default model."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from real_server import Server, starting
from web.conftest import Story

pytestmark = [pytest.mark.web, pytest.mark.e2e]


MANY = 100
"""This many tokens take the model much longer than killing it."""


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that keep stories in the same file."""
    with starting("--history", str(tmp_path / "stories.db")) as make:
        yield make


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
    assert [node["text"] for node in blank.nodes(server)] == [prompt, *said]
    blank.reload()
    assert [blank.said(card) for card in blank.cards.all()] == said
    blank.press(blank.cards.first, "Keep")
    blank.reads(prompt + said[0])
    expect(blank.find("#tree [role=treeitem]").nth(1)).to_contain_text(f"2 alternatives · {MANY} tokens")
    blank.page.close()  # it watches the story until the server is gone
    blank.excuse("ERR_", "503")
