"""The template in the model file that turns a conversation into a prompt, in llama_cpp's sandboxed Jinja."""

from functools import cached_property
from typing import Any

import llama_cpp
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from srb.errors import InvalidRequestError

_OURS = {
    *("messages", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"),
    *("tools", "tool_choice", "functions", "function_call", "self"),
}


class ChatTemplate:
    """A chat template. Thread-safe. Implements `srb.engine.backend.ChatTemplate`.

    source: its text, in Jinja. bos, eos: the names of these tokens, which templates write.
    adds_bos: whether tokenizing a prompt adds BOS, so that the template's own would be the second.
    """

    def __init__(self, source: str, *, bos: str = "", eos: str = "", adds_bos: bool = False) -> None:
        self.source = source
        self._bos = bos
        self._eos = eos
        self._adds_bos = adds_bos

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """The prompt for the next message of the assistant. See `srb.engine.backend.ChatTemplate`."""
        if ours := _OURS & variables.keys():
            raise InvalidRequestError(
                f"chat_template_kwargs can't set {', '.join(sorted(ours))}", param="chat_template_kwargs"
            )
        try:
            prompt = self._formatter(messages=messages, **variables).prompt  # type: ignore[arg-type]
        except Exception as error:  # a template is a program of the model's author, and raises whatever comes
            raise InvalidRequestError(
                f"the model's chat template can't take these messages: {str(error) or type(error).__name__}",
                param="messages",
                code="chat_template_failed",
            ) from None
        return prompt.removeprefix(self._bos) if self._adds_bos else prompt

    @cached_property
    def _formatter(self) -> Jinja2ChatFormatter:
        return Jinja2ChatFormatter(self.source, eos_token=self._eos, bos_token=self._bos)


def chat_template_of(model: Any) -> ChatTemplate | None:
    """The template of a loaded model, if it has one."""
    source = llama_cpp.llama_model_chat_template(model, None)
    if not source:
        return None
    vocab = llama_cpp.llama_model_get_vocab(model)

    def name(token: int) -> str:
        return "" if token < 0 else llama_cpp.llama_vocab_get_text(vocab, token).decode(errors="replace")

    return ChatTemplate(
        source.decode(errors="replace"),
        bos=name(llama_cpp.llama_vocab_bos(vocab)),
        eos=name(llama_cpp.llama_vocab_eos(vocab)),
        adds_bos=llama_cpp.llama_vocab_get_add_bos(vocab),
    )
