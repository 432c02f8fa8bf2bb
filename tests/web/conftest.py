"""The page in Debian's Chromium, on a server with the default model."""

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect, sync_playwright
from real_server import Server, start
from scripted import Scripted

AXE = (Path(__file__).parent / "axe-core" / "axe.min.js").read_text()
SCREENSHOTS = Path(__file__).parents[2] / "screenshots"

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]

expect.set_options(timeout=60_000)


@dataclass
class Story:
    """A page that is open, and what it has complained of."""

    page: Page
    faults: list[str] = field(default_factory=list)

    def find(self, selector: str, **options: Any) -> Locator:
        return self.page.locator(selector, **options)

    @property
    def cards(self) -> Locator:
        return self.find(".card")

    @property
    def text(self) -> str:
        """The text so far."""
        return self.find("#story").input_value()

    def open(self, url: str) -> None:
        self.page.goto(url)
        self.wait_ready()
        self.end_early(False)

    def reload(self) -> None:
        self.page.reload()
        self.wait_ready()

    def wait_ready(self) -> None:
        expect(self.find("body[data-ready]")).to_be_visible()

    def leave(self, selector: str) -> None:
        """Presses what opens another story, and waits for that."""
        self.page.evaluate("document.body.dataset.left = true")
        self.find(selector).click()
        expect(self.find("body[data-ready]:not([data-left])")).to_be_visible()

    @contextmanager
    def panel(self, name: str) -> Iterator[None]:
        """While a panel is open: `options` or `shelf`."""
        self.find(f"#open-{name}").click()
        yield
        self.find(f"#{name} > .head button").click()

    def set(self, **values: object) -> None:
        with self.panel("options"):
            for name, value in values.items():
                self.unfold(name).fill(str(value))

    def unfold(self, name: str) -> Locator:
        """A setting, whose group is open."""
        setting = self.find(f"#setting-{name}")
        setting.evaluate("(each) => each.closest('details')?.setAttribute('open', '')")
        return setting

    def end_early(self, may: bool) -> None:
        """Whether an alternative may end before its length: the model would do so at another place each time."""
        with self.panel("options"):
            self.unfold("ignore_eos").set_checked(not may)

    def generate(self, prompt: str | None = None, *, cards: int, wait: bool = True) -> None:
        """Presses Ctrl-Enter, and waits until so many cards are there, and until they are done."""
        if prompt is not None:
            self.find("#story").fill(prompt)
        self.find("#story").press("Control+Enter")
        expect(self.cards).to_have_count(cards)
        if wait:
            self.wait_done()

    def wait_done(self) -> None:
        expect(self.find("#stop")).to_be_disabled()

    def word(self, card: Locator, number: int = 3) -> Locator:
        """A token of a card that has letters, so that it can be pointed at."""
        return card.locator("[data-k]", has_text=re.compile(r"[a-z]")).nth(number)

    def press(self, card: Locator, name: str) -> None:
        card.locator(".title").hover()
        card.get_by_role("button", name=name, exact=True).click()

    def said(self, card: Locator) -> str:
        return card.locator(".text").text_content() or ""

    def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")

    def pictures(self, name: str) -> None:
        """Pictures of this state on a desk, a phone and a wide screen, in light and dark, to be looked at."""
        for scheme in SCHEMES:
            self.page.emulate_media(color_scheme=scheme)
            for width, height in ((2200, 1200), (390, 844), (1400, 900)):
                self.page.set_viewport_size({"width": width, "height": height})
                assert self.page.evaluate("document.documentElement.scrollWidth") <= width, (
                    f"{name} is wider than {width}"
                )
                self.screenshot(f"{name}-{width}-{scheme}")

    def accessibility_faults(self) -> list[str]:
        """What axe-core finds that is serious or critical."""
        self.page.evaluate(AXE)
        found = self.page.evaluate("axe.run().then((result) => result.violations)")
        return [
            f"{each['id']}: {each['help']}: {each['nodes'][0]['html']}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        assert not os.environ.get("CI"), "CI installs Chromium, but it isn't there"
        pytest.skip("the page is tested in Chromium, which isn't installed: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    server = start()
    yield server
    server.stop()
    server.close()


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts servers with options of a test's own."""
    servers: list[Server] = []

    def make(*options: str) -> Server:
        servers.append(start(*options))
        return servers[-1]

    yield make
    for server in servers:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)
        server.close()


@pytest.fixture
def start_scripted() -> Iterator[Callable[..., Scripted]]:
    """Starts servers on a scripted backend, which take a moment and no model."""
    servers: list[Scripted] = []

    def make(history: Path | None = None, **options: Any) -> Scripted:
        servers.append(Scripted(history, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@contextmanager
def profile(browser: Browser) -> Iterator[Story]:
    """A page with nothing stored. At the end it must have had no fault and have asked no other host."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
    story = Story(context.new_page())
    hosts: set[str] = set()

    def ask(request: Request) -> None:
        hosts.add(request.url.partition("//")[2].partition("/")[0].partition(":")[0])

    story.page.on("console", lambda message: story.faults.append(message.text) if message.type == "error" else None)
    story.page.on("pageerror", lambda error: story.faults.append(str(error)))
    story.page.on("request", ask)
    yield story
    context.close()
    assert story.faults == []
    assert hosts <= {"127.0.0.1", ""}  # what the page makes itself, a file to download, has none


@pytest.fixture
def blank(browser: Browser) -> Iterator[Story]:
    """A page with nothing stored."""
    with profile(browser) as story:
        yield story


@pytest.fixture
def other(browser: Browser) -> Iterator[Story]:
    """A page on another device."""
    with profile(browser) as story:
        yield story


@pytest.fixture
def story(blank: Story, server: Server) -> Story:
    """The page of a server that other tests use, too."""
    blank.open(server.url)
    return blank
