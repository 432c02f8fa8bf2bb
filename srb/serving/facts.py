"""`Facts`: what a server must know of the model of its engine, wherever the engine is."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from srb.engine.asking.model import ChatTemplate, Embedder, ModelInfo, Tokenizer
from srb.engine.asking.request import CompletionRequest
from srb.engine.prompts.adapters import Adapters
from srb.engine.prompts.media import Media, PromptPart, no_media


class Facts(ABC):
    """Facts about the model. Before it is loaded, all of these raise `UnavailableError`."""

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary; it may be used from any thread."""

    @property
    def fingerprint(self) -> str:
        """See `Backend.fingerprint`. Empty also before the model is loaded, and with replicas."""
        return ""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Names everything that a token's probabilities depend on but the text before it. See `Backend.identity`."""

    @property
    @abstractmethod
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one. May be used from any thread."""

    @property
    @abstractmethod
    def model_info(self) -> ModelInfo:
        """What the model's file says about the model. Reading this may take some tenths of a second."""

    @property
    @abstractmethod
    def embedder(self) -> Embedder | None:
        """Makes embeddings; None if the settings don't ask for them."""

    @property
    @abstractmethod
    def n_cells(self) -> int:
        """The longest context of one request, in KV positions: its prompt and the text of one alternative."""

    @abstractmethod
    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        """The tokens of a text; see `Intake.tokenize`. May be called from any thread: long texts take seconds."""

    @property
    def media_kinds(self) -> Collection[str]:
        """The kinds of files that the model takes beside text: image, audio."""
        return ()

    def tokenize_parts(self, parts: Sequence[PromptPart]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        """The tokens and the `media` of a prompt; see `Engine.tokenize_parts`. May be called from any thread."""
        raise no_media()

    @abstractmethod
    def check(self, request: CompletionRequest) -> None:
        """Raises `InvalidRequestError` if a request can never run; see `Intake.check`."""

    @property
    @abstractmethod
    def adapters(self) -> Adapters:
        """The adapters that were loaded with the model. Raises `NotSupportedError` if several engines run."""
