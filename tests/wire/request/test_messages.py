"""Conversations as prompts: values that say nothing, in each format's notation."""

import json
from typing import Any

import pytest

from srb.errors import InvalidRequestError
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


def text(of: str) -> dict[str, Any]:
    return {"type": "text", "text": of}


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "tool_reference", "tool_name": "Read"}, "Read"),
        (
            {"type": "search_result", "source": "http://x", "title": "Rain", "content": [text("It"), text("rains.")]},
            "Rain\nhttp://x\nIt\nrains.",
        ),
        ({"type": "search_result", "source": "http://x", "title": None, "content": None}, "http://x\n"),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "abc"}}, "abc"),
        (
            {"type": "document", "title": "T", "context": None, "source": {"type": "content", "content": "abc"}},
            "T\nabc",
        ),
        ({"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}}, "a\nb"),
    ],
)
def test_blocks_that_have_a_text_are_texts(block: dict[str, Any], shown: str) -> None:
    turn = {"role": "user", "content": [text("See"), block]}
    assert anthropic([turn]) == f"user=See\n{shown}|>"
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [block]}
    assert f"<tool_response>\n{shown}\n</tool_response>" in anthropic(
        [HELLO, use, {"role": "user", "content": [result]}]
    )


def test_a_document_that_is_no_text_is_refused() -> None:
    block = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
    with pytest.raises(InvalidRequestError, match="a document whose source is neither of the type text nor content"):
        anthropic([{"role": "user", "content": [block]}])


@pytest.mark.parametrize("number", [1, 2])
def test_the_billing_header_of_claude_code_is_no_part_of_the_prompt(number: int) -> None:
    header = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number};"
    assert anthropic([HELLO], system=[text(header), text("Be brief.")]) == "system=Be brief.|user=hi|>"
    assert anthropic([HELLO], system=[text(header)]) == "user=hi|>"
    system = {"role": "system", "content": [text(header), text("Be brief.")]}
    assert chat([system, HELLO]) == "system=Be brief.|user=hi|>"
    assert chat([{"role": "user", "content": header}]) == f"user={header}|>"


def test_items_of_responses() -> None:
    thinking = ChatTemplate(
        "{% for m in messages %}{{ m.role }}({{ m.reasoning_content }})={{ m.content }}|{% endfor %}"
    )
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    full = thought | {"content": [{"type": "reasoning_text", "text": "Hmm."}], "encrypted_content": "x"}
    answer = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "A", "annotations": []}],
    }
    assert responses([HELLO, thought, answer, HELLO], thinking) == "user()=hi|assistant(Hm.)=A|user()=hi|"
    assert responses([HELLO, full, answer, HELLO], thinking) == "user()=hi|assistant(Hmm.)=A|user()=hi|"
    empty: dict[str, Any] = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"}
    assert responses([HELLO, empty, answer, thought, HELLO], thinking) == "user()=hi|assistant()=A|user()=hi|"
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "rain"}]}
    assert "<tool_response>\nrain\n" in responses([HELLO, thought, call, output])
    assert responses([{"type": "item_reference", "id": "rs_1"}, HELLO]) == "user=hi|>"
    assert responses([{"type": None, "id": "rs_1"}, HELLO]) == "user=hi|>"
    assert responses([{"type": "tool_search_call"}, {"type": "tool_search_output", "tools": []}, HELLO]) == "user=hi|>"


def test_what_vendors_own_tools_have_written_is_left_out() -> None:
    """A conversation that began elsewhere can go on here."""
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    answer = {"role": "assistant", "content": [search, found, text("A") | {"citations": None}]}
    assert anthropic([HELLO, answer, HELLO]) == "user=hi|assistant=A|user=hi|>"
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    tools = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "d", "tools": []}
    seen = {"type": "computer_call_output", "call_id": "1", "output": {"type": "computer_screenshot", "image_url": "x"}}
    assert responses([searched, tools, seen, HELLO, searched]) == "user=hi|>"
    with pytest.raises(InvalidRequestError, match=r'input\[0\].type: should be one of message, .*, got "mesage"'):
        responses([{"type": "mesage", "role": "user", "content": "hi"}])


def test_calls_of_tools_that_take_a_text() -> None:
    custom = {"id": "1", "type": "custom", "custom": {"name": "f", "input": "a b"}}
    result = {"role": "tool", "tool_call_id": "1", "content": "rain"}
    call = CALL | {"function": {"name": "f", "arguments": '{"input": "a b"}'}}
    expected = chat([HELLO, {"role": "assistant", "content": "", "tool_calls": [call]}, result])
    assert "a b" in expected
    assert chat([HELLO, {"role": "assistant", "tool_calls": [custom]}, result]) == expected
    items = [
        {"type": "custom_tool_call", "call_id": "1", "name": "f", "input": "a b", "id": "ctc_1"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "rain"},
    ]
    assert responses([HELLO, *items]) == expected


ONE_SYSTEM = """\
{% for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}
{%- if not loop.first and m.role == loop.previtem.role %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- m.role[0] }}={{ m.content }}|{% endfor %}>"""
NO_SYSTEM = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}" + (
    "{{ m.role[0] }}={{ m.content }}|{% endfor %}>"
)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_that_a_template_refuses(role: str) -> None:
    first, later = {"role": role, "content": "S"}, {"role": role, "content": "T"}
    answer = {"role": "assistant", "content": "A"}
    one, none = ChatTemplate(ONE_SYSTEM), ChatTemplate(NO_SYSTEM)
    for read in (chat, anthropic, responses):
        assert read([first, later, HELLO], one) == "s=S\n\nT|u=hi|>"
        assert read([first, HELLO, later], one) == "s=S|u=hi\n\nT|>"
        assert read([first, HELLO, answer, later, HELLO], one) == "s=S|u=hi|a=A|u=T\n\nhi|>"
        assert read([HELLO, answer, later], one) == "u=hi|a=A|u=T|>"
        assert read([first, HELLO], none) == "u=S\n\nhi|>"
        assert read([first, HELLO, later, answer], TEMPLATE).endswith("|user=hi|system=T|>A")


def test_a_template_that_refuses_something_else_says_so() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        chat([HELLO, HELLO], ChatTemplate(ONE_SYSTEM))
    with pytest.raises(InvalidRequestError, match="never"):
        chat([{"role": "system", "content": "S"}, HELLO], ChatTemplate("{{ raise_exception('never') }}"))
