"""`Limits`: what body parsers need of the server, its model, and what is stored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from srb.engine.model import ChatTemplate, Tokenize
from srb.engine.model_facts import ModelFacts
from srb.errors import InvalidRequestError, NotSupportedError
from srb.wire.request.media import Take, not_here

TextsOf = Callable[[tuple[str, ...]], Mapping[str, list[str]]]
"""Returns the texts of the alternatives of each request, by id. Raises `InvalidRequestError` if one isn't stored."""

PathTo = Callable[[str, int | None, bool], list[int | str]]
"""Returns the prompt that continues a node of a story. The last argument: false to check the node only."""


def tokenize_nothing(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
    """Return one token, to check a body before the model is loaded."""
    return (0,)


def nothing_stored(request_ids: tuple[str, ...]) -> Mapping[str, list[str]]:
    """The `TextsOf` for places that store no requests. Always raises `InvalidRequestError`."""
    raise InvalidRequestError(f"avoid: there is no request {request_ids[0]:.100} here; send its texts", param="avoid")


def no_stories(_story: str, _node: int | None, _is_needed: bool) -> list[int | str]:
    """The `PathTo` for servers without stories. Always raises `NotSupportedError`."""
    raise NotSupportedError("this server keeps no stories; start it with --history FILE", param="story")


@dataclass(frozen=True)
class Limits:
    """What bodies are parsed with.

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
        tokenize, template: The loaded model's.
        take: Turns a prompt of texts, images and sounds into tokens and media.
        path_to, texts_of: Resolve what a body names: a node of a story, and the texts of other requests.
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
    tokenize: Tokenize = tokenize_nothing
    template: ChatTemplate | None = None
    take: Take = not_here
    path_to: PathTo = no_stories
    texts_of: TextsOf = nothing_stored

    def of_model(self, model: ModelFacts) -> "Limits":
        """The same with the facts of a loaded model."""
        n_vocab = model.tokenizer.n_vocab
        return replace(self, n_vocab=n_vocab, tokenize=model.tokenize, template=model.chat_template)
