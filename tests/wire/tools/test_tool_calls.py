"""How calls are written, as templates tell it, and how they are read out of a text that comes in pieces."""

import json
import random
from typing import Any

import pytest

from srb.llama.model.chat_template import ChatTemplate
from srb.wire.tools.calls import PLAIN, CallFormat, CallReader, Delta, call_format, call_id
from srb.wire.tools.definitions import without_tools

HEAD = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
TAIL = "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"

HERMES = f"""{HEAD}{{% for call in m.tool_calls %}}
<tool_call>
{{"name": "{{{{ call.function.name }}}}", "arguments": {{{{ call.function.arguments | tojson }}}}}}
</tool_call>
{{%- endfor %}}{TAIL}"""
LLAMA = f"""{HEAD}{{% if m.tool_calls | length > 1 %}}{{{{ raise_exception('') }}}}{{% endif %}}{{% if m.tool_calls %}}
{{{{- '{{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}}}
{{{{- m.tool_calls[0].function.arguments | tojson + '}}' }}}}{{% endif %}}{TAIL}"""
MISTRAL = f"""{HEAD}{{% if m.tool_calls %}}[TOOL_CALLS][{{% for call in m.tool_calls %}}
{{{{- '{{"name": "' + call.function.name + '", "arguments": ' }}}}{{{{ call.function.arguments | tojson }}}}
{{{{- ', "id": "' + call.id + '"}}' }}}}{{{{ '' if loop.last else ', ' }}}}{{% endfor %}}]{{% endif %}}{TAIL}"""
FUNCTIONARY = f"""{HEAD}{{% for call in m.tool_calls %}}<function={{{{ call.function.name }}}}>
{{{{- call.function.arguments + '</function>' }}}}{{% endfor %}}{{% if m.tool_calls %}}<|eom|>{{% else %}}{TAIL[:7]}
{{%- endif %}}{TAIL[7:]}"""
XML = f"""{HEAD}{{% for call in m.tool_calls %}}<tool_call>{{{{ call.function.name }}}}
{{%- for name, value in call.function.arguments.items() %}}<{{{{ name }}}}>{{{{ value }}}}{{% endfor %}}</tool_call>
{{%- endfor %}}{TAIL}"""

HERMES_FORMAT = CallFormat(PLAIN.begin, PLAIN.middle, PLAIN.end, PLAIN.end + PLAIN.begin)
LLAMA_FORMAT = CallFormat('{"name": "', '", "parameters": ', "}", None)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (HERMES, HERMES_FORMAT),
        (LLAMA, LLAMA_FORMAT),
        (
            MISTRAL,
            CallFormat(
                '[TOOL_CALLS][{"name": "',
                '", "arguments": ',
                ', "id": "000000000"}]',
                ', "id": "000000000"}, {"name": "',
            ),
        ),
        (FUNCTIONARY, CallFormat("<function=", ">", "</function>", "</function><function=", as_text=True)),
        (XML, PLAIN),
        (f"{HEAD}{TAIL}", PLAIN),
        ("{{ messages[0].content }}", PLAIN),
        ("{% if tools %}{{ raise_exception('no') }}{% endif %}", PLAIN),
    ],
    ids=["hermes", "llama", "mistral", "functionary", "xml", "no calls", "no tools", "fails"],
)
def test_a_template_tells_how_its_model_writes_calls(source: str, expected: CallFormat) -> None:
    assert call_format(ChatTemplate(source)) == expected


def test_a_text_is_a_call_from_its_first_word_that_is_no_json_on() -> None:
    assert PLAIN.trigger == "<tool_call>"
    assert LLAMA_FORMAT.trigger == ""
    assert CallFormat('[TOOL_CALLS][{"name": "', "", "", None).trigger == "[TOOL_CALLS]["


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


def joined(deltas: list[Delta]) -> list[tuple[str, str, int | None]]:
    """The deltas with those joined that belong together."""
    result: list[tuple[str, str, int | None]] = []
    for delta in deltas:
        if result and (result[-1][0], result[-1][2]) == (delta.kind, delta.call):
            result[-1] = (delta.kind, result[-1][1] + delta.text, delta.call)
        else:
            result.append((delta.kind, delta.text, delta.call))
    return result


NASTY = json.dumps({"a": 'brackets }]{[ and "quotes" \\', "b": [{"c": "</tool_call>"}, []], "é": {}})
TWO = PLAIN.write([call("f", NASTY), call("g", "{}")])
CALLS: list[tuple[str, str, int | None]] = [
    ("name", "f", 0),
    ("arguments", NASTY, 0),
    ("name", "g", 1),
    ("arguments", "{}", 1),
]
READ: list[tuple[str, CallFormat, str, list[tuple[str, str, int | None]], bool]] = [
    ("text", PLAIN, "Hello <tool> < \n", [("text", "Hello <tool> < \n", None)], False),
    ("calls", PLAIN, TWO, CALLS, True),
    ("text before", PLAIN, f"Let me see.\n\n{TWO}", [("text", "Let me see.", None), *CALLS], True),
    ("spaces before", PLAIN, f" \n{TWO}", CALLS, True),
    ("space after", PLAIN, f"{TWO}\n", CALLS, True),
    ("cut in a name", PLAIN, "Well <tool_call>\n{", [("text", "Well <tool_call>\n{", None)], False),
    (
        "cut in arguments",
        PLAIN,
        TWO[: TWO.index("</")],
        [CALLS[0], ("arguments", NASTY[: NASTY.index("</")], 0)],
        False,
    ),
    ("cut in the end", PLAIN, TWO[:-3], CALLS, True),
    ("json", LLAMA_FORMAT, LLAMA_FORMAT.write([call("f", NASTY)]), CALLS[:2], True),
    ("json, later", LLAMA_FORMAT, 'See {"name": "f"', [("text", 'See {"name": "f"', None)], False),
    ("json, but no call", LLAMA_FORMAT, '{"name": 5}', [("text", '{"name": 5}', None)], False),
]


@pytest.mark.parametrize(
    ("form", "text", "expected", "is_complete"), [each[1:] for each in READ], ids=[r[0] for r in READ]
)
def test_calls_are_read_alike_however_the_text_is_cut(
    form: CallFormat, text: str, expected: list[tuple[str, str, int | None]], is_complete: bool
) -> None:
    rng = random.Random(0)
    for longest in (1, 2, 7, len(text)):
        reader, deltas, at = CallReader(form), [], 0
        while at < len(text):
            size = rng.randint(1, longest)
            deltas += reader.push(text[at : at + size])
            at += size
        deltas += reader.flush()
        assert joined(deltas) == expected
        assert reader.is_complete == is_complete
        assert all(delta.text for delta in deltas)


def test_nothing_is_buffered_that_cannot_be_a_call() -> None:
    reader = CallReader(PLAIN)
    assert reader.push("Hello") == [Delta("text", "Hello")]
    assert reader.push(" <") == []
    assert reader.push("b>") == [Delta("text", " <b>")]
    reader = CallReader(LLAMA_FORMAT)
    assert reader.push('{"n') == []
    assert reader.push("o") == [Delta("text", '{"no')]
    assert reader.push('{"name": "f", "parameters": {}}')[0].kind == "text"


def test_an_id_is_the_same_each_time_and_fits_mistrals_templates() -> None:
    ids = {call_id("chatcmpl-1", index, number) for index in range(10) for number in range(10)}
    assert len(ids) == 100
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert call_id("chatcmpl-1", 0, 0) in ids


def test_a_template_without_tools_gets_texts() -> None:
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Wait.", "tool_calls": [call("f", '{"a": 1}'), call("g", {"b": "é"})]},
        {"role": "tool", "content": "one", "tool_call_id": "1"},
        {"role": "tool", "content": "two", "tool_call_id": "2"},
    ]
    tool = {"type": "function", "function": {"name": "f"}}
    system, *said = without_tools(conversation, [tool])
    assert system["role"] == "system"
    assert json.dumps(tool) in system["content"]
    assert said == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": 'Wait.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {"b": "é"}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>",
        },
    ]
    assert without_tools(conversation, []) == said
    first = without_tools([{"role": "system", "content": "Be kind."}, *conversation], [tool])[0]
    assert first["content"].startswith("Be kind.\n\n")
