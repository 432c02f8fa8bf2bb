"""Measure what a key costs Chromium in a long text, in milliseconds of thread time.

usage: PYTHONPATH=.:tests:tests/support python bench/overhead/key_cost.py [WORDS]

The page has a text of 61,000 words in paragraphs of 100, and keys are typed into its middle. Thread time doesn't grow
when other processes use the machine.
"""

import sys

from playwright.sync_api import Page, sync_playwright
from scripted import Scripted
from web.conftest import ARGUMENTS, BOX, CHROMIUM

KEYS = 200
PARTS = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration", "TaskDuration")


def paste(page: Page, text: str) -> None:
    """Insert a text at once, and put the cursor into its middle."""
    page.locator("#story").click()
    page.keyboard.insert_text(text)
    page.locator("#story").evaluate("(box, at) => box.setSelectionRange(at, at)", len(text) // 2)


def main(words: int) -> None:
    paragraph = " ".join(["The keeper lit the lamp and slept."] * 14)[:480]
    server = Scripted()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.add_init_script("localStorage.setItem('srb-tour', 'true')")
            page.add_init_script(BOX)
            page.goto(server.url)
            page.locator("body[data-ready]").wait_for()
            paste(page, "\n".join([paragraph] * (words // len(paragraph.split()))))
            client = page.context.new_cdp_session(page)
            client.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.keyboard.type("warm up ")

            def read() -> dict[str, float]:
                return {each["name"]: each["value"] for each in client.send("Performance.getMetrics")["metrics"]}

            before = read()
            for k in range(KEYS):
                page.keyboard.press("abcdefgh "[k % 9])
            after = read()
            for part in PARTS:
                print(f"{part}: {(after[part] - before[part]) * 1000 / KEYS:.1f} ms per key")
            browser.close()
    finally:
        server.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 61_000)
