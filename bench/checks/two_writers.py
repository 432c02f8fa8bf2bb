"""Two tabs and another device type at random in one story, and check that every letter is there, once, in all of them.

    srb serve --port 9090 --history stories.db &
    .venv/bin/python bench/checks/two_writers.py --url http://localhost:9090 --seeds 20

Each edit goes to a random place: a letter that is typed nowhere else, a letter that is taken back, a selection, or a
letter in memory or note. For a fifth of the edits, one device is offline. In each frame that shows something by
another page, the cursor and the selection must be between the same letters as before.
"""

import argparse
import random
import re
import shutil
import unicodedata
from dataclasses import dataclass, field

from playwright.sync_api import Browser, Page, sync_playwright

# Not the parts of Hangul syllables: a key that takes back one of them takes all of its syllable.
LETTERS = [
    each
    for each in map(chr, (*range(0x100, 0x1100), *range(0x1200, 0x2000)))
    if unicodedata.category(each) in ("Ll", "Lo")
]
TEXT = "\n\n".join(
    f"{number}. The old lighthouse keeper counted his matches, and the sea said nothing at all." for number in range(4)
)
BOXES = ("#story", "#memory", "#note")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

WATCH = """async () => {
    const { EditorView } = await import("/web/vendor/codemirror.js");
    const find = (name) => document.querySelector(name);
    const view = () => EditorView.findFromDOM(find("#story"));
    const read = (name) => {
        if (name === "#story") {
            const { doc, selection: { main: { from, to } } } = view().state;
            return { text: doc.toString(), from, to };
        }
        const { value: text, selectionStart: from, selectionEnd: to } = find(name);
        return { text, from, to };
    };
    const focus = (name, ...places) => {
        const [from, to] = places.map((at) => Math.min(at, read(name).text.length)); // it may have become shorter
        find(name).focus({ preventScroll: true });
        if (name === "#story") view().dispatch({ selection: { anchor: from, head: to } });
        else find(name).setSelectionRange(from, to);
        note();
    };
    window.faults = [];
    window.follows = 0;
    let now = "#story";
    let last = read(now);
    const note = () => {
        now = document.activeElement.id ? `#${document.activeElement.id}` : now;
        last = read(now);
    };
    /** Whether a place is still between the same letters; one of them may be gone, and others may be between them. */
    const isThere = (text, at, before, place) => {
        const [left, right] = [before.slice(0, place), before.slice(place)].map((part) => [...part]);
        const known = (letter) => letter && before.split(letter).length === 2 && text.split(letter).length === 2;
        const lefts = left.filter(known).every((letter) => text.indexOf(letter) < at);
        return lefts && right.filter(known).every((letter) => text.indexOf(letter) >= at);
    };
    const look = () => {
        const state = read(now);
        if (state.text !== last.text) {
            window.follows++;
            const ends = [[state.from, last.from], [state.to, last.to]];
            const isKept = ends.every(([at, before]) => isThere(state.text, at, last.text, before));
            const isSame = (last.from === last.to) === (state.from === state.to) || last.from !== last.to;
            if (!isKept || !isSame) faults.push([now, last, state]);
        }
        last = state;
        requestAnimationFrame(look);
    };
    Object.assign(window, { read, focus, note });
    for (const name of ["input", "select"]) document.addEventListener(name, () => queueMicrotask(note), true);
    look();
}"""


@dataclass
class Writer:
    """A page, and what was typed in it, by box."""

    page: Page
    typed: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in BOXES})

    def read(self, box: str) -> str:
        return str(self.page.evaluate("(name) => read(name).text", box))

    def edit(self, chance: random.Random, letter: str) -> None:
        """Type a letter at a random place, take one back, or select some."""
        box = chance.choice((*["#story"] * 6, "#memory", "#note"))
        length = len(self.read(box))
        at = chance.choice((chance.randint(0, length), min(length, 30), length))
        kind = chance.random()
        end = min(length, at + chance.randint(1, 9)) if kind < 0.15 else at
        self.page.evaluate("(all) => focus(...all)", [box, at, end])
        if kind < 0.15:
            return
        self.page.keyboard.insert_text(letter)
        if kind < 0.25:
            self.page.keyboard.press("Backspace")
        else:
            self.typed[box].add(letter)


def begin(browser: Browser, url: str) -> tuple[list[Writer], list[Page]]:
    """Open a new story in two tabs and on another device. Returns their writers."""
    contexts = [browser.new_context(), browser.new_context()]
    for context in contexts:
        context.add_init_script("localStorage.setItem('srb-tour', 'true')")
    first = contexts[0].new_page()
    first.goto(url)
    first.wait_for_selector("body[data-ready]")
    first.evaluate("document.body.dataset.left = true")
    first.evaluate("document.querySelector('#new').click()")
    first.wait_for_selector("body[data-ready]:not([data-left])")
    first.evaluate("document.querySelector('#story').focus()")
    with first.expect_response("**/drafts/0"):
        first.keyboard.insert_text(TEXT)
    pages = [first, contexts[0].new_page(), contexts[1].new_page()]
    for page in pages:
        if page is not first:
            page.goto(first.url)
            page.wait_for_selector("body[data-ready]")
        page.evaluate("document.querySelector('#open-model-view').click()")
        page.evaluate(WATCH)
    return [Writer(page) for page in pages], pages


def run(browser: Browser, url: str, seed: int, edits: int) -> str:
    """Type at random. Returns what was counted. Raises `AssertionError`."""
    chance = random.Random(seed)
    letters = chance.sample(LETTERS, 3 * edits)
    writers, pages = begin(browser, url)
    context = pages[2].context
    replaced = 0
    for number in range(edits):
        if number == edits * 2 // 5:
            context.set_offline(True)
        if number == edits * 3 // 5:
            context.set_offline(False)
        if number == edits // 2:
            replace_all(pages[0])
            replaced = base_of(writers[0]).count("guard")
        for writer in chance.sample(writers, 3):
            writer.edit(chance, letters.pop())
        if chance.random() < 0.1:
            pages[0].wait_for_timeout(chance.choice((50, 300, 1200)))
    for box in BOXES:
        wait_until_same(writers, box, seed)
        text = writers[0].read(box)
        typed = set().union(*(writer.typed[box] for writer in writers))
        for letter in typed:
            assert text.count(letter) == 1, f"seed {seed}: {letter} is {text.count(letter)} times in {box}: {text!r}"
        rest = {each for each in text if each in set(LETTERS)} - typed
        assert not rest, f"seed {seed}: {rest} were taken back, and are in {box}: {text!r}"
    story = base_of(writers[0])
    assert re.fullmatch(TEXT.replace("keeper", "(keeper|guard)").replace(".", r"\."), story), f"seed {seed}: {story!r}"
    assert story.count("guard") == replaced
    assert not pages[0].evaluate("document.querySelector('#error-text').textContent")
    faults = [fault for page in pages for fault in page.evaluate("faults")]
    assert not faults, f"seed {seed}: {len(faults)} cursors moved, the first: {faults[0]}"
    follows = sum(page.evaluate("follows") for page in pages)
    nodes = pages[0].evaluate("fetch(`/v1/stories/${location.hash.slice(1)}`).then((each) => each.json())")["nodes"]
    assert nodes == [], f"seed {seed}: {len(nodes)} texts were left in the tree"
    return f"{3 * edits} edits, {follows} frames with changes by others"


def base_of(writer: Writer) -> str:
    """Return the text without what was typed."""
    return "".join(each for each in writer.read("#story") if each not in set(LETTERS))


def replace_all(page: Page) -> None:
    """Replace a word everywhere."""
    page.evaluate("""() => {
        document.querySelector("#open-search").click();
        for (const [name, value] of [["#find", "keeper"], ["#replacement", "guard"]]) {
            const box = document.querySelector(name);
            box.value = value;
            box.dispatchEvent(new Event("input", { bubbles: true }));
        }
        document.querySelector("#replace-all").click();
        document.querySelector("#search .head button").click();
        note();
    }""")


def wait_until_same(writers: list[Writer], box: str, seed: int) -> None:
    """Wait until all pages show the same text."""
    for _ in range(300):
        texts = {writer.read(box) for writer in writers}
        if len(texts) == 1:
            return
        writers[0].page.wait_for_timeout(100)
    raise AssertionError(f"seed {seed}: the texts of {box} differ: {texts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", required=True, help="the address of a running server with a history")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--edits", type=int, default=300, help="by each of the three pages")
    arguments = parser.parse_args()
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        failed = 0
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            try:
                print(f"seed {seed}: {run(browser, arguments.url, seed, arguments.edits)}", flush=True)
            except AssertionError as error:
                failed += 1
                print(error, flush=True)
            for context in browser.contexts:
                context.close()
        browser.close()
    if failed:
        raise SystemExit(f"{failed} of {arguments.seeds} seeds failed")


if __name__ == "__main__":
    main()
