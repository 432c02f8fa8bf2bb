"""What is known about a model, and what it does with texts alone. All of it may be used from any thread."""

from array import array
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids of the tokens that have a meaning of their own; None where the model has no such token.

    bos, eos: the beginning and the end of a text.
    fim_pre, fim_suf, fim_mid: stand before the prefix, the suffix and the middle in fill-in-the-middle.
    fim_rep, fim_sep: stand before the name of a repository and of a file.
    """

    bos: int | None = None
    eos: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None

    def gap(self, prefix: Iterable[int], suffix: Iterable[int]) -> tuple[int, ...] | None:
        """The prompt after which a model fills the gap between two texts. None if it has no tokens for this.

        The layout is that of Qwen2.5-Coder (Hui et al., arXiv 2409.12186): prefix, suffix, middle.
        """
        if self.fim_pre is None or self.fim_suf is None or self.fim_mid is None:
            return None
        return self.fim_pre, *prefix, self.fim_suf, *suffix, self.fim_mid


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model's file says about the model.

    n_bytes: the size of the file, or of all of its files. n_params: how many weights the model has. n_trained: the
    length of the longest text that it was trained for, in tokens. chat_template: the file's own, in Jinja.
    special_tokens: the id and the text of each, by its name: bos, eos and so on. metadata: all keys of the file, with
    numbers, texts and lists.
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


class Tokenizer(Protocol):
    """Text to tokens and back. May be used from any thread."""

    @property
    def n_vocab(self) -> int:
        """The number of tokens; ids go from 0 to n_vocab - 1."""

    @property
    def longest_piece(self) -> int:
        """The length in bytes of the longest text that one token stands for."""

    @property
    def special(self) -> SpecialTokens: ...

    def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        """The tokens of a text. A prompt gets BOS where the model wants it.

        parse_special: whether the names of special tokens in the text become these tokens.
        """

    def detokenize(self, tokens: Iterable[int]) -> bytes:
        """The bytes that tokens stand for, with the names of special tokens. They aren't always valid UTF-8."""

    def piece(self, token: int) -> bytes:
        """The bytes that a generated token adds to the text, not always valid UTF-8. A control token adds none."""

    def special_piece(self, token: int) -> bytes:
        """The bytes that a token stands for in a prompt: for a control token its name, for an added BOS nothing."""

    def beginning_with(self, text: bytes) -> Collection[int]:
        """The tokens whose `piece` begins with these bytes, in the order of their ids."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends the generation."""


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
    """The way to write a conversation, most often the model's own. May be used from any thread."""

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
        """The prompt for the assistant's next message, without the BOS that tokenizing it adds.

        messages: each with its `role` and `content`, and whatever else the template may use.
        variables: other values for the template, by their names.
        tools: what the model may call, in OpenAI's notation.
        Raises `InvalidRequestError` if the template fails, or refuses the messages.
        """


class Embedder(Protocol):
    """Turns texts into vectors, or into scores. May be used from any thread."""

    @property
    def max_tokens(self) -> int:
        """How many tokens one text may have."""

    @property
    def pools(self) -> bool:
        """Whether a text gets one vector, and not one for each of its tokens."""

    @property
    def rank_template(self) -> str | None:
        """How a text to score is written, with {query} and {document} in it; None: the model makes embeddings.

        With a template, a vector consists of scores, and its first number is the one to rank by.
        """

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """The vectors of 1 to `max_tokens` tokens, not normalized. Raises `BackendError` and `UnavailableError`."""


class Drafter(Protocol):
    """A small model that says how texts go on. It belongs to the thread of the backend.

    It remembers some texts that it has read, and goes on with the one that begins like the next text for the longest.
    So nobody tells it that a text was cancelled, or has gone back.
    """

    @property
    def n_texts(self) -> int:
        """With how many texts it can go on at once."""

    @property
    def n_cells(self) -> int:
        """How many tokens a text can have."""

    @property
    def reading(self) -> float:
        """How long it takes to read a token, as a part of the time of a step with one row of the large model."""

    def making(self, n_texts: int) -> float:
        """How long it takes to guess a token of so many texts each, as a part of the time of a step with their rows."""

    def known(self, owner: Hashable, text: "array[int]") -> int:
        """How many first tokens of a text it has read for this owner."""

    def draft(self, owner: Hashable, texts: Sequence["array[int]"], n: int, least_likely: float) -> list[list[int]]:
        """The up to `n` tokens that it thinks likeliest behind each of up to `n_texts` texts. Raises `BackendError`.

        owner: only texts with the same owner may begin with what was read of each other.
        n: 0: it only reads the texts.
        least_likely: the probability that the tokens of a text must have together; it stops before they have less.
        """


Ranked = tuple[int, float]
"""A token and its log-probability."""


class Ranker(Protocol):
    """Ranks the tokens that a search may go on with. It remembers nothing between calls."""

    def rank(self, logits: Any, top: int, *, may_end: bool) -> list[Ranked]:
        """The most probable tokens, the most probable first. Tokens without a probability are left out.

        top: how many of the tokens must be ones that don't end the text, if there are so many.
        may_end: whether tokens that end the text have a probability.
        """
