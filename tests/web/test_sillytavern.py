"""SillyTavern's own page in Chromium: several swipes from one request.

npm installs SillyTavern (400 MB) into the folder of this run, which takes 20 s, and its first start compiles its page,
which takes 15 s.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect
from real_server import free_port
from scripted import Scripted

pytestmark = [pytest.mark.web, pytest.mark.nightly]

VERSION = "1.19.0"
PUBLISHED_BEFORE = "2026-11-28"
"""Its dependencies are taken as they were on this day, so that a run doesn't depend on today's versions."""
SWIPES = 4


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SillyTavern, installed by npm."""
    if not shutil.which("npm"):
        assert not os.environ.get("CI"), "CI installs npm, but it isn't there"
        pytest.skip("SillyTavern needs Node and npm, which aren't installed: apt install nodejs npm")
    folder = tmp_path_factory.mktemp("sillytavern")
    command = ["npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"]
    command += ["--before", PUBLISHED_BEFORE, f"sillytavern@{VERSION}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"npm can't install SillyTavern: {done.stdout}")
    assert done.returncode == 0, done.stdout
    return folder / "node_modules" / "sillytavern"


def settings(package: Path, url: str) -> dict[str, Any]:
    """SillyTavern's default settings, with what a user chooses for srb."""
    chosen: dict[str, Any] = json.loads((package / "default/content/settings.json").read_text())
    chosen |= {"firstRun": False, "active_character": "default_Seraphina.png", "amount_gen": 60, "max_context": 4096}
    chosen |= {"main_api": "textgenerationwebui"}
    chosen["power_user"] |= {"auto_connect": True, "auto_load_chat": True}
    chosen["textgenerationwebui_settings"] |= {"type": "llamacpp", "server_urls": {"llamacpp": url}}
    chosen["textgenerationwebui_settings"] |= {"n": SWIPES, "streaming": True}
    return chosen


@pytest.fixture
def tavern(package: Path, server: Scripted, tmp_path: Path) -> Iterator[str]:
    """The address of a running SillyTavern that knows the server."""
    user = tmp_path / "data" / "default-user"
    user.mkdir(parents=True)
    (user / "settings.json").write_text(json.dumps(settings(package, server.url)))
    log, port = tmp_path / "log", free_port()
    command = ["node", "server.js", "--port", str(port), "--browserLaunchEnabled", "false"]
    command += ["--configPath", str(tmp_path / "config.yaml"), "--dataRoot", str(tmp_path / "data")]
    environment = os.environ | {"SILLYTAVERN_EXTENSIONS_ENABLED": "false"}
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=package, env=environment, stdout=file, stderr=file)
    try:
        while "Go to:" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:  # also after a timeout
        process.terminate()
        process.wait(30)


@pytest.fixture
def page(browser: Browser, tavern: str) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.goto(tavern)
    yield page
    context.close()


def press_swipe(answer: Locator) -> None:
    """Swipe to the right, once SillyTavern allows it. On a busy machine it may show its arrow much later."""
    answer.page.wait_for_function("SillyTavern.getContext().swipe.isAllowed()")
    answer.locator(".swipe_right").dispatch_event("click")


def swipe(answer: Locator, counter: str) -> str:
    """Show the next swipe, and return its text. SillyTavern writes the counter with spaces of no width."""
    press_swipe(answer)
    expect(answer.locator(".swipes-counter")).to_have_text(re.compile(rf"^{counter}$".replace("/", r"\W*/\W*")))
    return answer.locator(".mes_text").inner_text()


def counted(server: Scripted) -> dict[str, int]:
    """Prompt tokens that clients sent and the server evaluated, and how often a prompt was forked."""
    found = re.findall(r"^(\S+) (\d+)", server.request("/metrics")[1], re.MULTILINE)
    names = {"srb:prompt_tokens_asked_total", "llamacpp:prompt_tokens_total", "srb:forks_total"}
    return {name.partition(":")[2]: int(count) for name, count in found if name in names}


def test_one_request_gives_several_swipes(page: Page, server: Scripted) -> None:
    asked: list[Any] = []

    def hear(request: Request) -> None:
        if request.url.endswith("/generate"):
            asked.append(request.post_data_json)

    page.on("request", hear)
    answer = page.locator("#chat .last_mes")
    expect(page.locator("#send_but")).to_be_visible()
    before = counted(server)
    page.locator("#send_textarea").fill("Who are you?")
    page.locator("#send_but").click()
    expect(page.locator("#chat .mes")).to_have_count(3)
    expect(page.locator("#mes_stop")).to_be_hidden()

    texts = [answer.locator(".mes_text").inner_text()]
    texts += [swipe(answer, f"{number}/{SWIPES}") for number in range(2, SWIPES + 1)]
    assert len(set(texts)) == SWIPES
    assert min(map(len, texts)) > 20
    assert [each["n"] for each in asked] == [SWIPES]
    after = counted(server)
    changed = {name: after[name] - before[name] for name in after}
    assert changed["forks_total"] == SWIPES - 1
    assert changed["prompt_tokens_total"] == changed["prompt_tokens_asked_total"] > 1000

    # The next swipe asks again. Its prompt is in the prefix cache, and Stop keeps what there is of each text.
    server.go(pace=0.05)  # SillyTavern shows at most 30 changes a second
    server.hold_after(20)
    press_swipe(answer)
    expect(page.locator("#mes_stop")).to_be_visible()
    expect(answer.locator(".mes_text")).to_have_text(re.compile(r"\w{2}"))
    page.locator("#mes_stop").click()
    server.go()
    expect(page.locator("#mes_stop")).to_be_hidden()
    parts = [answer.locator(".mes_text").inner_text()]
    parts += [swipe(answer, f"{number}/{2 * SWIPES}") for number in range(SWIPES + 2, 2 * SWIPES + 1)]
    assert all(0 < len(part) < 60 for part in parts)
    assert [each["n"] for each in asked] == [SWIPES, SWIPES]
    assert counted(server)["prompt_tokens_total"] == after["prompt_tokens_total"]
