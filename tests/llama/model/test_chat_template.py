"""Templates: what they get, what they may not, and how they fail."""

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from tiny_model import CONTROL, EOS, write_tiny_model

from srb.errors import InvalidRequestError, SettingsError
from srb.llama.backend import LlamaBackend
from srb.llama.model.chat_template import TEMPLATES, ChatTemplate
from srb.options.settings import Settings
from srb.wire.request.messages import Message, prompt_of

SOURCE = """{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}{% if mood %} ({{ mood }}){% endif %}"""
HELLO = [{"role": "user", "content": "Hello"}]


def test_a_conversation_becomes_a_prompt() -> None:
    assert ChatTemplate(SOURCE, bos="<s>", eos="</s>").render(HELLO, {}) == "<s>[user] Hello</s>\n[assistant]"
    assert ChatTemplate(SOURCE).render(HELLO, {"mood": "glad"}) == "[user] Hello\n[assistant] (glad)"


def test_the_bos_that_tokenizing_adds_is_left_out() -> None:
    template = ChatTemplate(SOURCE, bos="<s>", adds_bos=True)
    assert template.render(HELLO, {}) == "[user] Hello\n[assistant]"
    assert template.render([{"role": "user", "content": "<s>"}], {}) == "[user] <s>\n[assistant]"


LOOP = "{% for m in messages %}<{{ m.role }}>"
READS_PARTS = {
    "SmolVLM's": "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}",
    "LLaVA's": "{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p['text'] }}{% endfor %}",
    "the first": "{{ m.content[0].text }}",
    "joined": "{{ m.content | map(attribute='text') | join }}",
    "strict": "{% if m.content is string %}{{ raise_exception('a list') }}{% endif %}{{ m.content[0].text }}",
    "of users only": "{{ m.content[0].text if m.role == 'user' else '' + m.content }}",
    "all but the system's": "{{ '' + m.content if m.role == 'system' else m.content[0].text }}",
}


@pytest.mark.parametrize("source", READS_PARTS.values(), ids=READS_PARTS)
def test_a_template_gets_texts_as_parts_where_it_only_reads_these(source: str) -> None:
    conversation = [("system", "Be kind"), ("user", "Hi"), ("assistant", "Hello"), ("tool", "5"), ("user", "Bye")]
    messages = [{"role": role, "content": text} for role, text in conversation]
    for _ in range(2):
        prompt = ChatTemplate(LOOP + source + "{% endfor %}").render(messages, {})
        assert prompt == "".join(f"<{role}>{text}" for role, text in conversation)


def test_a_template_without_the_users_text_is_refused() -> None:
    for source in ("{{ messages[0].role }}", "{{ messages | length }}", LOOP + "{% endfor %}"):
        assert "leaves what users write out" in (ChatTemplate(source).problem or "")
        with pytest.raises(InvalidRequestError, match="the user's last text") as caught:
            prompt_of([Message.model_validate(each) for each in HELLO], {}, ChatTemplate(source))
        assert (caught.value.param, caught.value.code) == ("messages", "message_not_in_prompt")
    changed = ChatTemplate("{% for m in messages %}{{ m.content | replace('/think', '') | upper | trim }}{% endfor %}")
    assert changed.problem is None
    sent = [Message.model_validate({"role": "user", "content": " Who are you? /think"})]
    assert prompt_of(sent, {}, changed) == "WHO ARE YOU?"
    last = ChatTemplate("{{ messages[0].content }}")
    with pytest.raises(InvalidRequestError, match="the user's last text"):
        prompt_of([Message.model_validate(each) for each in (*HELLO, {"role": "user", "content": "Bye"})], {}, last)


def test_a_template_that_needs_tools_gets_none_in_the_way_that_it_can_read() -> None:
    assert ChatTemplate("{% for t in tools %}t{% endfor %}{{ messages[0].content }}").render(HELLO, {}) == "Hello"
    assert ChatTemplate("{{ tools is none }}").render(HELLO, {}) == "True"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[7].content.x }}", "has no element 7"),
        ("{% if %}", "Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(1000000) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_template_that_fails_says_why(source: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        ChatTemplate(source).render(HELLO, {})
    assert (caught.value.param, caught.value.code) == ("messages", "chat_template_failed")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token", "self"])
def test_what_the_server_sets_can_not_be_set(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"can't set {name}"):
        ChatTemplate(SOURCE).render(HELLO, {name: 1, "mood": 1})


def test_the_template_of_a_model_file(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_layer": 1, "chat_template": SOURCE}
    for add_bos in (False, True):
        path = write_tiny_model(tmp_path / f"{add_bos}.gguf", add_bos=add_bos, **options)
        with LlamaBackend(Settings(model=path, ctx_size=256, n=1)) as backend:
            assert backend.chat_template is not None
            assert backend.chat_template.source == SOURCE
            tokens = backend.tokenizer.tokenize(backend.chat_template.render(HELLO, {}))
        assert tokens == (CONTROL, *b"[user] Hello", EOS, *b"\n[assistant]")


def test_a_model_without_a_template_gets_a_plain_one_unless_the_settings_say_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model = write_tiny_model(tmp_path / "none.gguf", n_layer=1)
    file = tmp_path / "own.jinja"
    file.write_text(SOURCE)

    def template(**options: Any) -> Any:
        with LlamaBackend(Settings(model=model, ctx_size=256, n=1, **options)) as backend:
            return backend.chat_template

    plain = template()
    assert "--chat-template names another format (plain, chatml" in caplog.text
    assert (plain.source, plain.stop) == (TEMPLATES["plain"], ("\nUser:",))
    caplog.clear()
    assert template(chat_template="chatml").source == TEMPLATES["chatml"]
    assert template(chat_template=SOURCE).source == template(chat_template_file=file).source == SOURCE
    assert template(chat_template="none") is None
    assert "--chat-template" not in caplog.text
    for options, message in (
        ({"chat_template": "chatlm"}, "--chat-template takes plain, chatml, .*got 'chatlm'"),
        ({"chat_template": "{% if %}"}, "can't be read as Jinja: Expected an expression"),
        ({"chat_template": "{{ messages[0].role }}"}, "leaves what users write out of the prompt"),
        ({"chat_template": "{{ raise_exception('no') }}"}, "can't render a user's message"),
        ({"chat_template_file": tmp_path / "nothing"}, "nothing can't be read"),
    ):
        with pytest.raises(SettingsError, match=message):
            template(**options)
    with pytest.raises(SettingsError, match="exclude each other"):
        template(chat_template="plain", chat_template_file=file)


CONVERSATION = [("system", " Be kind. "), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye")]


@pytest.mark.parametrize("name", ["chatml", "gemma", "llama3", "vicuna", "zephyr"])
def test_what_has_a_name_of_llama_cpps_writes_the_same(name: str) -> None:
    for conversation in (CONVERSATION, CONVERSATION[1:2]):
        messages = [llama_cpp.llama_chat_message(role.encode(), text.encode()) for role, text in conversation]
        array, buffer = (llama_cpp.llama_chat_message * len(messages))(*messages), ctypes.create_string_buffer(1000)
        n = llama_cpp.llama_chat_apply_template(name.encode(), array, len(messages), True, buffer, len(buffer))
        ours = ChatTemplate(TEMPLATES[name], eos="<|endoftext|>" if name == "zephyr" else "</s>")
        assert ours.render([{"role": r, "content": t} for r, t in conversation], {}) == buffer.raw[:n].decode()


def test_the_plain_template() -> None:
    messages = [{"role": role, "content": text} for role, text in CONVERSATION]
    assert ChatTemplate(TEMPLATES["plain"]).render(messages, {}) == (
        " Be kind. \n\nUser: Hi\n\nAssistant: Hello!\n\nUser: Bye\n\nAssistant:"
    )


def test_a_template_gets_the_variables_that_llama_server_gives_it() -> None:
    source = "{{ enable_thinking }} {{ date_string is defined and datetime is defined }}"
    assert ChatTemplate(source).render(HELLO, {}) == "True True"
    assert ChatTemplate(source).render(HELLO, {"enable_thinking": False}) == "False True"
