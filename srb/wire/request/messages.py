"""Reads conversations, and makes prompts of them: bodies with `messages` instead of a prompt."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from srb.engine.model import ChatTemplate
from srb.errors import InvalidRequestError
from srb.wire.reasoning import ReasoningFormat, reasoning_format
from srb.wire.request.media import FILES, Mixed, as_content, not_here
from srb.wire.request.read import PartFields
from srb.wire.tools.calls import arguments_text, call_format
from srb.wire.tools.definitions import Tools, simplified, without_tools


def as_text(content: Any) -> Any:
    """Return the text of a content that may come in parts. As in llama-server, each part begins a new line."""
    for k, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and part.get("type") in FILES:
            raise ValueError(f"part {k} is of the type {part['type']!r}; only text is accepted here")
    if isinstance(made := as_content(content), Mixed):
        raise ValueError("images and sounds aren't accepted here, only text")
    return made


Text = Annotated[str, BeforeValidator(as_text, json_schema_input_type=str | list[dict[str, Any]])]
"""A text, or the parts of one."""

Content = Annotated[str | Mixed, BeforeValidator(as_content, json_schema_input_type=str | list[dict[str, Any]])]
"""A text, or parts that may be texts, images and sounds."""


class CalledFields(PartFields):
    """The function of a call."""

    name: str = Field(description="the name of the function.")
    arguments: str | dict[str, Any] = Field("{}", description="the arguments: an object, or the JSON text of one.")

    @field_validator("arguments")
    @classmethod
    def _complete(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        return "{}" if isinstance(value, str) and not value.strip() else value


class CallFields(PartFields):
    """A call that an assistant's message has."""

    model_config = ConfigDict(extra="allow")

    type: str = Field("function", description="function, or custom: a call of a tool that takes a text.")
    function: CalledFields = Field(description="the function that was called, and its arguments.")

    @model_validator(mode="before")
    @classmethod
    def _of_custom_tools(cls, data: Any) -> Any:
        match data:
            case {"type": "custom", "custom": {"name": name, **rest}, **others} if "function" not in others:
                arguments = json.dumps({"input": rest.get("input")}, ensure_ascii=False)
                return others | {"function": {"name": name, "arguments": arguments}}
        return data


class Message(PartFields):
    """A message. The template gets any other fields of it unchanged."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    role: str
    content: Content = Field("", description="a text, or a list of parts. Null and absent are an empty text.")
    tool_calls: list[CallFields] | None = Field(None, description="the calls that the assistant made.")

    @field_validator("tool_calls")
    @classmethod
    def _any_calls(cls, calls: list[CallFields] | None) -> list[CallFields] | None:
        return calls or None  # templates take a list, even an empty one, for calls


def system_message(text: str | None) -> list[Message]:
    """Return a list with a system message, or an empty one without a text."""
    return [Message(role="system", content=text, tool_calls=None)] if text else []


def prompt_of(
    messages: list[Message],
    variables: dict[str, Any],
    template: ChatTemplate | None,
    tools: Tools | None = None,
    *,
    thinks: bool = True,
    marker: str | None = None,
) -> str:
    """Return the prompt that a template makes of a conversation and its tools.

    As in llama-server, if the last message is the assistant's, the model continues it: the prompt ends with its text.
    Such a text isn't put into thoughts that the template begins. Unless the answer `thinks`, these are closed. A marker
    takes the place of each image or sound; without one the messages may have none.
    """
    if not messages:
        raise InvalidRequestError("messages must not be empty", param="messages")
    if template is None:
        raise InvalidRequestError(
            "the server was started with --chat-template none; send a prompt to /v1/completions, or leave that out",
            param="messages",
            code="no_chat_template",
        )
    conversation = [message.model_dump(exclude_none=True) for message in messages]
    for message in conversation:
        if isinstance(mixed := message["content"], Mixed):
            message["content"] = mixed.as_text(marker) if marker else not_here(mixed.parts)
    conversation = _without_billing(conversation)
    if "developer" not in template.source:  # OpenAI's newer name for `system`
        for message in conversation:
            if message["role"] == "developer":
                message["role"] = "system"
    last = conversation[-1]
    if [message["role"] for message in conversation[-2:]] == ["assistant"] * 2:
        raise InvalidRequestError(
            "messages must not end with two messages of the assistant, since the last one is continued; join them, or "
            "put a user's message between them",
            param="messages",
        )
    reasoning = reasoning_format(template)
    continued = None
    if last["role"] == "assistant" and "tool_calls" not in last:
        continued = prefill_text(conversation.pop(), reasoning)
    described = tools.described if tools else None
    if tools or any("tool_calls" in message or message["role"] == "tool" for message in conversation):
        form = call_format(template)
        if not form.is_native:
            conversation, described = without_tools(conversation, described or []), None
        else:
            _convert_arguments(conversation, arguments_text if form.as_text else _read)
    try:
        prompt = _rendered(template, conversation, variables, described)
    except InvalidRequestError:
        if not described:
            raise
        described = simplified(described)
        prompt = _rendered(template, conversation, variables, described)
    if continued is not None:
        opening = reasoning.opening(prompt) if reasoning else ""
        return prompt.removesuffix(opening) + continued
    if not reasoning or not reasoning.opening(prompt):
        return prompt
    if not thinks:  # some templates can write prompts without thoughts
        variables = variables | {"enable_thinking": False}
        prompt = _rendered(template, conversation, variables, described)
    return prompt if variables.get("enable_thinking") is not False else reasoning.close(prompt)


def prefill_text(message: dict[str, Any], reasoning: ReasoningFormat | None) -> str:
    """Return the text of a message that is continued, with its thoughts. Its content must be a text."""
    content, thoughts = message["content"], message.get("reasoning_content")
    return reasoning.write(thoughts, content) if reasoning and isinstance(thoughts, str) and thoughts else content


_SYSTEM = ("system", "developer")
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")


def _without_billing(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation without the line with which Claude Code begins its system message.

    It isn't for the model, and changes with each request, so no prompt would begin as one before.
    """
    first, *others = conversation
    found = _BILLING.match(first["content"]) if first["role"] in _SYSTEM else None
    if not found:
        return conversation
    rest = first["content"][found.end() :]
    return [first | {"content": rest}, *others] if rest or not others else others


def _rendered(
    template: ChatTemplate,
    conversation: list[dict[str, Any]],
    variables: dict[str, Any],
    described: list[dict[str, Any]] | None,
) -> str:
    """Return the prompt. If the template refuses system messages, or all but the first, they become the user's.

    Raises `InvalidRequestError` if the template fails, or leaves the user's last text out.
    """
    try:
        prompt = template.render(conversation, variables, described)
    except InvalidRequestError as error:
        if error.code != "chat_template_failed" or not any(each["role"] in _SYSTEM for each in conversation):
            raise
        for keeps_first in (True, False):
            with suppress(InvalidRequestError):
                prompt = template.render(_with_users(conversation, keeps_first=keeps_first), variables, described)
                break
        else:
            raise
    asked = next((each["content"] for each in reversed(conversation) if each["role"] == "user"), "")
    if not _has_text(prompt, asked):
        raise InvalidRequestError(
            "the model's chat template leaves the user's last text out of the prompt; start the server with another "
            "--chat-template, or send a prompt to /v1/completions",
            param="messages",
            code="message_not_in_prompt",
        )
    return prompt


def _has_text(prompt: str, text: str) -> bool:
    """Whether a prompt has a text, or most of its words: templates trim and escape texts, and remove their own tags."""
    if text.strip() in prompt:
        return True
    prompt, text = prompt.casefold(), text.casefold()
    known, words = {*_WORD.findall(prompt)}, _WORD.findall(text)
    return text.strip() in prompt or 2 * sum(word in known for word in words) > len(words)


_WORD = re.compile(r"\w+")


def _with_users(conversation: list[dict[str, Any]], *, keeps_first: bool) -> list[dict[str, Any]]:
    """Return the conversation with system messages as the user's; messages of one role in a row are joined.

    keeps_first: whether those before all other messages stay, as one system message.
    """
    result: list[dict[str, Any]] = []
    for message in conversation:
        is_first = all(each["role"] in _SYSTEM for each in result)
        if message["role"] in _SYSTEM and not (keeps_first and is_first):
            message = message | {"role": "user"}
        if message["role"] in ("user", *_SYSTEM) and result and result[-1]["role"] == message["role"]:
            message = message | {"content": f"{result.pop()['content']}\n\n{message['content']}"}
        result.append(message)
    return result


def _convert_arguments(conversation: list[dict[str, Any]], convert: Callable[[Any], Any]) -> None:
    for message in conversation:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = convert(call["function"]["arguments"])


def _read(arguments: Any) -> Any:
    """Return the arguments of a call as an object, or as they are if their JSON is incomplete."""
    if isinstance(arguments, str):
        with suppress(ValueError):
            return json.loads(arguments or "{}")
    return arguments
