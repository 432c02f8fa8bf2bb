"""What is known about a model, and the protocols of what it does with texts: tokenizer, template, embedder, drafter."""

from array import array
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids of special tokens; None if the model has no such token.

    Attributes:
        bos, eos: the beginning and the end of a text.
        fim_pre, fim_suf, fim_mid: come before the prefix, the suffix and the middle in fill-in-the-middle.
        fim_rep, fim_sep: come before the name of a repository and of a file.
    """

    bos: int | None = None
    eos: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None

    def gap(self, prefix: Iterable[int], suffix: Iterable[int]) -> tuple[int, ...] | None:
        """Return the prompt after which a model fills the gap between two texts. None: it has no tokens for this.

        The layout is that of Qwen2.5-Coder (Hui et al., arXiv 2409.12186): prefix, suffix, middle.
        """
        if self.fim_pre is None or self.fim_suf is None or self.fim_mid is None:
            return None
        return self.fim_pre, *prefix, self.fim_suf, *suffix, self.fim_mid


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model's file says about the model.

    Attributes:
        n_bytes: the size of the file, or of all of its files.
        n_params: the number of weights.
        n_trained: the longest text that the model was trained for, in tokens.
        chat_template: the file's own, in Jinja.
        special_tokens: the id and the text of each, by its name: bos, eos and so on.
        metadata: all keys of the file, with numbers, texts and lists.
        digest: 64 hex digits that name the model: a hash of its size and of samples of it.
        n_bytes_gpu: how many of `n_bytes` are on a GPU, estimated by the number of its layers.
    """

    name: str
    architecture: str
    n_bytes: int
    n_params: int
    n_trained: int | None
    n_vocab: int
    chat_template: str | None
    special_tokens: Mapping[str, tuple[int, str]]
    metadata: Mapping[str, Any] = field(repr=False)
    digest: str = "0" * 64
    n_bytes_gpu: int = 0


class Tokenizer(Protocol):
    """Turns text into tokens and back. May be used from any thread."""

    @property
    def n_vocab(self) -> int:
        """The number of tokens; ids go from 0 to n_vocab - 1."""

    @property
    def longest_piece(self) -> int:
        """The length in bytes of the longest text that one token stands for."""

    @property
    def special(self) -> SpecialTokens:
        """The ids of the special tokens."""

    def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        """Return the tokens of a text. A prompt gets BOS if the model wants it.

        parse_special: whether the names of special tokens in the text become these tokens.
        """

    def detokenize(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of tokens, with the names of special tokens. They aren't always valid UTF-8."""

    def piece(self, token: int) -> bytes:
        """Return the bytes that a generated token adds to the text, maybe invalid UTF-8. A control token adds none."""

    def special_piece(self, token: int) -> bytes:
        """Return the bytes of a token in a prompt: its name for a control token, nothing for an added BOS."""

    def beginning_with(self, text: bytes) -> Collection[int]:
        """Return the tokens whose `piece` begins with these bytes, in the order of their ids."""

    def is_end(self, token: int) -> bool:
        """Return whether the token ends the generation."""


class Tokenize(Protocol):
    """Turns a text into token ids."""

    def __call__(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        """Tokenizes a text. Special tokens in it are parsed.

        Args:
            text: what to tokenize.
            is_prompt: whether the model's BOS token is added, if it wants one.
            any_length: whether the text may be longer than the context.

        Raises:
            InvalidRequestError: The text is empty, isn't valid Unicode, or can't fit the context.
        """


class ChatTemplate(Protocol):
    """Writes a conversation as a prompt, usually by the model's own template. May be used from any thread."""

    @property
    def source(self) -> str:
        """The template's text, in Jinja."""

    @property
    def stop(self) -> tuple[str, ...]:
        """The strings that end the assistant's message, if the template ends it with a text and not with a token."""

    def render(
        self,
        messages: list[dict[str, Any]],
        variables: dict[str, Any],
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """Return the prompt for the assistant's next message, without the BOS that tokenizing it adds.

        Args:
            messages: each with its `role` and `content`, and anything else that the template may use.
            variables: other values for the template, by their names.
            tools: the functions that the model may call, in OpenAI's notation.

        Raises:
            InvalidRequestError: the template fails, or refuses the messages.
        """


class Embedder(Protocol):
    """Turns texts into vectors, or into scores. May be used from any thread."""

    @property
    def max_tokens(self) -> int:
        """The most tokens of a text."""

    @property
    def pools(self) -> bool:
        """Whether a text gets one vector, rather than one for each of its tokens."""

    @property
    def rank_template(self) -> str | None:
        """The format of a text to score, with {query} and {document} in it; None: the model makes embeddings.

        With a template, vectors consist of scores, and their first number is the one to rank by.
        """

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """Return the vectors of 1 to `max_tokens` tokens, not normalized. Raises `BackendError`, `UnavailableError`."""


class Drafter(Protocol):
    """A draft model: proposes tokens for speculative decoding. It belongs to the thread of the backend.

    It caches some texts that it has evaluated, and continues from the one with the longest common prefix. So it needn't
    know that a text was cancelled, or has gone back.
    """

    @property
    def n_texts(self) -> int:
        """The number of texts that it can continue at once."""

    @property
    def n_cells(self) -> int:
        """The most tokens of a text."""

    @property
    def reading(self) -> float:
        """The time to evaluate a token, as a fraction of a step of the large model with one row."""

    def making(self, n_texts: int) -> float:
        """Return the time to draft a token for each of `n_texts`, as a fraction of a step with their rows."""

    def known(self, owner: Hashable, text: "array[int]") -> int:
        """Return how many of a text's first tokens are already evaluated for this owner."""

    def draft(self, owner: Hashable, texts: Sequence["array[int]"], n: int, least_likely: float) -> list[list[int]]:
        """Return up to `n` draft tokens for each of up to `n_texts` texts. Raises `BackendError`.

        Args:
            owner: only texts with the same owner share what is evaluated.
            n: 0: only evaluate the texts.
            least_likely: the lowest probability of a text's draft tokens together; drafting stops before it gets lower.
        """


Ranked = tuple[int, float]
"""A token and its log-probability."""


class Ranker(Protocol):
    """Ranks the tokens that a search may continue with. It keeps no state between calls."""

    def rank(self, logits: Any, top: int, *, may_end: bool) -> list[Ranked]:
        """Return the most probable tokens, the most probable first. Tokens without a probability are left out.

        Args:
            top: how many tokens must be ones that don't end the text, if there are that many.
            may_end: whether tokens that end the text have a probability.
        """
