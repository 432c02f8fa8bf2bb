"""The server's settings that body parsers need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The settings that bodies are parsed with.

    Attributes:
        model: The name of the model.
        n: The number of alternatives if a request doesn't say.
        max_n: The most alternatives that a request may have.
        show_prompts: Whether `GET /v1/requests` shows prompts.
        model_path: The model's file.
        slots: Whether `GET /slots` answers.
        saved_slots: How many slots can be saved. 0 without `--slot-save-path`.
        max_tokens: The value of `--max-tokens`. None if it isn't set; chats then have another default.
        openai: Whether requests that don't name a format get OpenAI's instead of native events.
        linger: How long a native stream goes on without readers, in seconds.
        context_shift: The default of the field.
        n_keep: The default of the field.
        ahead: How many alternatives are prefetched if a request doesn't say.
        n_vocab: How many tokens the loaded model has. None: not known.
        sampling: Defaults of fields of `SamplingParams`, by name.
    """

    model: str
    n: int
    max_n: int
    show_prompts: bool = False
    model_path: str = ""
    slots: bool = True
    saved_slots: int = 0
    max_tokens: int | None = None
    openai: bool = False
    linger: float = 0
    context_shift: bool = False
    n_keep: int = 0
    ahead: int = 0
    n_vocab: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
