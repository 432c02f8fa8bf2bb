"""The page in Debian's Chromium, on a server with a scripted backend; `test_default_model` has the default model."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, ViewportSize, expect, sync_playwright
from real_server import Asked
from scripted import Scripted

AXE = (Path(__file__).parent / "axe-core" / "axe.min.js").read_text()
SCREENSHOTS = os.environ.get("SRB_SCREENSHOTS")  # a folder; without one, no pictures are made

# chromium-headless-shell is the same engine without the browser's own window, which takes more time than the page.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, PROGRAMS)), None)
DESK: ViewportSize = {"width": 1400, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PROMPT = "The old lighthouse keeper had one rule, and everybody in the village knew what it was:"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]

SET = """(values) => {
    for (const [name, value] of Object.entries(values)) {
        const box = document.querySelector(`#setting-${name}`);
        if (box.type === "checkbox") box.checked = Boolean(value);
        else box.value = value;
        if (name === "max_tokens") document.querySelector("#length-unit").value = "tokens";
        box.dispatchEvent(new Event("input", { bubbles: true }));
    }
}"""

BOX = """
    const viewOf = (box) => box.cmTile.root.view;
    Object.defineProperties(HTMLDivElement.prototype, {
        value: { get() { return this.id === "story" ? viewOf(this).state.doc.toString() : undefined; } },
        selectionStart: { get() { return viewOf(this).state.selection.main.from; } },
        selectionEnd: { get() { return viewOf(this).state.selection.main.to; } },
    });
    HTMLDivElement.prototype.setSelectionRange = function (anchor, head) {
        const [from, to] = [anchor, head].map((at) => Math.min(at, this.value.length));
        viewOf(this).dispatch({ selection: { anchor: from, head: to } });
    };
"""
"""Gives the box of the text the names of a text area, whose text isn't all drawn."""

WATCH = """() => {
    const names = ["#manuscript", "#cards", ".batch", ".card", ".card > *"];
    let last = { texts: "" };
    window.jumps = [];
    const look = () => {
        const texts = [...document.querySelectorAll("#story, .card .text")];
        const said = texts.map((each) => each.value ?? each.textContent).join("|");
        const now = { texts: said, "#bar": document.querySelector("#bar").offsetHeight };
        for (const name of names)
            document.querySelectorAll(name).forEach((each, k) => {
                const { x, y, width, height } = each.getBoundingClientRect();
                const isThere = width || height; // what isn't shown is at the window's corner, which scrolling moves
                now[`${name} ${k}`] = isThere && [x + scrollX, y + scrollY, width, height].map(Math.round).join();
            });
        for (const name in now)
            if (last.texts === now.texts && last[name] !== now[name]) jumps.push([name, last[name], now[name]]);
        last = now;
        requestAnimationFrame(look);
    };
    look();
}"""
"""Records in each frame what moves or changes its size although no text has changed."""

TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

expect.set_options(timeout=60_000)


@dataclass
class Story:
    """An open page, and the errors it reported."""

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
        text: str = self.find("#story").evaluate("(box) => box.value")
        return text

    def shaded(self, name: str) -> list[str]:
        """Return what has this tint or shade in the text, in its order, by lines."""
        return self.find(f"#story .{name}").all_text_contents()

    def open(self, url: str) -> None:
        self.page.goto(url)
        self.wait_ready()

    def reload(self) -> None:
        self.page.reload()
        self.wait_ready()

    def wait_ready(self) -> None:
        expect(self.find("body[data-ready]")).to_be_visible()

    def reads(self, text: str) -> None:
        """Wait until this is the text."""
        expect(self.find("#story")).to_have_js_property("value", text)

    def select(self, start: int, end: int | None = None) -> None:
        """Put the cursor after this many characters, or select up to `end`."""
        places = [start, start if end is None else end]
        self.find("#story").evaluate("(box, [a, b]) => { box.focus(); box.setSelectionRange(a, b); }", places)

    @contextmanager
    def asking(self) -> Iterator[dict[str, Any]]:
        """Wait for the request for texts that is sent meanwhile. What is yielded is its body, afterwards."""
        body: dict[str, Any] = {}
        with self.page.expect_request(lambda each: '"detach"' in (each.post_data or "")) as asked:
            yield body
        body |= json.loads(asked.value.post_data or "")

    def nodes(self, server: Asked) -> list[dict[str, Any]]:
        """Return the nodes that a server keeps of this story."""
        nodes: list[dict[str, Any]] = json.loads(server.request(self.path)[1])["nodes"]
        return nodes

    @property
    def path(self) -> str:
        """The address of this story on a server that keeps it."""
        return f"/v1/stories/{self.page.url.partition('#')[2]}"

    def begin(self, url: str | None = None) -> None:
        """Begin a new story, on a server if its address is given."""
        if url:
            self.open(url)
        self.find("#open-stories").click()
        self.leave("#new")
        expect(self.find("#title")).to_have_text("(no title)")

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Wait for the other story that is opened meanwhile."""
        self.page.evaluate("document.body.dataset.left = true")
        yield
        expect(self.find("body[data-ready]:not([data-left])")).to_be_visible()

    def leave(self, selector: str) -> None:
        """Click an element that opens another story, and wait for it."""
        with self.leaving():
            self.reach(selector).click()

    def take(self, path: Path) -> None:
        """Import a file as another story."""
        with self.leaving():
            self.find("#import").set_input_files(path)

    def tool(self, selector: str) -> None:
        """Press a button of the bar, which may be folded."""
        if not self.find(selector).is_visible():
            self.find("#more-tools").click()
        self.find(selector).click()

    @contextmanager
    def panel(self, name: str) -> Iterator[None]:
        """Open a panel, and close it afterwards."""
        self.tool(f"#open-{name}")
        yield
        self.find(f"#{name} > .head button").click()

    def set(self, **values: object) -> None:
        """Set these as if they had been typed, a length in tokens."""
        self.page.evaluate(SET, {name: str(value) for name, value in values.items()})

    def reach(self, selector: str) -> Locator:
        """Open the groups around an element, and return it."""
        found = self.find(selector)
        found.evaluate("(each) => { while ((each = each.parentElement?.closest('details'))) each.open = true; }")
        return found

    def unfold(self, name: str) -> Locator:
        """Open the groups of a setting, and return it."""
        return self.reach(f"#setting-{name}")

    def generate(self, prompt: str | None = None, *, cards: int, wait: bool = True) -> None:
        """Press Ctrl-Enter, and wait for this number of cards, and until they are done."""
        if prompt is not None:
            self.find("#story").fill(prompt)
        self.find("#story").press("Control+Enter")
        expect(self.cards).to_have_count(cards)
        if wait:
            self.wait_done()

    def wait_done(self) -> None:
        expect(self.find("#stop")).to_be_disabled()

    def jumps(self) -> object:
        """What has moved although no text changed, since `WATCH` was evaluated."""
        return self.page.evaluate("window.jumps")

    def swipe(self, by: int) -> None:
        """Swipe the visible alternatives, to the left if `by` is negative, until they stop."""
        batch = self.find(".batch").first
        box = batch.bounding_box()
        assert box
        batch.evaluate("(each) => { window.standing = new Promise((done) => (each.onscrollend = () => done())); }")
        client = self.page.context.new_cdp_session(self.page)
        steps = 10  # as many as a finger sends: Chromium loses some of a busy page's, for good if they are few
        for step in range(steps + 1):
            place = {"x": box["x"] + box["width"] / 2 + (step / steps - 0.5) * by, "y": box["y"] + 50}
            name = "touchMove" if step else "touchStart"
            client.send("Input.dispatchTouchEvent", {"type": name, "touchPoints": [place]})
            self.page.evaluate(TWO_FRAMES)  # moves before a frame may be lost
        client.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        client.detach()
        self.page.evaluate("window.standing")

    def word(self, card: Locator, number: int = 3) -> Locator:
        """Return a token of a card that has letters, to point at."""
        return card.locator("[data-k]", has_text=re.compile(r"[a-z]")).nth(number)

    def press(self, card: Locator, name: str) -> None:
        card.locator(".title").hover()
        card.get_by_role("button", name=name, exact=True).click()

    def said(self, card: Locator) -> str:
        return card.locator(".text").text_content() or ""

    def excuse(self, *reasons: str) -> None:
        """Clear the errors that the page reported, which must be of these kinds."""
        assert all(any(reason in fault for reason in reasons) for fault in self.faults), self.faults
        self.faults.clear()

    def screenshot(self, name: str) -> None:
        """Take a picture of the page, to look at."""
        if SCREENSHOTS:
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")

    def pictures(self, name: str, *, axe: bool = False) -> None:
        """Take pictures of this state on a desk, a phone and a wide screen, in light and dark.

        Nothing is wider than the screen. axe: axe-core must find nothing in either scheme.
        """
        for scheme in SCHEMES:
            self.page.emulate_media(color_scheme=scheme)
            for width, height in ((2200, 1200), (390, 844), (1400, 900)):
                self.page.set_viewport_size({"width": width, "height": height})
                self.picture(f"{name}-{width}-{scheme}")
            if axe:
                assert self.accessibility_faults() == [], f"{name}, {scheme}"

    def picture(self, name: str, *, axe: bool = False) -> None:
        """Take a picture of this window only."""
        wide, width = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= width, f"{name} is wider than {width}"
        self.screenshot(name)
        if axe:
            assert self.accessibility_faults() == [], name

    def accessibility_faults(self) -> list[str]:
        """Return the faults that axe-core finds."""
        if not self.page.evaluate("Boolean(window.axe)"):
            self.page.evaluate(AXE)
        found = self.page.evaluate("axe.run({resultTypes: ['violations']}).then((result) => result.violations)")
        return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html']}" for each in found]


def length(story: Story, text: str, unit: str, count: int) -> Any:
    """Return where a text reaches a length, as the page computes it."""
    script = "async ([text, unit, count]) => (await import('/web/lib/length.js')).endOf(text, {unit, count})"
    return story.page.evaluate(script, [text, unit, count])


# Not for the session: while it is open, Playwright's event loop runs in this thread, and tests of other folders in the
# same worker could have none of their own. `__init__.py` makes this folder a package.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        assert not os.environ.get("CI"), "CI installs Chromium, but it isn't there"
        pytest.skip("the page is tested in Chromium, which isn't installed: apt install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def shared_server() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture(scope="package")
def shared_keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    server = Scripted(tmp_path_factory.mktemp("history") / "stories.db")
    yield server
    server.close()


@pytest.fixture
def keeper(shared_keeper: Scripted) -> Iterator[Scripted]:
    """A server that keeps stories, shared with other tests."""
    yield shared_keeper
    shared_keeper.go()


@pytest.fixture
def server(shared_server: Scripted) -> Iterator[Scripted]:
    """A server on a scripted backend, shared with other tests."""
    yield shared_server
    shared_server.go()


@pytest.fixture
def start_scripted() -> Iterator[Callable[..., Scripted]]:
    """Start servers on a scripted backend with a test's own options."""
    servers: list[Scripted] = []

    def make(history: Path | None = None, **options: Any) -> Scripted:
        servers.append(Scripted(history, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(params=[False, True], ids=["browser", "server"])
def either(request: pytest.FixtureRequest, start_scripted: Callable[..., Scripted], tmp_path: Path) -> Scripted:
    """A server that keeps stories, and one that leaves this to the browser."""
    return start_scripted(tmp_path / "stories.db" if request.param else None)


@contextmanager
def profile(
    browser: Browser,
    *,
    is_phone: bool = False,
    has_tour: bool = False,
    service_workers: Literal["allow", "block"] = "block",
) -> Iterator[Story]:
    """A page with nothing stored, but that the tour was skipped. It must report no errors and contact no other host."""
    context = browser.new_context(
        viewport=PHONE if is_phone else DESK,
        has_touch=is_phone,
        is_mobile=is_phone,
        accept_downloads=True,
        service_workers=service_workers,
    )
    if not has_tour:
        context.add_init_script("if (location.protocol === 'http:') localStorage.setItem('srb-tour', 'true')")
    context.add_init_script(BOX)
    story = Story(context.new_page())
    hosts: set[str] = set()

    def ask(request: Request) -> None:
        hosts.add(request.url.partition("//")[2].partition("/")[0].partition(":")[0])

    def hear(message: ConsoleMessage) -> None:
        # An alternative that the page ends may have ended by itself a moment before, which is a 404 and no fault.
        has_ended = "404" in message.text and "/choices/" in message.location["url"]
        # What a page sends as it is left may overtake what it sent before. The page merges what conflicts.
        is_merged = "409" in message.text and "/v1/stories/" in message.location["url"]
        if message.type == "error" and not has_ended and not is_merged:
            story.faults.append(f"{message.text} {message.location['url']}")

    story.page.on("console", hear)
    story.page.on("pageerror", lambda error: story.faults.append(str(error)))
    story.page.on("request", ask)
    yield story
    context.close()
    assert story.faults == []
    assert hosts <= {"127.0.0.1", ""}  # what the page makes itself, a file to download, has none


@pytest.fixture
def blank(browser: Browser, start_scripted: Callable[..., Scripted]) -> Iterator[Story]:
    """A page with nothing stored. It closes before the test's servers, which it would miss."""
    with profile(browser) as story:
        yield story


@pytest.fixture
def other(browser: Browser, start_scripted: Callable[..., Scripted]) -> Iterator[Story]:
    """A page on another device."""
    with profile(browser) as story:
        yield story


@pytest.fixture
def story(blank: Story, server: Scripted) -> Story:
    """The page of the shared server."""
    blank.open(server.url)
    return blank
