"""`Facade`: what other threads may ask an engine. They needn't wait for a step."""

from collections.abc import Sequence

from srb.engine.asking.infill import resolve
from srb.engine.asking.intake import Intake
from srb.engine.asking.model import ChatTemplate, Embedder, ModelInfo, Tokenizer
from srb.engine.asking.request import CompletionRequest
from srb.engine.asking.supported import check_supported
from srb.engine.backend import Backend
from srb.engine.prompts.adapters import Adapters
from srb.engine.prompts.media import Media, MediaReader, PromptPart


class Facade:
    """What other threads may ask an engine: about its model, tokens of texts, and whether a request can ever run."""

    def __init__(self, backend: Backend, default_max_tokens: int) -> None:
        self.adapters = Adapters(backend.adapters)
        """The adapters that were loaded with the model. May be read, and given other scales, from any thread."""
        self._backend = backend
        self._intake = Intake(backend.tokenizer, backend.n_cells, backend.n_parallel if backend.block_size else 1)
        self._default_max_tokens = default_max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""
        return self._backend.tokenizer

    @property
    def n_cells(self) -> int:
        """The longest context of one request, in KV positions."""
        return self._backend.n_cells

    @property
    def fingerprint(self) -> str:
        """A hash of all that an answer depends on but its request; see `Backend.fingerprint`."""
        return self._backend.fingerprint

    @property
    def identity(self) -> str:
        """Names the model, how its cache is laid out, and its build; see `Backend.identity`."""
        return self._backend.identity

    @property
    def model_info(self) -> ModelInfo:
        """What the model's file says about the model."""
        return self._backend.model_info

    @property
    def embedder(self) -> Embedder | None:
        """Makes embeddings; None: they aren't wanted."""
        return self._backend.embedder

    @property
    def media(self) -> MediaReader | None:
        """Turns images and sounds into parts of prompts; None: the model takes neither."""
        return self._backend.media

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one."""
        return self._backend.chat_template

    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        """The tokens of a text; see `Intake.tokenize`."""
        return self._intake.tokenize(text, is_prompt=is_prompt, any_length=any_length)

    def tokenize_parts(self, parts: Sequence[PromptPart]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        """The prompt and the `media` of a request, from texts and files; see `Intake.tokenize_parts`."""
        return self._intake.tokenize_parts(parts, self.media)

    def check(self, request: CompletionRequest) -> None:
        """Raises `InvalidRequestError` if a request can never run; see `Intake.check` and `check_supported`."""
        request = resolve(request, self.tokenizer.special, self._backend)
        self._intake.check(request)
        check_supported(request, self._backend, self._default_max_tokens)
        for params in request.branches:
            self.adapters.lora(params.lora)
