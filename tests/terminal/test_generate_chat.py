"""`srb generate` asks a model, and goes on from what a person keeps; wide windows have columns."""

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from fake_backend import ByteTokenizer, FakeBackend, says
from rich.console import Console
from terminal.conftest import Run
from terminal.test_show import START, stop

from srb.llama.model.chat_template import ChatTemplate
from srb.terminal import generate
from srb.terminal.generate import continued
from srb.terminal.show import Alternative, Growing

TEMPLATE = "{% for each in messages %}{{ each.role[0] }}:{{ each.content }}|{% endfor %}a:"


@pytest.fixture
def asked(backend: FakeBackend) -> list[str]:
    """The prompts that the model has got."""
    asked: list[str] = []

    class Heard(ByteTokenizer):
        def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
            asked.append(text)
            return super().tokenize(text, is_prompt=is_prompt, parse_special=parse_special)

    backend.chat_template = ChatTemplate(TEMPLATE)
    backend.tokenizer = Heard()
    return asked


def test_a_question_is_written_by_the_chat_template(srb: Run, asked: list[str]) -> None:
    assert srb("generate", "Who are you?", "--chat", "-n", "1", "--max-tokens", "2") == 0
    assert srb("generate", "Who are you?", "--system", "Be brief.", "-n", "1", "--max-tokens", "2") == 0
    assert asked == ["u:Who are you?|a:", "s:Be brief.|u:Who are you?|a:"]
    assert srb("generate", "Who are you?", "--chat", "--max-tokens", "2") == 0
    assert len(srb.out.splitlines()) == 8


def test_a_wrong_option_of_a_chat_is_told_before_the_model_is_loaded(srb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("srb.serving.async_engine.load_backend")
    assert srb("generate", "Who?", "--chat", "--top-p", "7") == 2
    assert "top_p must be from 0 to 1" in srb.err
    assert srb("generate", "Who?", "--chat", "--interactive") == 2
    assert "--interactive needs a terminal" in srb.err


def answers(*said: str) -> tuple[list[str], Callable[[str], str]]:
    """What was asked, and a person who says these."""
    questions: list[str] = []
    left = iter(said)

    def ask(question: str) -> str:
        questions.append(question)
        return next(left)

    return questions, ask


ALTERNATIVES = [Alternative("0", 7, " one"), Alternative("wild", 8, " two")]


def test_what_is_kept_is_a_part_of_the_next_prompt() -> None:
    body: dict[str, Any] = {"prompt": "Once", "n": 2}
    questions, ask = answers("5", "wild")
    assert continued(body, ALTERNATIVES, ask) == {"prompt": "Once two", "n": 2}
    assert questions == ["continue which of 0, wild? (Enter ends) ", "there is no 5; continue which of 0, wild? "]
    assert continued(body, ALTERNATIVES, answers(" 1 ")[1]) == {"prompt": "Once two", "n": 2}
    assert continued(body, ALTERNATIVES, answers("")[1]) is None
    # The model's last token stays as it is.
    healed = continued(body | {"heal": True}, ALTERNATIVES, answers("1")[1])
    assert healed == {"prompt": "Once two", "n": 2, "heal": False}


def test_a_chat_goes_on_with_the_answer_and_the_next_message() -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    assert continued(body, ALTERNATIVES, answers("0", "And you?")[1]) == {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": " one"},
            {"role": "user", "content": "And you?"},
        ]
    }
    assert continued(body, ALTERNATIVES, answers("0", "")[1]) is None


@pytest.fixture
def growing(in_terminal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has texts that grow in a terminal, which nobody sees."""
    console = Console(file=io.StringIO(), force_terminal=True, width=70)
    monkeypatch.setattr(generate, "view_of", lambda *_, **__: Growing(console))


@pytest.mark.usefixtures("growing")
def test_a_person_goes_on_until_nothing_is_kept(
    srb: Run, backend: FakeBackend, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.script = says(b"ab")
    _, ask = answers("0", "0", "")
    monkeypatch.setattr(generate, "ask", ask)
    assert srb("generate", "p", "-i", "-n", "1", "--max-tokens", "1", "--no-heal") == 0
    assert asked == ["p", "pa", "pab"]


@pytest.mark.usefixtures("growing")
def test_a_chat_asks_for_nothing_that_has_no_effect(srb: Run, asked: list[str]) -> None:
    assert srb("generate", "--chat", "p", "-n", "1", "--max-tokens", "1") == 0
    assert srb.err == ""


def test_wide_windows_have_columns() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=130, height=20, color_system=None, highlight=False)
    with Growing(console) as view:
        view.show(START)
        view.show({"event": "stream", "index": 0, "text": "left " * 200})
        view.show({"event": "stream", "index": 1, "text": "right"})
        view.show(stop(1, 3))
        with console.capture() as capture:
            console.print(view.render())
        out.truncate(0)
        out.seek(0)
    during, after = capture.get().splitlines(), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", out.getvalue()).splitlines()
    assert len(during) < 20
    assert during[0].split() == ["0", "seed", "7", "wild", "seed", "8", "·", "3", "tokens", "·", "stop"]
    assert during[1].split()[-1] == "right"
    assert len(after) > 20
    assert all(len(line) <= 130 for line in during + after)
    last = " ".join(after).rpartition("0 seed 7")[2]  # what was live is cleared
    assert (last.count("left"), last.count("right")) == (200, 1)
