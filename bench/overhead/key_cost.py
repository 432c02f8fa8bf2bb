"""Measure what a long text costs the page: a key, opening it, and replacing 500 places, in milliseconds.

usage: PYTHONPATH=.:tests:tests/support python bench/overhead/key_cost.py [WORDS]

The page has a text of 61,000 words in paragraphs of 100, and keys are typed into its middle. What a key takes is thread
time, which doesn't grow when other processes use the machine: of the key itself, and with what is stored afterwards.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import CDPSession, Page, sync_playwright
from scripted import Scripted
from web.conftest import ARGUMENTS, BOX, CHROMIUM

KEYS = 200
PLACES = 500
PARTS = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
INSERT = """(insert) => document.querySelector("#story").cmTile.root.view.dispatch({ changes: { from: 0, insert } })"""
NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"


def milliseconds(client: CDPSession) -> float:
    """Return the thread time of scripts, layout and style so far."""
    metrics = {each["name"]: each["value"] for each in client.send("Performance.getMetrics")["metrics"]}
    return float(sum(metrics[part] for part in PARTS) * 1000)


def keys(page: Page, client: CDPSession) -> None:
    def cost(press: Callable[[str], object]) -> tuple[float, float]:
        alone, start = [], milliseconds(client)
        for k in range(KEYS):
            before = milliseconds(client)
            press("abcdefgh "[k % 9])
            page.evaluate(NEXT_FRAME)
            alone.append(milliseconds(client) - before)
        return statistics.median(alone), (milliseconds(client) - start) / KEYS

    page.keyboard.type("warm up ")
    alone, both = cost(page.keyboard.press)
    asking, _ = cost(str)
    print(f"a key: {alone - asking:.1f} ms (median), {both - asking:.1f} ms with what is stored", flush=True)


def seconds(page: Page, action: str) -> float:
    """Run an action of the page. Returns how long it takes until the next frame is there."""
    start = time.perf_counter()
    page.evaluate(f"() => {{ {action}; return {NEXT_FRAME}; }}")
    return time.perf_counter() - start


def replace(page: Page) -> None:
    page.locator("#story").press("Control+f")
    find = "const box = document.querySelector('#find'); box.value = 'the oar'; box.dispatchEvent(new Event('input'))"
    found = seconds(page, find)
    said = page.locator("#found-count").inner_text()
    assert said.startswith(f"{PLACES} in"), said
    page.locator("#replacement").fill("a sail")
    replaced = seconds(page, "document.querySelector('#replace-all').click()")
    print(f"{PLACES} places: found in {found * 1000:.0f} ms, replaced in {replaced * 1000:.0f} ms", flush=True)


def main(words: int) -> None:
    paragraph = " ".join(["The keeper lit the lamp and slept."] * 14)[:480]
    count = words // len(paragraph.split())
    paragraphs = [f"He took the oar. {paragraph}" if k < PLACES else paragraph for k in range(count)]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Scripted(Path(folder) / "stories.db")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.add_init_script("localStorage.setItem('srb-tour', 'true')")
        page.add_init_script(BOX)
        page.goto(server.url)
        page.locator("body[data-ready]").wait_for()
        page.locator("#story").click()
        with page.expect_response("**/drafts/0", timeout=100_000):
            page.evaluate(INSERT, "\n".join(paragraphs))
        client = page.context.new_cdp_session(page)
        client.send("Performance.enable", {"timeDomain": "threadTicks"})
        for _ in range(3):
            start = time.perf_counter()
            page.reload()
            page.locator("body[data-ready]").wait_for()
            page.evaluate(NEXT_FRAME)
            print(f"opened in {time.perf_counter() - start:.2f} s", flush=True)
        page.locator("#story").evaluate("(box) => box.setSelectionRange(box.value.length / 2, box.value.length / 2)")
        page.locator("#story").focus()
        keys(page, client)
        if count >= PLACES:
            replace(page)
        browser.close()
        server.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 61_000)
