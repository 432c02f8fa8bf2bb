"""The chat template, which turns a conversation into a prompt, in a sandboxed Jinja."""

import json
import logging
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from srb.errors import InvalidRequestError, SettingsError
from srb.options.settings import Settings

logger = logging.getLogger("srb.llama")

PLAIN = "plain"
"""The template of models that have none."""

NONE = "none"
"""With this `--chat-template` the server refuses chats."""

STOPS = {PLAIN: ("\nUser:",)}
"""Strings that end the assistant's message, where a format has no token for that."""

TEMPLATES = {
    PLAIN: """\
{% for message in messages -%}
{{ message.content if message.role == 'system' else message.role | capitalize + ': ' + message.content }}

{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}""",
    "chatml": """\
{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "gemma": """\
{% if messages[0].role == 'system' %}{% set system, turns = messages[0].content | trim + '\\n\\n', messages[1:] %}
{%- else %}{% set system, turns = '', messages %}{% endif %}
{%- for message in turns %}{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' +
(system if loop.first else '') + message.content | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    "llama3": """\
{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' +
message.content | trim + '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "vicuna": """\
{% for message in messages %}
{%- if message.role == 'system' %}{{ message.content + '\\n\\n' }}
{%- elif message.role == 'assistant' %}{{ 'ASSISTANT: ' + message.content + eos_token + '\\n' }}
{%- else %}{{ 'USER: ' + message.content + '\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}""",
    "zephyr": """\
{% for message in messages %}{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}""",
}
"""The templates that `--chat-template` knows by name, with llama-server's names. None writes BOS, which is added to
prompts."""

_RESERVED = {
    *("messages", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"),
    *("tools", "tool_choice", "functions", "function_call", "self"),
}


_NO_TOOLS = dict.fromkeys(("tools", "tool_choice", "functions", "function_call"))

_MARK = "srbprobecontent"


def _as_parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


class ChatTemplate:
    """A chat template. Thread-safe. Implements `srb.engine.model.ChatTemplate`.

    Args:
        source: its text, in Jinja.
        bos, eos: the texts of these tokens, which templates write.
        adds_bos: whether tokenizing a prompt adds BOS. Then a BOS that the template writes is removed.
        stop: strings that end the assistant's message.
    """

    def __init__(
        self, source: str, *, bos: str = "", eos: str = "", adds_bos: bool = False, stop: tuple[str, ...] = ()
    ) -> None:
        self.source = source
        self.stop = stop
        self._bos = bos
        self._eos = eos
        self._adds_bos = adds_bos
        self._takes_parts: dict[str, bool] = {}

    def render(
        self,
        messages: list[dict[str, Any]],
        variables: dict[str, Any],
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """Return the prompt for the assistant's next message.

        Contents of messages are texts. A template that only reads lists of parts, as SmolVLM's, gets a list with the
        text. Raises `InvalidRequestError`.
        """
        if reserved := _RESERVED & variables.keys():
            raise InvalidRequestError(
                f"chat_template_kwargs can't set {', '.join(sorted(reserved))}", param="chat_template_kwargs"
            )
        return self._render([self._readable(each) for each in messages], variables, tools)

    def _readable(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if not isinstance(content, str) or not self._reads_parts(message["role"]):
            return message
        return message | {"content": _as_parts(content)}

    def _reads_parts(self, role: str) -> bool:
        """Whether a template shows the content of a role's messages only if it is a list of parts."""
        if role not in self._takes_parts:
            found = self._content_shown(role)
            is_as_users = found is None and role != "user"  # it wants more than a probe has
            self._takes_parts[role] = self._reads_parts("user") if is_as_users else found == "parts"
        return self._takes_parts[role]

    def _content_shown(self, role: str) -> Literal["text", "parts", "nothing"] | None:
        """Learn by a mark what a template shows of a role's messages. None: it can't render them.

        llama-server finds this out in the same way (`caps_get` in llama.cpp's `common/jinja`).
        """
        found: Literal["nothing"] | None = None
        for content in (_MARK, _as_parts(_MARK)):
            with suppress(InvalidRequestError):
                if _MARK in self._render(self._probe({"role": role, "content": content}), {}, None).casefold():
                    return "text" if content == _MARK else "parts"
                found = "nothing"
        return found

    def _probe(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a conversation with a message at a place that suits its role."""
        if message["role"] == "user":
            return [message]
        asked = self._readable({"role": "user", "content": "."})
        if message["role"] == "assistant":
            return [asked, message, asked]
        if message["role"] == "tool":
            function = {"name": "f", "arguments": {}}
            calls = [{"id": "000000000", "type": "function", "function": function}]
            calling = self._readable({"role": "assistant", "content": ""}) | {"tool_calls": calls}
            return [asked, calling, message | {"tool_call_id": "000000000", "name": "f"}]
        return [message, asked]

    @cached_property
    def problem(self) -> str | None:
        """Why the template can't be used, if it can't: it fails, or leaves out what users write."""
        try:
            _ = self._template
        except Exception as error:
            return f"the chat template can't be read as Jinja: {error}"
        match self._content_shown("user"):
            case "nothing":
                return "the chat template leaves what users write out of the prompt"
            case None:
                return "the chat template can't render a user's message"
        return None

    def _render(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], tools: list[dict[str, Any]] | None
    ) -> str:
        given = _usual_variables() | variables
        given |= {"messages": messages, "add_generation_prompt": True}
        given |= {"bos_token": self._bos, "eos_token": self._eos}
        attempts = [given | _NO_TOOLS | {"tools": tools}]
        if tools is None:  # some want None, as transformers has it, and some no such variables, as llama-server
            attempts.append(given)
        errors: list[Exception] = []
        for values in attempts:
            try:
                prompt = self._template.render(values)
                return prompt.removeprefix(self._bos) if self._adds_bos else prompt
            except Exception as error:  # a template is a program of the model's author, and may raise any exception
                errors.append(error)
        raise InvalidRequestError(
            f"the model's chat template can't take these messages: {str(errors[0]) or type(errors[0]).__name__}",
            param="messages",
            code="chat_template_failed",
        )

    @cached_property
    def _template(self) -> jinja2.Template:
        """The compiled template, with the functions, filters and tags that transformers gives to chat templates."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": lambda text: datetime.now().strftime(text)}
        return environment.from_string(self.source)


class _GenerationTag(jinja2.ext.Extension):
    """Ignores `{% generation %}`, which marks for training what the assistant wrote."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> None:
    raise ValueError(message)


def _usual_variables() -> dict[str, Any]:
    """Return the variables that llama-server sets, too. Without them some models don't think, or lack the date."""
    now = datetime.now()
    return {"enable_thinking": True, "date_string": f"{now:%d %b %Y}", "datetime": f"{now:%b %d %Y}"}


def chat_template_of(model: Any, settings: Settings) -> ChatTemplate | None:
    """Return the template of the settings, else that of the model, else a plain one; None if the settings refuse chats.

    Raises `SettingsError` if they name an unknown template, or one that can't be used.
    """
    import llama_cpp

    given = _given(settings)
    if given == NONE:
        return None
    source = given or (llama_cpp.llama_model_chat_template(model, None) or b"").decode(errors="replace")
    if not source:
        logger.info(
            "the model has no chat template; chats are written as User: and Assistant:, unless --chat-template names "
            "another format (%s)",
            ", ".join(TEMPLATES),
        )
        source = PLAIN
    vocab = llama_cpp.llama_model_get_vocab(model)

    def name(token: int) -> str:
        return "" if token < 0 else llama_cpp.llama_vocab_get_text(vocab, token).decode(errors="replace")

    template = ChatTemplate(
        TEMPLATES.get(source, source),
        bos=name(llama_cpp.llama_vocab_bos(vocab)),
        eos=name(llama_cpp.llama_vocab_eos(vocab)),
        adds_bos=llama_cpp.llama_vocab_get_add_bos(vocab),
        stop=STOPS.get(source, ()),
    )
    if given and template.problem:
        raise SettingsError(template.problem)
    if template.problem:
        logger.warning("%s; choose another one with --chat-template (%s)", template.problem, ", ".join(TEMPLATES))
    return template


def _given(settings: Settings) -> str | None:
    """Return the name or the text of the template in the settings; None without one. Raises `SettingsError`."""
    text, file, option = settings.chat_template, settings.chat_template_file, "--chat-template"
    if file is not None:
        option = f"--chat-template-file {file}"
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{option} can't be read: {error}") from None
    if text is None or text in TEMPLATES or text == NONE or "{" in text:
        return text
    known = ", ".join((*TEMPLATES, NONE))
    raise SettingsError(f"{option} takes {known}, or a template in Jinja, with braces in it; got {text[:60]!r}")
