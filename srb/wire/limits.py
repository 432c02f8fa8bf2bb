"""The settings of a server that matter when bodies are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """The settings that bodies are read with.

    n: how many alternatives a request gets that doesn't say. max_n: how many alternatives a request may have.
    model, model_path: the model's name and its file. slots: whether `GET /slots` answers.
    saved_slots: how many slots can be saved; 0: none, because there is no `--slot-save-path`.
    max_tokens: the value of `--max-tokens`. None: it isn't set, and chats have another default.
    openai: whether a request that doesn't name a format gets OpenAI's instead of native events.
    linger: seconds that a native stream goes on without readers.
    context_shift, n_keep: the values for requests that don't send them.
    ahead: how many alternatives are drawn ahead for requests that don't say.
    sampling: by name, the values of fields of `SamplingParams` for requests that don't send them.
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
    sampling: Mapping[str, Any] = field(default_factory=dict)
