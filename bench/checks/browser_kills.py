"""Kill Chromium with SIGKILL at random moments while somebody types, and check that the page has the text again.

    srb serve --port 9090 & .venv/bin/python bench/checks/browser_kills.py --url http://localhost:9090 --rounds 50

The server runs on; only the browser is killed. In each round a new browser with the same profile opens the page. It
must show all that was typed until a second before the kill. What else is lost is counted in characters and in seconds.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Error, Page, Playwright, sync_playwright

WORDS = ("the", "keeper", "counted", "his", "matches", "and", "the", "sea", "said", "nothing", "at", "all")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
MOST_SECONDS = 1.0
TEXT = "(box) => box.cmTile.root.view.state.doc.toString()"  # of which only the part in sight is drawn


def start(profile: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start Chromium. Returns its process, and the address for Playwright."""
    names = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
    chromium = next(filter(None, map(shutil.which, names)))
    port_file = profile / "DevToolsActivePort"
    port_file.unlink(missing_ok=True)
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(600):
        if port_file.exists() and "\n" in port_file.read_text():
            return process, f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}"
        time.sleep(0.05)
    raise TimeoutError("Chromium doesn't start")


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a browser with all its processes."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def open_page(playwright: Playwright, address: str, url: str) -> Page:
    """Open the page, and wait until it has its story."""
    page = playwright.chromium.connect_over_cdp(address).contexts[0].pages[0]
    page.goto(url)
    page.wait_for_selector("body[data-ready]")
    return page


def type_until_killed(page: Page, process: subprocess.Popen[bytes], chance: random.Random) -> list[tuple[float, str]]:
    """Type words, and kill the browser between two keys or within one. Returns what was typed, and when."""
    typed = [(time.monotonic(), str(page.locator("#story").evaluate(TEXT)))]
    page.locator("#story").press("Control+End")
    end = time.monotonic() + chance.uniform(0.1, 3)
    try:
        while time.monotonic() < end:
            for letter in " " + chance.choice(WORDS):
                page.keyboard.insert_text(letter)
                typed.append((time.monotonic(), typed[-1][1] + letter))
                time.sleep(chance.choice((0, 0.01, 0.1)))
                if time.monotonic() >= end:
                    break
    except Error:
        pass
    kill(process)
    return typed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", required=True, help="the address of a running server")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    worst_seconds, worst_characters, letters = 0.0, 0, 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, sync_playwright() as playwright:
        typed: list[tuple[float, str]] = []
        for number in range(arguments.rounds + 1):
            process, address = start(Path(folder))
            try:
                page = open_page(playwright, address, arguments.url)
                if typed:
                    found = str(page.locator("#story").evaluate(TEXT))
                    last, text = typed[-1]
                    when = next((at for at, each in reversed(typed) if each == found), None)
                    assert when is not None, f"round {number}: {found!r} was never the text; it was {text!r}"
                    lost = [each for each in typed if len(each[1]) > len(found)]
                    worst_characters = max(worst_characters, len(text) - len(found))
                    worst_seconds = max(worst_seconds, last - lost[0][0] if lost else 0)
                    assert worst_seconds <= MOST_SECONDS, f"round {number}: {worst_seconds:.2f} s of typing are lost"
                if number < arguments.rounds:
                    typed = type_until_killed(page, process, chance)
                    letters += len(typed) - 1
            finally:
                if process.poll() is None:
                    kill(process)
    print(
        f"{arguments.rounds} kills, {letters} keys: at most {worst_characters} characters of the last "
        f"{worst_seconds:.2f} s were lost in one"
    )


if __name__ == "__main__":
    main()
