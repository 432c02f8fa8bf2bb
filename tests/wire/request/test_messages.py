"""Conversations as prompts: values that say nothing, in each format's notation."""

import json
from typing import Any

import pytest

from srb.llama.model.chat_template import ChatTemplate
from srb.wire.anthropic.messages import MessagesFields
from srb.wire.ollama.chat import OllamaChatFields
from srb.wire.openai.responses import ResponseFields, conversation_of
from srb.wire.request.fields import CompletionFields
from srb.wire.request.messages import prompt_of
from srb.wire.request.read import validate

TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.role }}={{ m.content }}|{% endfor %}>")
HELLO = {"role": "user", "content": "hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(messages: list[Any], template: ChatTemplate = TEMPLATE) -> str:
    return prompt_of(validate({"messages": messages}, CompletionFields).messages or [], {}, template)


def ollama(messages: list[Any]) -> str:
    return prompt_of(validate({"messages": messages}, OllamaChatFields).messages or [], {}, TEMPLATE)


def anthropic(messages: list[Any], template: ChatTemplate = TEMPLATE, **fields: Any) -> str:
    return prompt_of(validate({"messages": messages} | fields, MessagesFields).chat["messages"], {}, template)


def responses(items: list[Any], template: ChatTemplate = TEMPLATE) -> str:
    return prompt_of(conversation_of(validate({"input": items}, ResponseFields).input), {}, template)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"role": "assistant", "content": "a", "tool_calls": []}, {"role": "assistant", "content": "a"}),
        ({"role": "assistant", "content": "a", "tool_calls": None}, {"role": "assistant", "content": "a"}),
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        ({"role": "system"}, {"role": "system", "content": ""}),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (
            {"role": "user", "content": [{"type": "text", "text": None}, None, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "b"},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
        ),
    ],
)
def test_a_value_that_says_nothing_is_as_if_absent(sent: dict[str, Any], meant: dict[str, Any]) -> None:
    for read in (chat, ollama, anthropic, responses):
        for conversation in ([sent, HELLO], [HELLO, sent]):
            expected = [meant if each is sent else each for each in conversation]
            assert read(conversation) == read(expected), read.__name__


def test_calls_without_arguments_have_an_empty_object() -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": ""}
    expected = chat([HELLO, {"role": "assistant", "content": "", "tool_calls": [CALL]}, result])
    assert '"arguments": {}' in expected
    for arguments in (None, "", json.loads("{}")):
        call = {"id": "1", "type": None, "function": {"name": "f", "arguments": arguments}}
        assert chat([HELLO, {"role": "assistant", "tool_calls": [call]}, result | {"content": None}]) == expected
        assert ollama([HELLO, {"role": "assistant", "tool_calls": [call]}, result | {"content": None}]) == expected
    uses = [{"type": "tool_use", "id": "1", "name": "f", "input": None}, {"type": "thinking", "thinking": None}]
    results = [{"type": "tool_result", "tool_use_id": "1", "content": None}]
    assert anthropic([HELLO, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]) == expected
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": None}
    assert responses([HELLO, call, {"type": "function_call_output", "call_id": "1", "output": None}]) == expected


def test_null_in_a_tool_choice_of_anthropic() -> None:
    choice = {"type": "auto", "name": None, "disable_parallel_tool_use": None}
    assert json.dumps(validate({"messages": [HELLO], "tool_choice": choice}, MessagesFields).chat["tool_choice"])
