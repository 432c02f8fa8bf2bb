"""Two texts, rated with the keyboard alone; it needs no model."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect
from web.conftest import Story

pytestmark = [pytest.mark.web, pytest.mark.e2e]


def test_rating_with_the_keyboard(blank: Story, tmp_path: Path) -> None:
    row = {"prompt": "p", "prompt_text": "Once", "length": 1, "finish_reason": "stop", "stop_reason": None}
    rows = [
        row | {"setting": setting, "seed": seed, "text": f"{setting}{seed}", "mean_logprob": -1.0, "key": "k"}
        for setting in ("sure", "wild")
        for seed in (1, 2, 3)
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    # What runs in the background ignores the signal, and so do its children.
    interruptible = "import signal, sys, srb.cli; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", interruptible + "sys.exit(srb.cli.main())", "compare", "--rate", str(tmp_path)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SRB_")}
    environ["PYTHONUNBUFFERED"] = "1"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith("rate 3 pairs at http://127.0.0.1:")
        blank.page.goto(line.split()[4])
        status = blank.find("#left")
        expect(status).to_have_text("0 rated, 3 to go")
        assert "sure" in blank.find("#texts").inner_text()
        assert blank.accessibility_faults() == []
        blank.screenshot("rating")
        for key, rated in (("ArrowLeft", 1), ("2", 2), ("Backspace", 1), ("ArrowDown", 2), ("1", 3)):
            blank.page.keyboard.press(key)
            expect(status).to_have_text(f"{rated} rated, {3 - rated} to go")
        expect(blank.find("#prompt")).to_contain_text("All pairs are rated")
        blank.page.keyboard.press("Backspace")
        expect(status).to_have_text("2 rated, 1 to go")
        other = blank.page.context.new_page()
        other.goto(blank.page.url)
        expect(other.locator("#left")).to_have_text("2 rated, 1 to go")
        blank.page.keyboard.press("1")
        expect(status).to_have_text("3 rated, 0 to go")
        other.keyboard.press("2")
        expect(other.locator("#left")).to_contain_text("already rated in another tab")
        other.close()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert out.splitlines()[-1] == f"3 ratings; see {tmp_path / 'report.html'}"
    winners = [json.loads(line)["winner"] for line in (tmp_path / "ratings.jsonl").read_text().splitlines()]
    assert winners == [0, 0.5, 0]
    assert "<h2>Blind ratings</h2>" in (tmp_path / "report.html").read_text()
