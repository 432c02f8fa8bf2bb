"""What a server's settings say about requests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What bodies are read with.

    model, model_path: its name and its file. slots: whether `GET /slots` answers.
    saved_slots: how many slots can be saved; 0: none, there is no `--slot-save-path`.
    max_tokens: what `--max-tokens` was set to, if it was. If not, an answer in a chat has all the room there is.
    openai: whether a request that leaves out what it wants gets OpenAI's format, and not native events.
    linger: seconds that a native stream without readers goes on.
    context_shift, n_keep, cache_reuse: of requests that don't say.
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
    cache_reuse: int = 0
