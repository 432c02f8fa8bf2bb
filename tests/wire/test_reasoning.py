"""Thoughts in a model's text: the tags that templates name, and prompts that end within thoughts."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from srb.engine.media import Media
from srb.llama.model.chat_template import ChatTemplate
from srb.wire.limits import Limits
from srb.wire.reasoning import AnswerReader, ReasoningFormat, reasoning_format
from srb.wire.request.body import Parsed, parse
from srb.wire.request.fields import CompletionFields
from srb.wire.request.read import validate
from srb.wire.tools.calls import PLAIN

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}\n{% endfor %}{{ '<assistant>\\n' }}"
OPEN = ChatTemplate(TURNS + "{{ '<think>\\n' }}")  # as QwQ's and DeepSeek-R1's
MAYBE = ChatTemplate(
    TURNS + "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)  # as Qwen3's
WITHOUT = ChatTemplate(TURNS.replace("</think>", "---"))
THINK = ReasoningFormat("<think>", "</think>")
OPENED = ReasoningFormat("<think>", "</think>", is_open=True)
HELLO = {"role": "user", "content": "hi"}
CALL = PLAIN.write([{"function": {"name": "f", "arguments": "{}"}}])


@pytest.mark.parametrize(
    ("source", "tags"),
    [
        ("content.split('</think>')[-1]", ("<think>", "</think>")),
        ("{{ '[THINK]' + m.reasoning + '[/THINK]' }}", ("[THINK]", "[/THINK]")),
        ("<seed:think>{{ m }}</seed:think>", ("<seed:think>", "</seed:think>")),
        ("◁think▷{{ m }}◁/think▷", ("◁think▷", "◁/think▷")),
        ("<|START_THINKING|>{{ m }}<|END_THINKING|>", ("<|START_THINKING|>", "<|END_THINKING|>")),
        ("<think:os>{{ m }}</think:os>", ("<think:os>", "</think:os>")),
        ("<thought>{{ m }}</thought>", ("<thought>", "</thought>")),
        ("<assistant>{{ '<think>\\n' }}", ("<think>", "</think>")),
        ("{{ m[thinking] }} <3 thinks> m<think", None),
        ("think about it: </tool_call> </thin>", None),
    ],
)
def test_a_template_names_the_tags(source: str, tags: tuple[str, str] | None) -> None:
    found = reasoning_format(ChatTemplate(source))
    assert (found and (found.begin, found.end)) == tags
    assert reasoning_format(None) is None


READ = [
    (OPENED, "Hm.\n</think>\n\nYes.", "Hm.", "Yes.", 0),
    (OPENED, "\n Hm.\n\nHm. \n</think>Yes. \n", "Hm.\n\nHm.", "Yes. \n", 0),
    (OPENED, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.", 0),
    (OPENED, "Hm. </thin> </th", "Hm. </thin> </th", "", 0),
    (OPENED, "Hm.\n</think>\n", "Hm.", "", 0),
    (OPENED, "\n</think>\n\nYes.", "", "Yes.", 0),
    (OPENED, f"So: {CALL} or</think>\n\nWell:\n{CALL}", f"So: {CALL} or", "Well:", 1),
    (OPENED, f"Hm.\n</think>\n\n{CALL}", "Hm.", "", 1),
    (OPENED, "", "", "", 0),
    (OPENED, "<thi", "<thi", "", 0),
    (THINK, "<think>\nHm.\n</think>\n\nYes, </think>.", "Hm.", "Yes, </think>.", 0),
    (THINK, "\n<think>Hm.", "Hm.", "", 0),
    (THINK, "<think>\n\n</think>\n\nYes.", "", "Yes.", 0),
    (THINK, "  \nYes. <think>no</think>", "", "  \nYes. <think>no</think>", 0),
    (THINK, "<thi", "", "<thi", 0),
    (THINK, f"<think>{CALL}</think>{CALL}", CALL, "", 1),
    (THINK, f"Well: {CALL}", "", "Well:", 1),
    (None, "<think>Hm.</think>Yes.", "", "<think>Hm.</think>Yes.", 0),
]


@pytest.mark.parametrize(("form", "text", "thoughts", "answer", "n_calls"), READ, ids=range(len(READ)))
def test_thoughts_are_read_alike_however_the_text_is_cut(
    form: ReasoningFormat | None, text: str, thoughts: str, answer: str, n_calls: int
) -> None:
    rng = random.Random(0)
    for calls in (PLAIN, None) if n_calls == 0 else (PLAIN,):
        for longest in (1, 2, 7, 1 + len(text)):
            reader, deltas, at = AnswerReader(calls, form), [], 0
            while at < len(text):
                size = rng.randint(1, longest)
                deltas += reader.push(text[at : at + size])
                at += size
            deltas += reader.flush()
            assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == thoughts
            assert "".join(delta.text for delta in deltas if delta.kind == "text") == answer
            assert len([delta for delta in deltas if delta.kind == "name"]) == n_calls
            assert all(delta.text for delta in deltas)


def test_nothing_is_buffered_that_cannot_be_a_tag() -> None:
    reader = AnswerReader(None, OPENED)
    assert [delta.text for delta in reader.push("Hm <")] == ["Hm"]
    assert [delta.text for delta in reader.push("b")] == [" <b"]
    assert [(delta.kind, delta.text) for delta in reader.push("!</think> Yes")] == [("reasoning", "!"), ("text", "Yes")]
    assert [delta.text for delta in AnswerReader(None, THINK).push("Yes ")] == ["Yes "]


def take(parts: Sequence[Any]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
    """The tokens of a prompt with images, each of which has the token 1."""
    return tuple(token for part in parts for token in (part.encode() if isinstance(part, str) else b"\1")), ()


def read(template: ChatTemplate, *messages: dict[str, Any], chat: bool = True, **fields: Any) -> tuple[str, Parsed]:
    """The end of the prompt, after the assistant's tag, and what was parsed."""
    body = validate({"messages": list(messages) or [HELLO], "stream": False} | fields, CompletionFields)
    limits = Limits("fake", 1, 8, tokenize=lambda text, **_: tuple(text.encode()), template=template, take=take)
    parsed = parse(body, limits, chat=chat)
    prompt = parsed.completion.prompts[0]
    assert isinstance(prompt, tuple)
    return bytes(prompt).decode().rpartition("<assistant>\n")[2], parsed


def kinds(parsed: Parsed, text: str) -> list[tuple[str, str]]:
    reader = parsed.reader()
    return [(delta.kind, delta.text) for delta in [*reader.push(text), *reader.flush()]]


SPLIT = [("reasoning", "Hm."), ("text", "Yes.")]


def test_the_prompt_tells_whether_the_answer_begins_with_thoughts() -> None:
    for template, prompt, text in [(OPEN, "<think>\n", "Hm.\n</think>\n\nYes."), (MAYBE, "", "<think>Hm.</think>Yes.")]:
        for fields in ({}, {"reasoning_format": "auto"}, {"reasoning_format": "deepseek"}, {"reasoning_format": None}):
            end, parsed = read(template, **fields)
            assert (end, kinds(parsed, text), parsed.ignored) == (prompt, SPLIT, [])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eHh4"}}
    end, parsed = read(OPEN, {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]})
    assert (end, kinds(parsed, "Hm.\n</think>\n\nYes.")) == ("<think>\n", SPLIT)
    user = {"role": "user", "content": "What is <think>?"}
    assert kinds(read(MAYBE, user)[1], "A tag.") == [("text", "A tag.")]
    for parsed in read(WITHOUT)[1], read(OPEN, chat=False)[1], read(OPEN, echo=True)[1]:
        assert kinds(parsed, "<think>Hm.</think>Yes.") == [("text", "<think>Hm.</think>Yes.")]


def test_thoughts_stay_in_the_content_with_their_tags() -> None:
    end, parsed = read(OPEN, reasoning_format="none")
    assert (end, parsed.ignored) == ("<think>\n", [])
    reader = parsed.reader()
    pushed = [*reader.push("Hm.\n</thi"), *reader.push("nk>Yes."), *reader.flush()]
    assert {delta.kind for delta in pushed} == {"text"}
    assert "".join(delta.text for delta in pushed) == "<think>\nHm.\n</think>Yes."
    text = "<think>Hm.</think>Yes."
    assert kinds(read(MAYBE, reasoning_format="none")[1], text) == [("text", text)]


@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        ("legacy", {"reasoning_format": "deepseek-legacy"}),
        ("a number", {"reasoning_format": 1}),
        ("native events", {"reasoning_format": "none", "stream": "events"}),
        ("a completion", {"reasoning_format": "none", "chat": False}),
    ],
)
def test_a_reasoning_format_without_effect_is_reported(sent: str, fields: dict[str, Any]) -> None:
    assert read(OPEN, **fields)[1].ignored == ["reasoning_format"], sent


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"json_schema": {"type": "object"}},
        {"regex": "a+"},
        {"grammar": 'root ::= "a"'},
        {"branches": [{}, {"regex": "a+"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_thoughts_are_closed_where_there_may_be_none(fields: dict[str, Any]) -> None:
    end, parsed = read(OPEN, **fields)
    assert (end, kinds(parsed, "{}")) == ("<think>\n\n</think>\n\n", [("text", "{}")])
    assert read(WITHOUT, **fields)[0] == ""
    assert read(MAYBE, **fields)[0] == ("<think>\n\n</think>\n\n" if "chat_template_kwargs" in fields else "")
    if "chat_template_kwargs" not in fields:
        assert read(OPEN, reasoning_format="none", **fields)[0] == "<think>\n", "the grammar is for the whole text"


def test_a_template_that_can_write_prompts_without_thoughts_does() -> None:
    template = ChatTemplate(TURNS + "{{ '<think>\\n' if enable_thinking else '</think>' }}")  # as DeepSeek-V4's
    for fields in ({"regex": "a+"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert read(template, **fields)[0] == "</think>"
    assert read(template)[0] == "<think>\n"
    assert read(template, HELLO, {"role": "assistant", "content": "Once"}, regex="a+")[0] == "Once"


def test_thoughts_stay_open_with_tools() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    for fields in ({}, {"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        end, parsed = read(OPEN, tools=[tool], **fields)
        assert end == "<think>\n"
        assert [kind for kind, _ in kinds(parsed, f"Hm.</think>{CALL}")] == ["reasoning", "name", "arguments"]
        without = read(WITHOUT, tools=[tool], **fields)[1].completion.branches[0].grammar
        assert parsed.completion.branches[0].grammar != without


def test_a_continued_message_is_not_put_into_thoughts() -> None:
    begun = {"role": "assistant", "content": "Once"}
    for template in (OPEN, MAYBE, WITHOUT):
        end, parsed = read(template, HELLO, begun)
        assert (end, kinds(parsed, " upon")) == ("Once", [("text", " upon")])
    assert read(OPEN, HELLO, begun, regex="a+")[0] == "Once"

    end, parsed = read(OPEN, HELLO, begun | {"reasoning_content": "Hm.\n"})
    assert (end, kinds(parsed, " upon")) == ("<think>\nHm.\n</think>\n\nOnce", [("text", " upon")])

    for thought in ({"content": "", "reasoning_content": "Hm"}, {"content": "<think>\nHm"}):
        end, parsed = read(OPEN, HELLO, {"role": "assistant"} | thought)
        assert (end, kinds(parsed, ".</think>Yes.")) == ("<think>\nHm", [("reasoning", "."), ("text", "Yes.")])


def test_control_tokens_are_text_where_they_are_the_tags() -> None:
    control = ChatTemplate(TURNS.replace("</think>", "[/THINK]"))
    kept: dict[str, Any] = {"reasoning_format": "none"}
    for fields in ({}, kept):
        assert read(control, **fields)[1].completion.special_tokens
    for parsed in read(OPEN)[1], read(control, stream="events")[1], read(control, chat=False)[1]:
        assert not parsed.completion.special_tokens
