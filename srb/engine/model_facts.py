"""`ModelFacts`: what is known of a loaded model. All of it may be used from any thread."""

from collections import abc
from dataclasses import dataclass
from functools import cached_property

from srb.engine.backend import Backend
from srb.engine.limits import RequestLimits
from srb.engine.media import Media, MediaReader, PromptPart
from srb.engine.model import ChatTemplate, Embedder, ModelInfo, Tokenize, Tokenizer


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a loaded model.

    Attributes:
        tokenizer: the model's vocabulary.
        n_cells: the longest context of a request, in KV positions: its prompt and the text of one alternative.
        read_info: reads what the model's file says about the model. This may take some tenths of a second.
        identity: names everything that a token's probabilities depend on, except for the text before it. With
            replicas that differ, it has the identities of all.
        fingerprint: a hash of everything that an answer depends on, except for its request. Empty with replicas.
        chat_template: the model's chat template, if it has one.
        embedder: makes embeddings. None unless the settings ask for them.
        media: turns images and sounds into parts of prompts. None if the model takes neither.
        n_texts: the number of alternatives that the context is divided among. 1: it isn't divided.
        cpu_variant: the kernels that compute on the processor, as `Backend.cpu_variant`. Empty with replicas.
    """

    tokenizer: Tokenizer
    n_cells: int
    read_info: abc.Callable[[], ModelInfo]
    identity: str
    fingerprint: str = ""
    chat_template: ChatTemplate | None = None
    embedder: Embedder | None = None
    media: MediaReader | None = None
    n_texts: int = 1
    cpu_variant: str = ""

    @classmethod
    def of(cls, backend: Backend) -> "ModelFacts":
        """Gathers the facts that a backend has."""
        return cls(
            backend.tokenizer,
            backend.n_cells,
            lambda: backend.model_info,
            backend.identity,
            backend.fingerprint,
            backend.chat_template,
            backend.embedder,
            backend.media,
            backend.n_parallel if backend.block_size else 1,
            backend.cpu_variant,
        )

    @cached_property
    def limits(self) -> RequestLimits:
        """The texts and requests that this model can take."""
        return RequestLimits(self.tokenizer, self.n_cells, self.n_texts)

    @property
    def info(self) -> ModelInfo:
        """What the model's file says about the model. Reading this may take some tenths of a second."""
        return self.read_info()

    @property
    def media_kinds(self) -> abc.Collection[str]:
        """The kinds of files that the model takes besides text: image, audio."""
        return self.media.kinds if self.media else ()

    @property
    def tokenize(self) -> Tokenize:
        """Turns a text into token ids (`Tokenize`)."""
        return self.limits.tokenize

    def tokenize_parts(self, parts: abc.Sequence[PromptPart]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        """Makes a prompt of texts and files.

        Returns:
            The tokens of the prompt, and the `media` that its placeholders stand for.

        Raises:
            InvalidRequestError: A file can't be read, the model takes no such files, or they don't fit the context.
        """
        return self.limits.tokenize_parts(parts, self.media)
