"""Stories that the server keeps: begun on one device, read and continued on another."""

import re
from collections.abc import Callable
from itertools import count

import pytest
from playwright.sync_api import Route, WebSocketRoute, expect
from scripted import Scripted
from web.conftest import PROMPT, Story, length

pytestmark = pytest.mark.web


def test_a_request_continues_without_the_tab_and_on_another_device(
    blank: Story, other: Story, keeper: Scripted
) -> None:
    blank.begin(keeper.url)
    blank.set(n=2, max_tokens=1000)
    keeper.hold_after(20)
    blank.generate(PROMPT, cards=2, wait=False)
    expect(blank.cards.first.locator("[data-k]").nth(3)).to_be_attached()
    url = blank.page.url
    blank.page.close()
    other.page.goto(url)
    other.wait_ready()
    other.reads(PROMPT)
    expect(other.find(".card.running")).to_have_count(2)
    tokens = other.cards.first.locator("[data-k]")
    expect(tokens.nth(3)).to_be_attached()
    count = tokens.count()
    keeper.hold_after(20)
    expect(tokens.nth(count + 5)).to_be_attached()
    other.find("#stop").click()
    keeper.go()
    other.wait_done()
    for card in other.cards.all():
        expect(card.locator(".facts")).to_contain_text("stopped")
    said = [other.said(card) for card in other.cards.all()]
    assert [node["text"] for node in other.nodes(keeper)] == [PROMPT, *said]
    other.press(other.cards.nth(1), "Keep")
    other.reload()
    other.reads(PROMPT + said[1])
    expect(other.find("#title")).to_have_text(PROMPT[:43])


def test_lengths_end_at_boundaries_on_the_server(blank: Story, other: Story, keeper: Scripted) -> None:
    blank.begin(keeper.url)
    other.open(blank.page.url)
    blank.set(n=3, max_tokens=1, seed=1)
    with blank.panel("options"):
        blank.find("#length-unit").select_option("sentences")
    keeper.go(pace=0.02)  # else all may be written before the page has read its answer's first line
    blank.generate(PROMPT, cards=3)
    said = [blank.said(card) for card in blank.cards.all()]
    for text in said:
        assert length(blank, text + "\n\nThe next", "sentences", 1) == len(text.encode("utf-16-le")) // 2, said
    expect(blank.cards.first.locator(".facts")).to_contain_text("reached its length")
    for card, text in zip(other.cards.all(), said, strict=True):
        expect(card.locator(".text")).to_have_text(text)
    nodes = blank.nodes(keeper)
    assert [(node["text"], node["ends_at"]) for node in nodes[1:]] == [(text, len(text)) for text in said]
    blank.press(blank.cards.first, "Keep")
    with blank.asking() as body:
        blank.generate(cards=3)
    assert body["node"] == nodes[1]["id"]
    blank.reads(PROMPT + said[0])
    assert keeper.request(f"{blank.path}?format=markdown&node={nodes[1]['id']}")[1].endswith(f"{PROMPT}{said[0]}\n")
    with blank.panel("options"):
        blank.find("#length-unit").select_option("words")
        blank.find("#setting-max_tokens").fill("60")
    keeper.hold_after(20)
    blank.generate(cards=6, wait=False)
    expect(blank.cards.first.locator("[data-k]").nth(2)).to_be_attached()
    blank.reload()
    expect(blank.find(".card.running")).to_have_count(3)
    keeper.go()
    blank.wait_done()
    for text in [blank.said(card) for card in blank.cards.all()[:3]]:
        assert length(blank, text + "\n\nThe next", "words", 60) == len(text.encode("utf-16-le")) // 2, text
    blank.excuse("status of 404")  # what was long enough had ended by itself


def test_a_browser_that_stores_nothing_has_a_story_all_the_same(
    blank: Story, start_scripted: Callable[..., Scripted]
) -> None:
    blank.page.add_init_script("indexedDB.open = () => { throw new DOMException('not in this window'); }")
    blank.open(start_scripted().url)
    expect(blank.find("#error")).to_contain_text("This browser doesn't store your stories: not in this window")
    blank.set(n=2, max_tokens=4)
    blank.generate(PROMPT, cards=2)
    said = blank.said(blank.cards.first)
    blank.press(blank.cards.first, "Keep")
    expect(blank.find("#story")).to_have_js_property("value", PROMPT + said)
    expect(blank.find("#title")).to_have_text(PROMPT[:43])


STORED = """([prompt, said]) => new Promise((resolve) => {
    const opening = indexedDB.open("srb", 2);
    opening.onupgradeneeded = () => {
        const [stories, nodes] = ["stories", "nodes"].map((name) =>
            opening.result.createObjectStore(name, {keyPath: "id"}));
        nodes.createIndex("story", "story");
        const node = {story: "s", id: "a", parent: "root", batch: 1, order: 0, pieces: [{text: prompt, ids: null}]};
        stories.put({id: "s", title: prompt.slice(0, 43), changed: 1});
        nodes.put({...node, typed: true});
        said.forEach((text, order) =>
            nodes.put({...node, id: `b${order}`, parent: "a", batch: 2, order, end: "", pieces: [{text, ids: null}]}));
        opening.result.createObjectStore("page").put({current: "a"}, "s");
    };
    opening.onsuccess = () => { opening.result.close(); resolve(); };
})"""


def test_a_story_moves_from_the_browser_to_the_server(blank: Story, keeper: Scripted) -> None:
    # The same browser has written at another server, without a history.
    said = [" Never sleep.", " Always sleep."]
    blank.page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
    blank.page.goto(keeper.url + "/web/app/icon.svg")
    blank.page.evaluate(STORED, [PROMPT, said])
    blank.page.route("**/health", lambda route: route.fulfill(json={"model": "a model"}))
    blank.open(keeper.url)
    blank.reads(PROMPT)
    assert [blank.said(card) for card in blank.cards.all()] == said
    blank.page.unroute("**/health")
    blank.page.goto(keeper.url)
    blank.wait_ready()
    blank.find("#open-stories").click()
    blank.leave("#move")
    expect(blank.find("#title")).to_have_text(PROMPT[:43])
    blank.reads(PROMPT)
    assert [blank.said(card) for card in blank.cards.all()] == said
    expect(blank.find("#move")).to_be_hidden()
    blank.find("#open-stories").click()
    blank.page.on("dialog", lambda dialog: dialog.accept("A keeper"))
    blank.find("#rename").click()
    expect(blank.find("#story-list [aria-current]")).to_have_text("A keeper")
    blank.page.set_viewport_size({"width": 360, "height": 740})
    blank.picture("moved", axe=True)
    blank.leave("#delete-story")
    blank.find("#open-stories").click()
    expect(blank.find("#story-list")).not_to_contain_text("A keeper")


def hold_nodes(story: Story, after: int = 0) -> list[Route]:
    """Hold the requests for new nodes after the first ones."""
    held: list[Route] = []
    numbers = count()

    def hold(route: Route) -> None:
        if route.request.method == "POST" and next(numbers) >= after:
            held.append(route)
        else:
            route.continue_()

    story.page.route("**/nodes", hold)
    return held


def test_two_quick_presses_store_typed_text_once(blank: Story, keeper: Scripted) -> None:
    blank.begin(keeper.url)
    blank.set(n=2, max_tokens=6)
    blank.find("#story").fill("Once upon a")
    held = hold_nodes(blank)
    for _ in range(2):
        blank.find("#story").press("Control+Enter")
    blank.page.keyboard.type(" time")
    blank.page.wait_for_timeout(100)
    for route in held:
        route.continue_()
    expect(blank.cards).to_have_count(4)
    blank.wait_done()
    blank.reads("Once upon a time")
    assert [node["text"] for node in blank.nodes(keeper) if node["author"] == "person"] == ["Once upon a"]


def test_keys_pressed_until_the_server_has_a_fork_go_to_the_text(blank: Story, keeper: Scripted) -> None:
    blank.begin(keeper.url)
    blank.set(n=2, max_tokens=12)
    held = hold_nodes(blank, after=1)  # before the first: Chromium may miss requests right after `route`
    blank.generate(PROMPT, cards=2)
    expect(blank.cards.first.locator("[value=keep]")).to_be_enabled()
    with blank.page.expect_request("**/nodes"):
        for key in ("Escape", "ArrowRight", "Enter", "Enter"):
            blank.page.keyboard.press(key)
    blank.page.keyboard.type("so")  # shortcuts, if they went to the card
    assert blank.text == PROMPT + "so"
    held.pop().continue_()
    expect(blank.find("#path button")).to_have_count(3)
    assert blank.text.endswith("so")
    blank.wait_done()


def test_alternatives_reported_before_the_response_are_shown(blank: Story, keeper: Scripted) -> None:
    blank.page.route("**/v1/completions", lambda route: route.fulfill(response=route.fetch()))
    blank.begin(keeper.url)
    blank.set(n=2, max_tokens=12)
    box = blank.find("#story")
    box.fill("The lamp burned.\n\n" * 60)
    box.evaluate("(box) => { box.setSelectionRange(16, 16); scrollTo(0, 0); }")
    box.press("Control+Enter")
    expect(blank.cards).to_have_count(2)
    blank.wait_done()
    expect(blank.cards.first).to_be_in_viewport()


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_alternative_that_ended_unseen_can_be_forked(blank: Story, keeper: Scripted, is_gone: bool) -> None:
    """As with prefetched alternatives, or on a busy machine: the story reports the whole text without its tokens.

    is_gone: whether the server has forgotten the request. Then the page has the text alone.
    """
    blank.begin(keeper.url)
    blank.set(n=2, max_tokens=12)
    held: list[WebSocketRoute] = []
    is_deaf = True

    def hold(socket: WebSocketRoute) -> None:
        if is_deaf:
            held.append(socket)
        else:
            socket.connect_to_server()

    blank.page.route_web_socket(re.compile("/nodes"), hold)
    blank.reload()
    with blank.page.expect_response(lambda each: each.url.endswith("/completions")) as asked:
        blank.find("#story").fill("Once upon a")
        blank.find("#story").press("Control+Enter")
    while [node["length"] for node in blank.nodes(keeper)] != [None, 12, 12]:
        blank.page.wait_for_timeout(20)
    if is_gone:
        keeper.request(f"/v1/completions/{asked.value.headers['x-request-id']}", method="DELETE")
    is_deaf = False
    with blank.page.expect_websocket(lambda each: "/events" in each.url):
        for socket in held:
            socket.connect_to_server()
    blank.wait_done()
    if is_gone:
        blank.excuse("404")
    else:
        expect(blank.cards.nth(1).locator("[data-k]").nth(5)).to_be_visible()
    texts = [blank.said(card) for card in blank.cards.all()]
    blank.reload()
    assert [blank.said(card) for card in blank.cards.all()] == texts


def test_probabilities_are_requested_after_a_reload(blank: Story, keeper: Scripted) -> None:
    """The story has only texts, so the page requests the probabilities again."""
    blank.begin(keeper.url)
    blank.set(n=2, max_tokens=12)
    blank.generate(PROMPT, cards=2)
    said = [blank.said(card) for card in blank.cards.all()]
    words = blank.cards.nth(1).locator("[data-k]")
    assert words.count() == 12
    blank.reload()
    expect(words).to_have_count(0)
    blank.cards.nth(1).locator(".text").focus()
    blank.page.keyboard.press("ArrowRight")  # asks, and goes to the first
    expect(blank.find("#token-preview")).to_be_visible()
    expect(words).to_have_count(12)
    assert [blank.said(card) for card in blank.cards.all()] == said
    expect(blank.find("#token-preview .taken")).to_have_text("(a space)")
    blank.find("#token-preview li:not(:has(.taken)) button").first.press("Enter")
    expect(blank.cards).to_have_count(2)
    blank.wait_done()
    assert blank.text.startswith(PROMPT)
    blank.find("#undo").click()
    expect(blank.cards).to_have_count(3)  # with the fork
    blank.find("#shades").evaluate("(each) => each.click()")  # the first of them has none as yet
    expect(blank.cards.locator("[data-k]").nth(24)).to_be_attached()
